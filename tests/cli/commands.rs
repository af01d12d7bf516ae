//! The command line as its users meet it: every subcommand on the repository's own model, and refusals of what is wrong.

mod inputs;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{
    folder::{Folder, Ran},
    protobuf::{bytes, number},
};
use resat::{
    ir::Name,
    relay::{npz, params, text},
    tensor::{DType, Tensor},
};

/// Images per run: the interpreter is slow where nothing is optimized.
const IMAGES: usize = 4;

fn shipped(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits").join(file)
}

fn arrays(path: &Path) -> Vec<(Name, Tensor)> {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    npz::read("test", &bytes).expect("an archive")
}

/// The first rows of a tensor.
fn rows(t: &Tensor, n: usize) -> Tensor {
    let mut shape = t.shape().to_vec();
    let bytes = &t.bytes()[..t.bytes().len() / shape[0] * n];
    shape[0] = n;
    Tensor::from_bytes(t.dtype(), &shape, bytes).expect("as many rows as are taken")
}

/// The digits model in a folder of its own, for few images: `digits.relay`, `digits.params`, `inputs.npz`.
fn digits() -> Folder {
    let folder = Folder::new();
    let model = fs::read_to_string(shipped("model.relay")).expect("the model is there");
    folder.write("digits.relay", model.replace("Tensor[(200, ", &format!("Tensor[({IMAGES}, ")));
    fs::copy(shipped("model.params"), folder.path("digits.params")).expect("the parameters are there");
    folder.archive("inputs.npz", "x", &rows(&arrays(&shipped("inputs.npz"))[0].1, IMAGES));
    folder
}

/// A program of one function, with its version line.
fn program(main: &str) -> String {
    format!("#[version = \"0.0.5\"]\n{main}\n")
}

/// Whether two archives hold the same arrays, up to rounding.
fn assert_close(got: &Path, want: &[(Name, Tensor)]) {
    let got = arrays(got);
    assert_eq!(got.len(), want.len());
    for ((name, g), (wanted, w)) in got.iter().zip(want) {
        assert_eq!((name, g.shape(), g.dtype()), (wanted, w.shape(), w.dtype()));
        let (g, w) = (g.to_f64_vec(), w.to_f64_vec());
        let largest = w.iter().fold(0f64, |m, x| m.max(x.abs()));
        let off = g.iter().zip(&w).fold(0f64, |m, (g, w)| m.max((g - w).abs()));
        assert!(off <= 1e-3 * largest, "off by {off}, where the largest value is {largest}");
    }
}

/// What the network that the model was trained with gave for the first images.
fn recorded() -> Vec<(Name, Tensor)> {
    arrays(&shipped("outputs.npz")).into_iter().map(|(_, t)| ("0".into(), rows(&t, IMAGES))).collect()
}

// ---- what works

#[test]
fn help_shows_an_example() {
    let f = digits();
    let subcommands = [
        "parse",
        "opt",
        "build",
        "run",
        "bench",
        "explore",
        "passes",
        "rules",
        "rules list",
        "rules check",
        "rules show",
        "rules doc",
        "explain",
        "why-not",
        "extract",
        "sensitivity",
    ];
    for line in subcommands {
        let help = f.line(&format!("{line} --help")).done();
        let example = help.split_once("Example").unwrap_or_else(|| panic!("{line}: no example in\n{help}")).1;
        assert!(example.contains(&format!("resat {line}")), "{line}\n{help}");
    }
    let help = f.run(&["--help"]).done();
    for command in
        ["parse", "opt", "build", "run", "bench", "explore", "passes", "rules", "explain", "why-not", "extract"]
    {
        assert!(help.contains(command), "{command} is not in\n{help}");
    }
}

#[test]
fn parse_prints_canonical_text() {
    let f = digits();
    let printed = f.line("parse digits.relay").done();
    assert!(printed.starts_with("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4, 1, 8, 8), float32]"), "{printed}");
    f.write("printed.relay", &printed);
    assert_eq!(f.line("parse printed.relay").done(), printed);
    f.line("parse digits.relay --json -o digits.json").done();
    assert_eq!(f.line("parse digits.json").done(), printed);
}

#[test]
fn opt_writes_text_and_json() {
    let f = digits();
    let passes = ["--params", "digits.params", "--passes", "SimplifyInference,FoldScaleAxis,FoldConstant"];
    let run = |more: &[&str]| f.run(&[&["opt", "digits.relay"][..], &passes, more].concat()).done();
    let printed = run(&[]);
    assert!(!printed.contains("batch_norm"), "{printed}");
    assert!(printed.contains("nn.conv2d(%x, meta[relay.Constant]["), "{printed}");
    assert_eq!(run(&["-o", "out.json"]), "");
    assert_eq!(run(&["-o", "out.relay"]), "");
    assert_eq!(fs::read_to_string(f.path("out.relay")).expect("written"), printed);
    assert_eq!(f.line("parse out.json").done(), printed);
    // What went through the file computes what the model computes.
    f.line("run out.json --backend interp --inputs inputs.npz --outputs out.npz").done();
    assert_close(&f.path("out.npz"), &recorded());
}

