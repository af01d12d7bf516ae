//! Random instances of left sides, as e-graphs.

use egg::Id;
use hashbrown::HashMap;

use super::{
    random::{Flavours, Random},
    show_tensor,
};
use crate::rules::ast::{Arg, AttrDef, Condition, Expr, FieldPattern, Hint, IndexPattern, Ops, Pattern, RuleDef, Slot};
use crate::{
    egraph::{Case, Graph, Node, What, note_uses},
    ir::{AttrValue, Attrs, Name, OpId, Type},
    ops::{AttrKind, Sample, make_attrs},
    saturate::Grade,
    tensor::{DType, Tensor, Value},
};

/// An instance: the graph of one left side.
pub(super) struct Draft<'a> {
    rule: &'a RuleDef,
    pub(super) graph: Graph,
    /// The class of the first root.
    pub(super) root: Id,
    attempt: u64,
    hints: &'a [Hint],
    classes: HashMap<Slot, Id>,
    records: HashMap<Slot, Attrs>,
    /// Attribute variables that have a value, by hint or by the record that defined them.
    attrs: HashMap<usize, AttrValue>,
    /// Slots that some guard or function asks the value of.
    constants: Vec<Slot>,
    /// Types that leaves may have: those of the samples and of what was built.
    pool: Vec<Type>,
    /// Which field of a `...` is being built.
    element: usize,
    elements: usize,
    seqs: HashMap<(usize, usize), Id>,
    /// Whether floats are of 64 bits, so that rounding does not blur what real-grade rules say.
    wide: bool,
    /// What inputs hold besides ordinary numbers.
    pub(super) flavours: Flavours,
}

