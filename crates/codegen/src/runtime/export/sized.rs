//! The C sources of libraries of programs whose extents, or whose results, are found out when they run.

use std::{fmt::Write, path::Path};

use super::{
    Driver, ExportError, Exportable, Exported, MachineParts, link,
    machine::machine_text,
    source::{THREADS, comment, declared_threads, header_text, prefix, prologue, quoted, weights_symbol},
};
use crate::{
    runtime::{
        formulas::{Formula, TableAxis},
        place_after,
        program::{Source, Step},
        sized::SizedProgram,
        with_gaps,
    },
    tensor::{DType, Tensor},
};

/// Calls of functions at sizes.
pub(super) const SIZED: &str = include_str!("sized.c");
/// Results in memory of the library's.
pub(super) const RESULTS: &str = include_str!("results.c");
pub(super) const CALL: &str = include_str!("call.c");
/// Programs that are one function.
const RUN: &str = include_str!("run.c");
const WHOLE: &str = include_str!("whole.c");
const CALL_WHOLE: &str = include_str!("call_whole.c");
const STATE: &str = include_str!("state.c");
/// What takes the place of threads in C that needs the C library only.
pub(super) const ALONE: &str = include_str!("alone.c");

/// What a function takes.
#[derive(Clone, Debug, PartialEq)]
pub struct PortType {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first; none where one is unknown.
    pub shape: Vec<Option<usize>>,
}

/// What an unknown extent of an argument is to a form of a function.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ExtentOf {
    /// The form is for that extent alone.
    Fixed(i64),
    /// The number of a class of extents, which must be equal.
    Number(usize),
}

/// Which extents of a class a form may be for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The least.
    pub least: i64,
    /// The greatest.
    pub most: i64,
    /// How far they are apart.
    pub step: i64,
}

impl Span {
    /// How many there are.
    pub fn count(&self) -> i64 {
        (self.most - self.least) / self.step + 1
    }
}

/// What a function does at some sizes: those within bounds that it is for.
#[derive(Clone, Debug)]
pub struct Form {
    /// By unknown extent of the arguments, in order.
    pub extents: Vec<ExtentOf>,
    /// By class of extents.
    pub classes: Vec<Span>,
    /// Whether it is for each size between these, the first class's extents fastest; none where it is for all.
    pub serves: Option<Vec<bool>>,
    /// Calls and numbers.
    pub program: SizedProgram,
    /// By pair of [`SizedFunction::state`].
    pub state: Vec<InForm>,
}

/// What a form does with a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForm {
    /// Whether it is updated where it lies; else the new one goes into other memory.
    pub in_place: bool,
    /// The greatest extents that it has before and after runs.
    pub most: Vec<usize>,
}

/// A function for all sizes that one of its forms is for.
#[derive(Clone, Debug)]
pub struct SizedFunction {
    /// For messages.
    pub name: String,
    /// What it takes.
    pub inputs: Vec<PortType>,
    /// What its results are called, where they are not by their numbers.
    pub output_names: Vec<String>,
    /// The first that is for a size counts.
    pub forms: Vec<Form>,
    /// Inputs that are outputs, too, which the caller keeps from one run to the next: pairs of their numbers.
    pub state: Vec<(usize, usize)>,
}

impl SizedFunction {
    /// Argument and axis of each unknown extent.
    fn unknown(&self) -> Vec<(usize, usize)> {
        let axes = |(i, p): (usize, &PortType)| -> Vec<(usize, usize)> {
            p.shape.iter().enumerate().filter(|(_, n)| n.is_none()).map(|(axis, _)| (i, axis)).collect()
        };
        self.inputs.iter().enumerate().flat_map(axes).collect()
    }

    /// How many outputs are results: others count rows of these.
    pub fn results(&self) -> usize {
        self.forms.first().map_or(0, |f| f.program.program.outputs.len() - f.program.counted.len())
    }