#[test]
fn opt_reports_on_stderr() {
    let f = digits();
    let ran = f.line("opt digits.relay --params digits.params --report -o out.relay");
    for part in ["Inline", "simplify-inference/batch-norm", "cost", "FuseOps"] {
        assert!(ran.stderr.contains(part), "{part} is not in\n{}", ran.stderr);
    }
    assert_eq!(ran.done(), "");
}

#[test]
fn run_agrees_with_the_recorded_outputs() {
    let f = digits();
    for backend in ["llvm", "interp"] {
        let line = "run digits.relay --params digits.params --inputs inputs.npz --outputs out.npz --validate";
        let ran = f.line(&format!("{line} --backend {backend}"));
        assert!(ran.stderr.contains("validated"), "{}", ran.stderr);
        ran.done();
        assert_close(&f.path("out.npz"), &recorded());
    }
    // All images, as the repository has them.
    let path = |file| shipped(file).display().to_string();
    let (model, params, inputs) = (path("model.relay"), path("model.params"), path("inputs.npz"));
    f.run(&["run", &model, "--params", &params, "--inputs", &inputs, "--outputs", "all.npz"]).done();
    assert_close(&f.path("all.npz"), &[("0".into(), arrays(&shipped("outputs.npz"))[0].1.clone())]);
}

#[test]
fn a_library_gives_the_same_outputs() {
    let f = digits();
    f.line("run digits.relay --params digits.params --inputs inputs.npz --outputs jit.npz").done();
    f.line("build digits.relay --params digits.params -o model.so").done();
    assert!(fs::read_to_string(f.path("model.h")).expect("a header").contains("model"));
    f.line("run model.so --inputs inputs.npz --outputs library.npz").done();
    assert_close(&f.path("library.npz"), &recorded());
    let (jit, library) = (arrays(&f.path("jit.npz")), arrays(&f.path("library.npz")));
    assert!(jit[0].1.same_bits(&library[0].1), "the same code gives other bits");
    let line = "bench digits.relay --params digits.params --inputs inputs.npz --repeat 2 --threads 1 --profile";
    let ran = f.line(line).done();
    for column in ["of peak", "of bandw.", "bound by", "expected us", "nn_"] {
        assert!(ran.contains(column), "{ran}");
    }
    // What was found in the cache says the same of its kernels as what was built.
    for _ in 0..2 {
        let json: serde_json::Value = serde_json::from_str(&f.line(&format!("{line} --json")).done()).expect("JSON");
        let kernels = json["kernels"].as_array().expect("a list");
        assert!(!kernels.is_empty());
        let number = |k: &serde_json::Value, key: &str| k[key].as_f64().unwrap_or(f64::NAN) > 0.0;
        assert!(kernels.iter().all(|k| number(k, "seconds") && number(k, "bytes")), "{json}");
        assert!(kernels.iter().any(|k| number(k, "operations") && number(k, "expected_seconds")), "{json}");
    }
    let times = f.line("bench model.so --inputs inputs.npz --repeat 2 --threads 1").done();
    // What only goes with a program that is to be built is refused, not left out.
    let refused = |line: &str, option: &str| {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        f.line(&format!("{line} model.so --inputs inputs.npz {option}")).refused(&["library", name]);
    };
    for option in ["--profile", "--passes=none", "--specialize=all", "--tune=1", "--state=x=0"] {
        refused("bench", option);
    }
    for option in ["--passes=none", "--validate", "--backend=interp", "--state=x=0"] {
        refused("run", option);
    }
    assert!(times.contains("over 2 runs"), "{times}");
    f.line("run model.so --params digits.params").refused(&["--params"]);
    let wrong = rows(&arrays(&f.path("inputs.npz"))[0].1, 2);
    f.archive("wrong.npz", "x", &wrong);
    f.line("run model.so --inputs wrong.npz").refused(&["`x`", "[4, 1, 8, 8]", "[2, 1, 8, 8]"]);
}

