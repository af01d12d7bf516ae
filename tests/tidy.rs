//! The house rules that a program can check over the source tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Who may use whom, among the parts (the folders of `src` and of the crates' sources), lowest first: a part may use what stands above it in this table, and nothing
/// else. Tests at the foot of files may use everything.
const PARTS: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("ir", &["tensor"]),
    ("diag", &["ir"]),
    ("cancel", &["diag"]),
    ("report", &[]),
    ("loops", &["tensor"]),
    ("machine", &["tensor"]),
    ("target", &["tensor", "diag", "machine"]),
    ("op", &["tensor", "ir", "diag", "loops"]),
    ("ops", &["tensor", "ir", "diag", "loops"]),
    ("infer", &["tensor", "ir", "diag", "ops"]),
    ("relay", &["tensor", "ir", "diag", "ops"]),
    ("interp", &["tensor", "ir", "diag", "ops", "infer"]),
    ("output", &[]),
    // What runs knows kernels by name and type only; a codegen implements its trait for code.
    ("runtime", &["tensor", "ir", "loops", "output"]),
    // Weights in files of their own are mapped.
    ("frontend", &["tensor", "ir", "diag", "ops", "relay", "runtime"]),
    // Programs are exported with the kernels that they call.
    ("vm", &["tensor", "ir", "diag", "infer", "runtime"]),
    ("store", &["runtime"]),
    ("codegen", &["cancel", "output", "tensor", "loops", "machine", "runtime", "store"]),
    ("egraph", &["tensor", "ir", "ops", "infer"]),
    ("cost", &["tensor", "ir", "diag", "ops", "target"]),
    ("extract", &["tensor", "ir", "diag", "egraph", "cost", "target"]),
    ("saturate", &["cancel", "tensor", "ir", "egraph", "cost", "extract", "infer", "target"]),
    ("rules", &["tensor", "ir", "diag", "ops", "infer", "egraph", "saturate"]),
    ("dialect", &["ir", "diag", "ops", "rules", "saturate"]),
    ("lower", &["cancel", "tensor", "ir", "diag", "infer", "loops", "machine", "runtime"]),
    (
        "partition",
        &[
            "target", "tensor", "ir", "diag", "ops", "infer", "relay", "loops", "runtime", "codegen", "rules", "lower",
            "machine",
        ],
    ),
    (
        "pass",
        &[
            "tensor",
            "ir",
            "diag",
            "ops",
            "infer",
            "interp",
            "target",
            "cost",
            "extract",
            "saturate",
            "rules",
            "dialect",
            "partition",
            "relay",
            "egraph",
        ],
    ),
    (
        "driver",
        &[
            "cancel",
            "output",
            "tensor",
            "ir",
            "diag",
            "ops",
            "infer",
            "interp",
            "relay",
            "frontend",
            "loops",
            "lower",
            "machine",
            "runtime",
            "vm",
            "codegen",
            "target",
            "egraph",
            "cost",
            "saturate",
            "dialect",
            "partition",
            "pass",
            "store",
        ],
    ),
    (
        "prelude",
        &[
            "cost", "diag", "driver", "extract", "frontend", "infer", "ir", "pass", "relay", "rules", "saturate",
            "target", "tensor",
        ],
    ),
    (
        "explore",
        &[
            "cancel", "tensor", "ir", "diag", "report", "infer", "loops", "runtime", "extract", "saturate", "pass",
            "driver",
        ],
    ),
    (
        "cli",
        &[
            "output", "explore", "frontend", "tensor", "ir", "diag", "infer", "relay", "interp", "runtime", "target",
            "cost", "extract", "saturate", "rules", "pass", "driver", "report", "store", "machine",
        ],
    ),
];

/// What the table does not allow and is so all the same: user, used, and why.
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("partition", "pass", "compilers inline and fuse the regions that they are given, as the default pipeline does")];

/// No file is longer.
const LINES: usize = 800;

