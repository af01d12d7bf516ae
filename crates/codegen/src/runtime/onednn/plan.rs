//! A graph as calls of primitives: layouts chosen, constants brought into them, memory planned.

use std::sync::Arc;

use super::{
    exact, execute,
    graph::{Graph, Integer, Kind, Post, Step, ValueId, What},
    integer::{Channels, add_vector},
    library::Library,
    md::{Md, row_major},
    primitive::{PostMd, Primitive, arg, post_arg},
    recipe::{Choice, Layout, Recipe},
};
use crate::{
    runtime::{
        abi::ALIGN,
        memory::Block,
        plan::{Workload, plan as memory_plan},
    },
    tensor::{DType, Tensor},
};

/// Where a tensor lives.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Input(usize),
    Output(usize),
    /// Of the arena: the number of a buffer while the plan is made, then its first byte.
    Arena(usize),
    /// Of what the plan keeps.
    Kept(usize),
}

/// What the plan keeps from call to call.
pub(super) enum Kept {
    Tensor(Tensor),
    Block(Block),
    /// What was needed while planning only.
    Gone,
}

impl Kept {
    pub(super) fn at(&self) -> *mut u8 {
        match self {
            Kept::Tensor(t) => t.bytes().as_ptr().cast_mut(),
            Kept::Block(b) => b.at(0),
            Kept::Gone => std::ptr::null_mut(),
        }
    }
}

/// A tensor in a layout in memory.
#[derive(Clone)]
pub(super) struct Memory {
    pub(super) md: Md,
    pub(super) place: Place,
}

/// The number of a [`Memory`] of a plan.
pub(super) type MemoryId = usize;

/// One thing that a call does.
pub(super) enum Action {
    /// Runs a primitive.
    Run { primitive: Arc<Primitive>, args: Vec<(std::ffi::c_int, MemoryId)>, scratch: usize },
    /// Own code.
    Integer(IntegerAction),
}

/// [`Integer`], with memory.
pub(super) struct IntegerAction {
    pub(super) terms: Vec<(MemoryId, bool)>,
    pub(super) per_channel: Vec<i32>,
    pub(super) more_per_channel: Vec<MemoryId>,
    pub(super) rescale: Option<Channels>,
    pub(super) rescaled: Vec<(MemoryId, Channels)>,
    pub(super) offset: i32,
    pub(super) range: (i32, i32),
    pub(super) out: MemoryId,
    pub(super) rows: usize,
    pub(super) channels: usize,
}

/// What a call of a region does, for one number of threads.
pub(super) struct Plan {
    pub(super) library: &'static Library,
    pub(super) threads: usize,
    pub(super) memories: Vec<Memory>,
    pub(super) kept: Vec<Kept>,
    pub(super) actions: Vec<Action>,
    /// Bytes of the arena.
    pub(super) arena: usize,
    /// What was decided, for those who plan again elsewhere.
    pub(super) recipe: Recipe,
}

/// An exact integer product, once it is planned.
#[derive(Clone, Default)]
struct Exact {
    /// Its partial sums.
    parts: Vec<MemoryId>,
    /// What the zero point adds too much, element by element.
    excess: Option<MemoryId>,
    /// Or channel by channel, with its sign.
    per_channel: Vec<i32>,
}

/// A primitive, how it was made, and the memory that it adds to in place.
type Planned = (Arc<Primitive>, Choice, Option<MemoryId>);

pub(super) struct Planner {
    pub(super) library: &'static Library,
    graph: Graph,
    plan: Plan,
    /// The layouts that each tensor is there in, the first being that in which it was made.
    held: Vec<Vec<MemoryId>>,
    exact: Vec<Option<Exact>>,
    /// Bytes of the arena's buffers.
    buffers: Vec<usize>,
    /// The step that is planned.
    now: usize,
}