#[test]
fn a_region_for_an_external_compiler_agrees() {
    let f = digits();
    let start = ["run", "digits.relay", "--params", "digits.params", "--inputs", "inputs.npz", "--outputs", "out.npz"];
    let whole = "Inline, SimplifyInference, Partition(c)";
    for passes in ["Partition(c, nn.softmax)", "Partition(c, nn.softmax), default", whole] {
        for backend in ["llvm", "interp"] {
            f.run(&[&start[..], &["--validate", "--passes", passes, "--backend", backend]].concat()).done();
            assert_close(&f.path("out.npz"), &recorded());
        }
    }
    let printed = f.run(&["opt", "digits.relay", "--passes", "Partition(c, nn.softmax)"]).done();
    assert!(printed.contains("Compiler=\"c\""), "{printed}");
    // Packed into a library beside LLVM's kernels, and written as C altogether.
    let said = f.run(&[
        "build",
        "digits.relay",
        "--params",
        "digits.params",
        "--passes",
        "Partition(c, nn.softmax), default",
        "-o",
        "all.so",
    ]);
    said.done();
    f.line("run all.so --inputs inputs.npz --outputs out.npz").done();
    assert_close(&f.path("out.npz"), &recorded());
    f.line("build digits.relay --params digits.params --emit c -o digits.c").done();
    let header = fs::read_to_string(f.path("digits.h")).expect("it was written");
    assert!(header.contains("int digits_run(") && f.path("digits.c").exists(), "{header}");
}

#[test]
fn e_graphs_are_dumped_and_extracted_from() {
    let f = digits();
    let ran = f.line("opt digits.relay --params digits.params --dump-egraph graph.json --report -o out.relay");
    let cost = ran.stderr.split("cost ").nth(1).and_then(|s| s.split(" -> ").nth(1)).and_then(|s| s.split(';').next());
    let cost: f64 = cost.expect("the report says the cost").parse().expect("a number");
    ran.done();
    let said = f.line("extract graph.json --extractor tree,dag,search -o choice.json").done();
    assert_eq!(said.matches("cost").count(), 3, "{said}");
    let choice: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(f.path("choice.json")).expect("written")).expect("JSON");
    let found = choice["cost"].as_f64().expect("a number");
    assert!(found <= cost * 1.000_001, "{found} where the compiler found {cost}");
    let said = f.line("extract graph.json --choice choice.json").done();
    assert!(said.contains("choice.json: cost"), "{said}");
    f.line("extract digits.relay").refused(&["digits.relay: no e-graph of egraph-serialize"]);
    f.line("extract graph.json --extractor dga").refused(&["no extractor `dga`", "did you mean `dag`"]);
}

#[test]
fn cost_models_are_named() {
    let f = digits();
    let table = "{\"default\": {\"cost\": 1}, \"rows\": [{\"op\": \"nn.relu\", \"cost\": 5}]}";
    f.write("prices.json", table);
    f.write("p.relay", program("def @main(%x: Tensor[(2, 3), float32]) { nn.relu(nn.relu(%x)) }"));
    let opt = |cost: &str| f.run(&["opt", "p.relay", "--passes", "Saturate", "--report", "--cost", cost]);
    let ran = opt("2*table:prices.json + nodes");
    assert!(ran.stderr.contains("cost 2.200000e1 -> 1.100000e1"), "{}", ran.stderr);
    ran.done();
    opt("nodez").refused(&["there is no cost model `nodez`", "roofline:measured", "did you mean `nodes`"]);
    opt("table:none.json").refused(&["none.json"]);
    f.line("opt p.relay --extractor best").refused(&["no extractor `best`; there are tree, dag, search, ilp"]);
    f.line("opt p.relay --without algebra/nothing").refused(&["no rule `algebra/nothing`"]);
}

const WRONG_RULES: &str = ";; Rules of a test.
(ruleset mine :numerics exact)
;; This one is right.
(rule relu-of-relu
  (nn.relu (nn.relu ?x)) => (nn.relu ?x))
;; This one is wrong.
(rule wrong
  (abs (negative ?x)) => ?x)
";

#[test]
fn a_wrong_rule_is_named() {
    let f = digits();
    f.write("mine.rules", WRONG_RULES);
    let main = "def @main(%x: Tensor[(4), float32]) { nn.relu(nn.relu(exp(abs(negative(add(%x, %x)))))) }";
    f.write("p.relay", program(main));
    for backend in ["llvm", "interp"] {
        let line = format!("run p.relay --rules mine.rules --passes default --validate --backend {backend}");
        let ran = f.line(&line);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("rule `mine/wrong` is at fault, in pass Saturate(all)"), "{}", ran.stderr);
    }
    f.line("run p.relay --rules mine.rules --without mine/wrong --passes default --validate").done();
}

#[test]
fn what_became_of_a_program_is_explained() {
    let f = digits();
    let main = "def @main(%x: Tensor[(4), float32]) {\n  %0 = add(%x, 0f);\n  nn.relu(nn.relu(%0))\n}";
    f.write("p.relay", program(main));
    let said = f.line("explain p.relay").done();
    assert!(said.contains("p.relay:3:") && said.contains("algebra/drop-add-zero"), "{said}");
    assert!(said.contains("algebra/relu-relu: nn.relu(nn.relu) => nn.relu("), "{said}");
    let said = f.line("explain p.relay --at 3").done();
    assert!(!said.contains("relu-relu") && said.contains("1 calls: 1 changed"), "{said}");
    f.write("q.relay", program("def @main(%x: Tensor[(4), float32]) { exp(tanh(%x)) }"));
    let said = f.line("explain q.relay --passes Saturate(fusion)").done();
    assert!(said.contains("is computed inside of kernel[tanh+exp](") && said.contains("1 run inside of"), "{said}");
    let said = f.line("explain q.relay --passes Saturate(fusion) --alternatives 3").done();
    assert!(said.contains("kernel[tanh+exp] costs") && said.contains("  with exp the program costs +"), "{said}");
}