/// The parts that may contain `unsafe`: where machine code is made and where it is called.
const UNSAFE: [&str; 3] = ["codegen", "machine", "runtime"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files under a folder that end so, sorted.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The path as seen from the repository.
fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The file of the Python package in which memory is Python's: the only one there with `unsafe`.
const PYTHON_MEMORY: &str = "python/src/tensor.rs";

/// All Rust sources of the product.
fn sources() -> Vec<PathBuf> {
    let build_script = |p: &PathBuf| p.file_name().is_some_and(|n| n == "build.rs") && part(p).is_none();
    [files("src", &["rs"]), files("crates", &["rs"])].concat().into_iter().filter(|p| !build_script(p)).collect()
}

/// The part of `src` that a file belongs to; none for the crate's roots.
fn part(path: &Path) -> Option<String> {
    let crates = path.strip_prefix(root().join("crates")).ok().and_then(|p| {
        let mut inside = p.components();
        inside.next()?;
        inside.as_path().strip_prefix("src").ok()
    });
    let inside = crates.or_else(|| path.strip_prefix(root().join("src")).ok())?;
    let first = inside.components().next()?.as_os_str().to_string_lossy().into_owned();
    match first.as_str() {
        "lib.rs" | "main.rs" => None,
        _ => Some(first.trim_end_matches(".rs").to_owned()),
    }
}

/// A Rust text with comments, strings and characters blanked out, lines kept.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let blank = |out: &mut String, skipped: &str| {
        out.extend(skipped.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
    };
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word_before = out.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let raw = !word_before && ["r\"", "r#", "br\"", "br#"].iter().any(|p| rest.starts_with(p));
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |n| n + 2)
        } else if let Some((hashes, open)) = raw.then(|| raw_string(rest)).flatten() {
            let close = format!("\"{}", "#".repeat(hashes));
            rest[open..].find(&close).map_or(rest.len(), |n| open + n + close.len())
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' {
            // A character, and not a lifetime.
            let mut inside = rest[1..].chars();
            match (inside.next(), inside.next()) {
                (Some('\\'), _) => quoted(rest, '\''),
                (Some(c), Some('\'')) => 2 + c.len_utf8(),
                _ => 0,
            }
        } else {
            0
        };
        if len == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            blank(&mut out, &rest[..len]);
            rest = &rest[len..];
        }
    }
    out
}

/// How many hashes a raw string has, and where its text begins; none for a raw name.
fn raw_string(text: &str) -> Option<(usize, usize)> {
    let after = text.find('r')? + 1;
    let hashes = text[after..].chars().take_while(|&c| c == '#').count();
    text[after + hashes..].starts_with('"').then_some((hashes, after + hashes + 1))
}

/// The length of what stands in quotes at the start of a text.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return i + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Code without the tests at its foot.
fn product(path: &Path) -> String {
    if path.file_stem().is_some_and(|s| s == "tests") {
        return String::new();
    }
    let code = code(&read(path));
    code.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned()
}