/// Plans a graph for so many threads.
pub(super) fn build(library: &'static Library, graph: &Graph, threads: usize) -> Result<Plan, String> {
    let _limit = library.limit_threads(threads);
    let plan =
        Plan { library, threads, memories: vec![], kept: vec![], actions: vec![], arena: 0, recipe: Recipe::default() };
    let values = graph.values.len();
    let mut p = Planner {
        library,
        graph: graph.clone(),
        plan,
        held: vec![vec![]; values],
        exact: vec![None; values],
        buffers: vec![],
        now: 0,
    };
    for (i, &v) in graph.inputs.iter().enumerate() {
        let md = p.plain(v)?;
        p.hold(v, md, Place::Input(i));
    }
    for (now, step) in graph.steps.iter().enumerate() {
        p.now = now;
        p.step(step)?;
    }
    p.now = graph.steps.len();
    for (i, &v) in graph.outputs.iter().enumerate() {
        p.give(i, v)?;
    }
    Ok(p.finish())
}

impl Planner {
    fn plain(&self, v: ValueId) -> Result<Md, String> {
        Md::plain(self.library, self.graph.shape(v), self.graph.dtype(v))
    }

    fn memory(&mut self, md: Md, place: Place) -> MemoryId {
        self.plan.memories.push(Memory { md, place });
        self.plan.memories.len() - 1
    }

    fn hold(&mut self, v: ValueId, md: Md, place: Place) -> MemoryId {
        let id = self.memory(md, place);
        self.held[v.0].push(id);
        id
    }

    fn buffer(&mut self, bytes: usize) -> Place {
        self.buffers.push(bytes);
        Place::Arena(self.buffers.len() - 1)
    }

    /// Memory that the plan keeps, to be written now.
    pub(super) fn keep(&mut self, md: Md) -> MemoryId {
        self.plan.kept.push(Kept::Block(Block::new(md.bytes(self.library))));
        let place = Place::Kept(self.plan.kept.len() - 1);
        self.memory(md, place)
    }

    /// A tensor that the plan keeps, under this layout of its elements.
    pub(super) fn keep_tensor(&mut self, data: Tensor, md: Md) -> MemoryId {
        self.plan.kept.push(Kept::Tensor(data));
        let place = Place::Kept(self.plan.kept.len() - 1);
        self.memory(md, place)
    }

    /// Memory for what the current step makes: the caller's, where that is where it goes as it is.
    fn made(&mut self, v: ValueId, md: Md) -> Result<MemoryId, String> {
        let output = self.graph.outputs.iter().position(|&o| o == v);
        let place = match output {
            Some(i) if md.same(self.library, &self.plain(v)?) => Place::Output(i),
            _ => self.buffer(md.bytes(self.library)),
        };
        Ok(self.hold(v, md, place))
    }

    /// The layout in which a tensor was made, or comes.
    fn primary(&mut self, v: ValueId) -> Result<MemoryId, String> {
        if let Some(&m) = self.held[v.0].first() {
            return Ok(m);
        }
        let Some(data) = self.graph.values[v.0].data.clone() else {
            return Err("a tensor that nothing makes".into());
        };
        let md = self.plain(v)?;
        let m = self.keep_tensor(data, md);
        self.held[v.0].push(m);
        Ok(m)
    }

    fn primary_md(&mut self, v: ValueId) -> Result<Md, String> {
        self.primary(v).map(|m| self.plan.memories[m].md.clone())
    }

    /// A tensor in this layout: as it is there already, or brought into it, constants now, others whenever the region is called.
    fn ensure(&mut self, v: ValueId, md: &Md) -> Result<MemoryId, String> {
        let first = self.primary(v)?;
        let same = |m: &&MemoryId| self.plan.memories[**m].md.same(self.library, md);
        if let Some(&found) = self.held[v.0].iter().find(same) {
            return Ok(found);
        }
        let from = self.plan.memories[first].clone();
        let primitive = Primitive::reorder(self.library, &from.md, md)?;
        let to = match from.place {
            Place::Kept(_) => {
                let to = self.keep(md.clone());
                self.now_run(&primitive, &[(arg::SRC, first), (arg::DST, to)])?;
                to
            }
            _ => {
                let place = self.buffer(md.bytes(self.library));
                let to = self.memory(md.clone(), place);
                self.run(primitive, vec![(arg::SRC, first), (arg::DST, to)]);
                to
            }
        };
        self.held[v.0].push(to);
        Ok(to)
    }

    fn run(&mut self, primitive: Arc<Primitive>, args: Vec<(std::ffi::c_int, MemoryId)>) {
        self.plan.actions.push(Action::Run { primitive, args, scratch: 0 });
    }

