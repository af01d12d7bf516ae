//! Kernels that are the same but for numbers: one for all of them, which takes the numbers as parameters.
//!
//! A kernel for given extents holds numbers that follow from them: how often loops run, how far rows lie apart. An [`Outline`] tells
//! these from the rest, the structure. Of kernels of one structure, a [`Family`] knows which numbers are the same in all of them;
//! the others become elements of an input, the *parameters*. The family's kernel, given a member's parameters, does what that member
//! does: so whatever schedules and checks find out about a kernel, they find out about one whose extents are known.

use hashbrown::{HashMap, hash_map::Entry};

use super::{
    AxisId, Buffer, BufferId, Digest, Kernel, LoopKind, Scalar, ScalarKind, Space, Stmt, TensorId, TileStep,
    digest::{Fnv, dtype},
};
use crate::tensor::{DType, Tensor};

/// A kernel's structure, and the numbers that may differ between kernels of one structure, in the order in which they are met.
#[derive(Clone, PartialEq, Debug)]
pub struct Outline {
    /// Everything else: equal for kernels that differ in the numbers only.
    pub structure: Digest,
    /// Integers, and the bits of floats as `f64`.
    pub numbers: Vec<i64>,
    /// So many of them, the first ones, are bound to variables around the whole kernel: schedules say by that what changes.
    pub named: usize,
}

/// What a number of a family is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Slot {
    /// The same in all members.
    Fixed(i64),
    /// The parameter of that position.
    Parameter(usize),
}

/// Kernels of one structure.
#[derive(Clone, Debug)]
pub struct Family {
    structure: Digest,
    /// One of the members.
    first: Kernel,
    /// By number, its value in each member that was met.
    columns: Vec<Vec<i64>>,
    /// So many numbers, the first ones, are parameters whether or not they differ.
    named: usize,
    slots: Vec<Slot>,
    parameters: usize,
}

impl Kernel {
    /// The kernel as structure and numbers.
    pub fn outline(&self) -> Outline {
        let mut h = Fnv::new();
        h.text("outline 1").add(self.buffers.len() as u128);
        for b in &self.buffers {
            dtype(&mut h, b.dtype);
            let (space, number) = match b.space {
                Space::Input(i) => (0, i as u128),
                Space::Output(i) => (1, i as u128),
                Space::Shared => (2, 0),
                Space::Local => (3, b.len as u128),
                Space::Register => (4, b.len as u128),
            };
            h.add(space).add(number);
        }
        let mut walk =
            Walk { kernel: self, h, axes: HashMap::new(), known: HashMap::new(), met: 0, numbers: Vec::new() };
        walk.stmt(&self.body);
        Outline { structure: Digest(walk.h.end()), numbers: walk.numbers, named: named(&self.body) }
    }
}

/// How many integers are bound to variables around the whole of a body.
fn named(body: &Stmt) -> usize {
    let (mut s, mut count) = (body, 0);
    while let Stmt::Let { value, body, .. } = s
        && matches!(value.kind(), ScalarKind::Int(_))
        && value.dtype() == DType::I64
    {
        (s, count) = (body, count + 1);
    }
    count
}

/// Whether a buffer's elements are registers, whose places are part of the structure.
fn is_register(kernel: &Kernel, b: BufferId) -> bool {
    kernel.buffers.get(b.0 as usize).is_some_and(|b| b.space == Space::Register)
}

/// Whether the extent of such a loop is part of the structure.
fn is_written_out(kind: LoopKind) -> bool {
    matches!(kind, LoopKind::Unrolled | LoopKind::Vector)
}

/// Goes through a kernel in the order that [`Rebuild`] goes through it in.
struct Walk<'a> {
    kernel: &'a Kernel,
    h: Fnv,
    /// Variables are numbered in the order in which they are bound.
    axes: HashMap<AxisId, u128>,
    /// Expressions that were met, by address, numbered in that order, and whether their numbers are part of the structure.
    known: HashMap<(usize, bool), u128>,
    met: u128,
    numbers: Vec<i64>,
}

