//! Patterns of `match` in text.

use super::{
    DEEPEST,
    lexer::{Kind, Token},
    parser::{Parser, Read, Stop},
};
use crate::ir::{Pattern, Type, VarId};

impl<'a> Parser<'a> {
    /// A pattern that is nested `depth` levels deep; its variables are bound in the present scope.
    pub(super) fn pattern(&mut self, depth: usize) -> Read<Pattern> {
        let t = self.tokens[self.pos];
        if depth >= DEEPEST {
            self.error(t, format!("patterns may nest at most {DEEPEST} levels"));
            return Err(Stop);
        }
        match t.kind {
            Kind::Ident if self.text_of(t) == "_" => {
                self.next();
                Ok(Pattern::Wildcard)
            }
            Kind::Ident => {
                self.next();
                let name = self.text_of(t);
                let found = self.constructors.get(name).copied();
                let fields = match self.at(b'(') {
                    true => self.patterns(depth)?,
                    false => Vec::new(),
                };
                match found {
                    None => {
                        let mut known: Vec<&str> = self.constructors.keys().copied().collect();
                        known.sort_unstable();
                        self.unknown(t, "constructor", name, known);
                    }
                    Some(n) if n != fields.len() => {
                        let found = fields.len();
                        self.error(t, format!("constructor `{name}` has {n} fields, but the pattern names {found}"));
                    }
                    Some(_) => {}
                }
                Ok(Pattern::Constructor(name.into(), fields))
            }
            Kind::Local => {
                self.next();
                let ty = self.annotation()?;
                Ok(Pattern::Var(self.bind_var(t, ty)))
            }
            Kind::Sign(b'(') => Ok(Pattern::Tuple(self.patterns(depth)?)),
            _ => Err(self.unexpected("a pattern")),
        }
    }

    fn patterns(&mut self, depth: usize) -> Read<Vec<Pattern>> {
        self.expect(b'(', "before the patterns")?;
        let mut patterns = Vec::new();
        while !self.eat(b')') {
            patterns.push(self.pattern(depth + 1)?);
            if !self.eat(b',') && !self.at(b')') {
                return Err(self.unexpected("`,` or `)` after a pattern"));
            }
        }
        Ok(patterns)
    }

    /// `: T`, where it is next; `_` is no annotation. Before it may stand `{virtual_device=…}`, which says on which device the
    /// variable is, and is not kept: there is one device.
    pub(super) fn annotation(&mut self) -> Read<Option<Type>> {
        if self.eat(b'{') {
            let (t, name, _) = self.attr()?;
            if name.as_str() != "virtual_device" {
                self.error(t, format!("variables have no attribute `{name}`, only `virtual_device`"));
            }
            self.expect(b'}', "after the variable's device")?;
        }
        match self.eat(b':') {
            true => Ok(Some(self.ty(0)?).filter(|t| !matches!(t, Type::Hole(_)))),
            false => Ok(None),
        }
    }

    /// Declares the variable that the token names and binds it in the present scope.
    pub(super) fn bind_var(&mut self, t: Token, ty: Option<Type>) -> VarId {
        let name: &'a str = &self.text_of(t)[1..];
        if name.bytes().all(|c| c.is_ascii_digit()) {
            self.error(t, format!("`%{name}` is a number; a variable needs a name"));
        }
        let v = self.m.new_var(name, ty);
        self.vars.bind(name, v);
        v
    }
}