    /// The outputs; extents that are the same at all sizes are known.
    fn outputs(&self) -> Vec<PortType> {
        let Some(first) = self.forms.first() else { return Vec::new() };
        let cut = |o: usize| first.program.counted.iter().any(|c| c.0 == o);
        let extent = |o: usize, axis: usize| -> Option<usize> {
            let of = |f: &Form| f.program.known(f.program.outputs[o][axis]);
            let n = of(first)?;
            let alike = self.forms.iter().all(|f| of(f) == Some(n)) && !(axis == 0 && cut(o));
            alike.then_some(n as usize)
        };
        first.program.program.outputs[..self.results()]
            .iter()
            .enumerate()
            .map(|(o, (port, _))| PortType {
                name: self.output_names.get(o).cloned().unwrap_or_else(|| port.name.to_string()),
                dtype: port.dtype,
                shape: (0..port.shape.len()).map(|axis| extent(o, axis)).collect(),
            })
            .collect()
    }

    /// The inputs that are not state.
    fn given(&self) -> Vec<PortType> {
        let given = |i: usize| self.state.iter().all(|s| s.0 != i);
        self.inputs.iter().enumerate().filter(|(i, _)| given(*i)).map(|(_, p)| p.clone()).collect()
    }

    /// The outputs that are not state.
    fn made(&self) -> Vec<PortType> {
        let made = |o: usize| self.state.iter().all(|s| s.1 != o);
        self.outputs().into_iter().enumerate().filter(|(o, _)| made(*o)).map(|(_, p)| p).collect()
    }

    /// Extents that are room enough for a state.
    fn most(&self, state: usize) -> Vec<usize> {
        let all = self.forms.iter().map(|f| f.state[state].most.clone());
        let greater = |a: Vec<usize>, b: Vec<usize>| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect();
        all.reduce(greater).unwrap_or_default()
    }

    /// Whether a state needs a second memory at some sizes.
    fn spare(&self, state: usize) -> bool {
        self.forms.iter().any(|f| !f.state[state].in_place)
    }

    /// Whether the extents of all outputs follow from those of the inputs.
    fn is_direct(&self) -> bool {
        self.forms.iter().all(|f| f.program.counted.is_empty())
    }
}

/// A program whose extents, or whose results, are found out when it runs.
#[derive(Clone, Debug)]
pub enum SizedParts {
    /// One function.
    Whole(SizedFunction),
    /// What the machine runs.
    Machine(MachineParts),
}

impl SizedParts {
    /// The functions that it consists of, or calls.
    pub(super) fn functions(&self) -> &[SizedFunction] {
        match self {
            SizedParts::Whole(f) => std::slice::from_ref(f),
            SizedParts::Machine(m) => &m.kernels,
        }
    }

    /// Whether it keeps state.
    fn keeps(&self) -> bool {
        matches!(self, SizedParts::Whole(f) if !f.state.is_empty())
    }

    /// The kernels that it calls, each once, by name.
    fn kernels(&self) -> Vec<&str> {
        let programs = self.functions().iter().flat_map(|f| &f.forms).map(|f| &f.program.program);
        let mut kernels: Vec<&str> = programs.flat_map(|p| p.functions()).collect();
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }

    /// Whether it calls the kernel of that name.
    pub fn calls(&self, kernel: &str) -> bool {
        self.kernels().binary_search(&kernel).is_ok()
    }

    /// What follows where the system's part is done.
    pub(super) fn text(&self, p: &str, constants: &mut Constants) -> String {
        match self {
            SizedParts::Whole(f) => whole_text(p, f, constants),
            SizedParts::Machine(m) => machine_text(p, m, constants),
        }
    }

    /// The header that C programs include.
    ///
    /// `weights` where it is C that needs a C compiler: bytes of the file that has them, 0 where the source does.
    pub(super) fn header(&self, p: &str, weights: Option<u64>) -> String {
        match self {
            SizedParts::Whole(f) => header(p, &f.inputs, Some(f), weights),
            SizedParts::Machine(m) => header(p, &m.inputs, None, weights),
        }
    }
}

/// Writes a shared library of a program for all sizes, and a C header beside it: as [`export_linked`](super::export_linked) does of a program
/// of known extents.
pub fn export_sized(
    name: &str,
    program: &SizedParts,
    parts: &Exportable<'_>,
    path: &Path,
) -> Result<Exported, ExportError> {
    let p = prefix(name);
    let mut constants = Constants::default();
    let text = prologue(name, &parts.ready, program.kernels())
        + &limits(program.functions())
        + THREADS
        + &program.text(&p, &mut constants)
        + &library_interface(&p, program.keeps());
    let mut visible = vec!["call", "free", "set_threads", "model", "error"];
    if matches!(program, SizedParts::Whole(f) if f.is_direct()) {
        visible.extend(["sizes", "run"]);
    }
    let described = if program.keeps() { "resat_stateful_model_v1" } else { "resat_sized_model_v1" };
    let symbols: Vec<String> = visible.iter().map(|v| format!("{p}_{v}")).chain([described.to_owned()]).collect();
    let (header, weights) = (program.header(&p, None), weights_symbol(name));
    link(&Driver { header, text, constants: constants.all(), weights, symbols }, parts, path)
}