impl<'a> Draft<'a> {
    /// A random instance; `None` where the draw was not legal.
    pub(super) fn of(rule: &'a RuleDef, attempt: u64, random: &mut Random) -> Option<Draft<'a>> {
        // Where samples are given, three draws of four follow one.
        let hints = match rule.samples.as_slice() {
            [] => &[][..],
            _ if attempt % 4 == 3 && !rule.promised => &[][..],
            samples => &samples[(attempt as usize) % samples.len()],
        };
        let mut constants = Vec::new();
        rule.guards.iter().for_each(|g| value_slots(g, &mut constants));
        rule.attr_vars.iter().for_each(|v| match v {
            AttrDef::Let(e) | AttrDef::For(_, e) => value_slots_expr(e, &mut constants),
            _ => {}
        });
        rule.lets.iter().chain(&rule.results).for_each(|t| value_slots_term(t, &mut constants));
        let mut draft = Draft {
            rule,
            graph: Graph::default(),
            root: Id::from(0),
            attempt,
            hints,
            classes: HashMap::new(),
            records: HashMap::new(),
            attrs: HashMap::new(),
            constants,
            pool: Vec::new(),
            element: 0,
            elements: 2 + random.below(2),
            seqs: HashMap::new(),
            wide: matches!(rule.grade, Grade::Real | Grade::Finite) && attempt.is_multiple_of(2),
            flavours: match rule.grade {
                Grade::Exact if attempt.is_multiple_of(2) => Flavours::Anything,
                Grade::Real => [Flavours::Plain, Flavours::Plain, Flavours::Special, Flavours::Special, Flavours::Tiny]
                    [random.below(5)],
                Grade::Exact | Grade::Finite | Grade::Approx => Flavours::Plain,
            },
        };
        for hint in hints {
            match hint {
                Hint::Attr { var, value } => {
                    draft.attrs.insert(*var, value.clone());
                }
                Hint::Classes { shapes, .. } => draft.elements = shapes.len(),
                Hint::Class { .. } | Hint::Op { .. } => {}
            }
        }
        let roots: Vec<Id> = rule.roots.iter().map(|root| draft.pattern(root, None, random)).collect::<Option<_>>()?;
        draft.root = roots[0];
        note_uses(&mut draft.graph, &roots);
        draft.graph.rebuild();
        draft.root = draft.graph.find(draft.root);
        Some(draft)
    }

    /// Values for all inputs.
    pub(super) fn values(&self, random: &mut Random) -> Option<Vec<Option<Value>>> {
        let mut values = Vec::new();
        let mut inputs: Vec<_> = self
            .graph
            .classes()
            .flat_map(|c| c.iter())
            .filter_map(|n| match n.case() {
                Case::Input(id) => Some(id),
                _ => None,
            })
            .collect();
        inputs.sort_unstable();
        for id in inputs {
            values.resize(id.0 as usize + 1, None);
            values[id.0 as usize] = Some(random.value(self.graph.analysis.tables.input(id)?, self.flavours)?);
        }
        Some(values)
    }

    fn type_of(&self, id: Id) -> Option<Type> {
        self.graph[id].data.ty().cloned()
    }

    /// A class that matches a pattern; `wanted` is the type that a leaf should have.
    fn pattern(&mut self, p: &'a Pattern, wanted: Option<&Type>, random: &mut Random) -> Option<Id> {
        match p {
            Pattern::Class(slot) => match self.classes.get(slot) {
                Some(&id) => Some(id),
                None => {
                    let id = self.leaf(*slot, wanted, random)?;
                    self.classes.insert(*slot, id);
                    Some(id)
                }
            },
            Pattern::As(slot, inner) => {
                let id = self.pattern(inner, wanted, random)?;
                self.classes.insert(*slot, id);
                Some(id)
            }
            Pattern::Each(seq) => {
                let key = (*seq, self.element);
                if let Some(&id) = self.seqs.get(&key) {
                    return Some(id);
                }
                let ty = match (self.sequence_type(*seq), wanted) {
                    (Some(ty), _) => ty,
                    (None, Some(ty)) => ty.clone(),
                    (None, None) => self.any_type(random),
                };
                let id = self.input(ty);
                self.seqs.insert(key, id);
                Some(id)
            }
            Pattern::Splat(x) => {
                let dtype = wanted.and_then(Type::as_tensor).map_or(DType::F32, |t| t.dtype);
                let shape: Vec<usize> = match wanted.and_then(Type::as_tensor).and_then(|t| t.known_shape()) {
                    Some(s) if random.chance(40) => s.iter().map(|&n| n as usize).collect(),
                    _ => vec![],
                };
                (dtype.is_float() || x.fract() == 0.0).then_some(())?;
                Some(self.constant(Tensor::from_f64_fn(dtype, &shape, |_| *x)))
            }
            Pattern::Tuple(fields) => {
                let wanted: Vec<Option<Type>> =
                    (0..fields.len()).map(|i| wanted?.as_tuple()?.get(i).cloned()).collect();
                let ids: Option<Vec<Id>> =
                    fields.iter().zip(&wanted).map(|(f, w)| self.pattern(f, w.as_ref(), random)).collect();
                Some(self.graph.add(Node::tuple(ids?)))
            }
            Pattern::TupleOf(inner) => {
                let mut ids = Vec::new();
                for i in 0..self.elements {
                    self.element = i;
                    ids.push(self.pattern(inner, None, random)?);
                }
                self.element = 0;
                Some(self.graph.add(Node::tuple(ids)))
            }
            Pattern::Proj(index, inner) => {
                let inner = self.pattern(inner, None, random)?;
                let fields = self.type_of(inner)?.as_tuple()?.len();
                let index = match index {
                    IndexPattern::Value(i) => *i,
                    IndexPattern::Any(_) => random.below(fields) as u32,
                };
                Some(self.graph.add(Node::proj(inner, index)))
            }
            Pattern::Op { ops, record, fields, args, either_order } => {
                let op = match ops {
                    Ops::One(op) => *op,
                    Ops::Any(list, slot) => self
                        .hints
                        .iter()
                        .find_map(|h| match h {
                            Hint::Op { slot: s, op } if s == slot => Some(*op),
                            _ => None,
                        })
                        .unwrap_or(list[(self.attempt as usize + slot) % list.len()]),
                };
                self.operator(op, *record, fields, args, *either_order, random)
            }
        }
    }

    /// The type of the current field of a sequence: as a sample says, or that of the first field.
    fn sequence_type(&self, seq: usize) -> Option<Type> {
        let hint = self.hints.iter().find_map(|h| match h {
            Hint::Classes { seq: s, shapes, dtype } if *s == seq => {
                Some(Type::tensor(shapes.get(self.element)?, self.dtype(dtype.unwrap_or(DType::F32))))
            }
            _ => None,
        });
        hint.or_else(|| self.seqs.get(&(seq, 0)).and_then(|&id| self.type_of(id)))
    }

    fn dtype(&self, d: DType) -> DType {
        if self.wide && d == DType::F32 { DType::F64 } else { d }
    }

    fn input(&mut self, ty: Type) -> Id {
        let id = self.graph.analysis.tables.add_input(Some(ty));
        self.graph.add(Node::input(id))
    }

    fn constant(&mut self, t: Tensor) -> Id {
        let id = self.graph.analysis.tables.intern_const(&t);
        self.graph.add(Node::constant(id))
    }

    /// A leaf for a variable: an input, or a constant where some guard asks for its value.
    fn leaf(&mut self, slot: Slot, wanted: Option<&Type>, random: &mut Random) -> Option<Id> {
        let hint = self.hints.iter().find_map(|h| match h {
            Hint::Class { slot: s, shape, dtype, value } if *s == slot => Some((shape.clone(), *dtype, *value)),
            _ => None,
        });
        let wanted_dtype = wanted.and_then(Type::as_tensor).map(|t| t.dtype);
        let ty = match &hint {
            Some((shape, dtype, _)) => Type::tensor(shape, dtype.or(wanted_dtype).unwrap_or(self.dtype(DType::F32))),
            None => match wanted {
                Some(ty) => ty.clone(),
                None => self.any_type(random),
            },
        };
        let constant = random.chance(if self.constants.contains(&slot) { 92 } else { 25 });
        let value = hint.and_then(|(.., value)| value);
        match ty.as_tensor() {
            Some(t) if constant || value.is_some() => {
                let shape: Vec<usize> = t.known_shape()?.iter().map(|&n| n as usize).collect();
                (shape.iter().product::<usize>() <= 1 << 16).then_some(())?;
                let t = match value {
                    Some(x) => Tensor::from_f64_fn(t.dtype, &shape, |_| x),
                    // Now and then a constant is no number that one computes with.
                    None if self.flavours == Flavours::Special && random.chance(25) => {
                        random.special_constant(t.dtype, &shape)
                    }
                    None => random.constant(t.dtype, &shape),
                };
                Some(self.constant(t))
            }
            _ => Some(self.input(ty)),
        }
    }

    fn any_type(&mut self, random: &mut Random) -> Type {
        const SHAPES: [&[i64]; 13] = [
            &[2, 3],
            &[2, 3, 4],
            &[1, 4, 2, 3],
            &[4],
            &[],
            &[2, 1, 3],
            &[1, 8, 4, 4],
            &[1],
            &[5, 7],
            &[1, 1],
            &[3, 1, 5, 1],
            &[7, 1],
            &[1, 3, 5, 7],
        ];
        match random.pick(&self.pool) {
            Some(ty) if random.chance(40) => ty.clone(),
            _ => {
                let dtype = if random.chance(85) { self.dtype(DType::F32) } else { DType::I32 };
                Type::tensor(SHAPES[random.below(SHAPES.len())], dtype)
            }
        }
    }

    /// A call of an operator whose arguments match patterns. Arguments that are not leaves are built first; the leaves' types
    /// and the attributes are then drawn until the type relation accepts them.
    fn operator(
        &mut self,
        op: OpId,
        record: Slot,
        fields: &'a [(Name, FieldPattern)],
        args: &'a [Pattern],
        either_order: bool,
        random: &mut Random,
    ) -> Option<Id> {
        let samples = op.op().samples();
        let is_leaf = |d: &Draft<'_>, p: &Pattern| match p {
            Pattern::Class(slot) => !d.classes.contains_key(slot),
            Pattern::Splat(_) | Pattern::Each(_) => true,
            _ => false,
        };
        let sample = random.pick(&samples)?.clone();
        let widened: Vec<Type> = sample.args.iter().map(|t| self.widen(t)).collect();
        self.pool.extend(widened.iter().filter(|t| t.as_tensor().is_some()).cloned());
        let mut ids: Vec<Option<Id>> = vec![None; args.len()];
        for (i, p) in args.iter().enumerate() {
            if !is_leaf(self, p) {
                ids[i] = Some(self.pattern(p, widened.get(i), random)?);
            }
        }
        let known: Vec<Option<Type>> = ids.iter().map(|id| id.and_then(|id| self.type_of(id))).collect();
        for _ in 0..40 {
            let sample = random.pick(&samples)?.clone();
            let mut types: Vec<Type> = Vec::new();
            for (i, p) in args.iter().enumerate() {
                let hint = match p {
                    Pattern::Each(seq) => self.sequence_type(*seq),
                    Pattern::Class(slot) => self.hints.iter().find_map(|h| match h {
                        Hint::Class { slot: s, shape, dtype, .. } if s == slot => {
                            Some(Type::tensor(shape, dtype.unwrap_or(self.dtype(DType::F32))))
                        }
                        _ => None,
                    }),
                    _ => None,
                };
                types.push(match known[i].clone().or(hint) {
                    Some(t) => t,
                    None => self.leaf_type(i, &known, &sample, random),
                });
            }
            let Some(attrs) = self.record(op, record, fields, &sample, &types, random) else { continue };
            if op.op().infer(&attrs, &types).is_err() {
                continue;
            }
            for (i, p) in args.iter().enumerate() {
                if ids[i].is_none() {
                    ids[i] = Some(self.pattern(p, Some(&types[i]), random)?);
                }
            }
            let mut ids: Vec<Id> = ids.into_iter().map(|id| id.expect("all arguments are built")).collect();
            if either_order && random.chance(50) {
                ids.reverse();
            }
            let id = self.graph.analysis.tables.intern_attrs(&attrs);
            let leaf = self.graph.add(Node::attrs(id));
            let id = self.graph.add(Node::op(op, leaf, ids));
            matches!(self.graph[id].data.what, What::Type(_)).then_some(())?;
            self.define(record, &attrs);
            return Some(id);
        }
        None
    }