    /// Runs a primitive while planning, on what is kept.
    pub(super) fn now_run(&self, primitive: &Primitive, args: &[(std::ffi::c_int, MemoryId)]) -> Result<(), String> {
        let places: Vec<_> = args
            .iter()
            .map(|&(arg, m)| {
                let Memory { md, place } = &self.plan.memories[m];
                let Place::Kept(k) = place else { unreachable!("what is computed while planning is kept") };
                (arg, md, self.plan.kept[*k].at())
            })
            .collect();
        execute::once(self.library, primitive, &places)
    }

    /// The layout of a tensor in memory.
    pub(super) fn md_of(&self, m: MemoryId) -> &Md {
        &self.plan.memories[m].md
    }

    /// Where something that is kept lies.
    pub(super) fn kept_at(&self, m: MemoryId) -> *mut u8 {
        let Place::Kept(k) = self.plan.memories[m].place else { unreachable!("asked of what is kept only") };
        self.plan.kept[k].at()
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let makes = step.makes;
        if !matches!(step.what, What::Primitive(..)) {
            self.plan.recipe.steps.push((step.clone(), None));
        }
        match &step.what {
            What::Primitive(kind, posts) => self.primitive(kind, &step.reads, posts, makes),
            What::Exact(kind, zero) => self.exact(kind, *zero, &step.reads, makes),
            What::Integer(integer) => self.integer(integer, makes),
            What::Permute(axes) => {
                let from = self.primary(step.reads[0])?;
                let Memory { md, place } = self.plan.memories[from].clone();
                let md = md.permuted(self.library, axes)?;
                self.hold(makes, md, place);
                Ok(())
            }
            What::Reshape => {
                let shape = self.graph.shape(makes).to_vec();
                let from = self.primary(step.reads[0])?;
                let (from, md) = match self.plan.memories[from].md.reshaped(self.library, &shape) {
                    Ok(md) => (from, md),
                    Err(_) => {
                        let plain = self.plain(step.reads[0])?;
                        (self.ensure(step.reads[0], &plain)?, self.plain(makes)?)
                    }
                };
                let place = self.plan.memories[from].place;
                self.hold(makes, md, place);
                Ok(())
            }
        }
    }

    /// The layouts that a primitive is offered for what it reads, the preferred ones first.
    fn offers(&self, kind: &Kind, reads: &[ValueId]) -> Vec<Vec<Layout>> {
        let plain = vec![Layout::Plain; reads.len()];
        let mut current: Vec<Layout> = reads.iter().map(|&v| Layout::As(v)).collect();
        let constant = |v: ValueId| self.graph.values[v.0].data.is_some();
        match kind {
            Kind::Convolution(_) | Kind::Deconvolution(_) => {
                let mut free = plain.clone();
                free[..2].fill(Layout::Any);
                vec![free, plain]
            }
            Kind::InnerProduct | Kind::Matmul => {
                if reads.len() > 2 {
                    current[2] = Layout::Plain;
                }
                let mut offers = Vec::new();
                if constant(reads[1]) {
                    let mut free = current.clone();
                    free[1] = Layout::Any;
                    if *kind == Kind::InnerProduct {
                        free[0] = Layout::Any;
                    }
                    offers.push(free);
                }
                offers.extend([current, plain]);
                offers
            }
            Kind::Binary(_) => {
                // An operand of the same extents lies as the first does; one that is repeated as it is.
                if self.graph.shape(reads[0]) == self.graph.shape(reads[1]) {
                    if constant(reads[0]) {
                        current[0] = current[1];
                    }
                    current[1] = current[0];
                }
                vec![current, plain]
            }
            _ => vec![current, plain],
        }
    }

    /// A tensor's layout.
    fn layout(&mut self, layout: Layout, v: ValueId) -> Result<Md, String> {
        match layout {
            Layout::Plain => self.plain(v),
            Layout::Any => Md::any(self.library, self.graph.shape(v), self.graph.dtype(v)),
            Layout::As(w) => self.primary_md(w),
        }
    }

    fn layouts(&mut self, offer: &[Layout], reads: &[ValueId]) -> Result<Vec<Md>, String> {
        offer.iter().zip(reads).map(|(&l, &v)| self.layout(l, v)).collect()
    }

