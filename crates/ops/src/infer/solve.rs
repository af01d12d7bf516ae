//! Types as terms with holes, and what makes holes known: unification of terms that are the same type, and flow from a
//! value's type into the type of a place that takes it.

use hashbrown::{HashMap, HashSet};

use super::verify::{MAX_NESTING, MAX_PARTS};
use crate::{
    ir::{Dim, FuncType, Module, Name, OpId, TensorType, Type, TypeVarId},
    tensor::DType,
};

/// A term of a [`Solver`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ty(u32);

/// What is known of a type.
#[derive(Clone, Debug)]
pub(super) enum Term {
    /// The same as another term.
    Link(Ty),
    /// Nothing yet.
    Hole,
    /// A tensor. A `soft` one was guessed from the first value that flowed into a hole: later values with unknown extents
    /// make its extents unknown.
    Tensor {
        shape: Vec<Dim>,
        dtype: DType,
        soft: bool,
    },
    Tuple(Vec<Ty>),
    Func(FuncTerm),
    Ref(Ty),
    Adt(Name, Vec<Ty>),
    /// A type parameter.
    Var(TypeVarId),
    /// An operator as a value: it fits every function type that its type relation allows.
    Op(OpId),
}

#[derive(Clone, Debug)]
pub(super) struct FuncTerm {
    pub(super) type_params: Vec<TypeVarId>,
    pub(super) params: Vec<Ty>,
    pub(super) ret: Ty,
}

/// Why two types do not fit.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Misfit {
    /// They differ.
    Differ,
    /// A type would contain itself.
    Recursive,
    /// Types are nested too deeply to be handled.
    TooDeep,
    /// Types are made of too many types to be handled.
    TooWide,
}

/// A type, how deep it is nested, and of how many types it is made.
type Nested = (Type, usize, usize);

/// What stands for a type parameter at one use of a polymorphic term: a type or an extent.
pub(super) type Instance = HashMap<TypeVarId, (Ty, Dim)>;

/// The terms of one module.
#[derive(Debug, Default)]
pub(super) struct Solver {
    terms: Vec<Term>,
    dims: Vec<Option<Dim>>,
    /// The terms of the holes that annotations number.
    named: HashMap<u32, Ty>,
    named_dims: HashMap<u32, Dim>,
    /// Operators that flowed into function types, to be related by whoever drives.
    pub(super) op_flows: Vec<(OpId, FuncTerm)>,
    /// Complete types by root; cleared where a known type changes (an extent became unknown).
    complete: HashMap<Ty, Nested>,
    /// Counts solved holes: whoever waits for one need not look again while it stands.
    pub(super) solved: usize,
}

impl Solver {
    pub(super) fn add(&mut self, term: Term) -> Ty {
        self.terms.push(term);
        Ty(self.terms.len() as u32 - 1)
    }

    pub(super) fn hole(&mut self) -> Ty {
        self.add(Term::Hole)
    }

    fn dim_hole(&mut self) -> Dim {
        self.dims.push(None);
        Dim::Hole(self.dims.len() as u32 - 1)
    }

    /// The term that stands for all that are linked to it.
    pub(super) fn root(&mut self, ty: Ty) -> Ty {
        let mut root = ty;
        while let Term::Link(next) = self.terms[root.0 as usize] {
            root = next;
        }
        let mut at = ty;
        while let Term::Link(next) = self.terms[at.0 as usize] {
            self.terms[at.0 as usize] = Term::Link(root);
            at = next;
        }
        root
    }

    /// What is known of a type.
    pub(super) fn term(&mut self, ty: Ty) -> &Term {
        let root = self.root(ty);
        &self.terms[root.0 as usize]
    }

    pub(super) fn is_hole(&mut self, ty: Ty) -> bool {
        matches!(self.term(ty), Term::Hole)
    }

    fn dim(&self, mut d: Dim) -> Dim {
        while let Dim::Hole(h) = d {
            match self.dims[h as usize] {
                Some(next) => d = next,
                None => break,
            }
        }
        d
    }

    /// The term of an annotated type (whose nesting was checked).
    pub(super) fn import(&mut self, ty: &Type) -> Ty {
        self.import_with(ty, &Instance::new())
    }