/// The parts of the crate that code names after `crate::`, in groups as well.
fn uses(code: &str) -> BTreeSet<String> {
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        if !rest.starts_with('{') {
            found.insert(word(rest));
            continue;
        }
        let (mut depth, mut starts) = (0, true);
        for (i, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => starts = true,
                c if depth == 1 && starts && c.is_alphabetic() => {
                    found.insert(word(&rest[i..]));
                    starts = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

/// Fails with all complaints, a line each.
fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn parts_use_what_is_below_them() {
    let mut complaints = Vec::new();
    for (i, (user, allowed)) in PARTS.iter().enumerate() {
        for used in *allowed {
            if !PARTS[..i].iter().any(|(below, _)| below == used) {
                complaints.push(format!("the table lets `{user}` use `{used}`, which does not stand above it"));
            }
        }
    }
    let mut seen: BTreeMap<(String, String), String> = BTreeMap::new();
    for path in sources() {
        let Some(user) = part(&path) else { continue };
        for used in uses(&product(&path)) {
            if used != user {
                seen.entry((user.clone(), used)).or_insert_with(|| short(&path));
            }
        }
        if !PARTS.iter().any(|(name, _)| *name == user) {
            complaints.push(format!("{}: `{user}` is not in the table", short(&path)));
        }
    }
    for ((user, used), file) in &seen {
        let allowed = PARTS.iter().any(|(name, allowed)| name == user && allowed.contains(&used.as_str()));
        let excepted = EXCEPTIONS.iter().any(|(a, b, _)| a == user && b == used);
        if !allowed && !excepted {
            complaints.push(format!("{file}: `{user}` may not use `{used}`"));
        }
    }
    // The table says what is, and not what once was.
    let listed = PARTS.iter().flat_map(|(user, allowed)| allowed.iter().map(|used| (*user, *used)));
    for (user, used) in listed.chain(EXCEPTIONS.iter().map(|(a, b, _)| (*a, *b))) {
        if !seen.contains_key(&(user.to_owned(), used.to_owned())) {
            complaints.push(format!("the table lets `{user}` use `{used}`, which it does not: strike it"));
        }
    }
    none(complaints);
}

#[test]
fn files_are_short_and_say_what_they_are() {
    let mut complaints = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples", "python/src"] {
        for path in files(folder, &["rs"]) {
            let text = read(&path);
            if text.lines().count() > LINES {
                complaints.push(format!(
                    "{}: {} lines, where {LINES} are the limit",
                    short(&path),
                    text.lines().count()
                ));
            }
            if !text.starts_with("//!") {
                complaints.push(format!("{}: does not begin with a `//!` comment", short(&path)));
            }
        }
    }
    for path in files("rules", &["rules"]) {
        if !read(&path).starts_with(";") {
            complaints.push(format!("{}: does not begin with a comment", short(&path)));
        }
    }
    none(complaints);
}

#[test]
fn nothing_is_left_undone() {
    let mut complaints = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples", "python/src"] {
        for path in files(folder, &["rs"]) {
            for (i, line) in code(&read(&path)).lines().enumerate() {
                for left in ["todo!", "unimplemented!", "dbg!"] {
                    if line.contains(left) {
                        complaints.push(format!("{}:{}: `{left}`", short(&path), i + 1));
                    }
                }
            }
        }
    }
    none(complaints);
}

/// Whether a type is a `Result` whose error is a text, or has one in it.
fn fails_with_text(ty: &str) -> bool {
    ty.match_indices("Result<").any(|(at, open)| {
        let (mut depth, mut last, mut before) = (1, String::new(), ' ');
        for c in ty[at + open.len()..].chars() {
            match c {
                '<' | '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                '>' if before != '-' => depth -= 1,
                _ => {}
            }
            match (depth, c) {
                (0, _) => break,
                (1, ',') => last.clear(),
                _ => last.push(c),
            }
            before = c;
        }
        let last = last.trim().trim_end_matches(',');
        last == "String" || (last.starts_with('&') && last.ends_with("str")) || last == "Box<str>"
    })
}

/// The results of functions that anybody may call: of `pub fn`, and of the methods of public traits.
fn public_results(code: &str) -> Vec<(usize, &str)> {
    let traits: Vec<std::ops::Range<usize>> = ["pub trait ", "pub unsafe trait "]
        .iter()
        .flat_map(|start| code.match_indices(start))
        .filter_map(|(at, _)| {
            let body = at + code[at..].find('{')?;
            let mut depth = 0;
            let end = code[body..].char_indices().find_map(|(i, c)| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                (depth == 0).then_some(body + i)
            })?;
            Some(body..end)
        })
        .collect();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let line = code[..at].rfind('\n').map_or(0, |n| n + 1);
        let head = code[line..at].trim_start();
        let item = head.is_empty()
            || head.split_whitespace().all(|w| matches!(w, "pub" | "const" | "unsafe" | "async" | "extern"));
        let public = head.starts_with("pub ") || traits.iter().any(|t| t.contains(&at));
        if !item || !public {
            continue;
        }
        let signature = &code[at..at + code[at..].find(['{', ';']).unwrap_or(code.len() - at)];
        // Arrows of closures stand before the parameters' end.
        let (mut depth, mut result) = (0, None);
        let bytes = signature.as_bytes();
        for (i, b) in bytes.iter().enumerate() {
            match b {
                b'(' => depth += 1,
                b')' => depth -= 1,
                b'-' if depth == 0 && bytes.get(i + 1) == Some(&b'>') => result = result.or(Some(i + 2)),
                _ => {}
            }
        }
        if let Some(from) = result {
            found.push((code[..at].matches('\n').count() + 1, &signature[from..]));
        }
    }
    found
}