impl Walk<'_> {
    fn bind(&mut self, axis: AxisId) {
        let n = self.axes.len() as u128;
        self.axes.insert(axis, n);
    }

    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::Block(all) => {
                self.h.add(1).add(all.len() as u128);
                all.iter().for_each(|s| self.stmt(s));
            }
            Stmt::For { var, extent, kind, body } => {
                self.h.add(2).add(*kind as u128);
                self.scalar(extent, is_written_out(*kind));
                self.bind(*var);
                self.stmt(body);
            }
            Stmt::Store { buffer, index, value } => {
                self.h.add(3).add(buffer.0 as u128);
                self.scalar(index, is_register(self.kernel, *buffer));
                self.scalar(value, false);
            }
            Stmt::Prefetch { buffer, index } => {
                self.h.add(4).add(buffer.0 as u128);
                self.scalar(index, false);
            }
            Stmt::Transpose { from, at, stride, to, extent } => {
                self.h.add(9).add(from.0 as u128).add(to.0 as u128).add(*extent as u128);
                self.scalar(at, false);
                self.scalar(stride, false);
            }
            Stmt::Let { var, value, body } => {
                self.h.add(5);
                self.scalar(value, false);
                self.bind(*var);
                self.stmt(body);
            }
            Stmt::If { cond, then, otherwise } => {
                self.h.add(6).add(otherwise.is_some() as u128);
                self.scalar(cond, false);
                self.stmt(then);
                otherwise.iter().for_each(|o| self.stmt(o));
            }
            Stmt::While { cond, body } => {
                self.h.add(7);
                self.scalar(cond, false);
                self.stmt(body);
            }
            Stmt::Tiles { block, step } => {
                self.h.add(8).add(block.sums.0 as u128).add(block.depth as u128);
                for sizes in [&block.rows, &block.columns] {
                    self.h.add(sizes.len() as u128);
                    sizes.iter().for_each(|&n| _ = self.h.add(n as u128));
                }
                self.h.add(match **step {
                    TileStep::Clear => 0,
                    TileStep::Load => 1,
                    TileStep::Add { .. } => 2,
                    TileStep::Store => 3,
                    TileStep::Wake => 4,
                });
                for (o, _) in step.operands(block) {
                    self.h.add(o.buffer.0 as u128).add(o.stride as u64 as u128);
                    o.at.iter().for_each(|at| self.scalar(at, false));
                }
            }
        }
    }

    /// `fixed` where the numbers of the expression are part of the structure.
    fn scalar(&mut self, s: &Scalar, fixed: bool) {
        match s.kind() {
            ScalarKind::Int(i) => {
                let free = !fixed && s.dtype() != DType::Bool;
                dtype(self.h.add(1 + 16 * free as u128), s.dtype());
                match free {
                    true => self.numbers.push(*i),
                    false => _ = self.h.add(*i as u64 as u128),
                }
                return;
            }
            ScalarKind::Float(f) => {
                dtype(self.h.add(2 + 16 * !fixed as u128), s.dtype());
                match fixed {
                    true => _ = self.h.add(f.to_bits() as u128),
                    false => self.numbers.push(f.to_bits() as i64),
                }
                return;
            }
            ScalarKind::Axis(a) => {
                let number = self.axes.get(a).copied().unwrap_or((a.0 as u128) << 64);
                dtype(self.h.add(3).add(number), s.dtype());
                return;
            }
            _ => {}
        }
        // What stands in one place only has a number, but is not met again.
        if s.is_shared() {
            match self.known.entry((s.key(), fixed)) {
                Entry::Occupied(known) => {
                    self.h.add(4).add(*known.get());
                    return;
                }
                Entry::Vacant(new) => _ = new.insert(self.met),
            }
        }
        self.met += 1;
        dtype(&mut self.h, s.dtype());
        let mut inside = fixed;
        match s.kind() {
            ScalarKind::Read(b, _) => {
                inside |= is_register(self.kernel, *b);
                self.h.add(5).add(b.0 as u128)
            }
            ScalarKind::Binary(op, ..) => self.h.add(6).add(*op as u128),
            ScalarKind::Unary(op, _) => self.h.add(7).add(*op as u128),
            ScalarKind::Select(..) => self.h.add(8),
            ScalarKind::Cast(_) => self.h.add(9),
            ScalarKind::Dot(operands) => self.h.add(11).add(operands.len() as u128),
            ScalarKind::MulShift(_) => self.h.add(12),
            ScalarKind::Saturate(_) => self.h.add(13),
            _ => self.h.add(10),
        };
        for o in s.operands() {
            self.scalar(o, inside);
        }
    }
}

/// A kernel with other numbers: goes through it in the order that [`Walk`] goes through it in.
struct Rebuild<'a> {
    kernel: &'a Kernel,
    done: HashMap<(usize, bool), Scalar>,
    slots: std::slice::Iter<'a, Slot>,
    /// The variable of each parameter.
    variables: Vec<AxisId>,
    /// Those that stand for numbers with names.
    named: HashMap<AxisId, AxisId>,
}