    fn widen(&self, ty: &Type) -> Type {
        match ty {
            Type::Tensor(t) => {
                let mut t = t.clone();
                t.dtype = self.dtype(t.dtype);
                t.into()
            }
            Type::Tuple(fields) => Type::tuple(fields.iter().map(|f| self.widen(f))),
            other => other.clone(),
        }
    }

    /// A type for argument `i`, in view of those that are known already.
    fn leaf_type(&mut self, i: usize, known: &[Option<Type>], sample: &Sample, random: &mut Random) -> Type {
        let other = known.iter().flatten().find_map(Type::as_tensor).cloned();
        let from_sample = sample.args.get(i).map(|t| self.widen(t));
        let Some(other) = other else {
            return match from_sample {
                Some(t) => t,
                None => self.any_type(random),
            };
        };
        let shape = other.known_shape().unwrap_or_default();
        let rank = shape.len();
        let k = random.below(rank.max(1));
        let derived: Vec<i64> = match random.below(7) {
            0 => shape.clone(),
            1 => vec![],
            // A vector of one axis, lying flat or along that axis.
            2 => shape.get(k).map(|&n| vec![n]).unwrap_or_default(),
            3 => shape.iter().skip(k).enumerate().map(|(j, &n)| if j == 0 { n } else { 1 }).collect(),
            4 => shape.iter().enumerate().map(|(j, &n)| if j == k { n } else { 1 }).collect(),
            5 => vec![2 + random.below(3) as i64, shape.last().copied().unwrap_or(1)],
            _ => match from_sample {
                Some(t) => return t,
                None => shape.clone(),
            },
        };
        Type::tensor(&derived, other.dtype)
    }

