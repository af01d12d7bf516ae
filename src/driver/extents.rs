//! What users say of extents that are unknown: numbers to reckon with, and how great they may be.

use hashbrown::HashMap;

use super::{
    state::named_inputs,
    state_order::{in_memory, in_order},
};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    egraph::likely_input,
    infer::TypedModule,
    ir::{Dim, Expr, Module, TensorType, Type, dim_names, likely_extents_attr},
    tensor::Shape,
};

/// A dimension by its name with its extent, or an input with one for each axis, none where nothing is said.
pub type Said = (String, Vec<Option<usize>>);

/// The same with what extents may be; under the name `?` with one range for all extents that nothing else bounds, those among them that are
/// found while a program runs.
pub type ExtentBound = (String, Vec<Option<ExtentRange>>);

/// What an unknown extent may be: multiples of `step` from `least` to `most`. As text, `512`, `512/32`, `128..512` or `128..512/32`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ExtentRange {
    /// The least: 0 where nothing is said.
    pub least: usize,
    /// The greatest.
    pub most: usize,
    /// What it is a multiple of: 1 where nothing is said.
    pub step: usize,
}

impl ExtentRange {
    /// Any extent up to that one.
    pub fn up_to(most: usize) -> ExtentRange {
        ExtentRange { least: 0, most, step: 1 }
    }

    /// Whether an extent is in it.
    pub fn contains(&self, n: usize) -> bool {
        self.least <= n && n <= self.most && n.is_multiple_of(self.step)
    }

    /// What is in both.
    pub(super) fn and(self, other: ExtentRange) -> ExtentRange {
        let (mut a, mut b) = (self.step, other.step);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let step = (self.step / a).saturating_mul(other.step);
        ExtentRange { least: self.least.max(other.least), most: self.most.min(other.most), step }
    }

    /// The least extent in it but 0.
    pub(super) fn first(&self) -> usize {
        self.least.max(1).checked_next_multiple_of(self.step).unwrap_or(usize::MAX)
    }

    /// How many extents are in it, 0 left out.
    pub(super) fn count(&self) -> usize {
        self.most.checked_sub(self.first()).map_or(0, |span| span / self.step + 1)
    }

    /// The extent of that number, from 0 on; the greatest where there are not so many.
    pub(super) fn nth(&self, k: usize) -> usize {
        self.first() + k.min(self.count().saturating_sub(1)) * self.step
    }

    /// An extent in it that is near to that one.
    pub(super) fn near(&self, n: usize) -> usize {
        self.nth(n.saturating_sub(self.first()) / self.step)
    }
}

impl From<usize> for ExtentRange {
    fn from(most: usize) -> ExtentRange {
        ExtentRange::up_to(most)
    }
}

impl std::fmt::Display for ExtentRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.least {
            0 | 1 => write!(f, "{} at most", self.most)?,
            least => write!(f, "{least} to {}", self.most)?,
        }
        match self.step {
            1 => Ok(()),
            step => write!(f, ", a multiple of {step}"),
        }
    }
}

/// A text says no range of extents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` should be of the form 512, 512/32, 128..512 or 128..512/32")]
pub struct NoRange(String);

impl std::str::FromStr for ExtentRange {
    type Err = NoRange;

    fn from_str(text: &str) -> Result<ExtentRange, NoRange> {
        let number = |n: &str| n.parse::<usize>().map_err(|_| NoRange(text.to_owned()));
        let (span, step) = text.split_once('/').unwrap_or((text, "1"));
        let (least, most) = span.split_once("..").unwrap_or(("0", span));
        Ok(ExtentRange { least: number(least)?, most: number(most)?, step: number(step)? })
    }
}

/// An input of the program: one of the tensors of a parameter.
#[derive(Clone, Debug, PartialEq)]
struct Input {
    /// What it is called; the model's own name comes last.
    names: Vec<String>,
    ty: TensorType,
    /// Names of its extents; empty where they have none.
    dims: Vec<String>,
    /// By axis, the number that prices reckon with, where one is said, or follows from the axis' name.
    likely: Vec<Option<usize>>,
    /// By axis, whether a hint says its extent, or a bound its range.
    said: Vec<bool>,
    /// By axis, what it may be, where that is said.
    range: Vec<Option<ExtentRange>>,
}

/// What is said of the extents of a program's inputs, and of others.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Extents {
    inputs: Vec<Input>,
    /// What extents may be that nothing else bounds.
    general: Option<ExtentRange>,
    /// Whether nobody said some of the numbers that prices reckon with: they are in the middle of bounds, or what is usual.
    is_guessed: bool,
}

/// The name under which extents are bounded that nothing else bounds.
const GENERAL: &str = "?";

impl Input {
    fn name(&self) -> &str {
        self.names.last().map_or("", String::as_str)
    }

