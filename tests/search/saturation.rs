//! The rules of every pass close on their own: whatever the program, its e-graph comes to an end before any limit, and stays within a
//! multiple of the program.

use crate::saturated::{compositions, corpus, grown, legalized, model, rule_passes};

#[test]
fn passes_saturate_on_every_model() {
    let passes = rule_passes();
    let mut faults = Vec::new();
    for dir in corpus() {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let modules = match model(&dir) {
            Ok(modules) => modules,
            Err(why) => {
                faults.push(format!("{name}: {why}"));
                continue;
            }
        };
        for (module, constants) in modules.iter().zip(["parameters", "constants"]) {
            let plain = legalized(module);
            for (pass_name, pass) in &passes {
                match grown(pass.as_ref(), module) {
                    Err(why) => faults.push(format!("{name}, {constants}: {pass_name}: {why}")),
                    Ok(regions) => {
                        let wrong = regions.iter().filter_map(|g| g.fault(plain));
                        faults.extend(wrong.map(|why| format!("{name}, {constants}: {pass_name}: {why}")));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn passes_saturate_on_programs_of_two_and_three_operators() {
    let mut faults = Vec::new();
    for constants in [false, true] {
        let module = compositions(constants);
        let names: Vec<String> = module.functions().map(|(name, _)| name.to_string()).collect();
        assert!(names.len() > 500, "{} programs", names.len());
        for (pass_name, pass) in &rule_passes() {
            match grown(pass.as_ref(), &module) {
                // What a pass refuses of one function it refuses of all.
                Err(why) => faults.push(format!("{pass_name}: {why}")),
                Ok(regions) => {
                    for (i, g) in regions.iter().enumerate() {
                        // Regions are opened from the last function to the first.
                        let name = names.iter().rev().nth(i % names.len()).map_or("", String::as_str);
                        faults
                            .extend(g.fault(0).map(|why| format!("{name}, constants {constants}: {pass_name}: {why}")));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