impl Rebuild<'_> {
    fn stmt(&mut self, s: &Stmt) -> Stmt {
        match s {
            Stmt::Block(all) => Stmt::Block(all.iter().map(|s| self.stmt(s)).collect()),
            Stmt::For { var, extent, kind, body } => {
                let extent = self.scalar(extent, is_written_out(*kind));
                Stmt::For { var: *var, extent, kind: *kind, body: Box::new(self.stmt(body)) }
            }
            Stmt::Store { buffer, index, value } => {
                let index = self.scalar(index, is_register(self.kernel, *buffer));
                Stmt::Store { buffer: *buffer, index, value: self.scalar(value, false) }
            }
            Stmt::Prefetch { buffer, index } => Stmt::Prefetch { buffer: *buffer, index: self.scalar(index, false) },
            Stmt::Let { var, value, body } => {
                let new = self.scalar(value, false);
                // The parameter stands for a number that has a name: those that are one parameter are seen to be equal then.
                if let (ScalarKind::Int(_), ScalarKind::Axis(parameter)) = (value.kind(), new.kind()) {
                    self.named.insert(*var, *parameter);
                    return self.stmt(body);
                }
                Stmt::Let { var: *var, value: new, body: Box::new(self.stmt(body)) }
            }
            Stmt::If { cond, then, otherwise } => {
                let cond = self.scalar(cond, false);
                let then = Box::new(self.stmt(then));
                Stmt::If { cond, then, otherwise: otherwise.as_ref().map(|o| Box::new(self.stmt(o))) }
            }
            Stmt::While { cond, body } => {
                let cond = self.scalar(cond, false);
                Stmt::While { cond, body: Box::new(self.stmt(body)) }
            }
            // Nothing of a statement by itself comes before its expressions.
            s @ (Stmt::Transpose { .. } | Stmt::Tiles { .. }) => s.map(&mut |e| self.scalar(e, false), &|b| b),
        }
    }

    fn slot(&mut self) -> Slot {
        *self.slots.next().expect("there is a slot for each number of the kernel")
    }

    fn parameter(&self, n: usize, dtype: DType) -> Scalar {
        let value = Scalar::bound(self.variables[n], DType::I64);
        if dtype.is_float() { value.bits(DType::F64).cast(dtype) } else { value.cast(dtype) }
    }

    fn scalar(&mut self, s: &Scalar, fixed: bool) -> Scalar {
        match s.kind() {
            ScalarKind::Int(_) if fixed || s.dtype() == DType::Bool => return s.clone(),
            ScalarKind::Float(_) if fixed => return s.clone(),
            ScalarKind::Int(_) | ScalarKind::Float(_) => {
                return match self.slot() {
                    Slot::Fixed(_) => s.clone(),
                    Slot::Parameter(n) => self.parameter(n, s.dtype()),
                };
            }
            ScalarKind::Axis(a) => {
                return self.named.get(a).map_or_else(|| s.clone(), |&p| Scalar::bound(p, s.dtype()));
            }
            _ => {}
        }
        if let Some(done) = self.done.get(&(s.key(), fixed)) {
            return done.clone();
        }
        let inside = fixed || matches!(s.kind(), ScalarKind::Read(b, _) if is_register(self.kernel, *b));
        let new = s.map_operands(|o| self.scalar(o, inside));
        self.done.insert((s.key(), fixed), new.clone());
        new
    }
}

/// What a member tells its family's kernel, and what it works in.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// The parameters: elements of the kernel's last pointer, an input of `int64`.
    pub parameters: Vec<i64>,
    /// Bytes of each buffer that the member's kernel has in its workspace: further outputs of the family's kernel, before the parameters.
    pub scratch: Vec<i64>,
}

impl Member {
    /// The parameters as the kernel takes them: one element at least.
    pub fn tensor(&self) -> Tensor {
        match self.parameters.is_empty() {
            true => Tensor::zeros(DType::I64, &[1]),
            false => Tensor::from_slice(&[self.parameters.len()], &self.parameters),
        }
    }
}

impl Family {
    /// The family of some kernels, given with their outlines; none where they are not of one structure, or none is given.
    pub fn of(members: &[(Kernel, Outline)]) -> Option<Family> {
        let (kernel, first) = members.first()?;
        if members.iter().any(|(_, o)| o.structure != first.structure || o.numbers.len() != first.numbers.len()) {
            return None;
        }
        let columns = (0..first.numbers.len()).map(|i| members.iter().map(|(_, o)| o.numbers[i]).collect()).collect();
        let (structure, named) = (first.structure, first.named);
        let mut family = Family { structure, first: kernel.clone(), columns, named, slots: vec![], parameters: 0 };
        family.name_parameters();
        Some(family)
    }