#[test]
fn why_a_form_is_not_reached_is_said() {
    let f = digits();
    let of = |body: &str| program(&format!("def @main(%x: Tensor[(4), float32]) {{ {body} }}"));
    f.write("p.relay", of("nn.relu(add(%x, 0f))"));
    f.write("same.relay", of("nn.relu(%x)"));
    f.write("dear.relay", of("nn.relu(add(add(%x, 0f), 0f))"));
    f.write("other.relay", of("exp(nn.relu(abs(%x)))"));
    f.write("two.relay", program("def @main(%x: Tensor[(4), float32], %y: bool) { %x }"));
    let ask = |wanted: &str| f.line(&format!("why-not p.relay {wanted}")).done();
    assert!(ask("same.relay").contains("is found, and costs no more"), "{}", ask("same.relay"));
    assert!(ask("dear.relay").contains("is found, but costs"), "{}", ask("dear.relay"));
    let said = ask("other.relay");
    assert!(said.contains("no chain of rules") && said.contains("abs(%x)") && !said.contains("exp"), "{said}");
    f.line("why-not p.relay two.relay").refused(&["2 parameters, the program 1"]);
}

#[test]
fn rules_are_listed_a_line_each() {
    let f = digits();
    let listed = f.line("rules list").done();
    assert!(listed.lines().count() > 50, "{listed}");
    for line in listed.lines() {
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        assert!(
            words.len() == 3 && words[0].contains('/') && ["exact", "real", "finite", "approx"].contains(&words[1]),
            "{line}"
        );
    }
    let name = listed.split_whitespace().next().expect("a rule");
    let shown = f.run(&["rules", "show", name]).done();
    assert!(shown.contains(name) && shown.contains("(rule ") && shown.contains("=>"), "{shown}");
    let set = f.line("rules show algebra").done();
    assert!(set.contains("algebra/drop-add-zero"), "{set}");
    assert!(f.line("rules show fusion").done().contains("fusion/epilogue"));
    assert!(f.line("rules show fusion/chain").done().contains("(exact) fusion/chain"));
    f.line("rules show algebra/drop-add-zer")
        .refused(&["`algebra/drop-add-zer`", "did you mean `algebra/drop-add-zero`?"]);
}

/// What `rules list` prints of a rule is the rule in its own notation: it can be read again, and is printed the same.
#[test]
fn listed_rules_can_be_read_again() {
    let f = digits();
    let listed = f.line("rules list").done();
    let mut files: Vec<(String, String)> = Vec::new();
    // Those that are Rust code have no notation.
    let written = |l: &&str| l.contains("(rule ");
    // What holds without the guards of special values comes with the rule that has them.
    for line in listed.lines().filter(written).filter(|l| !l.contains(".finite ")) {
        let (set, _) = line.split_once('/').expect("ruleset/rule");
        let rule = &line[line.find("(rule ").expect("the rule")..];
        if files.last().is_none_or(|(s, _)| s != set) {
            let shown = f.line(&format!("rules show {set}")).done();
            let head = shown.lines().find(|l| l.starts_with("(ruleset ")).expect("the set's own form");
            files.push((set.to_owned(), format!("{head}\n")));
        }
        let text = &mut files.last_mut().expect("pushed").1;
        text.push_str(&format!("{rule}\n"));
    }
    let all: String = files.into_iter().map(|(_, text)| text).collect();
    f.write("again.rules", all);
    let again = f.line("rules list again.rules").done();
    let text = |l: &str| l[l.find("(rule ").expect("the rule")..].to_owned();
    assert_eq!(
        again.lines().map(text).collect::<Vec<_>>(),
        listed.lines().filter(written).map(text).collect::<Vec<_>>()
    );
}

const USER_RULES: &str = ";; Rules of a test.
(ruleset mine :numerics exact)
;; What is cut off at zero is not cut off again.
(rule relu-of-relu
  (nn.relu (nn.relu ?x)) => (nn.relu ?x))
";