    /// The layout of a result that is left to the primitive, or is that of what it reads.
    fn wanted(&self, kind: &Kind, offer: &[Layout], reads: &[Md], makes: ValueId) -> Layout {
        let same = |m: &Md| m.dims() == self.graph.shape(makes) && m.dtype() == self.graph.dtype(makes);
        match kind {
            Kind::Eltwise(_) | Kind::Softmax { .. } | Kind::Binary(_) if same(&reads[0]) => offer[0],
            Kind::Convert => Layout::Plain,
            _ => Layout::Any,
        }
    }

    /// A primitive without what follows it.
    fn alone(
        &mut self,
        kind: &Kind,
        offer: &[Layout],
        reads: &[ValueId],
        makes: ValueId,
    ) -> Result<(Arc<Primitive>, Choice), String> {
        let mds = self.layouts(offer, reads)?;
        let wanted = self.wanted(kind, offer, &mds, makes);
        let dst = self.layout(wanted, makes)?;
        let primitive = Primitive::new(self.library, kind, &mds, &dst, &[])?;
        Ok((primitive, Choice { offer: offer.to_vec(), wanted, keep_layout: false, in_place: None }))
    }

    fn primitive(&mut self, kind: &Kind, reads: &[ValueId], posts: &[Post], makes: ValueId) -> Result<(), String> {
        let offers = self.offers(kind, reads);
        if matches!(kind, Kind::Binary(_)) && !posts.is_empty() {
            // Version 2.6 leaves parts of such results unwritten, where blocks are shorter than vectors.
            let first = self.layout(offers[0][0], reads[0])?;
            if !self.lies_plain(&first, makes)? {
                let p = self.alone(kind, &offers[0], reads, makes)?;
                return self.one_by_one(kind, reads, posts, makes, p);
            }
        }
        let (mut slow, mut failed) = (None, String::new());
        for offer in &offers {
            match self.with_posts(kind, offer, reads, posts, makes) {
                Ok(p) if !p.0.is_reference() => return self.emit(kind, reads, posts, makes, p),
                Ok(p) => {
                    slow.get_or_insert(p);
                }
                Err(e) => failed = e,
            }
        }
        // What follows, by itself, where that spares the library's plain code.
        if !posts.is_empty() {
            for offer in &offers {
                match self.alone(kind, offer, reads, makes) {
                    Ok(p) if slow.is_none() || !p.0.is_reference() => {
                        return self.one_by_one(kind, reads, posts, makes, p);
                    }
                    _ => {}
                }
            }
        }
        match slow {
            Some(p) => self.emit(kind, reads, posts, makes, p),
            None => Err(failed),
        }
    }

    /// Whether a layout is of rows, or has the channels last.
    fn lies_plain(&self, md: &Md, makes: ValueId) -> Result<bool, String> {
        let axis = usize::from(self.graph.shape(makes).len() > 1);
        Ok(md.same(self.library, &self.plain(makes)?) || md.same(self.library, &self.channels_last(makes, axis)?))
    }

    /// The primitive with what follows it, and the memory that something of that is added to in place.
    fn with_posts(
        &mut self,
        kind: &Kind,
        offer: &[Layout],
        reads: &[ValueId],
        posts: &[Post],
        makes: ValueId,
    ) -> Result<Planned, String> {
        let full = |p: &Self, v: ValueId| p.graph.shape(v) == p.graph.shape(makes);
        let needs = posts.iter().any(|p| matches!(p, Post::Binary(_, v) if full(self, *v)));
        if posts.is_empty() {
            return self.alone(kind, offer, reads, makes).map(|(p, choice)| (p, choice, None));
        }
        let reads_md = self.layouts(offer, reads)?;
        let wanted = self.wanted(kind, offer, &reads_md, makes);
        let mut dst = self.layout(wanted, makes)?;
        if needs {
            dst = Primitive::new(self.library, kind, &reads_md, &dst, &[])?.makes.clone();
        }
        let mut in_place = None;
        let mut mds = Vec::new();
        for (i, post) in posts.iter().enumerate() {
            mds.push(match post {
                Post::Eltwise(e) => PostMd::Eltwise(*e),
                Post::Binary(b, v) if full(self, *v) => {
                    let target = match (b, in_place) {
                        (super::graph::BinaryKind::Add, None) => self.in_place(*v, &dst, reads, posts, makes)?,
                        _ => None,
                    };
                    match target {
                        Some(m) => {
                            in_place = Some((i, m));
                            PostMd::Sum
                        }
                        None => PostMd::Binary(*b, dst.clone()),
                    }
                }
                Post::Binary(b, v) => PostMd::Binary(*b, self.plain(*v)?),
            });
        }
        let primitive = Primitive::new(self.library, kind, &reads_md, &dst, &mds)?;
        let choice = Choice { offer: offer.to_vec(), wanted, keep_layout: needs, in_place: in_place.map(|(at, _)| at) };
        Ok((primitive, choice, in_place.map(|(_, m)| m)))
    }