    /// Numbers with names are parameters. Of others, those that were the same in all members are fixed, and those that were equal to each
    /// other are one parameter.
    fn name_parameters(&mut self) {
        let mut known: HashMap<&[i64], usize> = HashMap::new();
        let mut slots: Vec<Slot> = (0..self.named).map(Slot::Parameter).collect();
        for column in &self.columns[self.named..] {
            slots.push(match column.iter().all(|n| *n == column[0]) {
                true => Slot::Fixed(column[0]),
                false => {
                    let next = self.named + known.len();
                    Slot::Parameter(*known.entry(column).or_insert(next))
                }
            });
        }
        self.parameters = self.named + known.len();
        self.slots = slots;
    }

    /// What a kernel tells the family's; none where it is no member, or would be one of a family that knew it.
    pub fn member(&self, kernel: &Kernel) -> Option<Member> {
        let outline = kernel.outline();
        if outline.structure != self.structure || outline.numbers.len() != self.slots.len() {
            return None;
        }
        let scratch = kernel.buffers.iter().filter(|b| b.space == Space::Shared);
        let scratch = scratch.map(|b| b.len * b.dtype.bytes() as i64).collect();
        Some(Member { parameters: self.parameters_by(&outline.numbers)?, scratch })
    }

    /// The same of a kernel of which the structure is known to be the family's, and the first of its numbers; none where the others may be
    /// parameters, too.
    pub fn member_by(&self, first: &[i64], scratch: Vec<i64>) -> Option<Member> {
        let rest = self.slots.get(first.len()..)?;
        let is_fixed = rest.iter().all(|s| matches!(s, Slot::Fixed(_)));
        is_fixed.then(|| self.parameters_by(first)).flatten().map(|parameters| Member { parameters, scratch })
    }

    /// The parameters, by the first of a kernel's numbers; none where one is not what it is in all members.
    fn parameters_by(&self, numbers: &[i64]) -> Option<Vec<i64>> {
        let mut parameters: Vec<Option<i64>> = vec![None; self.parameters];
        for (&n, slot) in numbers.iter().zip(&self.slots) {
            let fits = match *slot {
                Slot::Fixed(f) => n == f,
                Slot::Parameter(p) => *parameters[p].get_or_insert(n) == n,
            };
            if !fits {
                return None;
            }
        }
        Some(parameters.into_iter().map(|p| p.unwrap_or(0)).collect())
    }

    /// Whether a kernel becomes a member where the family's kernel takes further numbers: from now on it does.
    pub fn join(&mut self, kernel: &Kernel) -> bool {
        let outline = kernel.outline();
        if outline.structure != self.structure || outline.numbers.len() != self.columns.len() {
            return false;
        }
        self.columns.iter_mut().zip(outline.numbers).for_each(|(column, n)| column.push(n));
        self.name_parameters();
        true
    }

    /// The kernel of the whole family. Its pointers are a member's, the buffers of [`Member::scratch`] and the parameters.
    pub fn kernel(&self) -> Kernel {
        let mut buffers = self.first.buffers.clone();
        let mut pointer = self.first.pointer_count() as u32;
        for b in buffers.iter_mut().filter(|b| b.space == Space::Shared) {
            b.space = Space::Output(pointer);
            pointer += 1;
        }
        let parameters = TensorId(buffers.len() as u32);
        let len = self.parameters.max(1) as i64;
        buffers.push(Buffer { dtype: DType::I64, len, space: Space::Input(pointer) });
        let free = first_free(&self.first.body);
        let variables: Vec<AxisId> = (0..self.parameters as u32).map(|n| AxisId(free + n)).collect();
        let mut rebuild = Rebuild {
            kernel: &self.first,
            done: HashMap::new(),
            slots: self.slots.iter(),
            variables: variables.clone(),
            named: HashMap::new(),
        };
        let body = rebuild.stmt(&self.first.body);
        let body = variables.into_iter().enumerate().rev().fold(body, |body, (n, var)| Stmt::Let {
            var,
            value: Scalar::read(parameters, vec![Scalar::index(n as i64)], DType::I64),
            body: Box::new(body),
        });
        Kernel { name: self.first.name.clone(), buffers, body }
    }
}