/// Of one function, what follows where the system's part is done.
fn whole_text(p: &str, whole: &SizedFunction, constants: &mut Constants) -> String {
    let mut text = format!("\n{SIZED}\n{RESULTS}\n");
    let tables = tables(std::slice::from_ref(whole), constants);
    if !whole.state.is_empty() {
        return text + &tables + &state_tables(whole) + RUN + "\n" + STATE + &state_interface(p, whole);
    }
    text += &format!("{CALL}\n{tables}#define inputs_of_model input0_ports\n{CALL_WHOLE}");
    if whole.is_direct() {
        text += &format!("{RUN}\n{WHOLE}");
        text += &format!(
            "int {p}_sizes(const int64_t *const *input_shapes, int64_t *const *output_shapes, uint64_t *workspace_bytes) {{\n  \
             return sizes(input_shapes, output_shapes, workspace_bytes);\n}}\n\
             int {p}_run(const void *const *inputs, const int64_t *const *input_shapes, void *const *outputs, void *workspace,\n\
             \x20           uint64_t workspace_bytes) {{\n  \
             return run(inputs, input_shapes, outputs, workspace, workspace_bytes);\n}}\n"
        );
    }
    text + &interface(p, whole.inputs.len(), Some(whole.results()))
}

/// What a function that keeps state says of it.
fn state_tables(whole: &SizedFunction) -> String {
    let mut out = format!("#define STATES {}u\n", whole.state.len());
    let number = |n: Option<usize>| n.map_or(-1, |n| n as i64);
    let of_input = |i: usize| number(whole.state.iter().position(|s| s.0 == i));
    let of_output = |o: usize| number(whole.state.iter().position(|s| s.1 == o));
    out += &list("int state_of_input[]", (0..whole.inputs.len()).map(of_input));
    out += &list("int state_of_output[]", (0..whole.results()).map(of_output));
    out += &list("uint32_t state_outputs[]", whole.state.iter().map(|s| s.1));
    let in_place = |f: &Form| {
        let each: Vec<&str> = f.state.iter().map(|s| if s.in_place { "1" } else { "0" }).collect();
        format!("{{{}}}", each.join(", "))
    };
    out += &list("unsigned char in_place_by_form[][STATES]", whole.forms.iter().map(in_place));
    ports(&mut out, "given", &whole.given());
    ports(&mut out, "made", &whole.made());
    let states: Vec<PortType> = whole.state.iter().map(|s| whole.inputs[s.0].clone()).collect();
    let tensors = port_rows(&states, "state_extents");
    let most = (0..states.len()).flat_map(|k| whole.most(k));
    out += &list("int64_t state_extents[]", states.iter().flat_map(extents_of_port));
    out += &list("int64_t state_most[]", most);
    out += "static const resat_state_type states_of_model[] = {\n";
    let (outputs, mut first) = (whole.outputs(), 0);
    for (k, (tensor, state)) in tensors.iter().zip(&whole.state).enumerate() {
        let (output, spare) = (quoted(&outputs[state.1].name), u8::from(whole.spare(k)));
        out += &format!("  {{{tensor}, {output}, state_most + {first}, {spare}}},\n");
        first += states[k].shape.len();
    }
    out + "};\n\n"
}