    /// The memory of a tensor in this layout, where the current step is the last to read it and may write over it.
    fn in_place(
        &mut self,
        v: ValueId,
        md: &Md,
        reads: &[ValueId],
        posts: &[Post],
        makes: ValueId,
    ) -> Result<Option<MemoryId>, String> {
        let outputs = &self.graph.outputs;
        let uses_here = posts.iter().filter(|p| matches!(p, Post::Binary(_, w) if *w == v)).count();
        if outputs.contains(&v) || outputs.contains(&makes) || reads.contains(&v) || uses_here != 1 {
            return Ok(None);
        }
        let aliases =
            |s: &Step| matches!(s.what, What::Permute(_) | What::Reshape) && (s.makes == v || s.reads[0] == v);
        let later = |(i, s): (usize, &Step)| i > self.now && s.all_reads().contains(&v);
        let steps = &self.graph.steps;
        if steps.iter().any(aliases) || steps.iter().enumerate().any(later) || self.graph.dtype(v) != md.dtype() {
            return Ok(None);
        }
        self.primary(v)?;
        let fits = |m: &&MemoryId| {
            let m = &self.plan.memories[**m];
            matches!(m.place, Place::Arena(_)) && m.md.same(self.library, md)
        };
        Ok(self.held[v.0].iter().find(fits).copied())
    }

    fn emit(
        &mut self,
        kind: &Kind,
        reads: &[ValueId],
        posts: &[Post],
        makes: ValueId,
        (primitive, choice, target): Planned,
    ) -> Result<(), String> {
        let in_place = choice.in_place;
        let what = What::Primitive(kind.clone(), posts.to_vec());
        self.plan.recipe.steps.push((Step { what, reads: reads.to_vec(), makes }, Some(choice)));
        let mut args = Vec::new();
        let names = Primitive::read_args(kind, reads.len());
        for ((&v, name), md) in reads.iter().zip(names).zip(primitive.reads.clone()) {
            args.push((name, self.ensure(v, &md)?));
        }
        let dst = primitive.makes.clone();
        for (i, post) in posts.iter().enumerate() {
            match post {
                Post::Binary(_, v) if in_place != Some(i) => {
                    let md =
                        if self.graph.shape(*v) == self.graph.shape(makes) { dst.clone() } else { self.plain(*v)? };
                    args.push((post_arg(self.library, i), self.ensure(*v, &md)?));
                }
                _ => {}
            }
        }
        let made = match target {
            Some(m) => {
                let place = self.plan.memories[m].place;
                self.hold(makes, dst, place)
            }
            None => self.made(makes, dst)?,
        };
        args.push((arg::DST, made));
        self.run(primitive, args);
        Ok(())
    }

    /// A primitive, and each operation after it as a primitive of its own.
    fn one_by_one(
        &mut self,
        kind: &Kind,
        reads: &[ValueId],
        posts: &[Post],
        makes: ValueId,
        (primitive, choice): (Arc<Primitive>, Choice),
    ) -> Result<(), String> {
        let between = |p: &mut Self| {
            let (shape, dtype) = (p.graph.shape(makes).to_vec(), p.graph.dtype(makes));
            p.held.push(vec![]);
            p.exact.push(None);
            p.graph.value(&shape, dtype)
        };
        let mut last = between(self);
        self.emit(kind, reads, &[], last, (primitive, choice, None))?;
        for (i, post) in posts.iter().enumerate() {
            let next = if i + 1 == posts.len() { makes } else { between(self) };
            match post {
                Post::Eltwise(e) => self.primitive(&Kind::Eltwise(*e), &[last], &[], next)?,
                Post::Binary(b, v) => self.primitive(&Kind::Binary(*b), &[last, *v], &[], next)?,
            }
            last = next;
        }
        Ok(())
    }