    fn likely(&self) -> Vec<Option<i64>> {
        self.likely.iter().map(|n| n.map(|n| n as i64)).collect()
    }

    /// Its extents, where what is not said is what is usual where it stands.
    fn usual(&self) -> Option<Shape> {
        let ty = likely_input(&self.ty.clone().into(), &[self.likely()]);
        ty.as_tensor().and_then(TensorType::known_shape).map(|s| s.iter().map(|&n| n as usize).collect())
    }

    /// An axis in words.
    fn called(&self, axis: usize) -> String {
        let dim = self.dims.get(axis).filter(|d| !d.is_empty());
        called(self.name(), axis, dim.map(String::as_str))
    }
}

/// An axis of an input in words, with the name of its extent.
pub(super) fn called(input: &str, axis: usize, dim: Option<&str>) -> String {
    match dim {
        Some(dim) => format!("axis {axis} of `{input}` (`{dim}`)"),
        None => format!("axis {axis} of `{input}`"),
    }
}

impl Extents {
    /// What users say of a program.
    ///
    /// Refuses names that nothing unknown has, extents of 0, and what contradicts itself or the program.
    pub(super) fn of(typed: &TypedModule, hints: &[Said], bounds: &[ExtentBound]) -> Result<Extents, Refused> {
        if hints.is_empty() && bounds.is_empty() {
            return Ok(Extents::default());
        }
        let mut extents = Extents::nothing_said(typed)?;
        let refuse = |message: String| Err(Diagnostic::new(message).into());
        let is_none = |range: ExtentRange| range.step == 0 || range.count() == 0;
        for said in bounds {
            if said.0 != GENERAL {
                extents.say("bound", said, |range| range.most, |input| &mut input.range)?;
                continue;
            }
            match (&said.1[..], extents.general) {
                (&[Some(range)], _) if is_none(range) => {
                    return refuse(format!("bound `{GENERAL}`: {range}: there is no such extent"));
                }
                (&[Some(range)], None) => extents.general = Some(range),
                (_, None) => return refuse(format!("bound `{GENERAL}`: one range of extents is to be given")),
                (_, Some(other)) => return refuse(format!("bound `{GENERAL}`: {other} is said of it, too")),
            }
        }
        for said in hints {
            extents.say("hint", said, |n| n, |input| &mut input.likely)?;
        }
        for input in &mut extents.inputs {
            for axis in 0..input.ty.rank() {
                let general = extents.general.filter(|_| input.ty.shape[axis].known().is_none());
                let Some(range) = input.range[axis].or(general) else { continue };
                input.range[axis] = Some(range);
                if is_none(range) {
                    return refuse(format!("bound: {} is to be {range}: there is no such extent", input.called(axis)));
                }
                match input.likely[axis] {
                    Some(n) if !range.contains(n) => {
                        return refuse(format!("hint: {} is {n}, but {range}", input.called(axis)));
                    }
                    Some(_) => {}
                    // The middle of what it may be.
                    None => {
                        input.likely[axis] = Some(range.nth((range.count() - 1) / 2));
                        extents.is_guessed = true;
                    }
                }
            }
        }
        extents.guess_by_name();
        Ok(extents)
    }

    /// Extents of which nothing is said are what is usual where they stand; those of one name are the same everywhere, the least of these.
    fn guess_by_name(&mut self) {
        let mut least: HashMap<String, usize> = HashMap::new();
        for input in &mut self.inputs {
            input.said = input.likely.iter().map(Option::is_some).collect();
            for (dim, n) in input.dims.iter().zip(input.usual().unwrap_or_default()).filter(|(dim, _)| !dim.is_empty())
            {
                least.entry_ref(dim).and_modify(|l| *l = n.min(*l)).or_insert(n);
            }
        }
        for input in &mut self.inputs {
            for (axis, d) in input.ty.shape.iter().enumerate() {
                if d.known().is_none() && input.likely[axis].is_none() {
                    self.is_guessed = true;
                    input.likely[axis] = input.dims.get(axis).and_then(|dim| least.get(dim)).copied();
                }
            }
        }
    }

    fn nothing_said(typed: &TypedModule) -> Result<Extents, Refused> {
        let dims = dim_names(typed.module());
        let mut inputs = Vec::new();
        for (names, parameter, ty) in named_inputs(typed, "extents")? {
            let dims = dims.get(parameter).filter(|d| d.len() == ty.rank()).cloned().unwrap_or_default();
            let (likely, range) = (vec![None; ty.rank()], vec![None; ty.rank()]);
            let said = vec![false; ty.rank()];
            inputs.push(Input { names, ty, dims, likely, said, range });
        }
        Ok(Extents { inputs, general: None, is_guessed: false })
    }

