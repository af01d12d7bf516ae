//! What is fuzzed: everything that reads what a user gives. A target panics where it finds a fault.

use resat::{
    diag::Refused,
    frontend::{self, LoadOptions, SourceFile, load_from},
    infer::infer_types,
    ir::{Module, Name},
    relay::{json, npz, params, text},
    tensor::Tensor,
};

use crate::same::Same;

/// How inputs of a target look.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Format {
    /// Words, numbers and signs.
    Text,
    /// Bytes, with sizes among them.
    Binary,
}

/// A reader under test.
#[derive(Copy, Clone, Debug)]
pub struct Target {
    /// The name; also of its folder in the corpus.
    pub name: &'static str,
    /// How its inputs look.
    pub format: Format,
    /// Reads the input and checks what came of it.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "text", format: Format::Text, run: relay_text },
    Target { name: "json", format: Format::Text, run: relay_json },
    Target { name: "params", format: Format::Binary, run: parameters },
    Target { name: "onnx", format: Format::Binary, run: onnx_model },
    Target { name: "npz", format: Format::Binary, run: archive },
    Target { name: "keras", format: Format::Binary, run: keras },
    Target { name: "keras_config", format: Format::Text, run: keras_config },
    Target { name: "tflite", format: Format::Binary, run: tflite },
];

/// The target of that name.
pub fn named(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("there is no target `{name}`"))
}

/// Refusals are shown, too: rendering must cope with any text.
fn refused(why: &Refused) {
    assert!(!why.0.is_empty(), "refused without a reason");
    assert!(!why.render().is_empty());
}

fn onnx_model(data: &[u8]) {
    let file = SourceFile { name: "fuzz", bytes: data, folder: None };
    // Whatever the bytes look like to others, they are read as a model.
    let marked =
        frontend::ALL.iter().find(|f| f.name() == "onnx").unwrap_or_else(|| panic!("there is a front end for ONNX"));
    match marked.read(&file, &LoadOptions::default()) {
        Ok(model) => {
            types(model.module);
        }
        Err(why) => refused(&why),
    }
}

fn relay_text(data: &[u8]) {
    let Ok(given) = std::str::from_utf8(data) else { return };
    let parsed = match text::parse("fuzz", given) {
        Ok(p) => p,
        Err(why) => return refused(&why),
    };
    let printed = parsed.print();
    let again = text::parse("printed", &printed).unwrap_or_else(|e| panic!("its print is refused: {e}\n{printed}"));
    let twice = again.print();
    assert!(twice == printed, "printed twice, it is two texts:\n{printed}\n{twice}");
    let (m, again) = (parsed.into_module(), again.into_module());
    Same::modules(&m, &again).unwrap_or_else(|e| panic!("print and parse: {e}\n{printed}"));
    through_json(&m);
    types(m);
}

fn relay_json(data: &[u8]) {
    let Ok(given) = std::str::from_utf8(data) else { return };
    let m = match json::parse_module("fuzz", given) {
        Ok(m) => m,
        Err(why) => return refused(&why),
    };
    through_json(&m);
    if types(m.clone()) {
        // Text is for programs that make sense: names are unique, variables are bound.
        let printed = text::print_module(&m);
        let again =
            text::parse_module("printed", &printed).unwrap_or_else(|e| panic!("its print is refused: {e}\n{printed}"));
        Same::modules(&m, &again).unwrap_or_else(|e| panic!("print and parse: {e}\n{printed}"));
    }
}

/// Whether the module has types; it must say so one way or the other.
fn types(m: Module) -> bool {
    match infer_types(m) {
        Ok(_) => true,
        Err(why) => {
            refused(&why);
            false
        }
    }
}

fn through_json(m: &Module) {
    match json::print_module(m) {
        Ok(printed) => {
            let again = json::parse_module("written", &printed)
                .unwrap_or_else(|e| panic!("the JSON that was written is refused: {e}\n{printed}"));
            Same::modules(m, &again).unwrap_or_else(|e| panic!("JSON: {e}\n{printed}"));
        }
        Err(why) => refused(&why),
    }
}

fn named_tensors(arrays: &[(Name, Tensor)]) -> impl Iterator<Item = (&str, &Tensor)> {
    arrays.iter().map(|(n, t)| (n.as_str(), t))
}

fn parameters(data: &[u8]) {
    match params::read("fuzz", data) {
        Ok(arrays) => {
            let written = params::write(named_tensors(&arrays));
            let again =
                params::read("written", &written).unwrap_or_else(|e| panic!("what was written is refused: {e}"));
            assert!(arrays == again, "what was written is read as something else");
        }
        Err(why) => refused(&why),
    }
}

/// A whole archive, or one array, which is put into an archive: what is inside is checked by its sum, so that an archive
/// whose arrays were changed would not get far.
fn archive(data: &[u8]) {
    let wrapped = if data.starts_with(b"PK") { data.to_vec() } else { stored(&[("x.npy", data)]) };
    match npz::read("fuzz", &wrapped) {
        Ok(arrays) => {
            let written = npz::write(named_tensors(&arrays)).unwrap_or_else(|e| panic!("it is not written: {e}"));
            let again = npz::read("written", &written).unwrap_or_else(|e| panic!("what was written is refused: {e}"));
            assert!(arrays == again, "what was written is read as something else");
        }
        Err(why) => refused(&why),
    }
}

/// A model file that a front end recognizes.
fn model(data: &[u8]) {
    match load_from(&SourceFile { name: "fuzz", bytes: data, folder: None }, &LoadOptions::default()) {
        Ok(model) => drop(types(model.module)),
        Err(why) => refused(&why),
    }
}

/// A `.keras` archive or a legacy file; of anything else, an archive with that as its arrays.
fn keras(data: &[u8]) {
    if data.starts_with(b"PK") || data.starts_with(b"\x89HDF") {
        return model(data);
    }
    let config = br#"{"class_name":"Sequential","config":{"layers":[{"class_name":"Dense","config":{"name":"d","units":2,"batch_input_shape":[1,2]}}]}}"#;
    model(&stored(&[("config.json", config), ("model.weights.h5", data)]));
}

/// A configuration without arrays: what is inside of an archive is checked by its sum.
fn keras_config(data: &[u8]) {
    model(&stored(&[("config.json", data)]));
}

/// A zip archive of uncompressed entries.
pub fn stored(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let offset = out.len() as u32;
        let size = (data.len() as u32).to_le_bytes();
        let common = [
            &[20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0][..],
            &crc32(data).to_le_bytes(),
            &size,
            &size,
            &(name.len() as u16).to_le_bytes(),
            &[0, 0],
        ]
        .concat();
        out.extend([b"PK\x03\x04", &common[..], name.as_bytes(), data].concat());
        directory
            .extend([b"PK\x01\x02\x14\x00", &common[..], &[0; 10], &offset.to_le_bytes(), name.as_bytes()].concat());
    }
    let count = (entries.len() as u16).to_le_bytes();
    let (start, size) = (out.len() as u32, directory.len() as u32);
    out.extend(directory);
    out.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count].concat());
    out.extend([&size.to_le_bytes()[..], &start.to_le_bytes(), &[0, 0]].concat());
    out
}

/// The checksum of zip archives.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ byte as u32, |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
    })
}

/// Models of TFLite: whatever is taken has types.
fn tflite(data: &[u8]) {
    if data.get(4..8) != Some(b"TFL3") {
        return;
    }
    match load_from(&SourceFile { name: "fuzz", bytes: data, folder: None }, &LoadOptions::default()) {
        Ok(model) => _ = types(model.module),
        Err(why) => refused(&why),
    }
}