    /// The layout with the channels of `axis` next to each other.
    fn channels_last(&self, v: ValueId, axis: usize) -> Result<Md, String> {
        let shape = self.graph.shape(v);
        let order: Vec<usize> = (0..shape.len()).filter(|&k| k != axis).chain([axis]).collect();
        let extents: Vec<i64> = order.iter().map(|&k| shape[k]).collect();
        let mut strides = vec![0; shape.len()];
        order.iter().zip(row_major(&extents)).for_each(|(&k, s)| strides[k] = s);
        Md::strided(self.library, shape, self.graph.dtype(v), &strides)
    }

    fn exact(&mut self, kind: &Kind, zero: i64, reads: &[ValueId], makes: ValueId) -> Result<(), String> {
        let lib = self.library;
        let channels = 1;
        let data = self.channels_last(reads[0], channels)?;
        let dst = self.channels_last(makes, channels)?;
        let weight = Md::any(lib, self.graph.shape(reads[1]), self.graph.dtype(reads[1]))?;
        let primitive = Primitive::new(lib, kind, &[data, weight], &dst, &[])?;
        let known = self.graph.values[reads[1].0].data.clone();
        let weights = match known {
            Some(w) => exact::Weights::Known(w),
            None => exact::Weights::Unknown,
        };
        let shape = self.graph.shape(reads[1]).to_vec();
        let split = exact::split(self, kind, &primitive, &weights, &shape)?;
        let source = self.ensure(reads[0], &primitive.reads[0])?;
        let mut done = Exact::default();
        let mut weights_at = Vec::new();
        match (&weights, split) {
            (exact::Weights::Known(w), parts) => {
                for part in exact::parts(w, &shape, kind, parts) {
                    let plain = Md::plain(lib, &shape, DType::I8)?;
                    let raw = self.keep_tensor(part, plain);
                    let packed = self.keep(primitive.reads[1].clone());
                    let md = self.plan.memories[raw].md.clone();
                    let reorder = Primitive::reorder(lib, &md, &primitive.reads[1])?;
                    self.now_run(&reorder, &[(arg::SRC, raw), (arg::DST, packed)])?;
                    weights_at.push(packed);
                }
            }
            (exact::Weights::Unknown, _) => weights_at.push(self.ensure(reads[1], &primitive.reads[1])?),
        }
        for &w in &weights_at {
            let place = self.buffer(primitive.makes.bytes(lib));
            let out = self.memory(primitive.makes.clone(), place);
            self.run(primitive.clone(), vec![(arg::SRC, source), (arg::WEIGHTS, w), (arg::DST, out)]);
            done.parts.push(out);
        }
        if zero != 0 {
            let exact::Weights::Known(w) = &weights else {
                return Err("the weight of a product whose data have a zero point is not constant".into());
            };
            match kind {
                Kind::Convolution(win) if win.before.iter().chain(&win.after).any(|&p| p != 0) => {
                    done.excess = Some(exact::of_constant(self, &primitive, zero, &weights_at)?);
                }
                _ => done.per_channel = exact::per_channel(w, &shape, kind, zero),
            }
        }
        self.exact[makes.0] = Some(done);
        Ok(())
    }

