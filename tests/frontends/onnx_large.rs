//! An ONNX model whose weights lie in a file of more than 2 GB: the file is mapped, and no more of it is read than is used.

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom, Write},
};

use resat::{
    frontend::{LoadOptions, load},
    interp,
    pass::bind_params,
    tensor::{Tensor, Value},
};

use crate::protobuf::{bytes, number};

const ROWS: u64 = 655_360;
const COLUMNS: u64 = 1024;

/// `y = Gather(w, i)`, where `w` is in the file `w.bin`.
fn model() -> Vec<u8> {
    let node = [bytes(1, "w"), bytes(1, "i"), bytes(2, "y"), bytes(4, "Gather")].concat();
    let entry = |key: &str, value: &str| bytes(13, [bytes(1, key), bytes(2, value)].concat());
    let weight = [
        number(1, ROWS),
        number(1, COLUMNS),
        number(2, 1),
        bytes(8, "w"),
        entry("location", "w.bin"),
        entry("offset", "0"),
        entry("length", &(ROWS * COLUMNS * 4).to_string()),
        number(14, 1),
    ]
    .concat();
    let value = |name: &str, elem: u64, extents: &[u64]| {
        let dims: Vec<u8> = extents.iter().flat_map(|&d| bytes(1, number(1, d))).collect();
        let tensor = [number(1, elem), bytes(2, dims)].concat();
        [bytes(1, name), bytes(2, bytes(1, tensor))].concat()
    };
    let (input, output) = (value("i", 7, &[1]), value("y", 1, &[1, COLUMNS]));
    let graph = [bytes(1, node), bytes(2, "g"), bytes(5, weight), bytes(11, input), bytes(12, output)].concat();
    [number(1, 8), bytes(7, graph), bytes(8, number(2, 17))].concat()
}

/// Kilobytes that the process has held in memory at most.
fn most_resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux says");
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).expect("a line of it");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn weights_of_more_than_two_gigabytes_are_mapped() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("large.onnx");
    fs::write(&path, model()).expect("written");
    // A file of holes, but for the last row.
    let mut file = File::create(dir.path().join("w.bin")).expect("created");
    let row: Vec<f32> = (0..COLUMNS).map(|i| i as f32).collect();
    file.seek(SeekFrom::Start((ROWS - 1) * COLUMNS * 4)).expect("files have holes");
    file.write_all(&row.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).expect("written");
    drop(file);
    let loaded = load(&path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let module = bind_params(&loaded.module, &loaded.params).unwrap_or_else(|e| panic!("{e}"));
    let at = Tensor::from_slice(&[1], &[ROWS as i64 - 1]);
    let y = interp::run_flat(&module, "main", vec![Value::from(at)]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(y[0].as_slice::<f32>(), row);
    let held = most_resident() / 1024;
    assert!(held < 512, "{held} MB were in memory at a time");
}