    /// The term of an annotated type in which type parameters are replaced.
    pub(super) fn import_with(&mut self, ty: &Type, instance: &Instance) -> Ty {
        let term = match ty {
            Type::Tensor(t) => {
                let shape = t.shape.iter().map(|&d| self.import_dim(d, instance)).collect();
                Term::Tensor { shape, dtype: t.dtype, soft: false }
            }
            Type::Tuple(fields) => Term::Tuple(fields.iter().map(|t| self.import_with(t, instance)).collect()),
            Type::Func(f) => Term::Func(FuncTerm {
                type_params: f.type_params.clone(),
                params: f.params.iter().map(|t| self.import_with(t, instance)).collect(),
                ret: self.import_with(&f.ret, instance),
            }),
            Type::Ref(t) => Term::Ref(self.import_with(t, instance)),
            Type::Adt(n, args) => Term::Adt(n.clone(), args.iter().map(|t| self.import_with(t, instance)).collect()),
            Type::Var(v) => match instance.get(v) {
                Some((ty, _)) => return *ty,
                None => Term::Var(*v),
            },
            Type::Hole(h) => {
                if let Some(&ty) = self.named.get(h) {
                    return ty;
                }
                let ty = self.hole();
                self.named.insert(*h, ty);
                return ty;
            }
        };
        self.add(term)
    }

    fn import_dim(&mut self, d: Dim, instance: &Instance) -> Dim {
        match d {
            Dim::Var(v) => instance.get(&v).map_or(d, |(_, d)| *d),
            Dim::Hole(h) => {
                if let Some(&d) = self.named_dims.get(&h) {
                    return d;
                }
                let d = self.dim_hole();
                self.named_dims.insert(h, d);
                d
            }
            d => d,
        }
    }

    /// Fresh holes for type parameters.
    pub(super) fn instance(&mut self, type_params: &[TypeVarId]) -> Instance {
        type_params.iter().map(|&v| (v, (self.hole(), self.dim_hole()))).collect()
    }

    /// A function's term with its type parameters replaced.
    pub(super) fn instantiate(&mut self, f: &FuncTerm, instance: &Instance) -> Result<FuncTerm, Misfit> {
        if instance.is_empty() {
            return Ok(f.clone());
        }
        let mut done = HashMap::new();
        let params =
            f.params.iter().map(|&p| self.replace(p, instance, &mut done, 0)).collect::<Result<Vec<_>, Misfit>>()?;
        let ret = self.replace(f.ret, instance, &mut done, 0)?;
        Ok(FuncTerm { type_params: Vec::new(), params, ret })
    }

    fn replace(&mut self, ty: Ty, instance: &Instance, done: &mut HashMap<Ty, Ty>, depth: usize) -> Result<Ty, Misfit> {
        let root = self.root(ty);
        if let Some(&new) = done.get(&root) {
            return Ok(new);
        }
        if depth > MAX_NESTING {
            return Err(Misfit::TooDeep);
        }
        let mut list = |s: &mut Solver, l: &[Ty]| -> Result<Vec<Ty>, Misfit> {
            l.iter().map(|&t| s.replace(t, instance, done, depth + 1)).collect()
        };
        let term = match self.terms[root.0 as usize].clone() {
            Term::Var(v) => match instance.get(&v) {
                Some((ty, _)) => return Ok(*ty),
                None => return Ok(root),
            },
            Term::Tensor { shape, dtype, soft } => {
                let in_instance = |d: &Dim| matches!(d, Dim::Var(v) if instance.contains_key(v));
                if !shape.iter().any(in_instance) {
                    return Ok(root);
                }
                let shape = shape.iter().map(|&d| self.import_dim_var(d, instance)).collect();
                Term::Tensor { shape, dtype, soft }
            }
            Term::Tuple(fields) => Term::Tuple(list(self, &fields)?),
            Term::Func(f) => {
                let params = list(self, &f.params)?;
                let ret = list(self, &[f.ret])?[0];
                Term::Func(FuncTerm { type_params: f.type_params, params, ret })
            }
            Term::Ref(t) => Term::Ref(list(self, &[t])?[0]),
            Term::Adt(n, args) => Term::Adt(n, list(self, &args)?),
            Term::Hole | Term::Op(_) | Term::Link(_) => return Ok(root),
        };
        let new = self.add(term);
        done.insert(root, new);
        Ok(new)
    }

