//! A plan's recipe as C: numbers that `exported/*.c` plays where an exported model runs.

use std::{collections::HashMap, fmt::Write};

use super::{
    exact,
    graph::{Eltwise, Graph, Integer, Kind, Post, Rescale, Step, ValueId, What, Windows},
    integer::{Channels, add_vector},
    md::code,
    primitive::{Primitive, algorithms, binary, pool, softmax},
    recipe::{Choice, Layout, Recipe},
};
use crate::{
    runtime::callable::{Data, Serialized},
    tensor::{DType, Tensor},
};

/// What every region declares.
const HEADER: &str = include_str!("exported/region.h");

/// What plays tapes, for all regions of a model together.
const PLAYER: &str = concat!(
    include_str!("exported/region.h"),
    include_str!("exported/library.c"),
    include_str!("exported/primitive.c"),
    include_str!("exported/steps.c"),
    include_str!("exported/bytes.c"),
    include_str!("exported/plan.c"),
    include_str!("exported/call.c"),
);

/// Numbers, a line for each thing that they tell of.
#[derive(Default)]
struct Tape(String);

impl Tape {
    fn put(&mut self, numbers: impl IntoIterator<Item = i64>) {
        // Writing into a string does not fail.
        numbers.into_iter().for_each(|n| write!(self.0, "{n}, ").unwrap_or_default());
    }

    fn line(&mut self, what: &str) {
        self.0 += &format!("/* {what} */\n");
    }

    fn value(&mut self, v: ValueId) {
        self.put([v.0 as i64]);
    }

    /// A count, and numbers.
    fn list(&mut self, numbers: &[i64]) {
        self.put([numbers.len() as i64]);
        self.put(numbers.iter().copied());
    }

    fn eltwise(&mut self, e: &Eltwise) {
        let (v2, v3) = algorithms(e.kind);
        self.put([v2.into(), v3.into(), e.alpha.to_bits().into(), e.beta.to_bits().into()]);
    }

    fn windows(&mut self, w: &Windows) {
        self.put(w.strides.iter().copied());
        // The library counts the elements between two taps.
        self.put(w.dilation.iter().map(|d| d - 1));
        self.put(w.before.iter().copied());
        self.put(w.after.iter().copied());
    }

    fn kind(&mut self, kind: &Kind) {
        match kind {
            Kind::Convolution(w) | Kind::Deconvolution(w) => {
                let transposed = matches!(kind, Kind::Deconvolution(_));
                self.put([i64::from(transposed), w.strides.len() as i64]);
                self.windows(w);
            }
            Kind::InnerProduct => self.put([2]),
            Kind::Matmul => self.put([3]),
            Kind::Pool { kind, kernel, windows } => {
                self.put([4, pool(*kind).into(), kernel.len() as i64]);
                self.put(kernel.iter().copied());
                self.windows(windows);
            }
            Kind::Eltwise(e) => {
                self.put([5]);
                self.eltwise(e);
            }
            Kind::Binary(b) => self.put([6, binary(*b).into()]),
            Kind::Softmax { axis, log } => self.put([7, softmax(*log).into(), *axis as i64]),
            Kind::Concat { axis } => self.put([8, *axis as i64]),
            Kind::Convert => self.put([9]),
        }
    }

    fn layout(&mut self, layout: Layout) {
        match layout {
            Layout::Plain => self.put([0]),
            Layout::Any => self.put([1]),
            Layout::As(v) => self.put([2, v.0 as i64]),
        }
    }

    fn run(&mut self, values: &Graph, step: &Step, kind: &Kind, posts: &[Post], choice: &Choice) {
        self.put([1]);
        self.kind(kind);
        self.put([step.reads.len() as i64]);
        let args = Primitive::read_args(kind, step.reads.len());
        for ((&v, arg), &offer) in step.reads.iter().zip(args).zip(&choice.offer) {
            self.put([v.0 as i64, arg.into()]);
            self.layout(offer);
        }
        self.value(step.makes);
        self.layout(choice.wanted);
        let in_place = choice.in_place.map_or(-1, |at| at as i64);
        self.put([choice.keep_layout.into(), posts.len() as i64, in_place]);
        for post in posts {
            match post {
                Post::Eltwise(e) => {
                    self.put([0]);
                    self.eltwise(e);
                }
                Post::Binary(b, v) => {
                    let full = values.shape(*v) == values.shape(step.makes);
                    self.put([1, binary(*b).into(), v.0 as i64, full.into()]);
                }
            }
        }
    }

    fn exact(&mut self, values: &Graph, step: &Step, kind: &Kind, zero: i64) {
        let [data, weight] = [step.reads[0], step.reads[1]];
        let (shape, known) = (values.shape(weight), values.values[weight.0].data.as_ref());
        let sums = exact::Sums::new(kind, values.dtype(data), shape, known);
        let reach_out =
            matches!(kind, Kind::Convolution(w) if w.before.iter().chain(&w.after).any(|&p| p != 0)) && zero != 0;
        let per_channel = match known {
            Some(w) if zero != 0 && !reach_out => exact::per_channel(w, shape, kind, zero),
            _ => vec![],
        };
        self.put([2]);
        self.kind(kind);
        [data, weight, step.makes].into_iter().for_each(|v| self.value(v));
        let parts = if sums.great() { sums.parts() } else { 1 };
        self.put([sums.products() as i64, sums.great().into(), parts as i64, reach_out.into(), zero]);
        self.list(&per_channel.iter().map(|&x| x.into()).collect::<Vec<_>>());
    }