/// The least number that is greater than those of all variables that statements bind.
fn first_free(s: &Stmt) -> u32 {
    let mut free = 0;
    s.for_each(&mut |s| {
        if let Stmt::For { var, .. } | Stmt::Let { var, .. } = s {
            free = free.max(var.0 + 1);
        }
    });
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        loops::{Buffer, run_kernel},
        tensor::Tensor,
    };

    /// `args[1][i * columns + j] = args[0][j * rows + i] * scale` by way of a row in the workspace.
    fn turned(rows: i64, columns: i64, scale: f64) -> Kernel {
        let [i, j, k] = [0, 1, 2].map(AxisId);
        let buffer = |len, space| Buffer { dtype: DType::F32, len, space };
        let for_ = |var, extent, body| Stmt::For {
            var,
            extent: Scalar::index(extent),
            kind: LoopKind::Serial,
            body: Box::new(body),
        };
        let read = |b, at| Scalar::read(TensorId(b), vec![at], DType::F32);
        let value = read(0, Scalar::axis(j) * rows + Scalar::axis(i)) * Scalar::float(scale, DType::F32);
        let fill = for_(j, columns, Stmt::Store { buffer: TensorId(2), index: Scalar::axis(j), value });
        let to = Scalar::axis(i) * columns + Scalar::axis(k);
        let copy = Stmt::Store { buffer: TensorId(1), index: to, value: read(2, Scalar::axis(k)) };
        let body = for_(i, rows, Stmt::Block(vec![fill, for_(k, columns, copy)]));
        let buffers = vec![
            buffer(rows * columns, Space::Input(0)),
            buffer(rows * columns, Space::Output(1)),
            buffer(columns, Space::Shared),
        ];
        Kernel { name: "turned".into(), buffers, body }
    }

    fn outlined<const N: usize>(kernels: [Kernel; N]) -> [(Kernel, Outline); N] {
        kernels.map(|k| {
            let outline = k.outline();
            (k, outline)
        })
    }

    fn data(n: i64) -> Tensor {
        Tensor::from_f64_fn(DType::F32, &[n as usize], |i| i as f64)
    }

    #[test]
    fn one_kernel_does_what_each_member_does() {
        let family =
            Family::of(&outlined([turned(3, 5, 2.0), turned(4, 7, 0.5), turned(9, 2, 4.0)])).expect("one structure");
        let kernel = family.kernel();
        crate::loops::check(&kernel).expect("a good kernel");
        for (rows, columns, scale) in [(3, 5, 2.0), (6, 6, 1.5), (11, 3, 0.25), (2, 8, 3.0)] {
            let own = turned(rows, columns, scale);
            let member = family.member(&own).expect("a member");
            assert_eq!(member.scratch, [columns * 4]);
            let n = rows * columns;
            let mut wanted = vec![data(n), Tensor::zeros(DType::F32, &[n as usize])];
            run_kernel(&own, &mut wanted).expect("it runs");
            let parameters = Tensor::from_slice(&[member.parameters.len()], &member.parameters);
            let mut got = vec![
                data(n),
                Tensor::zeros(DType::F32, &[n as usize]),
                Tensor::zeros(DType::F32, &[columns as usize]),
                parameters,
            ];
            run_kernel(&sized(&kernel, &got), &mut got).expect("it runs");
            assert_eq!(wanted[1].bytes(), got[1].bytes());
        }
    }

    /// The kernel with buffers as long as what it is given: the interpreter checks.
    fn sized(kernel: &Kernel, given: &[Tensor]) -> Kernel {
        let mut kernel = kernel.clone();
        for b in &mut kernel.buffers {
            if let Space::Input(i) | Space::Output(i) = b.space {
                b.len = given[i as usize].len() as i64;
            }
        }
        kernel
    }

    #[test]
    fn what_differs_otherwise_is_no_member() {
        let mut family = Family::of(&outlined([turned(3, 5, 2.0), turned(4, 5, 2.0)])).expect("one structure");
        assert_eq!(family.member(&turned(6, 7, 2.0)), None);
        assert!(family.join(&turned(6, 7, 2.0)));
        assert!(family.member(&turned(8, 9, 2.0)).is_some());
        let mut other = turned(3, 5, 2.0);
        other.buffers[2].space = Space::Local;
        assert!(family.member(&other).is_none() && !family.join(&other));
        assert!(Family::of(&outlined([turned(3, 5, 2.0), other])).is_none());
    }
}
