//! Libraries of programs with control flow, functions as values and data types: the program as words, and a machine in C that runs them.

use super::{
    sized::{CALL, Constants, PortType, RESULTS, SIZED, SizedFunction, Span, interface, list, ports, spans, tables},
    source::quoted,
};
use crate::tensor::Tensor;

/// The machine.
const MACHINE: &str = include_str!("vm.c");

/// A program as words of 32 bits.
#[derive(Clone, Debug)]
pub struct Words {
    /// The instructions of all functions.
    pub code: Vec<i32>,
    /// The functions.
    pub functions: Vec<Entry>,
    /// Which of them runs.
    pub entry: u32,
    /// The constants.
    pub constants: Vec<Word>,
    /// By kernel: how its results make a value: -1 is a tensor, another number a tuple of so many values, which follow.
    pub results: Vec<Vec<i32>>,
}

/// A function of [`Words`].
#[derive(Clone, Debug)]
pub struct Entry {
    /// For messages.
    pub name: String,
    /// How many parameters it has: they are in the first registers.
    pub params: u32,
    /// How many registers it needs.
    pub registers: u32,
    /// Its first word.
    pub start: usize,
}

/// A constant of [`Words`].
#[derive(Clone, Debug)]
pub enum Word {
    /// A tensor.
    Tensor(Tensor),
    /// A function that captures nothing.
    Function(u32),
    /// The value of a constructor without fields.
    Constructor(u32),
    /// The tuple without fields.
    Unit,
}

/// A program for the machine.
#[derive(Clone, Debug)]
pub struct MachineParts {
    /// What it does.
    pub words: Words,
    /// The kernels that it calls, by number.
    pub kernels: Vec<SizedFunction>,
    /// By kernel, whether it is no more than a reshape of its first argument to the extents that its second one holds, which the machine does itself;
    /// where it is, whether an extent of 0 is meant.
    pub reshapes: Vec<Option<bool>>,
    /// What it takes.
    pub inputs: Vec<PortType>,
    /// What their extents may be, where that is bounded: of all axes of all inputs, in order.
    pub spans: Vec<Option<Span>>,
    /// How inputs make up its parameters, as [`Words::results`] says it of results.
    pub parameters: Vec<i32>,
}

/// What follows where the system's part is done.
pub(super) fn machine_text(p: &str, program: &MachineParts, constants: &mut Constants) -> String {
    let MachineParts { words, kernels, reshapes, inputs, spans: bounded, parameters } = program;
    let reshaped = kernels.iter().zip(reshapes).filter(|(_, r)| r.is_some());
    let ranks = reshaped.filter_map(|(k, _)| k.inputs.get(1)?.shape.first().copied().flatten());
    let mut text = format!("\n{SIZED}\n{RESULTS}\n{CALL}\n");
    for (what, n) in [
        ("ENTRY", words.entry as usize),
        ("CONSTANT_COUNT", words.constants.len()),
        ("CONSTANTS", words.constants.len().max(1)),
        ("INPUT_COUNT", inputs.len()),
        ("MAX_RESHAPED", ranks.max().unwrap_or(1).max(1)),
    ] {
        text += &format!("#define {what} {n}\n");
    }
    text += &tables(kernels, constants);
    text += &list("int32_t words[]", &words.code);
    text += "static const struct { const char *name; uint32_t params, registers, start; } routines[] = {\n";
    for f in &words.functions {
        text += &format!("  {{{}, {}, {}, {}}},\n", quoted(&f.name), f.params, f.registers, f.start);
    }
    text += "};\n";
    text += &list("int32_t layouts[]", words.results.iter().flatten());
    let begins = words.results.iter().scan(0, |at, r| {
        *at += r.len();
        Some(*at - r.len())
    });
    text += &list("uint32_t layout_of[]", begins);
    text += &list("int32_t parameter_layouts[]", parameters);
    ports(&mut text, "of_model", inputs);
    text += "#define inputs_of_model of_model_ports\n";
    text += &list("uint64_t input_elements[]", inputs.iter().map(|p| p.dtype.bytes()));
    text += &list("unsigned char reshapes[]", reshapes.iter().map(|r| r.map_or(0, |zeros| 1 + u8::from(zeros))));
    const ANY: Span = Span { least: 0, most: i64::MAX, step: 1 };
    text += &spans("input_spans", bounded.iter().map(|s| s.unwrap_or(ANY)));
    let tensors: Vec<PortType> = words.constants.iter().map(constant_port).collect();
    ports(&mut text, "constant", &tensors);
    let rows: Vec<String> = words.constants.iter().map(|c| constant_row(c, constants)).collect();
    text += "static const struct { uint32_t kind; uint64_t at, element_bytes; } constants[] = {\n";
    rows.iter().for_each(|r| text += &format!("  {r},\n"));
    text += "  {0, 0, 0}\n};\n";
    text + MACHINE + &interface(p, inputs.len(), None)
}

fn constant_port(c: &Word) -> PortType {
    let (dtype, shape) = match c {
        Word::Tensor(t) => (t.dtype(), t.shape().iter().map(|&n| Some(n)).collect()),
        _ => (crate::tensor::DType::Bool, Vec::new()),
    };
    PortType { name: String::new(), dtype, shape }
}

/// Its kind by the machine's numbers, and where it lies, or which function or constructor it is.
fn constant_row(c: &Word, constants: &mut Constants) -> String {
    match c {
        Word::Tensor(t) => format!("{{0, {}, {}}}", constants.at(t), t.dtype().bytes()),
        Word::Unit => "{1, 0, 0}".into(),
        Word::Constructor(tag) => format!("{{2, {tag}, 0}}"),
        Word::Function(f) => format!("{{3, {f}, 0}}"),
    }
}