/// What programs that keep state have.
fn state_interface(p: &str, whole: &SizedFunction) -> String {
    let (given, made) = (whole.inputs.len() - whole.state.len(), whole.results() - whole.state.len());
    format!(
        "static const char *last_error(void) {{ return message; }}
static const resat_stateful_model model = {{
  MODEL_NAME, {given}, {made}, STATES, given_ports, made_ports, states_of_model, call, release, set_threads, last_error
}};
int {p}_sizes(const int64_t *const *input_shapes, const resat_state *states, int64_t *const *output_shapes, uint64_t *workspace_bytes) {{
  return sizes(input_shapes, states, output_shapes, workspace_bytes);
}}
int {p}_run(const void *const *inputs, const int64_t *const *input_shapes, resat_state *states, void *const *outputs, void *workspace,
            uint64_t workspace_bytes) {{
  return run(inputs, input_shapes, states, outputs, workspace, workspace_bytes);
}}
int {p}_call(const void *const *inputs, const int64_t *const *input_shapes, resat_state *states, resat_results **results) {{
  return call(inputs, input_shapes, states, results);
}}
void {p}_free(resat_results *results) {{ release(results); }}
const char *{p}_error(void) {{ return message; }}
const resat_stateful_model *{p}_model(void) {{ return &model; }}
"
    )
}

/// Constants of all functions, each once, and where they lie.
#[derive(Default)]
pub(super) struct Constants {
    all: Vec<Tensor>,
    places: Vec<usize>,
    end: usize,
}

impl Constants {
    pub(super) fn all(&self) -> &[Tensor] {
        &self.all
    }

    /// Bytes of all of them, and of what lies between.
    pub(super) fn bytes(&self) -> usize {
        self.end
    }

    /// Where a constant lies among all.
    pub(super) fn at(&mut self, t: &Tensor) -> usize {
        let same = |c: &Tensor| std::ptr::eq(c.bytes(), t.bytes()) && c.dtype() == t.dtype();
        if let Some(n) = self.all.iter().position(same) {
            return self.places[n];
        }
        let at = place_after(self.end, t.bytes().len());
        self.end = at + t.bytes().len();
        self.all.push(t.clone());
        self.places.push(at);
        at
    }

    /// Their bytes, one after the other, with what lies between.
    pub(super) fn pieces(&self) -> Vec<&[u8]> {
        with_gaps(0, self.all.iter().zip(self.places.iter().copied()))
    }
}

/// The greatest numbers of things.
pub(super) fn limits(functions: &[SizedFunction]) -> String {
    let mut out = String::new();
    let programs = || functions.iter().flat_map(|f| &f.forms).map(|f| &f.program.program);
    let args = programs().flat_map(|p| p.steps.iter()).map(|Step::Call(c)| c.args.len()).max().unwrap_or(0);
    let classes = functions.iter().flat_map(|f| &f.forms).map(|f| f.classes.len()).max().unwrap_or(0);
    let outputs = programs().map(|p| p.outputs.len()).max().unwrap_or(0);
    let inputs = functions.iter().map(|f| f.inputs.len()).max().unwrap_or(0);
    let rank = programs().flat_map(|p| &p.outputs).map(|(port, _)| port.shape.len()).max().unwrap_or(0);
    for (what, most) in [("ARGS", args), ("CLASSES", classes), ("OUTPUTS", outputs), ("INPUTS", inputs), ("RANK", rank)]
    {
        out += &format!("#define MAX_{what} {}\n", most.max(1));
    }
    out
}

/// A list of C, which has no arrays without elements.
pub(super) fn list<T: std::fmt::Display>(declared: &str, all: impl IntoIterator<Item = T>) -> String {
    let mut out = format!("static const {declared} = {{");
    let mut none = true;
    for (i, x) in all.into_iter().enumerate() {
        out += if i == 0 {
            ""
        } else if i % 16 == 0 {
            ",\n  "
        } else {
            ", "
        };
        // Writing into a string does not fail.
        let _ = write!(out, "{x}");
        none = false;
    }
    out += if none { "0};\n" } else { "};\n" };
    out
}

