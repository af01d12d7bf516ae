//! The code of `match`: a jump by the constructor's number, tests of what is nested, and fields as variables ask for them.

use hashbrown::HashMap;

use super::{
    super::program::{Instr, Label, Operand},
    walk::{Task, Walk, Want},
};
use crate::ir::{Clause, Expr, ExprId, Name, Pattern};

/// Fields that tests have read, by the pattern that they are to meet.
type Read = HashMap<*const Pattern, Operand>;

impl Walk<'_, '_> {
    fn clauses(&self, e: ExprId) -> &[Clause] {
        match &self.m[e] {
            Expr::Match { clauses, .. } => clauses,
            _ => &[],
        }
    }

    /// The constructor's number, and the number of constructors that its data type has.
    fn tag(&self, name: &Name) -> (u32, usize) {
        let (adt, tag) = self.m.constructor(name).expect("verified: constructors exist");
        (tag as u32, adt.constructors.len())
    }

    /// Whether there are values that do not meet the pattern. Verification bounds how deep patterns are nested.
    fn is_refutable(&self, p: &Pattern) -> bool {
        match p {
            Pattern::Wildcard | Pattern::Var(_) => false,
            Pattern::Constructor(name, ps) => self.tag(name).1 > 1 || ps.iter().any(|p| self.is_refutable(p)),
            Pattern::Tuple(ps) => ps.iter().any(|p| self.is_refutable(p)),
        }
    }

    fn binds_what_is_used(&self, p: &Pattern) -> bool {
        match p {
            Pattern::Wildcard => false,
            Pattern::Var(v) => self.c.facts.is_used(*v),
            Pattern::Constructor(_, ps) | Pattern::Tuple(ps) => ps.iter().any(|p| self.binds_what_is_used(p)),
        }
    }

    /// The value is there, and all that the clauses need: makes the jump, and leaves the clauses to be made.
    pub(super) fn matched(&mut self, e: ExprId, want: Want) {
        let data = self.pop();
        let clauses = self.clauses(e);
        // What stands behind a clause that takes everything is never reached.
        let reached = clauses.iter().position(|c| !self.is_refutable(&c.pattern)).map_or(clauses.len(), |i| i + 1);
        let tops: Vec<Option<(u32, usize)>> = clauses[..reached]
            .iter()
            .map(|c| match &c.pattern {
                Pattern::Constructor(name, _) => Some(self.tag(name)),
                _ => None,
            })
            .collect();
        let labels: Vec<Label> = tops.iter().map(|_| self.label()).collect();
        let fatal = self.label();
        let next = |from: usize, tag: Option<u32>| {
            let meets = |t: &Option<(u32, usize)>| t.is_none() || tag.is_none() || t.map(|t| t.0) == tag;
            tops[from..].iter().position(meets).map_or(fatal, |i| labels[from + i])
        };
        let constructors = tops.iter().flatten().next().map_or(0, |t| t.1);
        let switched = tops.iter().flatten().count() > 1 && constructors > 1;
        if switched {
            let targets = (0..constructors as u32).map(|t| next(0, Some(t))).collect();
            self.emit(Instr::Switch { data, targets });
        }
        let end = self.label();
        let (inner, result) = self.joined(want);
        self.tasks.push(Task::Matched { e, fatal, end, data, result });
        for i in (0..reached).rev() {
            let otherwise = next(i + 1, tops[i].map(|t| t.0).filter(|_| switched));
            self.tasks.push(Task::Clause {
                e,
                index: i,
                start: labels[i],
                otherwise,
                end,
                data,
                switched,
                want: inner,
            });
        }
    }

    /// Makes the tests of a clause and its bindings, and leaves its body to be made.
    #[allow(clippy::too_many_arguments, reason = "a task's fields")]
    pub(super) fn clause(
        &mut self,
        e: ExprId,
        index: usize,
        start: Label,
        otherwise: Label,
        end: Label,
        data: Operand,
        switched: bool,
        want: Want,
    ) {
        self.place_label(start);
        let Expr::Match { clauses, .. } = &self.m[e] else { return };
        let c = &clauses[index];
        let mut read = Read::new();
        self.test(&c.pattern, data, otherwise, switched, &mut read);
        self.bind_pattern(&c.pattern, data, &read);
        let region = self.plan.owned(e)[index];
        if !matches!(want, Want::Return) {
            self.tasks.push(Task::Goto(end));
        }
        self.tasks.push(Task::Eval(c.body, region, want));
    }

    fn test(&mut self, p: &Pattern, value: Operand, otherwise: Label, known: bool, read: &mut Read) {
        let fields = match p {
            Pattern::Wildcard | Pattern::Var(_) => return,
            Pattern::Constructor(name, ps) => {
                let (tag, constructors) = self.tag(name);
                if !known && constructors > 1 {
                    self.emit(Instr::IfTag { data: value, tag, otherwise });
                }
                ps
            }
            Pattern::Tuple(ps) => ps,
        };
        for (i, p) in fields.iter().enumerate() {
            if self.is_refutable(p) {
                let field = self.field(value, i);
                read.insert(p, field);
                self.test(p, field, otherwise, false, read);
            }
        }
    }

    fn bind_pattern(&mut self, p: &Pattern, value: Operand, read: &Read) {
        match p {
            Pattern::Wildcard => {}
            Pattern::Var(v) => self.bind(*v, value),
            Pattern::Constructor(_, ps) | Pattern::Tuple(ps) => {
                for (i, p) in ps.iter().enumerate() {
                    if self.binds_what_is_used(p) {
                        let field = match read.get(&(p as *const Pattern)) {
                            Some(&known) => known,
                            None => self.field(value, i),
                        };
                        self.bind_pattern(p, field, read);
                    }
                }
            }
        }
    }

    fn field(&mut self, src: Operand, index: usize) -> Operand {
        let dst = self.register();
        self.emit(Instr::Field { dst, src, index: index as u32 });
        Operand::Copy(dst)
    }

    /// All clauses are made: what is left is the end, and what happens where none is met.
    pub(super) fn end_of_match(&mut self, e: ExprId, fatal: Label, end: Label, data: Operand, result: Option<Operand>) {
        if self.is_jumped_to(fatal) {
            self.place_label(fatal);
            self.emit_at(e, Instr::Fatal { value: data });
        }
        if self.is_jumped_to(end) {
            self.place_label(end);
        }
        self.operands.extend(result);
    }
}