    /// A record for a call with arguments of these types: what the pattern says, and otherwise what the sample says or a
    /// guess from the field's name.
    fn record(
        &mut self,
        op: OpId,
        slot: Slot,
        fields: &[(Name, FieldPattern)],
        sample: &Sample,
        types: &[Type],
        random: &mut Random,
    ) -> Option<Attrs> {
        if let Some(attrs) = self.records.get(&slot) {
            return Some(attrs.clone());
        }
        let mut given: Vec<(Name, AttrValue)> = Vec::new();
        // Types that a sample gives seldom go with the attributes of another call: defaults mostly do.
        let plain = !self.hints.is_empty() && random.chance(60);
        for field in op.op().attrs() {
            let pattern = fields.iter().find(|(n, _)| n.as_str() == field.name).map(|(_, p)| p);
            let fixed = match pattern {
                Some(FieldPattern::Value(v)) => Some(v.clone()),
                Some(FieldPattern::Var(var)) => self.attr(*var),
                Some(FieldPattern::List(ps)) => ps
                    .iter()
                    .map(|p| match p {
                        FieldPattern::Value(v) => Some(v.clone()),
                        FieldPattern::Var(var) => self.attr(*var),
                        FieldPattern::List(_) => None,
                    })
                    .collect::<Option<_>>()
                    .map(AttrValue::List),
                None => None,
            };
            let sampled = sample.attrs.iter().find(|(n, _)| *n == field.name).map(|(_, v)| v.clone());
            let guessed = if random.chance(70) { guess(field.name, field.kind, types, random) } else { None };
            let free = if plain && field.default_value().is_some() { None } else { guessed.or(sampled) };
            if let Some(v) = fixed.or(free) {
                given.push((field.name.into(), v));
            }
        }
        make_attrs(op, &given).ok()
    }

