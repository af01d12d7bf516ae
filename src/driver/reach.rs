//! How great the extents may become that the kernels of a program with control flow meet.

use hashbrown::HashMap;

use super::{
    entry::entry_name,
    runnable::MachineProgram,
    specialize::{Code, Primitive},
};
use crate::{
    ir::{TensorType, Type},
    tensor::Shape,
    vm::{self, KernelId, Layout, Reach},
};

/// Extents without a bound are taken for these, one after the other, to see what follows from them.
const UNBOUNDED: [i64; 2] = [64, 65];

impl MachineProgram {
    /// By kernel, the greatest that each extent of its arguments may be, by the bounds of the program's inputs; none of what can't be followed.
    pub(super) fn reaches(&self) -> Vec<Option<Vec<Reach>>> {
        let layouts: Vec<Layout> = self.params.iter().map(|p| layout(&p.ty)).collect();
        let tensors = self.params.iter().filter_map(|p| p.ty.flatten()).flatten();
        let most = |i: usize, axis: usize| self.extents.range(i, axis).map(|r| r.most as i64);
        let input = |(i, t): (usize, TensorType)| -> Reach {
            t.shape.iter().enumerate().map(|(axis, d)| d.known().or_else(|| most(i, axis))).collect()
        };
        let inputs = tensors.enumerate().map(input).collect();
        let mut known: HashMap<(KernelId, Option<Vec<Reach>>), Vec<Reach>> = HashMap::new();
        vm::reach(self.program(), &layouts, inputs, &mut |k, args| {
            let found = known.entry((k, args.map(<[Reach]>::to_vec)));
            found.or_insert_with(|| self.results(k.index(), args)).clone()
        })
    }

    /// How great the extents of a kernel's results may be for those of its arguments.
    fn results(&self, number: usize, args: Option<&[Reach]>) -> Vec<Reach> {
        let f = &self.kernels.functions[number];
        if let Some(code) = &f.fixed {
            return results_of(code);
        }
        let m = &self.kernels.module;
        let types: Vec<Type> = m.func(f.func).params.iter().filter_map(|&p| m.var(p).ty.clone()).collect();
        let at = |unbounded: i64| -> Option<Vec<Reach>> {
            let shape = |r: &Reach| -> Shape { r.iter().map(|n| n.unwrap_or(unbounded) as usize).collect() };
            let shapes: Vec<Shape> = args?.iter().map(shape).collect();
            self.results_by(f, &types, Some(&shapes))
        };
        match UNBOUNDED.map(at) {
            // What is the same for both does not follow from what has no bound.
            [Some(a), Some(b)] => {
                let same = |(a, b): (Reach, Reach)| a.into_iter().zip(b).map(|(a, b)| a.filter(|_| a == b)).collect();
                a.into_iter().zip(b).map(same).collect()
            }
            // By the types alone.
            _ => self.results_by(f, &types, None).unwrap_or_default(),
        }
    }

    /// The same by the types of tensors of these extents, or of any; none where they do not fit the function.
    fn results_by(&self, f: &Primitive, types: &[Type], shapes: Option<&[Shape]>) -> Option<Vec<Reach>> {
        let typed = match shapes {
            Some(shapes) => self.kernels.at_extents(f, types, shapes),
            None => self.kernels.at_all_extents(f, types),
        };
        let typed = typed.ok()?;
        let results = typed.ty(typed.entry(&entry_name(0)).ok()?.body).flatten()?;
        Some(results.iter().map(|t| t.shape.iter().map(|d| d.known()).collect()).collect())
    }
}

fn results_of(code: &Code) -> Vec<Reach> {
    let program = code.executable().program();
    let results = program.outputs().count() - code.counted().len();
    program.outputs().take(results).map(|p| p.shape.iter().map(|&n| Some(n as i64)).collect()).collect()
}

fn layout(ty: &Type) -> Layout {
    match ty {
        // Types bound how deep tuples are nested.
        Type::Tuple(fields) => Layout::Tuple(fields.iter().map(layout).collect()),
        _ => Layout::Tensor,
    }
}
