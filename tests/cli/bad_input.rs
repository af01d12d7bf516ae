//! What the command line says to input that it can't take, and to what it takes but does nothing about: a command, its exit code, and what stands
//! on stderr, a line of a table each.

use super::folder::{Folder, Ran};
use resat::{
    cost::{CostModel, NodeView},
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
};

/// The files that commands name.
const FILES: &[(&str, &[u8])] = &[
    ("ok.relay", b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4, 8), float32]) { nn.relu(%x) }\n"),
    ("open.relay", b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(?, 8), float32]) { nn.relu(%x) }\n"),
    ("operator.relay", b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.rellu(%x) }\n"),
    ("syntax.relay", b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32] { %x }\n"),
    ("shapes.relay", b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32], %y: Tensor[(3), float32]) { add(%x, %y) }\n"),
    ("bytes.relay", b"#[version = \"0.0.5\"]\ndef @main(%\xff: Tensor[(2), float32]) { %x }\n"),
    ("bytes.rules", b"(ruleset mine)\n;; \xc3\x28\n"),
    ("empty.relay", b""),
    ("object.json", b"{\"a\": 1}"),
    ("archive.npz", b"PK\x03\x04 and no more"),
    ("wrong.rules", b"(ruleset a)\n(rule b (add ?x) => ?y)\n"),
    ("grows.rules", b"(ruleset a)\n(rule b :constants (abs ?x) => (negative ?x))\n"),
    ("prices.json", b"{\"default\": 1"),
    ("large.relay", b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1000000, 1000000), float32]) { nn.relu(%x) }\n"),
    (
        "wide.relay",
        b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1000000, 1), float32]) { broadcast_to(%x, shape=[1000000, 1000000]) }\n",
    ),
    (
        "zeros.relay",
        b"#[version = \"0.0.5\"]\ndef @main() { zeros(shape=[1000000, 1000000], dtype=\"float32\") }\n",
    ),
    (
        "conv.relay",
        b"#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 3, 3), float32]) {\n  nn.conv2d(%x, %w)\n}\n",
    ),
    (
        "quantized.relay",
        b"#[version = \"0.0.5\"]
def @main(%x: Tensor[(2, 4), int8], %w: Tensor[(3, 4), int8]) {
  nn.dense(qnn.dequantize(%x, 0.5f, 0), qnn.dequantize(%w, 0.25f, 0), units=None)
}
",
    ),
    (
        "regions.relay",
        b"#[version = \"0.0.5\"]
def @main(%x: Tensor[(4, 8), float32], %y: Tensor[(4, 8), float32]) {
  %0 = annotation.compiler_begin(%x, compiler=\"c\");
  %1 = annotation.compiler_begin(%y, compiler=\"c\");
  %2 = nn.relu(add(%0, %1));
  %3 = annotation.compiler_end(%2, compiler=\"c\");
  tanh(%3)
}
",
    ),
    (
        "integers.relay",
        b"#[version = \"0.0.5\"]
def @main(%x: Tensor[(4, 8), int8], %w: Tensor[(2, 8), int8]) {
  qnn.dense(%x, %w, 1, 2, 0.5f, 0.25f, units=2, out_dtype=\"int32\")
}
",
    ),
];

/// A tuple of two of itself, so often.
const DOUBLINGS: usize = 18;

/// Commands, their exit codes, and parts of what they say on stderr. Words are told apart by blanks.
const REFUSED: &[(&str, i32, &[&str])] = &[
    // Files that are no programs.
    ("run nothing.relay", 2, &["nothing.relay: No such file"]),
    ("run .", 2, &["Is a directory"]),
    ("run empty.relay", 2, &["empty.relay:1:1: a module must begin with its version"]),
    ("run operator.relay", 2, &["operator.relay:2:39: operator `nn.rellu` is not known"]),
    ("run syntax.relay", 2, &["syntax.relay:2:36: expected `,` or `)`"]),
    ("run shapes.relay", 2, &["shapes.relay:2:65: `add`: shapes (2) and (3) do not broadcast"]),
    ("run bytes.relay", 2, &["bytes.relay:2:12: not UTF-8 text"]),
    ("parse bytes.relay", 2, &["bytes.relay:2:12: not UTF-8 text"]),
    ("run object.json", 2, &["object.json: not in the form of TVM's JSON"]),
    ("run nothing.so", 2, &["can't load nothing.so"]),
    // Other files.
    ("run ok.relay --params archive.npz", 2, &["archive.npz: not an npz archive"]),
    ("run ok.relay --inputs archive.npz", 2, &["archive.npz: not an npz archive"]),
    ("run ok.relay --inputs nothing.npz", 2, &["nothing.npz: No such file"]),
    ("run ok.relay --rules wrong.rules", 2, &["wrong.rules:2:9: `add` takes 2 arguments"]),
    ("run ok.relay --rules bytes.rules", 2, &["bytes.rules:2:4: not UTF-8 text"]),
    ("run ok.relay --rules nothing.rules", 2, &["nothing.rules: No such file"]),
    ("run ok.relay --cost table:prices.json", 2, &["prices.json:1:13: a table of costs can't be read"]),
    ("run ok.relay --cost table:nothing.json", 2, &["nothing.json: No such file"]),
    ("rules check bytes.rules", 2, &["bytes.rules:2:4: not UTF-8 text"]),
    ("rules check grows.rules", 2, &["must make fewer operators than it matches"]),
    ("extract object.json", 2, &["object.json: no e-graph of egraph-serialize"]),
    // Names.
    ("run ok.relay --passes Nope", 2, &["no pass is named `Nope`"]),
    ("run ok.relay --passes Saturate(algebr)", 2, &["no ruleset is named `algebr`", "did you mean `algebra`?"]),
    ("run ok.relay --passes FuseOps(largest=x)", 2, &["`largest` is `x`, but should be a positive number"]),
    ("run ok.relay --passes ConvertLayout(to=NCX)", 2, &["no operator has a layout of the axes of NCX"]),
    ("run ok.relay --cost nonsense", 2, &["there is no cost model `nonsense`"]),
    ("run ok.relay --extractor nope", 2, &["there is no extractor `nope`"]),
    ("run ok.relay --grade nope", 2, &["there is no grade `nope`; there are exact, real, finite, approx"]),
    ("run ok.relay --without a/b", 2, &["there is no rule `a/b`"]),
    ("run ok.relay --compiler nope", 2, &["there is no compiler `nope`"]),
    ("run ok.relay --compiler c --placement nope", 2, &["`nope` is no placement"]),
    ("run ok.relay --target llvm,-mcpu=nope", 2, &["there is no processor `nope`"]),
    ("run ok.relay --remove nope", 2, &["the pipeline has no stage `nope`"]),
    ("run ok.relay --disabled-pass nope", 2, &["there is no pass, stage or ruleset `nope`"]),
    ("run ok.relay --required-pass ConvertLayout", 2, &["pass `ConvertLayout` is no part of the default pipeline"]),
    ("run ok.relay --pass-config a=1", 2, &["no pass has an option `a`"]),
    ("rules doc layout-splt", 2, &["there is no guard or function `layout-splt`", "did you mean `layout-split`?"]),
    ("rules show nope", 2, &["there is no rule or ruleset `nope`"]),
    // Numbers.
    ("run ok.relay --threads 100000", 2, &["should be a number from 1 to 1024"]),
    ("bench ok.relay --threads 100000", 2, &["should be a number from 1 to 1024"]),
    ("run ok.relay --threads 0", 2, &["should be a number from 1 to 1024"]),
    ("run ok.relay -O 9", 2, &["9 is not in 0..=4"]),
    ("run ok.relay --max-error=-1", 2, &["--max-error is -1, but should be a share"]),
    ("run ok.relay --extract-time=-1", 2, &["--extract-time -1"]),
    ("run ok.relay --tune=x", 2, &["invalid float literal"]),
    ("bench ok.relay --repeat 0", 2, &["invalid value '0'"]),
    ("run ok.relay --dim a=1", 2, &["sizes can be given for ONNX, TFLite and Keras models"]),
    ("run ok.relay --shape x=2y", 2, &["should be of the form x=1x3x224x224"]),
    // Sizes.
    ("run large.relay", 2, &["parameter `%x`: Tensor[(1000000, 1000000), float32]", "4.0 TB are wanted at once"]),
    ("run large.relay --backend interp", 2, &["4.0 TB are wanted at once"]),
    ("run wide.relay", 2, &["4.0 TB are wanted at once"]),
    ("run wide.relay --backend interp", 2, &["4.0 TB are wanted at once"]),
    ("run zeros.relay", 2, &["4.0 TB are wanted at once"]),
    ("run doubling.relay", 2, &["a type is made of more than 65536 types"]),
    ("build doubling.relay -o d.so", 2, &["a type is made of more than 65536 types"]),
    // Where results go.
    ("build ok.relay", 2, &["--output <FILE>"]),
    ("build ok.relay -o -", 2, &["can't go to standard output"]),
    ("build ok.relay -o nowhere/a.so", 1, &["can't write nowhere/a.so: No such file"]),
    ("build ok.relay -o nowhere/a.tar", 1, &["can't write nowhere/a.tar: No such file"]),
    ("build ok.relay -o .", 1, &["can't write .: is a directory"]),
    ("build ok.relay -o ok.h", 2, &["`-o ok.h`: a shared library is written, and no `.h` file", "`.so` is the ending"]),
    ("build ok.relay -o ok.a", 2, &["`-o ok.a`: a shared library is written, and no `.a` file"]),
    ("build ok.relay -o ok.c", 2, &["`-o ok.c`: a shared library is written, and no `.c` file", "`--emit c` writes C"]),
    ("build ok.relay --emit c -o ok.so", 2, &["`-o ok.so`: C source is written, and no `.so` file"]),
    ("build ok.relay -o ./ok.relay", 2, &["`./ok.relay` would be written in the place of `ok.relay`, which is read"]),
    (
        "build open.relay --max x=9223372036854775807x? -o a.so",
        2,
        &["no code for `x` of 9223372036854775807x8", "out of memory"],
    ),
    ("opt ok.relay -o nowhere/a.relay", 1, &["can't write nowhere/a.relay: No such file"]),
    ("run ok.relay --outputs nowhere/a.npz", 1, &["can't write nowhere/a.npz: No such file"]),
];

/// Commands that do what they are asked, and what a user should know of it all the same.
const SAID: &[(&str, &str)] = &[
    ("run conv.relay", "1 of the program's 2 inputs are used as weights, `w` among them"),
    (
        "run quantized.relay",
        "convolutions and products of quantized operands compute in floats, as the model says (1 do): `--passes Fake",
    ),
    ("run regions.relay", "the program's annotations for the compiler `c` had no effect"),
    ("opt ok.relay --passes FuseOps,SimplifyExpr", "SimplifyExpr: all operators are in primitive functions already"),
    (
        "opt conv.relay --passes ConvertLayout(from=NHWC,to=NCHW)",
        "converts nothing: it is about none of the program's operators, whose layouts are NCHW",
    ),
    ("opt ok.relay --passes ConvertLayout(to=NHWC)", "converts nothing: no operator of the program has a layout"),
    (
        "opt ok.relay --disabled-pass ConvertLayout",
        "`ConvertLayout` is switched off, but no part of the default pipeline",
    ),
    ("opt ok.relay --disabled-pass taso", "`taso` is switched off, but no part of the default pipeline"),
];

/// A folder with these files.
fn files() -> Folder {
    let folder = Folder::new();
    for (name, content) in FILES {
        folder.write(name, content);
    }
    let doubled: String = (1..=DOUBLINGS).map(|i| format!("  %{i} = (%{}, %{});\n", i - 1, i - 1)).collect();
    let text = format!(
        "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 2), float32]) {{\n  %0 = nn.relu(%x);\n{doubled}  %{DOUBLINGS}\n}}\n"
    );
    folder.write("doubling.relay", text);
    folder
}

/// Words that are wrapped stand together again.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().filter(|w| *w != "|").collect::<Vec<_>>().join(" ")
}

#[test]
fn bad_input_is_refused_with_a_message() {
    let folder = files();
    let mut wrong = Vec::new();
    for (line, code, parts) in REFUSED {
        let Ran { code: found, stderr, .. } = folder.line(line);
        let said = unwrapped(&stderr);
        let crashed = stderr.contains("panicked") || stderr.contains("internal error");
        if found != Some(*code) || crashed || !parts.iter().all(|p| said.contains(p)) {
            wrong.push(format!("resat {line}: exit code {found:?}, wanted {code} and {parts:?}\n{stderr}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_does_nothing_is_said() {
    let folder = files();
    let mut wrong = Vec::new();
    for (line, part) in SAID {
        let Ran { code, stderr, .. } = folder.line(line);
        if code != Some(0) || !unwrapped(&stderr).contains(part) {
            wrong.push(format!("resat {line}: exit code {code:?}, wanted `{part}`\n{stderr}"));
        }
    }
    for quiet in
        ["run ok.relay", "opt ok.relay --disabled-pass FuseOps", "opt conv.relay --passes ConvertLayout(to=NHWC)"]
    {
        let Ran { code, stderr, .. } = folder.line(quiet);
        if code != Some(0) || !stderr.is_empty() {
            wrong.push(format!("resat {quiet}: exit code {code:?}\n{stderr}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn regions_that_are_annotated_by_hand_go_to_their_compiler() {
    let folder = files();
    for how in ["", " --placement greedy", " --placement all:c"] {
        let Ran { code, stdout, stderr, .. } = folder.line(&format!("opt regions.relay --compiler c{how}"));
        assert_eq!(code, Some(0), "{how}: {stderr}");
        assert!(stdout.contains("Compiler=\"c\"") && !stdout.contains("compiler_end"), "{how}: {stdout}");
        let Ran { code, stderr, .. } = folder.line(&format!("run regions.relay --validate --compiler c{how}"));
        assert_eq!(code, Some(0), "{how}: {stderr}");
        assert!(stderr.contains("validated") && !stderr.contains("no effect"), "{how}: {stderr}");
    }
}

#[test]
fn a_ruleset_that_is_switched_off_does_not_run_for_its_dialect_either() {
    let folder = files();
    let kept = |more: &str| folder.line(&format!("opt integers.relay{more}")).stdout.contains("qnn.dense");
    assert!(!kept("") && kept(" --disabled-pass qnn"));
}

#[test]
fn validation_allows_what_was_asked_for() {
    let folder = files();
    for passes in ["ToMixedPrecision", "ToMixedPrecision(bfloat16)", "ToMixedPrecision,default"] {
        for backend in ["llvm", "interp"] {
            let Ran { code, stderr, .. } =
                folder.line(&format!("run conv.relay --validate --backend {backend} --passes {passes}"));
            assert_eq!(code, Some(0), "{passes}, {backend}: {stderr}");
            assert!(stderr.contains("that what was asked for may bring in"), "{stderr}");
        }
    }
}

#[test]
fn validation_allows_what_quantization_was_asked_for() {
    let folder = files();
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/models/digits");
    let line = format!(
        "run {digits}/model.relay --params {digits}/model.params --inputs {digits}/inputs.npz --outputs o.npz --validate \
         --backend interp --passes Quantize(calibration=\"{digits}/inputs.npz\")"
    );
    let Ran { code, stderr, .. } = folder.line(&line);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("validated"), "{stderr}");
    // What is asked for explicitly is held to it.
    let Ran { code, stderr, .. } = folder.line(&format!("{line} --max-error 0.000001"));
    assert!(code == Some(0) || stderr.contains("validation: output 0 differs"), "{stderr}");
}

/// A model that prices one operator wrong.
struct Wrong;

impl CostModel for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn cost(&self, node: &NodeView) -> f64 {
        match node.head {
            resat::cost::Head::Op(op, _) if op.op().name() == "nn.relu" => f64::NAN,
            _ => 1.0,
        }
    }
}

#[test]
fn prices_that_are_no_numbers_are_said() {
    let mut settings = Settings::new(Target::host());
    settings.cost = std::sync::Arc::new(Wrong);
    let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.relu(exp(%x)) }";
    let module = text::parse_module("p.relay", program).expect("well formed");
    let mut cx = PassContext::default();
    sequence("Saturate(algebra)", &settings).expect("a pass").run(module, &mut cx).expect("it runs");
    assert!(cx.warnings.iter().any(|w| w.contains("cost model `wrong` gives NaN for `nn.relu`")), "{:?}", cx.warnings);
}