#[test]
fn rules_of_a_user_change_the_result() {
    let f = digits();
    // Of two operators, one is left.
    let rule = ";; Rules of a test.\n(ruleset mine :numerics real)\n;; There is nothing below zero to cut off.\n\
        (rule relu-of-abs (nn.relu (abs ?x)) => (abs ?x))\n";
    f.write("mine.rules", rule);
    f.write("p.relay", program("def @main(%x: Tensor[(2, 3), float32]) { nn.relu(abs(%x)) }"));
    let opt = |more: &str| f.line(&format!("opt p.relay --cost nodes --passes {more}")).done();
    assert!(opt("Saturate(algebra)").contains("nn.relu"));
    assert!(!opt("Saturate(mine) --rules mine.rules").contains("nn.relu"));
    // The file is all that is changed, and the default pipeline uses it as well.
    f.write("mine.rules", rule.replace("(abs ?x))\n", "(negative ?x))\n"));
    let other = opt("default --rules mine.rules");
    assert!(other.contains("negative") && !other.contains("nn.relu"), "{other}");
}

#[test]
fn rules_of_a_user_are_checked() {
    let f = digits();
    f.write("mine.rules", USER_RULES);
    let checked = f.line("rules check mine.rules").done();
    assert!(checked.starts_with("ok   mine/relu-of-relu"), "{checked}");
    assert_eq!(f.line("rules list mine.rules").done().lines().count(), 1);
    // Once is not the same as not at all.
    f.write("wrong.rules", USER_RULES.replace("=> (nn.relu ?x)", "=> ?x"));
    let ran = f.line("rules check wrong.rules");
    assert!(ran.stdout.starts_with("FAIL mine/relu-of-relu"), "{}", ran.stdout);
    ran.refused(&["wrong.rules:4:1", "does not pass"]);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let f = digits();
    for args in [&["rules", "list"][..], &["parse", "digits.relay"], &["opt", "digits.relay", "--passes", "none"]] {
        let mut child = f.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let ran = Ran::new(args.join(" "), output);
        assert_eq!(ran.stderr, "", "{}", ran.line);
        ran.done();
    }
}

// ---- what is refused

#[test]
fn wrong_programs() {
    let f = digits();
    let binary: Vec<u8> = (0..600u32).map(|i| (i * 151 + 7) as u8).collect();
    let deep = format!("{}%x{}", "(".repeat(10_000), ")".repeat(10_000));
    let cases: [(&str, Vec<u8>, &[&str]); 10] = [
        ("empty", vec![], &["empty.relay:1:1", "version"]),
        ("binary", binary, &["binary.relay", "not UTF-8"]),
        ("nul", vec![0; 64], &["nul.relay:1:1"]),
        ("no-version", b"def @main() { 1 }".to_vec(), &["no-version.relay:1:1", "version"]),
        (
            "operator",
            program("def @main(%x: float32) { nn.rellu(%x) }").into(),
            &["operator.relay:2:26", "`nn.rellu`", "did you mean `nn.relu`?", "^^^^^^^^"],
        ),
        (
            "attribute",
            program("def @main(%x: Tensor[(2, 3), float32]) { nn.softmax(%x, axes=1) }").into(),
            &["attribute.relay:2:57", "`axes`", "did you mean `axis`?"],
        ),
        (
            "variable",
            program("def @main(%image: Tensor[(2, 3), float32]) { nn.relu(%imgae) }").into(),
            &["variable.relay:2:54", "`%imgae`", "did you mean `%image`?"],
        ),
        (
            "recursive",
            program("def @main() { let %f = fn (%x) { %x(%x) }; %f }").into(),
            &["recursive.relay:2:37", "contain itself"],
        ),
        (
            "shapes",
            program("def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(4, 5), float32]) {\n  add(%x, %y)\n}").into(),
            &["shapes.relay:3:3", "`add`", "(2, 3)", "(4, 5)"],
        ),
        (
            "deep-type",
            program(&format!("def @main(%x: {}) {{ %x }}", deep.replace("%x", "float32"))).into(),
            &["deep-type.relay:2:", "nest"],
        ),
    ];
    // What only inference can tell is no error of `parse`.
    let typing = ["recursive", "shapes"];
    for (name, text, parts) in cases {
        f.write(&format!("{name}.relay"), text);
        if !typing.contains(&name) {
            f.line(&format!("parse {name}.relay -o out.relay")).refused(parts);
        }
        f.line(&format!("opt {name}.relay -o out.relay")).refused(parts);
        f.line(&format!("build {name}.relay -o out.so")).refused(parts);
        f.line(&format!("run {name}.relay --outputs out.npz")).refused(parts);
        f.line(&format!("run {name}.relay --backend interp --outputs out.npz")).refused(parts);
        f.line(&format!("bench {name}.relay")).refused(parts);
    }
    assert!(!f.files().iter().any(|name| name.starts_with("out")), "{:?}", f.files());
}