/// The functions as tables.
pub(super) fn tables(functions: &[SizedFunction], constants: &mut Constants) -> String {
    let mut out = String::new();
    for (n, f) in functions.iter().enumerate() {
        for (k, form) in f.forms.iter().enumerate() {
            form_tables(&mut out, form, &format!("{n}_{k}"), constants);
        }
        ports(&mut out, &format!("input{n}"), &f.inputs);
        ports(&mut out, &format!("output{n}"), &f.outputs());
        out +=
            &list(&format!("uint32_t unknown{n}[][2]"), f.unknown().iter().map(|(i, axis)| format!("{{{i}, {axis}}}")));
        let counted = f.forms.first().map_or(&[][..], |f| &f.program.counted);
        out += &list(&format!("uint32_t counted{n}[][2]"), counted.iter().map(|(o, c)| format!("{{{o}, {c}}}")));
        out += &format!("static const struct form forms{n}[] = {{{}\n", if f.forms.is_empty() { "{0}" } else { "" });
        for (k, form) in f.forms.iter().enumerate() {
            let p = &form.program;
            let parameters: usize = p.parameters.iter().flatten().map(|c| padded(c.len())).sum();
            out += &format!(
                "  {{{}, {}, extents{n}_{k}, span{n}_{k}, {}, compute{n}_{k}, {}, {parameters}, {}, {}, slot_ends{n}_{k}, slot_bytes{n}_{k},\n   \
                 parameters{n}_{k}, places{n}_{k}, steps{n}_{k}, results{n}_{k}, result_bytes{n}_{k}, output_extents{n}_{k}, append{n}_{k}}},\n",
                form.classes.len(),
                p.formulas.all().len(),
                if form.serves.is_some() { format!("serves{n}_{k}") } else { "NULL".into() },
                p.slots.len(),
                p.program.steps.len(),
                p.program.appended.len(),
            );
        }
        out += "};\n";
    }
    out += "static const struct function functions[] = {\n";
    for (n, f) in functions.iter().enumerate() {
        let hidden = f.forms.first().map_or(0, |f| f.program.counted.len());
        out += &format!(
            "  {{{}, {}, {}, {hidden}, {}, {}, input{n}_ports, output{n}_ports, unknown{n}, counted{n}, forms{n}}},\n",
            quoted(&f.name),
            f.inputs.len(),
            f.results(),
            f.unknown().len(),
            f.forms.len(),
        );
    }
    out + "};\n\n"
}

/// Parameters of a call are aligned, as everything is.
fn padded(parameters: usize) -> usize {
    parameters.next_multiple_of(crate::runtime::abi::ALIGN / size_of::<i64>())
}

