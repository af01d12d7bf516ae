//! Model files are read once, and take no more memory than their weights.

use std::{io::Write, process::Stdio};

use super::{
    commands::onnx_sum,
    folder::{Folder, Ran},
    protobuf::{bytes, number},
};

/// A command that is given a model by a pipe.
fn piped(folder: &Folder, line: &str, model: &[u8]) -> Ran {
    let mut child = folder
        .command(line.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("it has one").write_all(model).expect("it reads");
    Ran::new(line.to_owned(), child.wait_with_output().expect("it ends"))
}

#[cfg(unix)]
#[test]
fn models_come_by_pipes() {
    let folder = Folder::new();
    let relay = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.relu(nn.relu(%x)) }\n";
    for line in ["parse", "import", "explain", "opt", "run", "bench", "build -o m.so", "why-not m.relay"] {
        folder.write("m.relay", relay);
        // The file comes first.
        let line = match line.split_once(' ') {
            Some((command, rest)) => format!("{command} /dev/stdin {rest}"),
            None => format!("{line} /dev/stdin"),
        };
        piped(&folder, &line, relay.as_bytes()).done();
        if !line.starts_with("why-not") {
            piped(&folder, &line, &onnx_sum()).done();
        }
    }
}

/// Weights within an ONNX file are copied to where they are aligned, and what was copied of the file leaves memory.
#[cfg(target_os = "linux")]
#[test]
fn weights_are_in_memory_once() {
    const ROWS: usize = 32 << 10;
    const COLUMNS: usize = 1024;
    let weight = |name: &str| {
        let data: Vec<u8> = (0..ROWS * COLUMNS).flat_map(|i| ((i % 1024) as f32).to_le_bytes()).collect();
        let dims = [number(1, ROWS as u64), number(1, COLUMNS as u64)].concat();
        bytes(5, [&dims[..], &number(2, 1), &bytes(8, name), &bytes(9, data)].concat())
    };
    let value = |name: &str, elem: u64, extents: &[u64]| {
        let dims: Vec<u8> = extents.iter().flat_map(|&d| bytes(1, number(1, d))).collect();
        [bytes(1, name), bytes(2, bytes(1, [number(1, elem), bytes(2, dims)].concat()))].concat()
    };
    let node = [bytes(1, "w"), bytes(1, "i"), bytes(2, "y"), bytes(4, "Gather")].concat();
    let (input, output) = (value("i", 7, &[1]), value("y", 1, &[1, COLUMNS as u64]));
    let graph = [bytes(1, node), bytes(2, "g"), weight("w"), bytes(11, input), bytes(12, output)].concat();
    let folder = Folder::new();
    folder.write("m.onnx", [number(1, 8), bytes(7, graph), bytes(8, number(2, 17))].concat());
    let json = folder.line("bench m.onnx --repeat 1 --json").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let held = json["peak_memory_bytes"].as_u64().expect("Linux says") >> 20;
    // A program without weights takes some 60.
    assert!(held < 128 + 90, "{held} MB were in memory at a time");
}