#[test]
fn deep_programs() {
    let f = digits();
    let nested = |open: &str, close: &str| {
        let body = format!("{}%x{}", open.repeat(10_000), close.repeat(10_000));
        program(&format!("def @main(%x: float32) {{ {body} }}"))
    };
    f.write("round.relay", nested("(", ")"));
    assert_eq!(f.line("parse round.relay").done(), program("def @main(%x: float32) {\n  %x\n}"));
    f.line("run round.relay").done();
    f.write("calls.relay", nested("abs(", ")"));
    f.line("run calls.relay --backend interp").done();
    f.line("opt calls.relay --passes FuseOps -o calls.json").done();
    f.line("parse calls.json").done();
    // Types may not nest without end, programs may.
    f.write("tuples.relay", nested("(", ",)"));
    f.line("parse tuples.relay").done();
    f.line("run tuples.relay").refused(&["tuples.relay:2:", "nested"]);
    f.write("open.relay", program(&format!("def @main(%x: float32) {{ {}", "(".repeat(10_000))));
    f.line("parse open.relay").refused(&["open.relay:3:1", "end of the text"]);
}

/// A text that is cut off is refused with a place, or is a shorter program that can be printed.
#[test]
fn truncated_programs() {
    let whole = program(
        "type List[A] {\n  Cons(A, List[A]),\n  Nil,\n}\n\n\
         def @main(%x: Tensor[(2, ?), float32], %w.0: Tensor[(2), int64]) -> Tensor[(2, ?), float32] {\n  \
         %0 = (nn.softmax(%x, axis=-1), 1.5e-3f, \"ä\\n\");\n  let %f: fn (float32) -> float32 = fn (%y: float32, Inline=1) { %y };\n  \
         if (True) {\n    %0.0\n  } else {\n    match (Nil) {\n      Cons(%h, _) => %h,\n      Nil => strided_slice(%x, begin=[0], end=[1], strides=[1]),\n    }\n  }\n}",
    );
    let f = digits();
    let mut accepted = 0;
    for end in (0..whole.len()).filter(|&i| whole.is_char_boundary(i)) {
        match text::parse("cut.relay", &whole[..end]) {
            Ok(parsed) => {
                accepted += 1;
                parsed.print();
            }
            Err(refused) => {
                let shown = refused.render();
                assert!(shown.contains("cut.relay:"), "{end}\n{shown}");
            }
        }
        if end % 97 == 0 {
            f.write("cut.relay", &whole.as_bytes()[..end]);
            let ran = f.line("opt cut.relay -o out.relay");
            assert!(ran.code == Some(2), "{end}: {:?}\n{}", ran.code, ran.stderr);
            ran.refused(&["cut.relay:"]);
        }
    }
    assert!(accepted < 40, "{accepted} pieces count as programs");
    // Within a character.
    let inside = whole.find('ä').expect("it is there") + 1;
    f.write("cut.relay", &whole.as_bytes()[..inside]);
    f.line("parse cut.relay").refused(&["cut.relay", "not UTF-8"]);
    assert!(!f.path("out.relay").exists());
}

#[test]
fn wrong_parameters() {
    let f = digits();
    let good = fs::read(f.path("digits.params")).expect("the parameters are there");
    let mut magic = good.clone();
    magic[0] ^= 1;
    f.write("magic.params", magic);
    f.write("cut.params", &good[..good.len() / 2]);
    f.write("longer.params", [&good[..], &[0]].concat());
    f.write("empty.params", "");
    f.write("empty.npz", "");
    let one = |file: &str, name: &str, t: Tensor| f.write(file, params::write([(name, &t)]));
    one("shape.params", "fc_bias", Tensor::zeros(DType::F32, &[11]));
    one("dtype.params", "fc_bias", Tensor::zeros(DType::F64, &[10]));
    one("name.params", "fc_bais", Tensor::zeros(DType::F32, &[10]));
    let cases: [(&str, &[&str]); 10] = [
        ("magic.params", &["magic.params", "not a Relay parameter file", "byte 0"]),
        ("cut.params", &["cut.params", "the file ends within parameter `conv2_weight`"]),
        ("longer.params", &["longer.params", "1 bytes are left over"]),
        ("empty.params", &["empty.params", "the file ends"]),
        ("empty.npz", &["empty.npz", "not an npz archive"]),
        ("missing.params", &["missing.params", "No such file"]),
        (".", &["directory"]),
        ("shape.params", &["`%fc_bias`", "Tensor[(11), float32]", "Tensor[(10), float32]"]),
        ("dtype.params", &["`%fc_bias`", "Tensor[(10), float64]", "Tensor[(10), float32]"]),
        ("name.params", &["`%fc_bais`", "did you mean `%fc_bias`?"]),
    ];
    for (file, parts) in cases {
        f.line(&format!("build digits.relay --params {file} -o out.so")).refused(parts);
        f.line(&format!("run digits.relay --params {file} --outputs out.npz --backend interp")).refused(parts);
    }
    // Every byte counts.
    let small = params::write([("a", &Tensor::scalar(1f32)), ("b", &Tensor::zeros(DType::I8, &[3]))]);
    for end in 0..small.len() {
        let refused = params::read("cut.params", &small[..end]).expect_err("it is cut off");
        assert!(refused.to_string().contains("cut.params"), "{refused}");
    }
    assert!(!f.files().iter().any(|name| name.starts_with("out")), "{:?}", f.files());
}