fn form_tables(out: &mut String, form: &Form, id: &str, constants: &mut Constants) {
    let sized = &form.program;
    let p = &sized.program;
    for (n, table) in sized.formulas.tables().iter().enumerate() {
        let small = table.values.iter().all(|&v| i32::try_from(v).is_ok());
        let declared = format!("{} table{id}_{n}[]", if small { "int32_t" } else { "int64_t" });
        let value = |&v: &i64| if small { v.to_string() } else { literal(v) };
        *out += &list(&declared, table.values.iter().map(value));
    }
    if let Some(serves) = &form.serves {
        let byte = |eight: &[bool]| eight.iter().rev().fold(0, |byte, &bit| 2 * byte + u32::from(bit));
        *out += &list(&format!("unsigned char serves{id}[]"), serves.chunks(8).map(byte));
    }
    *out += &format!("static int compute{id}(const int64_t *n, int64_t *t) {{\n  int bad = 0;\n  (void)n, (void)t;\n");
    for (i, f) in sized.formulas.all().iter().enumerate() {
        let value = match *f {
            Formula::Known(v) => literal(v),
            Formula::Extent(e) => format!("n[{e}]"),
            Formula::Sum(a, b) => format!("sum(t[{a}], t[{b}], &bad)"),
            Formula::Product(a, b) => format!("product(t[{a}], t[{b}], &bad)"),
            Formula::Quotient(a, d) => format!("quotient(t[{a}], {d})"),
            Formula::Remainder(a, d) => format!("remainder_of(t[{a}], {d})"),
            Formula::Least(a, b) => format!("least_of(t[{a}], t[{b}])"),
            Formula::Greatest(a, b) => format!("greatest_of(t[{a}], t[{b}])"),
            Formula::Float(a) => format!("bits((double)t[{a}])"),
            Formula::Reciprocal(a, false) => format!("bits(1.0 / (double)t[{a}])"),
            Formula::Reciprocal(a, true) => format!("bits((double)(1.0f / (float)t[{a}]))"),
            Formula::Table(k) => {
                let axes = &sized.formulas.tables()[k].axes;
                let axis = |a: &TableAxis| format!("(n[{}] - {}) / {} * {}", a.extent, a.least, a.apart, a.by);
                let at: Vec<String> = axes.iter().map(axis).collect();
                format!("table{id}_{k}[{}]", if at.is_empty() { "0".into() } else { at.join(" + ") })
            }
        };
        *out += &format!("  t[{i}] = {value};\n");
    }
    *out += "  return bad;\n}\n";
    let extent = |e: &ExtentOf| match e {
        ExtentOf::Fixed(n) => -1 - n,
        ExtentOf::Number(c) => *c as i64,
    };
    *out += &list(&format!("int32_t extents{id}[]"), form.extents.iter().map(extent));
    *out += &spans(&format!("span{id}"), form.classes.iter().copied());
    let ends = sized.slots.iter().scan(0, |end, s| {
        *end += s.bytes.len();
        Some(*end)
    });
    *out += &list(&format!("uint32_t slot_ends{id}[]"), ends);
    *out += &list(&format!("uint32_t slot_bytes{id}[]"), sized.slots.iter().flat_map(|s| &s.bytes));
    let (mut begin, mut parameters) = (vec![0; sized.parameters.len()], Vec::new());
    for (c, numbers) in sized.parameters.iter().enumerate() {
        let Some(numbers) = numbers else { continue };
        begin[c] = parameters.len();
        parameters.extend(numbers);
        parameters.resize(begin[c] + padded(numbers.len()), 0);
    }
    *out += &list(&format!("uint32_t parameters{id}[]"), parameters);
    let mut place = |b: usize| -> String {
        let output = p.outputs.iter().position(|(_, o)| o.0 as usize == b);
        match (p.buffers[b].0, output, sized.slot_of[b]) {
            (Source::Input(n), ..) => format!("{{INPUT, 0, {n}}}"),
            (Source::Constant(c), ..) if sized.parameters[c].is_some() => format!("{{PARAMETERS, 0, {}}}", begin[c]),
            (Source::Constant(c), ..) => format!("{{CONSTANT, 0, {}}}", constants.at(&p.constants[c])),
            (Source::Part(whole, _), ..) => {
                let output = p.outputs.iter().position(|(_, o)| *o == whole).unwrap_or(0);
                format!("{{PART, {}, {output}}}", sized.buffers[b].unwrap_or(0))
            }
            (Source::Step, Some(o), _) => format!("{{OUTPUT, 0, {o}}}"),
            (Source::Step, None, slot) => format!("{{SLOT, 0, {}}}", slot.unwrap_or(0)),
        }
    };
    let args = p.steps.iter().flat_map(|Step::Call(c)| c.args.iter().map(|a| a.0.0 as usize));
    let args: Vec<String> = args.map(&mut place).collect();
    let results: Vec<String> = p.outputs.iter().map(|(_, b)| place(b.0 as usize)).collect();
    *out +=
        &list(&format!("struct place places{id}[]"), if args.is_empty() { vec!["{INPUT, 0, 0}".into()] } else { args });
    *out += &list(
        &format!("struct place results{id}[]"),
        if results.is_empty() { vec!["{INPUT, 0, 0}".into()] } else { results },
    );
    let steps: Vec<String> = p
        .steps
        .iter()
        .zip(&sized.workspaces)
        .map(|(Step::Call(c), slot)| format!("{{{}, {}, {slot}}}", p.functions[c.function.0 as usize], c.args.len()))
        .collect();
    *out +=
        &list(&format!("struct step steps{id}[]"), if steps.is_empty() { vec!["{NULL, 0, 0}".into()] } else { steps });
    let bytes = |b: usize| sized.buffers[b].unwrap_or(0);
    *out += &list(&format!("uint32_t result_bytes{id}[]"), p.outputs.iter().map(|(_, b)| bytes(b.0 as usize)));
    *out += &list(
        &format!("uint32_t output_extents{id}[]"),
        sized.outputs[..p.outputs.len() - sized.counted.len()].iter().flatten(),
    );
    let append = |&(from, to): &(usize, usize)| format!("{{{to}, {from}, {}}}", sized.appended_bytes(from));
    *out += &list(&format!("uint32_t append{id}[][3]"), p.appended.iter().map(append));
}

/// A list of what extents may be.
pub(super) fn spans(name: &str, all: impl Iterator<Item = Span>) -> String {
    let span = |s: Span| format!("{{{}, {}, {}}}", literal(s.least), literal(s.most), literal(s.step));
    let all: Vec<String> = all.map(span).collect();
    list(&format!("struct span {name}[]"), if all.is_empty() { vec!["{0, 0, 1}".into()] } else { all })
}