    /// Of a function of parameters of these types, by number, whose unknown extents are within one range each.
    pub(super) fn within(types: &[TensorType], range: impl Fn(usize, usize) -> Option<ExtentRange>) -> Extents {
        let input = |(i, ty): (usize, &TensorType)| {
            let range: Vec<Option<ExtentRange>> =
                (0..ty.rank()).map(|axis| range(i, axis).filter(|_| ty.shape[axis].known().is_none())).collect();
            let likely: Vec<Option<usize>> = range.iter().map(|r| r.map(|r| r.nth((r.count() - 1) / 2))).collect();
            let said = likely.iter().map(Option::is_some).collect();
            Input { names: Vec::new(), ty: ty.clone(), dims: Vec::new(), likely, said, range }
        };
        Extents { inputs: types.iter().enumerate().map(input).collect(), general: None, is_guessed: true }
    }

    /// What extents may be that nothing else bounds, as those that are found while the program runs.
    pub(super) fn general(&self) -> Option<ExtentRange> {
        self.general
    }

    /// Refuses what is said of extents that nothing else bounds: for programs all of whose extents are known.
    pub(super) fn refuse_general(&self) -> Result<(), Refused> {
        match self.general {
            Some(_) => Err(Diagnostic::new(format!("bound `{GENERAL}`: no extent of the program is unknown")).into()),
            None => Ok(()),
        }
    }

    /// Notes what is said of one name. `greatest` is the number that an extent which is known has to be.
    fn say<T: Copy + PartialEq + std::fmt::Display>(
        &mut self,
        what: &str,
        (name, said): &(String, Vec<Option<T>>),
        greatest: impl Fn(T) -> usize,
        of: impl Fn(&mut Input) -> &mut Vec<Option<T>>,
    ) -> Result<(), Refused> {
        let refuse = |message: String| Refused::from(Diagnostic::new(format!("{what} `{name}`: {message}")));
        let named = |dims: &[String], axis: usize, name: &str| dims.get(axis).is_some_and(|d| d == name);
        let mut places: Vec<(usize, usize, T)> = Vec::new();
        let mut add = |i: usize, axis: usize, n: T| match places.iter().find(|p| (p.0, p.1) == (i, axis)) {
            Some(known) if known.2 != n => Err(refuse(format!("two extents of one name are {} and {n}", known.2))),
            Some(_) => Ok(()),
            None => {
                places.push((i, axis, n));
                Ok(())
            }
        };
        // All places that have a dimension's name.
        let everywhere = |name: &str| -> Vec<(usize, usize)> {
            let axes = |(i, input): (usize, &Input)| -> Vec<(usize, usize)> {
                (0..input.ty.rank()).filter(|&k| named(&input.dims, k, name)).map(|k| (i, k)).collect()
            };
            self.inputs.iter().enumerate().flat_map(axes).collect()
        };
        let (dimension, input) = (everywhere(name), self.inputs.iter().position(|i| i.names.contains(name)));
        match (&said[..], input) {
            (&[Some(n)], _) if !dimension.is_empty() => {
                dimension.into_iter().try_for_each(|(i, axis)| add(i, axis, n))?;
            }
            (said, Some(i)) => {
                let Input { ty, dims, .. } = &self.inputs[i];
                if ty.rank() != said.len() {
                    return Err(refuse(format!("it has {} axes, but {} extents are given", ty.rank(), said.len())));
                }
                for (axis, n) in said.iter().enumerate().filter_map(|(axis, n)| Some((axis, (*n)?))) {
                    match ty.shape[axis].known() {
                        Some(known) if known == greatest(n) as i64 => {}
                        Some(known) => return Err(refuse(format!("axis {axis} is {known}, not {n}"))),
                        None => add(i, axis, n)?,
                    }
                    // The same extent has the same number everywhere.
                    if let Some(name) = dims.get(axis).filter(|d| !d.is_empty()) {
                        everywhere(name).into_iter().try_for_each(|(i, axis)| add(i, axis, n))?;
                    }
                }
            }
            _ => return Err(refuse(self.not_there(name))),
        }
        places.retain(|&(i, axis, _)| self.inputs[i].ty.shape[axis].known().is_none());
        if places.is_empty() {
            return Err(refuse("nothing of it is unknown".into()));
        }
        for (i, axis, n) in places {
            let place = &mut of(&mut self.inputs[i])[axis];
            match *place {
                _ if greatest(n) == 0 => return Err(refuse("an extent of 0 says nothing of others".into())),
                Some(other) if other != n => return Err(refuse(format!("{other} is said of it, too"))),
                _ => *place = Some(n),
            }
        }
        Ok(())
    }

    fn not_there(&self, name: &str) -> String {
        let dims = self.inputs.iter().flat_map(|i| &i.dims).filter(|d| !d.is_empty());
        let mut known: Vec<&str> =
            dims.chain(self.inputs.iter().flat_map(|i| i.names.last())).map(String::as_str).collect();
        known.sort_unstable();
        known.dedup();
        let near = nearest(name, known.iter().copied()).map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
        format!("no dimension and no input is called so; there are {}{near}", known.join(", "))
    }