#[test]
fn parameters_that_are_not_given_are_inputs() {
    let f = digits();
    for backend in ["llvm", "interp"] {
        let line = format!("run digits.relay --inputs inputs.npz --outputs out.npz --backend {backend}");
        f.line(&line).refused(&["input `conv0_weight` is not given", "input `bn2_var` is not given"]);
    }
    assert!(!f.path("out.npz").exists());
}

#[test]
fn wrong_arguments() {
    let f = digits();
    f.write("p.relay", program("def @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }"));
    let cases: [(&[&str], &[&str]); 18] = [
        (&["--passes", "FoldConstnt"], &["<passes>:1:1", "`FoldConstnt`", "did you mean `FoldConstant`?"]),
        (&["--passes", "Inline,FuseOp"], &["<passes>:1:8", "did you mean `FuseOps`?"]),
        (&["--passes", "Saturate(algbra)"], &["<passes>:1:1", "`algbra`", "did you mean `algebra`?"]),
        (&["--passes", "Saturate("], &["<passes>:1:10", "the end"]),
        (&["--passes", "Inline(1)"], &["takes no arguments"]),
        (&["--passes", "FuseOps(largest=0)"], &["`largest`", "positive"]),
        (&["--passes", "Partition(cc)"], &["no compiler `cc`", "did you mean `c`?"]),
        (&["--passes", "Partition(c,nn.softmx)"], &["no operator `nn.softmx`", "did you mean `nn.softmax`?"]),
        (&["--cost", "flop"], &["no cost model `flop`", "did you mean `flops`?"]),
        (&["--extract", "dags"], &["no extractor `dags`", "did you mean `dag`?"]),
        (&["--target", "cuda"], &["no code generator `cuda`", "there are llvm, c"]),
        (&["--target", "llvm,-mcpu=skylke"], &["`skylke`", "did you mean `skylake`?"]),
        (&["--target", "llvm,-mcp=native"], &["`-mcp`", "-mcpu"]),
        (&["--target", "llvm,-mtriple=pdp11"], &["`pdp11`", "x86_64"]),
        (&["--grade", "exat"], &["`exat`", "did you mean `exact`?"]),
        (&["--rules", "missing.rules"], &["missing.rules", "No such file"]),
        (&["--colour"], &["--colour"]),
        (&["another.relay"], &["another.relay"]),
    ];
    for (args, parts) in cases {
        f.run(&[&["opt", "p.relay", "-o", "out.relay"][..], args].concat()).refused(parts);
        f.run(&[&["build", "p.relay", "-o", "out.so"][..], args].concat()).refused(parts);
        f.run(&[&["run", "p.relay"][..], args].concat()).refused(parts);
    }
    f.run(&[]).refused(&["Usage"]);
    f.line("optimize p.relay").refused(&["'optimize'"]);
    f.line("build p.relay").refused(&["--output"]);
    f.line("run p.relay --backend llvn").refused(&["'llvn'", "'llvm'"]);
    f.line("run p.relay --threads 0").refused(&["--threads", "0"]);
    f.line("bench p.relay --repeat 0").refused(&["--repeat", "0"]);
    for command in ["parse", "opt", "run", "bench", "rules check", "rules list"] {
        f.line(&format!("{command} missing.relay")).refused(&["missing.relay", "No such file"]);
    }
    f.line("run missing.so").refused(&["missing.so"]);
    f.write("garbage.so", "no library");
    f.line("run garbage.so").refused(&["garbage.so"]);
    assert!(!f.files().iter().any(|name| name.starts_with("out")), "{:?}", f.files());
}

#[test]
fn wrong_rules_are_told_all_at_once() {
    let f = digits();
    f.write("p.relay", program("def @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }"));
    f.write(
        "wrong.rules",
        "(ruleset wrong)\n(rule a (nn.rellu ?x) => ?x)\n(rule b (add ?x) => ?y)\n(rule a (abs ?x) => (abs (abs ?x)))\n",
    );
    let parts =
        ["wrong.rules:2:10", "did you mean `nn.relu`?", "wrong.rules:3:9", "wrong.rules:3:21", "wrong.rules:4:7"];
    f.line("opt p.relay --rules wrong.rules -o out.relay").refused(&parts);
    f.line("build p.relay --rules wrong.rules -o out.so").refused(&parts);
    f.line("run p.relay --rules wrong.rules").refused(&parts);
    f.line("rules check wrong.rules").refused(&parts);
    f.line("rules list wrong.rules").refused(&parts);
    // Errors of several files come together.
    f.write("open.rules", "(ruleset open)\n(rule a (abs ?x) => ?x\n");
    let both = [&parts[..], &["open.rules:2:1", "missing.rules"]].concat();
    f.line("opt p.relay --rules wrong.rules --rules open.rules --rules missing.rules").refused(&both);
    f.line("rules check wrong.rules open.rules missing.rules").refused(&both);
    assert!(!f.files().iter().any(|name| name.starts_with("out")), "{:?}", f.files());
}