/// An integer as C has it.
fn literal(v: i64) -> String {
    match v {
        i64::MIN => "INT64_MIN".into(),
        v => format!("INT64_C({v})"),
    }
}

pub(super) fn ports(out: &mut String, what: &str, ports: &[PortType]) {
    *out += &list(&format!("int64_t {what}_extents[]"), ports.iter().flat_map(extents_of_port));
    *out += &format!("static const resat_tensor {what}_ports[] = {{\n");
    for row in port_rows(ports, &format!("{what}_extents")) {
        *out += &format!("  {row},\n");
    }
    *out += &format!("  {{NULL, NULL, 0, {what}_extents, 0}}\n}};\n");
}

/// Its extents as C has them.
fn extents_of_port(p: &PortType) -> impl Iterator<Item = i64> {
    p.shape.iter().map(|n| n.map_or(-1, |n| n as i64))
}

/// As C has them, where that array has their extents.
fn port_rows(ports: &[PortType], extents: &str) -> Vec<String> {
    let mut first = 0;
    let row = |p: &PortType| {
        let bytes = p.shape.iter().copied().product::<Option<usize>>().map_or(0, |n| n * p.dtype.bytes());
        let row = format!("{{{}, \"{}\", {}, {extents} + {first}, {bytes}}}", quoted(&p.name), p.dtype, p.shape.len());
        first += p.shape.len();
        row
    };
    ports.iter().map(row).collect()
}

/// What libraries have and C has not.
fn library_interface(p: &str, keeps: bool) -> String {
    let kind = if keeps { "resat_stateful_model" } else { "resat_sized_model" };
    format!(
        "int {p}_set_threads(int threads) {{ return set_threads(threads); }}
const {kind} *{kind}_v1(void) {{ return &model; }}
"
    )
}

/// What all such programs have.
pub(super) fn interface(p: &str, inputs: usize, outputs: Option<usize>) -> String {
    let (count, ports) = match outputs {
        Some(n) => (n, "output0_ports"),
        None => (0, "NULL"),
    };
    format!(
        "static const char *last_error(void) {{ return message; }}
static const resat_sized_model model = {{
  MODEL_NAME, {inputs}, {count}, inputs_of_model, {ports}, call, release, set_threads, last_error
}};
int {p}_call(const void *const *inputs, const int64_t *const *input_shapes, resat_results **results) {{
  return call(inputs, input_shapes, results);
}}
void {p}_free(resat_results *results) {{ release(results); }}
const char *{p}_error(void) {{ return message; }}
const resat_sized_model *{p}_model(void) {{ return &model; }}
"
    )
}

/// Inputs or outputs, for comments: a line each.
fn ports_text(what: &str, ports: &[PortType]) -> String {
    let line = |(i, p): (usize, &PortType)| {
        let extents: Vec<String> = p.shape.iter().map(|n| n.map_or_else(|| "?".into(), |n| n.to_string())).collect();
        format!("     {what}[{i}]: {:?}, {} of shape [{}]\n", comment(&p.name), p.dtype, extents.join(", "))
    };
    ports.iter().enumerate().map(line).collect()
}

/// State, for comments: a line each.
fn states_text(whole: &SizedFunction) -> String {
    let outputs = whole.outputs();
    let line = |(k, &(input, output)): (usize, &(usize, usize))| {
        let p = &whole.inputs[input];
        let text = ports_text("states", std::slice::from_ref(p)).replacen("states[0]", &format!("states[{k}]"), 1);
        let how = if whole.spare(k) { "needs spare memory" } else { "updated where it lies" };
        format!(
            "{}, the output {:?}; {how}; {:?} is room enough\n",
            text.trim_end(),
            comment(&outputs[output].name),
            whole.most(k)
        )
    };
    whole.state.iter().enumerate().map(line).collect()
}