    fn channels(&mut self, r: &Rescale, channels: usize) {
        let c = Channels::new(r, channels);
        self.put([c.multiplies.into(), c.away.into(), c.to_zero.into()]);
        self.put(c.zero.iter().map(|&z| z.into()));
        [c.significand, c.left, c.right].into_iter().for_each(|all| self.put(all));
    }

    fn integer(&mut self, values: &Graph, i: &Integer, makes: ValueId) {
        let channels = values.shape(makes)[i.axis] as usize;
        let mut base = vec![0i32; channels];
        let mut more = Vec::new();
        for &v in &i.per_channel {
            match &values.values[v.0].data {
                Some(t) => add_vector(&mut base, t),
                None => more.push(v),
            }
        }
        self.put([3, makes.0 as i64, i.axis as i64]);
        self.put(base.into_iter().map(i64::from));
        self.put([i.terms.len() as i64]);
        i.terms.iter().for_each(|&(v, negative)| self.put([v.0 as i64, negative.into()]));
        self.list(&more.iter().map(|v| v.0 as i64).collect::<Vec<_>>());
        self.put([i.rescale.is_some().into()]);
        if let Some(r) = &i.rescale {
            self.channels(r, channels);
        }
        self.put([i.rescaled.len() as i64]);
        for (v, r) in &i.rescaled {
            self.value(*v);
            self.channels(r, channels);
        }
        self.put([i64::from(i.offset as i32), i64::from(i.range.0 as i32), i64::from(i.range.1 as i32)]);
    }
}

/// A region for exported models: `inputs` and `outputs` of its graph, what was decided, and how much workspace calls are given.
///
/// `Err` names a type that the library has not.
pub(super) fn serialized(
    recipe: &Recipe,
    inputs: &[ValueId],
    outputs: &[ValueId],
    workspace: usize,
    symbol: &str,
) -> Result<Serialized, String> {
    let values = Graph { values: recipe.values.clone(), ..Graph::default() };
    let mut tape = Tape::default();
    let exact = recipe.steps.iter().any(|(s, _)| matches!(s.what, What::Exact(..)));
    let short = recipe.values.iter().any(|v| v.dtype == DType::BF16);
    let needs = if exact { super::library::ISA_AVX512_VNNI } else { super::library::ISA_AVX512_CORE };
    tape.put([if exact || short { needs.into() } else { 0 }]);
    tape.line("what the processor must have");
    let (constants, at) = constants(recipe, outputs);
    tape.put([recipe.values.len() as i64]);
    for (i, v) in recipe.values.iter().enumerate() {
        let dtype = code(v.dtype).ok_or_else(|| format!("it has no type {}", v.dtype))?;
        tape.put([dtype.into()]);
        tape.list(&v.shape);
        tape.put([at.get(&i).map_or(-1, |&at| at as i64)]);
        tape.line(&format!("tensor {i}"));
    }
    for list in [inputs, outputs] {
        tape.list(&list.iter().map(|v| v.0 as i64).collect::<Vec<_>>());
    }
    tape.line("inputs and outputs");
    for (step, choice) in &recipe.steps {
        match (&step.what, choice) {
            (What::Primitive(kind, posts), Some(choice)) => tape.run(&values, step, kind, posts, choice),
            (What::Primitive(..), None) => unreachable!("primitives are recorded with how they were made"),
            (What::Exact(kind, zero), _) => tape.exact(&values, step, kind, *zero),
            (What::Integer(i), _) => tape.integer(&values, i, step.makes),
            (What::Permute(axes), _) => {
                tape.put([4, step.reads[0].0 as i64, step.makes.0 as i64]);
                tape.put(axes.iter().map(|&a| a as i64));
            }
            (What::Reshape, _) => tape.put([5, step.reads[0].0 as i64, step.makes.0 as i64]),
        }
        tape.line(&format!("makes {}", step.makes.0));
    }
    let source = format!(
        "{HEADER}
static const int64_t tape[] = {{
{numbers}0}};
extern const unsigned char {symbol}_constants[] __attribute__((visibility(\"hidden\")));
static struct resat_onednn region = {{\"{symbol}\", tape, {symbol}_constants, {workspace}, 0}};

void {symbol}(const struct ResatCtx *ctx, void *const *args, unsigned char *workspace) {{
  resat_onednn_call(&region, ctx, args, workspace);
}}

const char *{symbol}_ready(const struct ResatCtx *ctx) {{ return resat_onednn_ready(&region, ctx); }}
",
        numbers = tape.0
    );
    Ok(Serialized {
        source,
        support: vec![PLAYER.to_owned()],
        data: vec![Data { symbol: format!("{symbol}_constants"), tensors: constants }],
        ready: Some(format!("{symbol}_ready")),
        libraries: vec!["dl".into(), "pthread".into()],
    })
}

/// The constants that steps read, and where each lies among them, by the value's number.
fn constants(recipe: &Recipe, outputs: &[ValueId]) -> (Vec<Tensor>, HashMap<usize, usize>) {
    let mut all: Vec<ValueId> = recipe.steps.iter().flat_map(|(s, _)| s.all_reads()).chain(outputs.to_vec()).collect();
    all.sort_unstable();
    all.dedup();
    let (mut tensors, mut number_of) = (Vec::new(), Vec::new());
    // Constants under several shapes are one.
    let mut by_address = HashMap::new();
    for v in all {
        let Some(t) = &recipe.values[v.0].data else { continue };
        let number = by_address.entry((t.bytes().as_ptr(), t.bytes().len())).or_insert_with(|| {
            tensors.push(t.clone());
            tensors.len() - 1
        });
        number_of.push((v.0, *number));
    }
    let places = Data::places(&tensors);
    (tensors, number_of.into_iter().map(|(v, number)| (v, places[number])).collect())
}