// ---- what is written

#[cfg(unix)]
#[test]
fn results_are_written_whole_and_readable() {
    use std::os::unix::fs::PermissionsExt;
    let f = digits();
    let plain = {
        f.write("plain", "");
        fs::metadata(f.path("plain")).expect("written").permissions().mode()
    };
    for line in ["parse digits.relay -o out.relay", "build digits.relay -o out.so"] {
        f.line(line).done();
        let file = f.path(line.rsplit(' ').next().expect("a name"));
        let mode = fs::metadata(file).expect("written").permissions().mode();
        assert_eq!(mode & plain & 0o777, plain & 0o777, "{line}: {mode:o}");
    }
    // Links stay links: to a file, which is replaced, and to what is no file, which is written to.
    let printed = f.line("parse digits.relay").done();
    for (link, target) in [("link", "plain"), ("null", "/dev/null")] {
        std::os::unix::fs::symlink(target, f.path(link)).expect("a link can be made");
        f.line(&format!("parse digits.relay -o {link}")).done();
        assert_eq!(fs::read_link(f.path(link)).expect("still a link"), Path::new(target));
    }
    assert_eq!(fs::read_to_string(f.path("plain")).expect("written"), printed);
    let ran = f.line("parse digits.relay -o no/such/folder.relay");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("no/such/folder.relay"), "{}", ran.stderr);
}

#[test]
fn what_is_known_of_the_machine_is_shown_and_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_resat"))
            .arg("machine")
            .args(args)
            .env("XDG_CACHE_HOME", folder.path())
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let before = said(&[]);
    assert!(before.contains("family: ") && before.contains("FMA latency") && !before.contains(" measured  "));
    assert!(said(&["--measure"]).contains("L2 bandwidth"));
    // What was measured is kept: later commands know it.
    let after: serde_json::Value = serde_json::from_str(&said(&["--json"])).expect("JSON");
    let facts = after["facts"].as_array().expect("facts");
    let clock = facts.iter().find(|f| f["name"] == "clock").expect("the clock");
    assert!(clock["measured"].as_f64().is_some_and(|hz| hz > 1e8), "{clock}");
    assert!(facts.iter().all(|f| ["table", "detected", "measured"].contains(&f["from"].as_str().unwrap_or_default())));
    assert!(said(&["--together"]).starts_with("two threads: "));
    let found: serde_json::Value = serde_json::from_str(&said(&["--together", "--json"])).expect("JSON");
    assert!(found["read_bytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{found}");
    assert!(
        ["in turns", "one core", "shared cache", "apart"].contains(&found["placement"].as_str().unwrap_or_default()),
        "{found}"
    );
}

/// An ONNX model of `x + w` over two numbers, `data` being the fields of the weight that say what it holds.
pub(super) fn sum_of(weight: &str, data: &[u8]) -> Vec<u8> {
    let ty = bytes(1, [number(1, 1), bytes(2, bytes(1, number(1, 2)))].concat());
    let port = |name: &str| [bytes(1, name), bytes(2, &ty)].concat();
    let node = [bytes(1, "x"), bytes(1, weight), bytes(2, "y"), bytes(4, "Add")].concat();
    let tensor = [&number(1, 2)[..], &number(2, 1), &bytes(8, weight), data].concat();
    let graph = [bytes(1, node), bytes(2, "g"), bytes(5, tensor), bytes(11, port("x")), bytes(12, port("y"))].concat();
    [number(1, 8), bytes(7, graph), bytes(8, number(2, 17))].concat()
}

/// An ONNX model of `x + w`, the weight's name one that Relay can't spell.
pub(super) fn onnx_sum() -> Vec<u8> {
    sum_of("a b:0/w", &bytes(9, [1f32, 2.0].map(f32::to_le_bytes).concat()))
}

#[test]
fn imported_weights_are_called_as_the_text_calls_them() {
    let f = Folder::new();
    f.write("sum.onnx", onnx_sum());
    f.archive("in.npz", "x", &Tensor::from_f64_fn(DType::F32, &[2], |_| 10.0));
    f.line("import sum.onnx -o sum.relay --params sum.params").done();
    f.line("run sum.relay --params sum.params --inputs in.npz --outputs out.npz").done();
    let found = npz::read("out", &fs::read(f.path("out.npz")).expect("written")).expect("an archive");
    assert_eq!((found[0].1.get_f64(0), found[0].1.get_f64(1)), (11.0, 12.0));
}