    fn import_dim_var(&self, d: Dim, instance: &Instance) -> Dim {
        match self.dim(d) {
            Dim::Var(v) => instance.get(&v).map_or(Dim::Var(v), |(_, d)| *d),
            d => d,
        }
    }

    fn set(&mut self, root: Ty, term: Term) {
        self.terms[root.0 as usize] = term;
        self.solved += 1;
    }

    /// Makes a hole the same as another type, which must not contain it.
    fn bind(&mut self, hole: Ty, ty: Ty) -> Result<(), Misfit> {
        if self.contains(ty, hole) {
            return Err(Misfit::Recursive);
        }
        self.set(hole, Term::Link(ty));
        Ok(())
    }

    fn contains(&mut self, ty: Ty, part: Ty) -> bool {
        let mut todo = vec![self.root(ty)];
        let mut seen = HashSet::new();
        while let Some(t) = todo.pop() {
            if t == part {
                return true;
            }
            let parts: Vec<Ty> = match &self.terms[t.0 as usize] {
                Term::Tuple(f) | Term::Adt(_, f) => f.clone(),
                Term::Func(f) => f.params.iter().copied().chain([f.ret]).collect(),
                Term::Ref(t) => vec![*t],
                _ => continue,
            };
            for p in parts {
                let p = self.root(p);
                if seen.insert(p) {
                    todo.push(p);
                }
            }
        }
        false
    }

    /// Makes `place` the very type `ty` where it is a hole, else lets `ty` flow into it.
    pub(super) fn assign(&mut self, ty: Ty, place: Ty) -> Result<(), Misfit> {
        let (ty, place) = (self.root(ty), self.root(place));
        if ty == place {
            return Ok(());
        }
        match self.is_hole(place) {
            true => self.bind(place, ty),
            false => self.flow(ty, place),
        }
    }

    /// Lets a value of type `from` be used where `to` is wanted. Extents may become known or unknown on the way, as TVM
    /// allows.
    pub(super) fn flow(&mut self, from: Ty, to: Ty) -> Result<(), Misfit> {
        self.relate(from, to, false, 0)
    }

    /// [`Solver::flow`], or (`same`) makes two types the same. What is left to do lies on a stack of its own.
    fn relate(&mut self, from: Ty, to: Ty, same: bool, depth: usize) -> Result<(), Misfit> {
        let mut todo = vec![(from, to, same, depth)];
        while let Some((from, to, same, depth)) = todo.pop() {
            let at = todo.len();
            self.relate_heads(from, to, same, depth, &mut todo)?;
            todo[at..].reverse();
        }
        Ok(())
    }

    /// Relates the outermost terms of two types, and notes which parts are to be related, in order.
    fn relate_heads(
        &mut self,
        from: Ty,
        to: Ty,
        same: bool,
        depth: usize,
        todo: &mut Vec<(Ty, Ty, bool, usize)>,
    ) -> Result<(), Misfit> {
        let (from, to) = (self.root(from), self.root(to));
        if from == to {
            return Ok(());
        }
        if depth > MAX_NESTING {
            return Err(Misfit::TooDeep);
        }
        let (a, b) = (self.terms[from.0 as usize].clone(), self.terms[to.0 as usize].clone());
        let mut list = |a: &[Ty], b: &[Ty]| -> Result<(), Misfit> {
            if a.len() != b.len() {
                return Err(Misfit::Differ);
            }
            todo.extend(a.iter().zip(b).map(|(&a, &b)| (a, b, same, depth + 1)));
            Ok(())
        };
        match (a, b) {
            (Term::Hole, _) => self.bind(from, to),
            (_, Term::Hole) if same => self.bind(to, from),
            (_, Term::Hole) => {
                let copy = self.soften(from, depth)?;
                self.bind(to, copy)
            }
            (Term::Tensor { shape: a, dtype: da, soft: sa }, Term::Tensor { shape: b, dtype: db, soft }) => {
                if da != db || a.len() != b.len() {
                    return Err(Misfit::Differ);
                }
                let mut met = Vec::with_capacity(a.len());
                for (&a, &b) in a.iter().zip(&b) {
                    met.push(self.meet(a, b)?);
                }
                if same {
                    let merged = self.add(Term::Tensor { shape: met, dtype: da, soft: sa && soft });
                    self.set(from, Term::Link(merged));
                    self.set(to, Term::Link(merged));
                    self.complete.clear();
                } else if soft && b.iter().zip(&met).any(|(&b, &m)| m == Dim::Any && self.dim(b) != Dim::Any) {
                    self.set(to, Term::Tensor { shape: met, dtype: da, soft });
                    self.complete.clear();
                }
                Ok(())
            }
            (Term::Tuple(a), Term::Tuple(b)) => list(&a, &b),
            (Term::Adt(n, a), Term::Adt(m, b)) if n == m => list(&a, &b),
            (Term::Ref(a), Term::Ref(b)) => {
                todo.push((a, b, true, depth + 1));
                Ok(())
            }
            (Term::Func(a), Term::Func(b)) => {
                let a = match (a.type_params.is_empty(), b.type_params.len() == a.type_params.len()) {
                    (true, _) => a,
                    // Both polymorphic: the same up to the parameters' names.
                    (false, true) => {
                        let pairs = a.type_params.iter().zip(&b.type_params);
                        let instance =
                            pairs.map(|(&v, &w)| (v, (self.add(Term::Var(w)), Dim::Var(w)))).collect::<Instance>();
                        self.instantiate(&a, &instance)?
                    }
                    (false, false) => {
                        let instance = self.instance(&a.type_params);
                        self.instantiate(&a, &instance)?
                    }
                };
                list(&b.params, &a.params)?;
                list(&[a.ret], &[b.ret])
            }
            (Term::Op(op), Term::Func(f)) | (Term::Func(f), Term::Op(op)) => {
                self.op_flows.push((op, f));
                self.solved += 1;
                Ok(())
            }
            (Term::Op(a), Term::Op(b)) if a == b => Ok(()),
            (Term::Var(a), Term::Var(b)) if a == b => Ok(()),
            _ => Err(Misfit::Differ),
        }
    }

