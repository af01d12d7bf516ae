//! What users say of extents that are unknown: numbers to reckon with, and how great they may be.

use super::state::named_inputs;
use crate::{
    diag::{Diagnostic, Refused, nearest},
    egraph::likely_input,
    infer::TypedModule,
    ir::{Dim, Expr, Module, TensorType, Type, dim_names, likely_extents_attr},
    tensor::Shape,
};

/// A dimension by its name with its extent, or an input with one for each axis, none where nothing is said.
pub type Said = (String, Vec<Option<usize>>);

/// An input of the program: one of the tensors of a parameter.
#[derive(Clone, Debug, PartialEq)]
struct Input {
    /// What it is called; the model's own name comes last.
    names: Vec<String>,
    ty: TensorType,
    /// Names of its extents; empty where they have none.
    dims: Vec<String>,
    /// By axis, the number that prices reckon with, where one is said.
    likely: Vec<Option<i64>>,
    /// By axis, the most that it may be, where that is said.
    most: Vec<Option<i64>>,
}

/// What is said of the extents of a program's inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Extents(Vec<Input>);

impl Input {
    fn name(&self) -> &str {
        self.names.last().map_or("", String::as_str)
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
    pub(super) fn of(typed: &TypedModule, hints: &[Said], bounds: &[Said]) -> Result<Extents, Refused> {
        if hints.is_empty() && bounds.is_empty() {
            return Ok(Extents::default());
        }
        let mut extents = Extents::nothing_said(typed)?;
        for said in bounds {
            extents.say("bound", said, |input| &mut input.most)?;
        }
        for said in hints {
            extents.say("hint", said, |input| &mut input.likely)?;
        }
        for input in &mut extents.0 {
            for axis in 0..input.ty.rank() {
                match (input.likely[axis], input.most[axis]) {
                    (Some(n), Some(most)) if n > most => {
                        let what = input.called(axis);
                        return Err(Diagnostic::new(format!("hint: {what} is {n}, but {most} at most")).into());
                    }
                    // The middle of what it may be.
                    (None, Some(most)) => input.likely[axis] = Some((1 + most) / 2),
                    _ => {}
                }
            }
        }
        Ok(extents)
    }

    fn nothing_said(typed: &TypedModule) -> Result<Extents, Refused> {
        let dims = dim_names(typed.module());
        let mut inputs = Vec::new();
        for (names, parameter, ty) in named_inputs(typed, "extents")? {
            let dims = dims.get(parameter).filter(|d| d.len() == ty.rank()).cloned().unwrap_or_default();
            let nothing = vec![None; ty.rank()];
            inputs.push(Input { names, ty, dims, likely: nothing.clone(), most: nothing });
        }
        Ok(Extents(inputs))
    }

    /// Notes what is said of one name.
    fn say(
        &mut self,
        what: &str,
        (name, said): &Said,
        of: impl Fn(&mut Input) -> &mut Vec<Option<i64>>,
    ) -> Result<(), Refused> {
        let refuse = |message: String| Refused::from(Diagnostic::new(format!("{what} `{name}`: {message}")));
        let named = |dims: &[String], axis: usize, name: &str| dims.get(axis).is_some_and(|d| d == name);
        let mut places: Vec<(usize, usize, i64)> = Vec::new();
        let mut add = |i: usize, axis: usize, n: usize| match places.iter().find(|p| (p.0, p.1) == (i, axis)) {
            Some(known) if known.2 != n as i64 => {
                Err(refuse(format!("two extents of one name are {} and {n}", known.2)))
            }
            Some(_) => Ok(()),
            None => {
                places.push((i, axis, n as i64));
                Ok(())
            }
        };
        // All places that have a dimension's name.
        let everywhere = |name: &str| -> Vec<(usize, usize)> {
            let axes = |(i, input): (usize, &Input)| -> Vec<(usize, usize)> {
                (0..input.ty.rank()).filter(|&k| named(&input.dims, k, name)).map(|k| (i, k)).collect()
            };
            self.0.iter().enumerate().flat_map(axes).collect()
        };
        let (dimension, input) = (everywhere(name), self.0.iter().position(|i| i.names.contains(name)));
        match (&said[..], input) {
            (&[Some(n)], _) if !dimension.is_empty() => {
                dimension.into_iter().try_for_each(|(i, axis)| add(i, axis, n))?;
            }
            (said, Some(i)) => {
                let Input { ty, dims, .. } = &self.0[i];
                if ty.rank() != said.len() {
                    return Err(refuse(format!("it has {} axes, but {} extents are given", ty.rank(), said.len())));
                }
                for (axis, n) in said.iter().enumerate().filter_map(|(axis, n)| Some((axis, (*n)?))) {
                    match ty.shape[axis].known() {
                        Some(known) if known == n as i64 => {}
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
        places.retain(|&(i, axis, _)| self.0[i].ty.shape[axis].known().is_none());
        if places.is_empty() {
            return Err(refuse("nothing of it is unknown".into()));
        }
        for (i, axis, n) in places {
            let place = &mut of(&mut self.0[i])[axis];
            match *place {
                _ if n == 0 => return Err(refuse("an extent of 0 says nothing of others".into())),
                Some(other) if other != n => return Err(refuse(format!("{other} is said of it, too"))),
                _ => *place = Some(n),
            }
        }
        Ok(())
    }

    fn not_there(&self, name: &str) -> String {
        let dims = self.0.iter().flat_map(|i| &i.dims).filter(|d| !d.is_empty());
        let mut known: Vec<&str> = dims.chain(self.0.iter().flat_map(|i| i.names.last())).map(String::as_str).collect();
        known.sort_unstable();
        known.dedup();
        let near = nearest(name, known.iter().copied()).map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
        format!("no dimension and no input is called so; there are {}{near}", known.join(", "))
    }

    /// The program with the numbers that prices reckon with.
    pub(super) fn noted_in(&self, mut m: Module) -> Module {
        let numbers: Vec<Vec<Option<i64>>> = self.0.iter().map(|i| i.likely.clone()).collect();
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
        let shape = |i: &Input| {
            let ty = likely_input(&i.ty.clone().into(), std::slice::from_ref(&i.likely));
            ty.as_tensor().and_then(TensorType::known_shape).map(|s| s.iter().map(|&n| n as usize).collect())
        };
        if self.0.is_empty() { None } else { self.0.iter().map(shape).collect() }
    }

    /// The greatest size; none where no bound is given.
    ///
    /// Refuses bounds of some extents where others are unknown and have none.
    pub(super) fn greatest(&self) -> Result<Option<Vec<Shape>>, Refused> {
        if self.0.iter().all(|i| i.most.iter().all(Option::is_none)) {
            return Ok(None);
        }
        let extent = |i: &Input, axis: usize, d: &Dim| match (d.known(), i.most[axis]) {
            (Some(n), _) | (None, Some(n)) => Ok(n as usize),
            (None, None) => {
                let what = i.called(axis);
                Err(Diagnostic::new(format!(
                    "bound: there is none for {what}, so that memory can't be planned beforehand"
                ))
                .into())
            }
        };
        let shape = |i: &Input| i.ty.shape.iter().enumerate().map(|(axis, d)| extent(i, axis, d)).collect();
        self.0.iter().map(shape).collect::<Result<Vec<Shape>, Refused>>().map(Some)
    }

    /// The most that an input's axis may be, where that is said.
    pub(super) fn most(&self, input: usize, axis: usize) -> Option<i64> {
        self.0.get(input).and_then(|i| i.most.get(axis).copied().flatten())
    }

    /// The types of the inputs.
    pub(super) fn types(&self) -> impl Iterator<Item = &TensorType> {
        self.0.iter().map(|i| &i.ty)
    }

    /// How inputs of these extents are larger than they may be; none where they are not.
    pub(super) fn beyond<'a>(&self, shapes: impl Iterator<Item = &'a [usize]>) -> Option<String> {
        self.0.iter().zip(shapes).find_map(|(input, shape)| {
            let mut axes = input.most.iter().zip(shape).enumerate();
            let (axis, (most, n)) = axes.find(|(_, (most, n))| most.is_some_and(|most| **n as i64 > most))?;
            let what = input.called(axis);
            Some(format!("{what} is {n}, but the program was built for {} at most", (*most)?))
        })
    }

    /// A size in words.
    pub(super) fn described(&self, shapes: &[Shape]) -> String {
        let one = |(i, s): (&Input, &Shape)| {
            let extents: Vec<String> = s.iter().map(usize::to_string).collect();
            format!("`{}` of {}", i.name(), extents.join("x"))
        };
        self.0.iter().zip(shapes).map(one).collect::<Vec<_>>().join(", ")
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
