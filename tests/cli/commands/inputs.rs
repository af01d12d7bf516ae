//! Inputs that a user gives: names, numbers and archives; and what `resat bench` says of them.

use super::*;

#[test]
fn bench_prints_json() {
    let f = digits();
    let line = "bench digits.relay --params digits.params --inputs inputs.npz --repeat 3 --threads 1 --json --profile";
    let printed = f.line(line).done();
    let json: serde_json::Value = serde_json::from_str(&printed).expect("it is JSON");
    assert!(json["kernels"].to_string().contains("conv2d"), "the profile names kernels\n{printed}");
    assert_eq!(json["latencies_s"].as_array().map(Vec::len), Some(3), "{printed}");
    let number = |key: &str| json[key].as_f64().unwrap_or_else(|| panic!("no {key} in {printed}"));
    assert!(0.0 < number("min_s") && number("min_s") <= number("median_s") && number("median_s") <= number("p90_s"));
    assert!(number("compile_s") > 0.0);
}

/// A counter is in the profile, or named in a warning.
#[test]
fn bench_counts_where_the_system_does() {
    let f = digits();
    let line = "bench digits.relay --params digits.params --inputs inputs.npz --repeat 2 --threads 1 --json --counters";
    f.line(line).refused(&["--profile"]);
    let Ran { stdout: printed, stderr: warnings, .. } = f.line(&format!("{line} --profile"));
    let json: serde_json::Value = serde_json::from_str(&printed).expect("it is JSON");
    for name in ["cycles", "instructions", "l1_misses", "cache_misses", "tlb_misses", "branch_misses", "page_faults"] {
        let counted = json["kernels"].as_array().expect("a list").iter().filter(|k| k["counters"][name].is_number());
        let is_counted = counted.count() > 0;
        assert!(is_counted != warnings.contains(name), "{name}: {printed}\n{warnings}");
    }
}

#[test]
fn bench_takes_several_inputs() {
    let f = digits();
    let line =
        "bench digits.relay --params digits.params --inputs inputs.npz --inputs inputs.npz --repeat 2 --threads 1";
    assert_eq!(f.line(line).done().matches("inputs.npz: median").count(), 2);
    let printed = f.line(&format!("{line} --json")).done();
    let json: serde_json::Value = serde_json::from_str(&printed).expect("it is JSON");
    let runs = json["runs"].as_array().unwrap_or_else(|| panic!("no runs in {printed}"));
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run["inputs"].as_str(), Some("inputs.npz"));
        assert_eq!(run["latencies_s"].as_array().map(Vec::len), Some(2), "{printed}");
        assert!(run["first_s"].as_f64().is_some_and(|s| s > 0.0), "{printed}");
    }
}

#[test]
fn inputs_go_by_the_names_of_signatures() {
    use std::io::Read;
    let f = digits();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/frontends/tflite.zip");
    let mut archive = zip::ZipArchive::new(fs::File::open(path).expect("the archive is there")).expect("an archive");
    let mut file = |name: &str| {
        let mut bytes = Vec::new();
        archive.by_name(name).expect("it is there").read_to_end(&mut bytes).expect("it is whole");
        bytes
    };
    f.write("model.tflite", file("abs_r2/model.tflite"));
    f.write("own.npz", file("abs_r2/inputs.npz"));
    let x = arrays(&f.path("own.npz")).swap_remove(0).1;
    f.archive("signature.npz", "x0", &x);
    f.line("build model.tflite -o model.so").done();
    // The second of each finds the program in the cache.
    for line in ["run model.tflite --inputs own.npz", "run model.tflite --inputs signature.npz"].repeat(2) {
        f.line(&format!("{line} --outputs out.npz")).done();
        assert_eq!(arrays(&f.path("out.npz"))[0].0.as_str(), "output_0");
    }
    f.line("run model.so --inputs signature.npz --outputs library.npz").done();
    let (a, b) = (arrays(&f.path("out.npz")), arrays(&f.path("library.npz")));
    assert!(a[0].0 == b[0].0 && a[0].1.same_bits(&b[0].1));
}

#[test]
fn inputs_by_position_and_at_random() {
    let f = digits();
    f.archive("numbered.npz", "0", &arrays(&f.path("inputs.npz"))[0].1);
    f.line("run digits.relay --params digits.params --inputs numbered.npz --outputs out.npz").done();
    assert_close(&f.path("out.npz"), &recorded());
    let random = f.line("run digits.relay --params digits.params").done();
    assert_eq!(random, "0: Tensor[[4, 10], float32]\n");
}

#[test]
fn wrong_inputs() {
    let f = digits();
    f.archive("shape.npz", "x", &Tensor::zeros(DType::F32, &[IMAGES, 1, 8, 9]));
    f.archive("dtype.npz", "x", &Tensor::zeros(DType::F64, &[IMAGES, 1, 8, 8]));
    f.archive("name.npz", "y", &Tensor::zeros(DType::F32, &[IMAGES, 1, 8, 8]));
    f.archive("number.npz", "1", &Tensor::zeros(DType::F32, &[IMAGES, 1, 8, 8]));
    f.write("garbage.npz", "PK\u{3}\u{4} and so on");
    let cases: [(&str, &[&str]); 6] = [
        ("shape.npz", &["`x`", "4, 1, 8, 9", "4, 1, 8, 8"]),
        ("dtype.npz", &["`x`", "float64", "float32"]),
        ("name.npz", &["no input `y`", "it has x", "`x` is not given"]),
        ("number.npz", &["no input `1`", "`x` is not given"]),
        ("garbage.npz", &["garbage.npz", "not an npz archive"]),
        ("missing.npz", &["missing.npz", "No such file"]),
    ];
    for (file, parts) in cases {
        for backend in ["llvm", "interp"] {
            let parts: Vec<&str> = parts.iter().map(|p| p.trim_matches('`')).collect();
            let line = format!("run digits.relay --params digits.params --inputs {file} --backend {backend}");
            f.line(&format!("{line} --outputs out.npz")).refused(&parts);
        }
    }
    assert!(!f.path("out.npz").exists());
}
