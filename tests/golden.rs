//! Programs and what becomes of them, in files that people read: `tests/golden/rules` holds what passes make of a program,
//! `tests/golden/kernels` the loops and the decisive instructions that its kernels become on a processor. A file begins with `// KEY: VALUE`
//! lines, the program follows, and after [`EXPECTED`] what becomes of it. `RESAT_BLESS=1 cargo test --release --test golden` writes it.
//!
//! Nothing here depends on the machine at hand: targets name their processors, and nothing is measured.
#![cfg(feature = "llvm")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use resat::{
    codegen::llvm,
    infer::infer_types,
    ir::Module,
    loops::Kernel,
    lower::{CodeSet, assemble},
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
};

/// What stands between a program and what becomes of it.
const EXPECTED: &str = "// ---- what becomes of it ----\n";

/// A file of a program.
struct Golden {
    path: PathBuf,
    /// Its first lines, as they are.
    head: String,
    keys: BTreeMap<String, String>,
    program: String,
    expected: String,
}

impl Golden {
    fn read(path: PathBuf) -> Golden {
        let whole = fs::read_to_string(&path).expect("the file is there");
        let (given, expected) = whole.split_once(EXPECTED).unwrap_or((&whole, ""));
        let head: String = given.split_inclusive('\n').take_while(|l| l.starts_with("//")).collect();
        let key = |line: &str| {
            let (key, value) = line.strip_prefix("//")?.split_once(':')?;
            Some((key.trim().to_owned(), value.trim().to_owned()))
        };
        let keys = head.lines().filter_map(key).collect();
        Golden { program: given[head.len()..].to_owned(), head, keys, expected: expected.to_owned(), path }
    }

    fn key(&self, name: &str) -> &str {
        self.keys.get(name).unwrap_or_else(|| panic!("{} lacks `// {name}: …`", self.path.display()))
    }

    fn settings(&self, target: &str) -> Settings {
        let mut target = Target::parse(target).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
        target.cores = 2;
        Settings::new(target)
    }

    /// The module after the passes of the file.
    fn optimized(&self, settings: &Settings) -> Module {
        let name = self.path.display().to_string();
        let module = text::parse_module(&name, &self.program).unwrap_or_else(|e| panic!("{e}"));
        let passes = sequence(self.key("passes"), settings).unwrap_or_else(|e| panic!("{name}: {e}"));
        passes.run(module, &mut PassContext::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// Compares what becomes of every file of a folder with what it says, or writes it.
fn check(folder: &str, becomes: impl Fn(&Golden) -> String) {
    let bless = std::env::var_os("RESAT_BLESS").is_some_and(|v| v == "1");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e == "relay"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no program", folder.display());
    let mut faults = Vec::new();
    for golden in paths.into_iter().map(Golden::read) {
        let found = becomes(&golden);
        if bless {
            let whole = format!("{}{}{EXPECTED}{found}", golden.head, golden.program);
            fs::write(&golden.path, whole).expect("the file can be written");
        } else if found != golden.expected {
            let changes = similar::TextDiff::from_lines(&golden.expected, &found);
            faults.push(format!("{}\n{}", golden.path.display(), changes.unified_diff().header("file", "now")));
        }
    }
    assert!(
        faults.is_empty(),
        "{}\nIf these are meant: RESAT_BLESS=1 cargo test --release --test golden",
        faults.join("\n")
    );
}

#[test]
fn programs_become_what_their_files_say() {
    check("rules", |golden| {
        let settings = golden.settings(golden.key("target"));
        text::print_brief(&golden.optimized(&settings))
    });
}

#[test]
fn kernels_become_what_their_files_say() {
    check("kernels", |golden| {
        let mut out = String::new();
        for target in golden.key("targets").split_whitespace() {
            writeln!(out, "// {target}").expect("text takes text");
            let settings = golden.settings(target);
            let target = &settings.target;
            let typed = infer_types(golden.optimized(&settings)).unwrap_or_else(|e| panic!("{e}"));
            let mut code = CodeSet::new(target.core());
            assemble(&typed, "main", "main", &mut code).unwrap_or_else(|e| panic!("{e}"));
            for (number, kernel) in code.kernels.iter().enumerate() {
                let listing = llvm::listing(&[kernel], &target.codegen()).unwrap_or_else(|e| panic!("{e}"));
                writeln!(out, "{}", loops(kernel, number).trim_end()).expect("text takes text");
                for line in decisive(&listing.assembly) {
                    writeln!(out, "; {line}").expect("text takes text");
                }
            }
        }
        out
    });
}

/// A kernel's loops, its variables and buffers numbered in the order in which they come, by a name without a digest.
fn loops(kernel: &Kernel, number: usize) -> String {
    let whole = kernel.to_string().replace(&kernel.name, &number.to_string());
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut out = String::new();
    let mut rest = whole.as_str();
    while let Some(c) = rest.chars().next() {
        let word: &str = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())];
        let digits = word.get(1..).is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
        if word.is_empty() {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        match digits && c == 'i' {
            true => {
                let next = known.len();
                let n = *known.entry(word.to_owned()).or_insert(next);
                write!(out, "i{n}").expect("text takes text");
            }
            false => out.push_str(word),
        }
        rest = &rest[word.len()..];
    }
    out
}

/// An instruction of assembly.
struct Instruction<'a> {
    mnemonic: &'a str,
    operands: &'a str,
}

/// What of each innermost loop with vectors decides how fast it is, in the order of the loops; equal ones once.
fn decisive(assembly: &str) -> Vec<String> {
    let mut labels: HashMap<&str, usize> = HashMap::new();
    let mut code: Vec<Instruction> = Vec::new();
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for line in assembly.lines() {
        let line = line.split_once(['#', '/']).map_or(line, |(before, _)| before).trim();
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, code.len());
        } else if !line.is_empty() && !line.starts_with('.') {
            let (mnemonic, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let operands = operands.trim();
            let jumps = mnemonic.starts_with(['j', 'b']) || mnemonic.starts_with("cb") || mnemonic.starts_with("tb");
            let to = operands.rsplit([' ', '\t', ',']).next().unwrap_or(operands);
            if let Some(&start) = labels.get(to).filter(|_| jumps) {
                loops.push((start, code.len()));
            }
            code.push(Instruction { mnemonic, operands });
        }
    }
    // Jumps to one label are one loop.
    let ends: BTreeMap<usize, usize> = loops.into_iter().fold(BTreeMap::new(), |mut ends, (start, end)| {
        let last = ends.entry(start).or_insert(end);
        *last = end.max(*last);
        ends
    });
    let inner =
        |&(start, end): &(usize, usize)| !ends.iter().any(|(&s, &e)| (s, e) != (start, end) && s >= start && e <= end);
    let mut known = BTreeSet::new();
    let lines = ends.iter().map(|(&s, &e)| (s, e)).filter(inner).filter_map(|(s, e)| summary(&code[s..=e]));
    lines.filter(|line| known.insert(line.clone())).collect()
}