    /// A copy for a hole that values flow into.
    fn soften(&mut self, ty: Ty, depth: usize) -> Result<Ty, Misfit> {
        if depth > MAX_NESTING {
            return Err(Misfit::TooDeep);
        }
        let root = self.root(ty);
        let list = |s: &mut Solver, l: &[Ty]| -> Result<Vec<Ty>, Misfit> {
            l.iter().map(|&t| s.soften(t, depth + 1)).collect()
        };
        let term = match self.terms[root.0 as usize].clone() {
            Term::Tensor { shape, .. } if shape.is_empty() => return Ok(root),
            Term::Tensor { shape, dtype, .. } => Term::Tensor { shape, dtype, soft: true },
            Term::Tuple(fields) if !fields.is_empty() => Term::Tuple(list(self, &fields)?),
            Term::Adt(name, args) if !args.is_empty() => Term::Adt(name, list(self, &args)?),
            _ => return Ok(root),
        };
        Ok(self.add(term))
    }

    /// What two extents that should be one are together.
    fn meet(&mut self, a: Dim, b: Dim) -> Result<Dim, Misfit> {
        match (self.dim(a), self.dim(b)) {
            (a, b) if a == b => Ok(a),
            (Dim::Hole(h), d) | (d, Dim::Hole(h)) => {
                self.dims[h as usize] = Some(d);
                self.solved += 1;
                Ok(d)
            }
            (Dim::Any, _) | (_, Dim::Any) => Ok(Dim::Any),
            _ => Err(Misfit::Differ),
        }
    }

    /// The type, where nothing in it is a hole. Fails where it is nested too deeply.
    pub(super) fn complete(&mut self, ty: Ty) -> Result<Option<Type>, Misfit> {
        let root = self.root(ty);
        let mut known = std::mem::take(&mut self.complete);
        let found = self.export(root, &mut known, true);
        self.complete = known;
        Ok(found?.map(|(ty, ..)| ty))
    }

    /// Of a data type's value, gives the parameters that nothing has said anything of the empty tuple's type: `Nil` alone is
    /// a list of whatever one likes. Terms (roots) of `but` stay as they are.
    pub(super) fn fill_parameters(&mut self, ty: Ty, but: &HashSet<Ty>) {
        let mut todo = match self.term(ty) {
            Term::Adt(_, params) => params.clone(),
            _ => return,
        };
        let mut seen = HashSet::new();
        while let Some(ty) = todo.pop() {
            let root = self.root(ty);
            if !seen.insert(root) || but.contains(&root) {
                continue;
            }
            match &self.terms[root.0 as usize] {
                Term::Hole => self.terms[root.0 as usize] = Term::Tuple(Vec::new()),
                Term::Tuple(parts) | Term::Adt(_, parts) => todo.extend(parts),
                Term::Ref(t) => todo.push(*t),
                _ => {}
            }
        }
    }

