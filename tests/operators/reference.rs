//! The reference of the rule language is what the tables say.

use std::{fs, path::Path};

use resat::rules::{functions, guards, reference};

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rules.md");
    let written = fs::read_to_string(path).expect("docs/rules.md is there");
    assert!(written == reference::markdown(), "docs/rules.md is stale: resat rules doc > docs/rules.md");
}

#[test]
fn every_guard_and_function_has_an_entry() {
    let names = reference::names();
    for name in guards::all().iter().map(|g| g.name).chain(functions::all().iter().map(|f| f.name)) {
        let entry = reference::entry(name).expect("an entry");
        assert!(names.contains(&name) && entry.starts_with(&format!("`({name}")), "{entry}");
    }
    assert_eq!(reference::entry("nothing-of-that-name"), None);
}