    /// The value of an attribute variable, where it has one already.
    fn attr(&self, var: usize) -> Option<AttrValue> {
        if let Some(v) = self.attrs.get(&var) {
            return Some(v.clone());
        }
        match &self.rule.attr_vars[var] {
            AttrDef::Field { record, field, element } => match (element, self.records.get(record)?.get(field)?) {
                (None, v) => Some(v.clone()),
                (Some(k), AttrValue::List(l)) => l.get(*k).cloned(),
                (Some(_), _) => None,
            },
            _ => None,
        }
    }

    fn define(&mut self, record: Slot, attrs: &Attrs) {
        self.records.insert(record, attrs.clone());
    }

    /// A class as a term, for messages.
    pub(super) fn show(&self, class: Id) -> String {
        let Some(node) = super::representative(&self.graph, class) else { return String::new() };
        let children = |ids: &[Id]| ids.iter().map(|&c| format!(" {}", self.show(c))).collect::<String>();
        match node.case() {
            Case::Op(op) => {
                let Some((_, attrs, args)) = node.as_op() else { return String::new() };
                let What::Attrs(attrs) = self.graph[attrs].data.what else { return String::new() };
                format!("({} {:?}{})", op.op().name(), self.graph.analysis.tables.attrs(attrs), children(args))
            }
            Case::Const(id) => show_tensor(self.graph.analysis.tables.constant(id)),
            Case::Input(id) => format!("%{}: {:?}", id.0, self.graph[class].data.ty()),
            Case::Proj(i) => format!("(proj {i}{})", children(egg::Language::children(node))),
            _ => format!("({node}{})", children(egg::Language::children(node))),
        }
    }
}