    fn integer(&mut self, i: &Integer, makes: ValueId) -> Result<(), String> {
        let shape = self.graph.shape(makes).to_vec();
        let channels = shape[i.axis] as usize;
        let mut out = IntegerAction {
            terms: vec![],
            per_channel: vec![0; channels],
            more_per_channel: vec![],
            rescale: i.rescale.as_ref().map(|r| Channels::new(r, channels)),
            rescaled: vec![],
            offset: i.offset as i32,
            range: (i.range.0 as i32, i.range.1 as i32),
            out: 0,
            rows: shape.iter().product::<i64>() as usize / channels.max(1),
            channels,
        };
        for &(v, negative) in &i.terms {
            match self.exact[v.0].clone() {
                Some(e) => {
                    out.terms.extend(e.parts.iter().map(|&p| (p, negative)));
                    out.terms.extend(e.excess.map(|m| (m, !negative)));
                    for (sum, add) in out.per_channel.iter_mut().zip(&e.per_channel) {
                        *sum = if negative { sum.wrapping_sub(*add) } else { sum.wrapping_add(*add) };
                    }
                }
                None => {
                    let md = self.channels_last(v, i.axis)?;
                    out.terms.push((self.ensure(v, &md)?, negative));
                }
            }
        }
        for &v in &i.per_channel {
            let md = self.plain(v)?;
            match &self.graph.values[v.0].data {
                Some(t) => add_vector(&mut out.per_channel, t),
                None => out.more_per_channel.push(self.ensure(v, &md)?),
            }
        }
        for (v, r) in &i.rescaled {
            let md = self.channels_last(*v, i.axis)?;
            out.rescaled.push((self.ensure(*v, &md)?, Channels::new(r, channels)));
        }
        let md = self.channels_last(makes, i.axis)?;
        out.out = self.made(makes, md)?;
        self.plan.actions.push(Action::Integer(out));
        Ok(())
    }

    /// Gives a result to the caller.
    fn give(&mut self, i: usize, v: ValueId) -> Result<(), String> {
        let first = self.primary(v)?;
        let given = |m: &&MemoryId| self.plan.memories[**m].place == Place::Output(i);
        if self.held[v.0].iter().any(|m| given(&m)) {
            return Ok(());
        }
        let (from, to) = (self.plan.memories[first].md.clone(), self.plain(v)?);
        let primitive = Primitive::reorder(self.library, &from, &to)?;
        let out = self.memory(to, Place::Output(i));
        self.run(primitive, vec![(arg::SRC, first), (arg::DST, out)]);
        Ok(())
    }

    /// Plans the memory, and lets go what no call needs.
    fn finish(self) -> Plan {
        let Planner { mut plan, buffers, graph, .. } = self;
        plan.recipe.values = graph.values;
        let buffer = |m: MemoryId| match plan.memories[m].place {
            Place::Arena(b) => Some(b),
            _ => None,
        };
        let workload = |a: &Action| match a {
            Action::Run { primitive, args, .. } => {
                let of = |dst: bool| args.iter().filter(move |a| (a.0 == arg::DST) == dst).filter_map(|a| buffer(a.1));
                Workload {
                    reads: of(false).collect(),
                    writes: of(true).collect(),
                    workspace: primitive.scratchpad,
                    in_place: vec![],
                }
            }
            Action::Integer(i) => {
                let reads = i.terms.iter().map(|t| t.0).chain(i.rescaled.iter().map(|r| r.0));
                Workload {
                    reads: reads.chain(i.more_per_channel.iter().copied()).filter_map(buffer).collect(),
                    writes: buffer(i.out).into_iter().collect(),
                    ..Workload::default()
                }
            }
        };
        let work: Vec<Workload> = plan.actions.iter().map(workload).collect();
        let sizes: Vec<Option<usize>> = buffers.into_iter().map(Some).collect();
        let layout = memory_plan(&sizes, &work, ALIGN);
        for m in &mut plan.memories {
            if let Place::Arena(b) = m.place {
                m.place = Place::Arena(layout.offsets[b].unwrap_or(0));
            }
        }
        for (action, at) in plan.actions.iter_mut().zip(layout.workspaces) {
            if let Action::Run { primitive, scratch: place, .. } = action
                && primitive.scratchpad > 0
            {
                *place = at;
            }
        }
        plan.arena = layout.arena;
        let mut used = vec![false; plan.kept.len()];
        let all = plan.actions.iter().flat_map(|a| match a {
            Action::Run { args, .. } => args.iter().map(|a| a.1).collect::<Vec<_>>(),
            Action::Integer(i) => i
                .terms
                .iter()
                .map(|t| t.0)
                .chain(i.rescaled.iter().map(|r| r.0))
                .chain(i.more_per_channel.iter().copied())
                .collect(),
        });
        for m in all {
            if let Place::Kept(k) = plan.memories[m].place {
                used[k] = true;
            }
        }
        for (kept, used) in plan.kept.iter_mut().zip(used) {
            if !used {
                *kept = Kept::Gone;
            }
        }
        plan
    }
}