    /// The type as far as it is known.
    pub(super) fn partial(&mut self, ty: Ty) -> Type {
        let root = self.root(ty);
        let found = self.export(root, &mut HashMap::new(), false);
        found.ok().flatten().map_or(Type::Hole(0), |(ty, ..)| ty)
    }

    /// The types of the terms that a term is made of.
    fn parts(&mut self, root: Ty) -> Vec<Ty> {
        let parts: Vec<Ty> = match &self.terms[root.0 as usize] {
            Term::Tuple(parts) | Term::Adt(_, parts) => parts.clone(),
            Term::Func(f) => f.params.iter().copied().chain([f.ret]).collect(),
            Term::Ref(t) => vec![*t],
            _ => Vec::new(),
        };
        parts.into_iter().map(|p| self.root(p)).collect()
    }

    /// A term as a type; those of its parts go to `known`. Parts come first, by a stack of their own.
    fn export(&mut self, root: Ty, known: &mut HashMap<Ty, Nested>, whole: bool) -> Result<Option<Nested>, Misfit> {
        let mut todo = vec![(root, 0, false)];
        while let Some((term, depth, parts_done)) = todo.pop() {
            if known.contains_key(&term) {
                continue;
            }
            if depth > MAX_NESTING {
                return Err(Misfit::TooDeep);
            }
            let parts = self.parts(term);
            if !parts_done && !parts.is_empty() {
                todo.push((term, depth, true));
                todo.extend(parts.into_iter().map(|p| (p, depth + 1, false)));
                continue;
            }
            let mut done = Vec::with_capacity(parts.len());
            let (mut nesting, mut size) = (0, 1usize);
            for part in &parts {
                let (ty, n, s) = &known[part];
                nesting = nesting.max(n + 1);
                size = size.saturating_add(*s);
                done.push(ty.clone());
            }
            if nesting > MAX_NESTING {
                return Err(Misfit::TooDeep);
            }
            if size > MAX_PARTS {
                return Err(Misfit::TooWide);
            }
            match self.typed(term, done, whole) {
                Some(ty) => drop(known.insert(term, (ty, nesting, size))),
                None => return Ok(None),
            }
        }
        Ok(known.get(&root).cloned())
    }

    /// A term whose parts have these types as a type; `None` where a `whole` one is wanted and something is not known.
    fn typed(&self, term: Ty, mut parts: Vec<Type>, whole: bool) -> Option<Type> {
        Some(match &self.terms[term.0 as usize] {
            Term::Hole if whole => return None,
            Term::Hole | Term::Link(_) | Term::Op(_) => Type::Hole(0),
            Term::Tensor { shape, dtype, .. } => {
                let shape: Vec<Dim> = shape.iter().map(|&d| self.dim(d)).collect();
                if whole && shape.iter().any(|d| matches!(d, Dim::Hole(_))) {
                    return None;
                }
                Type::Tensor(TensorType::of(shape, *dtype))
            }
            Term::Tuple(_) => Type::tuple(parts),
            Term::Func(f) => {
                let ret = parts.pop().expect("the result's type comes last");
                Type::Func(FuncType { type_params: f.type_params.clone(), params: parts, ret }.into())
            }
            Term::Ref(_) => Type::Ref(parts.pop().expect("a cell has one content").into()),
            Term::Adt(name, _) => Type::Adt(name.clone(), parts.into()),
            Term::Var(v) => Type::Var(*v),
        })
    }

    /// A constructor as a function from its fields' types to the data type, over an instance of its type parameters.
    pub(super) fn constructor(&mut self, m: &Module, name: &str) -> (FuncTerm, Instance) {
        let (adt, tag) = m.constructor(name).expect("verified: constructors exist");
        let instance = self.instance(&adt.params);
        let params = adt.constructors[tag].fields.iter().map(|t| self.import_with(t, &instance)).collect();
        let args = adt.params.iter().map(|v| instance[v].0).collect();
        let ret = self.add(Term::Adt(adt.name.clone(), args));
        (FuncTerm { type_params: Vec::new(), params, ret }, instance)
    }
}