#[test]
fn errors_are_types_and_not_texts() {
    let sample = "pub trait T {
            fn f(
                &self,
            ) -> Option<Result<Vec<u8>, String>>;
        }
        pub fn g(f: impl Fn() -> Result<u8, String>) -> Result<u8, E> {}
        fn h() -> Result<(), String> {}
        pub const fn i() -> Result<(), &'static str> {}
";
    let of_sample: Vec<usize> =
        public_results(sample).into_iter().filter(|(_, ty)| fails_with_text(ty)).map(|(line, _)| line).collect();
    assert_eq!(of_sample, [2, 8]);
    let mut complaints = Vec::new();
    for path in sources() {
        for (line, ty) in public_results(&product(&path)) {
            if fails_with_text(ty) {
                let ty = ty.split_whitespace().collect::<Vec<_>>().join(" ");
                complaints.push(format!("{}:{line}: a public function fails with a text: `{ty}`", short(&path)));
            }
        }
    }
    none(complaints);
}

#[test]
fn unsafe_code_stays_where_machine_code_is() {
    let mut complaints = Vec::new();
    for path in [sources(), files("python/src", &["rs"])].concat() {
        let text = read(&path);
        let allowed = part(&path).is_some_and(|p| UNSAFE.contains(&p.as_str())) || short(&path) == PYTHON_MEMORY;
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in code(&text).lines().enumerate() {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            if words.clone().all(|w| w != "unsafe") {
                continue;
            }
            if !allowed {
                complaints.push(format!("{}:{}: `unsafe`", short(&path), i + 1));
            }
            // A type of function pointers asserts nothing.
            let asserts = line.contains("unsafe {") || line.contains("unsafe impl");
            let reason = lines[..=i].iter().rev().take(8).any(|l| l.contains("SAFETY"));
            if asserts && !reason {
                complaints.push(format!("{}:{}: `unsafe` without its reason, `// SAFETY: …`", short(&path), i + 1));
            }
        }
    }
    none(complaints);
}

#[test]
fn the_project_speaks_of_itself_alone() {
    // Paths of some machine, and where work was talked about. Written in halves, for this file is searched as well.
    let foreign = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/Us", "ers/"),
        concat!("/tm", "p/"),
        concat!("iss", "ue #"),
        concat!("iss", "ue tracker"),
        concat!("th", "is session"),
        concat!("ji", "ra"),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
    ];
    let mut complaints = Vec::new();
    let kinds = ["rs", "rules", "md", "toml", "py", "c", "h", "sh", "relay"];
    let mut all: Vec<PathBuf> = ["src", "crates", "tests", "benches", "examples", "rules", "models", "tools", "python"]
        .iter()
        .flat_map(|folder| files(folder, &kinds))
        .collect();
    let top = fs::read_dir(root()).expect("the repository can be read").map(|e| e.expect("an entry").path());
    let known = |p: &PathBuf| p.extension().is_none_or(|e| kinds.iter().any(|k| e == *k));
    // Git's own file, where the repository is a linked work tree, names the machine.
    all.extend(top.filter(|p| p.is_file() && known(p) && !p.ends_with(".git")));
    for path in all {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (i, line) in text.lines().enumerate() {
            for word in foreign.iter().filter(|w| line.contains(**w)) {
                complaints.push(format!("{}:{}: `{word}`", short(&path), i + 1));
            }
        }
    }
    none(complaints);
}

#[test]
fn code_is_told_from_what_is_quoted() {
    let text = "let a = \"todo!\"; // dbg!\nlet b = r#\"unsafe \" {\"#; let c = '\"'; let d: &'static str = \"\\\"\"; crate::x";
    let seen = code(text);
    assert!(!seen.contains("todo!") && !seen.contains("dbg!") && !seen.contains("unsafe"), "{seen}");
    assert!(seen.contains("'static str") && seen.ends_with("crate::x"), "{seen}");
    let found = uses("use crate::{a::{b, c}, d, e::f};\ncrate::g::h(crate::i)");
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "d", "e", "g", "i"]);
}