    /// Says that an input lies with its axes in that order.
    pub(super) fn reorder(&mut self, input: usize, order: &[usize]) {
        // Where nothing is said, there are no inputs.
        let Some(Input { ty, dims, likely, said, range, .. }) = self.inputs.get_mut(input) else { return };
        *ty = in_memory(ty, order);
        *likely = in_order(likely, order);
        *said = in_order(said, order);
        *range = in_order(range, order);
        if !dims.is_empty() {
            *dims = in_order(dims, order);
        }
    }

    /// The program with the numbers that prices reckon with.
    pub(super) fn noted_in(&self, mut m: Module) -> Module {
        let numbers: Vec<Vec<Option<i64>>> = self.inputs.iter().map(Input::likely).collect();
        if let (Some((name, value)), Some(main)) = (likely_extents_attr(&numbers), m.function_id("main")) {
            let mut func = m.func(main).clone();
            func.attrs = func.attrs.with(&name, value);
            let span = m.span(main).cloned();
            let main = m.add_at(Expr::Func(Box::new(func)), span);
            m.define("main", main);
        }
        m
    }

    /// The size that prices reckon with; none where nothing is said.
    pub(super) fn likely(&self) -> Option<Vec<Shape>> {
        if self.inputs.is_empty() { None } else { self.inputs.iter().map(Input::usual).collect() }
    }

    /// By input and axis, whether a hint says its extent, or a bound its range; nothing where none is given.
    pub(super) fn said(&self) -> Vec<Vec<bool>> {
        self.inputs.iter().map(|i| i.said.clone()).collect()
    }

    /// Whether nobody said all of that size, which need be none that the program takes.
    pub(super) fn is_guessed(&self) -> bool {
        self.is_guessed
    }

    /// The greatest size; none where no bound is given.
    ///
    /// Refuses bounds of some extents where others are unknown and have none.
    pub(super) fn greatest(&self) -> Result<Option<Vec<Shape>>, Refused> {
        if self.inputs.iter().all(|i| i.range.iter().all(Option::is_none)) {
            return Ok(None);
        }
        let extent = |i: &Input, axis: usize, d: &Dim| match (d.known(), i.range[axis]) {
            (Some(n), _) => Ok(n as usize),
            (None, Some(range)) => Ok(range.nth(usize::MAX)),
            (None, None) => {
                let what = i.called(axis);
                Err(Diagnostic::new(format!(
                    "bound: there is none for {what}, so that memory can't be planned beforehand"
                ))
                .into())
            }
        };
        let shape = |i: &Input| i.ty.shape.iter().enumerate().map(|(axis, d)| extent(i, axis, d)).collect();
        self.inputs.iter().map(shape).collect::<Result<Vec<Shape>, Refused>>().map(Some)
    }

    /// What an input's axis may be, where that is said.
    pub(super) fn range(&self, input: usize, axis: usize) -> Option<ExtentRange> {
        self.inputs.get(input).and_then(|i| i.range.get(axis).copied().flatten())
    }

    /// The types of the inputs.
    pub(super) fn types(&self) -> impl Iterator<Item = &TensorType> {
        self.inputs.iter().map(|i| &i.ty)
    }

    /// How inputs of these extents are others than they may be; none where they are not.
    pub(super) fn beyond<'a>(&self, shapes: impl Iterator<Item = &'a [usize]>) -> Option<String> {
        self.inputs.iter().zip(shapes).find_map(|(input, shape)| {
            let mut axes = input.range.iter().zip(shape).enumerate();
            let (axis, (range, n)) = axes.find(|(_, (range, n))| range.is_some_and(|r| !r.contains(**n)))?;
            let what = input.called(axis);
            Some(format!("{what} is {n}, but the program was built for {}", (*range)?))
        })
    }

    /// A size in words.
    pub(super) fn described(&self, shapes: &[Shape]) -> String {
        let one = |(i, s): (&Input, &Shape)| {
            let extents: Vec<String> = s.iter().map(usize::to_string).collect();
            format!("`{}` of {}", i.name(), extents.join("x"))
        };
        self.inputs.iter().zip(shapes).map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Shapes that inputs of these types may have, tuples flattened depth first: what is unknown is guessed.
///
/// None where one is no tensor.
pub(super) fn guessed(types: &[Type]) -> Option<Vec<Shape>> {
    let shape = |t: TensorType| {
        let ty = likely_input(&t.into(), &[]);
        Some(ty.as_tensor()?.known_shape()?.iter().map(|&n| n as usize).collect())
    };
    types.iter().map(Type::flatten).collect::<Option<Vec<_>>>()?.into_iter().flatten().map(shape).collect()
}