/// The header that C programs include. `whole` where the program is one function.
fn header(p: &str, inputs: &[PortType], whole: Option<&SizedFunction>, weights: Option<u64>) -> String {
    let upper = p.to_ascii_uppercase();
    let keeps = whole.filter(|w| !w.state.is_empty());
    let outputs = whole.map(SizedFunction::made);
    let given = whole.map(SizedFunction::given);
    let inputs = given.as_deref().unwrap_or(inputs);
    let mut about = ports_text("inputs", inputs);
    about += &outputs.as_ref().map_or_else(
        || {
            "     What it gives, and how much of it, is found out when it runs: the tensors of the result, depth first. A run in which tensors\n     \
             become greater than the library was built for is refused with RESAT_BAD_SHAPE.\n"
                .into()
        },
        |o| ports_text("outputs", o),
    );
    about += &keeps.map_or_else(String::new, states_text);
    let mut counts = match &outputs {
        Some(o) => format!("#define {upper}_INPUTS {}\n#define {upper}_OUTPUTS {}\n", inputs.len(), o.len()),
        None => format!("#define {upper}_INPUTS {}\n", inputs.len()),
    };
    counts += &keeps.map_or_else(String::new, |w| format!("#define {upper}_STATES {}\n", w.state.len()));
    // With state, all functions take it after the inputs.
    let (state, may_change) =
        if keeps.is_some() { ("const resat_state *states, ", "resat_state *states, ") } else { ("", "") };
    let of_state = match keeps {
        Some(_) => format!(
            " `states` has {upper}_STATES of them, which no other call\n   uses meanwhile. Where a run is refused, they are as they were; after RESAT_FAILED, \
             what was updated where it lies is lost."
        ),
        None => String::new(),
    };
    let kind = if keeps.is_some() { "resat_stateful_model" } else { "resat_sized_model" };
    let direct = match whole.filter(|w| w.is_direct()) {
        None => String::new(),
        Some(_) => format!(
            "/* Extents of the outputs, and bytes that the workspace must have, for inputs of these extents: a pointer to its extents for each
   input and output (those of outputs, and `workspace_bytes`, may be NULL). Nothing runs. Returns RESAT_OK or RESAT_BAD_SHAPE. */
int {p}_sizes(const int64_t *const *input_shapes, {state}int64_t *const *output_shapes, uint64_t *workspace_bytes);

/* Runs the model once. Inputs are only read. Outputs, as large as {p}_sizes says, must not overlap each other, inputs or the workspace.
   `workspace` is scratch memory of as many bytes as {p}_sizes says for the time of this call, which no other call uses meanwhile; where
   it is NULL, the call takes and frees its own.{of_state} Returns RESAT_OK or what was wrong. */
int {p}_run(const void *const *inputs, const int64_t *const *input_shapes, {may_change}void *const *outputs, void *workspace,
            uint64_t workspace_bytes);

"
        ),
    };
    let how = match weights {
        None => {
            "Link with the shared library beside this header; it needs the C library,\n   libm and POSIX threads.\n\n   Arrays are dense and \
             row-major. Every pointer to one is aligned to RESAT_ALIGN (64) bytes:"
        }
        Some(_) => {
            "Compile the C99 source beside this header and link with libm; with\n   OpenMP (-fopenmp), loops run on several threads.\n\n   Arrays \
             are dense and row-major, aligned to their elements, workspaces to 8 bytes:"
        }
    };
    let threads = match weights {
        None => declared_threads(p) + "\n",
        Some(0) => String::new(),
        Some(n) => format!(
            "/* Gives the model its weights, which stay where they are: the {n} bytes of the file `.weights` beside the source, aligned to
   8 bytes, on a machine of little-endian order. To be called before the first run. */
#define {upper}_WEIGHTS_BYTES {n}
int {p}_set_weights(const void *weights, uint64_t bytes);

"
        ),
    };
    let about = format!(
        "A compiled model whose sizes are found out when it runs. {how}
{about}
   Extents that do not fit, or that the library has no code for, are refused with RESAT_BAD_SHAPE, and {p}_error says which.
   Functions may be called from several threads at once, each with outputs and a workspace of its own; inputs and weights are shared."
    );
    let declared = format!(
        "{counts}
{direct}/* Runs the model once, and gives what it gives in memory of the library's, to be freed by {p}_free. `input_shapes` points at the extents
   of each input. Returns RESAT_OK or what was wrong: then there are no results. */
int {p}_call(const void *const *inputs, const int64_t *const *input_shapes, {may_change}resat_results **results);
void {p}_free(resat_results *results);

{threads}/* Names, types and sizes. */
const {kind} *{p}_model(void);

/* What was wrong in the calling thread's last call that did not return RESAT_OK; an empty text before. */
const char *{p}_error(void);
"
    );
    header_text(p, &about, &declared)
}