/// What counts of a loop: arithmetic by the width of its registers, and what feeds it.
fn summary(body: &[Instruction]) -> Option<String> {
    let mut counts: BTreeMap<(u8, String), usize> = BTreeMap::new();
    for i in body {
        let Some((order, kind)) = kind(i) else { continue };
        *counts.entry((order, kind)).or_default() += 1;
        // Operands from the stack are sums that found no register.
        if i.operands.contains("(%rsp") || i.operands.contains("[sp") {
            *counts.entry((9, "of the stack".into())).or_default() += 1;
        }
    }
    let computes = counts.keys().any(|(order, _)| [0, 3].contains(order));
    let all: Vec<String> = counts.iter().map(|((_, kind), n)| format!("{n} {kind}")).collect();
    computes.then(|| format!("inner loop: {}", all.join(", ")))
}

/// What kind of instruction it is, in words that do not depend on how it is encoded; none for scalars, addresses and jumps.
fn kind(i: &Instruction) -> Option<(u8, String)> {
    let width = ["zmm", "ymm", "xmm", "tmm"].into_iter().find(|w| i.operands.contains(&format!("%{w}")));
    let vector = i.operands.contains(".4s")
        || i.operands.contains(".16b")
        || i.operands.contains(".8h")
        || i.operands.contains("z0.");
    let width = width.or_else(|| (vector || i.operands.starts_with('q')).then_some("v"))?;
    let m = i.mnemonic;
    let memory = i.operands.contains('(') || i.operands.contains('[');
    let any = |all: &[&str]| all.iter().any(|p| m.starts_with(p));
    let named = |order: u8, name: &str| Some((order, format!("{name} {width}")));
    match () {
        _ if any(&["vfmadd", "vfnmadd", "vfmsub", "vfnmsub"])
            && m.ends_with('s')
            && !m.ends_with("ps")
            && !m.ends_with("pd") =>
        {
            named(0, "scalar fma")
        }
        _ if any(&["vfmadd", "vfnmadd", "vfmsub", "vfnmsub", "fmla", "fmls"]) => {
            named(0, if i.operands.contains("{1to") { "fma of a broadcast" } else { "fma" })
        }
        _ if any(&[
            "vpdp",
            "vpmaddwd",
            "vpmaddubsw",
            "pmaddwd",
            "vdpbf16",
            "tdp",
            "sdot",
            "udot",
            "usdot",
            "sudot",
            "bfdot",
        ]) =>
        {
            named(0, m)
        }
        _ if any(&[
            "vmulp", "mulp", "vaddp", "addp", "vsubp", "subp", "vdivp", "vsqrtp", "vmaxp", "vminp", "fmul", "fadd",
            "fdiv", "fmax",
        ]) =>
        {
            named(0, m)
        }
        _ if any(&["vbroadcast", "vpbroadcast", "ld1r", "dup"]) => named(1, "broadcast"),
        _ if any(&["vperm", "vshuf", "vunpck", "vpunpck", "vpermt", "vinsert", "vextract", "zip", "uzp", "trn"]) => {
            named(3, "shuffle")
        }
        _ if any(&["vgather", "vscatter"]) => named(3, "gather"),
        _ if any(&["vcvt", "vpmovsx", "vpmovzx", "sshll", "ushll", "scvtf", "fcvt"]) => named(2, "conversion"),
        _ if any(&["vmov", "mov", "ldr", "ldp", "ld1", "str", "stp", "st1", "tileload", "tilestore"]) && memory => {
            let stores = any(&["st", "tilestore"]) || i.operands.trim_end().ends_with(')');
            named(if stores { 5 } else { 4 }, if stores { "store" } else { "load" })
        }
        _ => None,
    }
}