/// A likely value of an attribute, from its name and the arguments.
fn guess(name: &str, kind: AttrKind, types: &[Type], random: &mut Random) -> Option<AttrValue> {
    let data = match types.first()? {
        Type::Tuple(fields) => fields.first()?.as_tensor()?,
        ty => ty.as_tensor()?,
    };
    let (rank, shape) = (data.rank(), data.known_shape()?);
    match (name, kind) {
        ("axes", AttrKind::Ints) => Some(random.permutation(rank).into()),
        ("axis", AttrKind::Int) => Some((random.below(2 * rank.max(1)) as i64 - rank as i64).into()),
        ("axis", AttrKind::Ints) => Some([random.below(rank.max(1)) as i64].into()),
        ("newshape", _) => {
            let n: i64 = shape.iter().product();
            let d = (1..=n.max(1)).filter(|d| n % d == 0).collect::<Vec<_>>();
            let a = *random.pick(&d)?;
            Some(match random.below(4) {
                0 => [n].into(),
                1 => [a, n / a].into(),
                2 => [-1, a].into(),
                _ => [1, a, n / a].into(),
            })
        }
        ("dtype" | "out_dtype", AttrKind::DType) => {
            random.pick(&[DType::F32, DType::I32, DType::F64, DType::U8, DType::I64]).map(|&d| d.into())
        }
        ("a_min", _) => Some((-(random.below(4) as f64)).into()),
        ("a_max", _) => Some((random.below(6) as f64).into()),
        ("begin", _) => Some(vec![random.below(2) as i64; rank].into()),
        ("num_newaxis", _) => Some((1 + random.below(2) as i64).into()),
        (_, AttrKind::Bool) => Some(random.chance(50).into()),
        _ => None,
    }
}

/// The slots whose values a condition asks for.
fn value_slots(c: &Condition, out: &mut Vec<Slot>) {
    match c {
        Condition::Test(guard, args) => {
            const ASKS: [&str; 14] = [
                "const",
                "known",
                "splat",
                "negative-zero",
                "positive",
                "nonnegative",
                "zeros",
                "power-of-two",
                "close",
                "between",
                "bounded",
                "moderate",
                "zero-point",
                "quantizable",
            ];
            value_slots_args(args, ASKS.contains(&guard.name), out);
        }
        // What must not be a constant is asked for no value.
        Condition::Not(c) if matches!(&**c, Condition::Test(guard, _) if guard.name == "const") => {}
        Condition::Not(c) => value_slots(c, out),
        Condition::All(cs) | Condition::Any(cs) => cs.iter().for_each(|c| value_slots(c, out)),
    }
}

fn value_slots_args(args: &[Arg], asks: bool, out: &mut Vec<Slot>) {
    for arg in args {
        match arg {
            Arg::Class(slot) if asks => out.push(*slot),
            Arg::Expr(e) => value_slots_expr(e, out),
            _ => {}
        }
    }
}

fn value_slots_expr(e: &Expr, out: &mut Vec<Slot>) {
    match e {
        Expr::Call(f, args) => value_slots_args(args, ["number", "value"].contains(&f.name), out),
        Expr::List(items) => items.iter().for_each(|e| value_slots_expr(e, out)),
        Expr::Value(_) | Expr::Var(_) | Expr::OpName(_) => {}
    }
}

fn value_slots_term(t: &crate::rules::ast::Term, out: &mut Vec<Slot>) {
    use crate::rules::ast::{Term, TermItem};
    match t {
        Term::Op { fields, args, .. } => {
            fields.iter().for_each(|(_, e)| value_slots_expr(e, out));
            args.iter().for_each(|t| value_slots_term(t, out));
        }
        Term::Tuple(items) => items.iter().for_each(|i| match i {
            TermItem::One(t) | TermItem::Each(t, _) => value_slots_term(t, out),
        }),
        Term::Proj(e, t) => {
            value_slots_expr(e, out);
            value_slots_term(t, out);
        }
        Term::Const(e, _) => value_slots_expr(e, out),
        Term::Nth(e, _) => value_slots_expr(e, out),
        Term::Class(_) | Term::Built(_) | Term::Element(_) => {}
    }
}
