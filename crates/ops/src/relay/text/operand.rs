//! Operands in text: names, function headers, calls and their attributes, infix operators.

use super::{
    attrs::Given,
    expr::{Frame, Header, Infix, Next},
    lexer::{Kind, Token},
    parser::{Parser, Read},
};
use crate::{
    diag::{Diagnostic, nearest},
    ir::{Attrs, Expr, ExprId, Type},
    ops::{self, AttrError},
};

impl<'a> Parser<'a> {
    /// A use of `%name`: of the longest part of it that is bound; the rest must be projections.
    pub(super) fn local(&mut self, t: Token) -> ExprId {
        let full: &'a str = &self.text_of(t)[1..];
        let mut end = full.len();
        loop {
            let name = &full[..end];
            let number = name.bytes().all(|c| c.is_ascii_digit()).then(|| name.parse::<u64>().ok()).flatten();
            let bound = self.vars.get(name).or_else(|| self.free.get(name).copied());
            let stop = t.start + 1 + end as u32;
            let found = match (bound, number.and_then(|n| self.graph.get(&n))) {
                (Some(v), _) => Some(self.add(Expr::Var(v), t.start, stop)),
                (None, Some(&e)) => Some(e),
                (None, None) => None,
            };
            if let Some(mut e) = found {
                let mut at = stop;
                for field in full[end..].split('.').skip(1) {
                    at += 1 + field.len() as u32;
                    e = match field.parse() {
                        Ok(i) => self.add(Expr::Proj(e, i), t.start, at),
                        Err(_) => {
                            self.unknown_local(t, full);
                            return e;
                        }
                    };
                }
                return e;
            }
            match name.rfind('.') {
                Some(dot) => end = dot,
                None => break,
            }
        }
        // Without the projections that may follow: the name that is not there.
        let parts: Vec<&str> = full.split('.').collect();
        let numeric = parts.iter().skip(1).rev().take_while(|p| p.bytes().all(|c| c.is_ascii_digit())).count();
        self.unknown_local(t, &parts[..parts.len() - numeric].join("."));
        self.add(Expr::Tuple(Vec::new()), t.start, t.end)
    }

    fn unknown_local(&mut self, t: Token, name: &str) {
        let mut known = self.vars.names();
        known.extend(self.free.keys());
        known.sort_unstable();
        let d = Diagnostic::new(format!("variable `%{name}` is not defined")).at(Some(self.token_span(t)));
        let digits = name.bytes().all(|c| c.is_ascii_digit());
        self.report(match nearest(name, known) {
            Some(near) if !digits => d.help(format!("did you mean `%{near}`?")),
            _ => d,
        });
    }

    /// An operator or constructor.
    pub(super) fn named(&mut self, t: Token) -> ExprId {
        let name = self.text_of(t);
        if let Some(&fields) = self.constructors.get(name) {
            let ctor = self.add(Expr::Constructor(name.into()), t.start, t.end);
            if fields == 0 && !self.at(b'(') {
                let attrs = Attrs::empty();
                let call = Expr::Call { callee: ctor, args: Vec::new(), attrs, type_args: Vec::new() };
                return self.add(call, t.start, t.end);
            }
            return ctor;
        }
        match ops::lookup(name) {
            Some(op) => self.add(Expr::Op(op), t.start, t.end),
            None => {
                let span = Some(self.token_span(t));
                if let Some(reason) = ops::unsupported(name) {
                    let message = format!("operator `{name}` is not supported: {reason}");
                    self.report(Diagnostic::new(message).at(span));
                    return self.add(Expr::Tuple(Vec::new()), t.start, t.end);
                }
                let d = Diagnostic::new(format!("operator `{name}` is not known")).at(span);
                let mut known: Vec<&str> = self.constructors.keys().copied().collect();
                known.sort_unstable();
                let near = ops::suggest(name).or_else(|| nearest(name, known));
                let near = near.map(str::to_owned).or_else(|| {
                    let sigil = |c: &str, found: bool| found.then(|| format!("{c}{name}"));
                    sigil("%", self.vars.get(name).is_some()).or(sigil("@", self.m.function_id(name).is_some()))
                });
                self.report(match near {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                });
                self.add(Expr::Tuple(Vec::new()), t.start, t.end)
            }
        }
    }

    /// Reads a function up to the opening brace of its body.
    pub(super) fn header(&mut self, start: u32) -> Read<Frame> {
        let mark = self.vars.mark();
        let (type_params, type_mark) = self.type_params()?;
        self.expect(b'(', "before the parameters")?;
        let mut params = Vec::new();
        let mut fields = Vec::new();
        while !self.eat(b')') {
            let t = self.tokens[self.pos];
            match t.kind {
                Kind::Local => {
                    self.next();
                    let ty = self.annotation()?;
                    params.push(self.bind_var(t, ty));
                }
                Kind::Ident => fields.push(self.attr()?),
                _ => return Err(self.unexpected("a parameter, as in `%x: Tensor[(1, 2), float32]`, or `)`")),
            }
            if !self.eat(b',') && !self.at(b')') {
                return Err(self.unexpected("`,` or `)` in the parameters"));
            }
        }
        let ret = match self.eat(b'-') {
            true => {
                self.expect(b'>', "before the result's type")?;
                Some(self.ty(0)?).filter(|t| !matches!(t, Type::Hole(_)))
            }
            false => None,
        };
        self.expect(b'{', "before the function's body")?;
        let attrs = Attrs::new(fields.into_iter().map(|(_, name, value)| (name, value)).collect());
        Ok(Frame::Func { start, func: Box::new(Header { type_params, params, ret, attrs }), mark, type_mark })
    }

    /// The infix operator that is next, not taken yet.
    pub(super) fn infix(&self) -> Option<Infix> {
        let t = self.tokens[self.pos];
        let Kind::Sign(first) = t.kind else { return None };
        let adjacent = self.tokens.get(self.pos + 1).filter(|n| n.start == t.end).map(|n| n.kind);
        let equal = adjacent == Some(Kind::Sign(b'='));
        let (op, level, len) = match (first, equal) {
            (b'*', _) => ("multiply", 12, 1),
            (b'/', _) => ("divide", 12, 1),
            (b'+', _) => ("add", 10, 1),
            (b'-', _) => ("subtract", 10, 1),
            (b'<', false) => ("less", 8, 1),
            (b'<', true) => ("less_equal", 8, 2),
            (b'>', false) => ("greater", 8, 1),
            (b'>', true) => ("greater_equal", 8, 2),
            (b'=', true) => ("equal", 7, 2),
            (b'!', true) => ("not_equal", 7, 2),
            _ => return None,
        };
        Some(Infix { op, level, len, start: t.start })
    }

    /// The call of an operator that is written as a sign.
    pub(super) fn operator_call(&mut self, sign: &Infix, args: Vec<ExprId>, start: u32) -> ExprId {
        let t = Token { kind: Kind::Ident, start: sign.start, end: sign.start + sign.len };
        let Some(op) = ops::lookup(sign.op) else {
            self.error(t, format!("operator `{}` is not known", sign.op));
            return self.add(Expr::Tuple(args), start, t.end);
        };
        let end = args.last().and_then(|&a| self.m.span(a)).map_or(t.end, |s| s.end.max(t.end));
        let callee = self.add(Expr::Op(op), t.start, t.end);
        let attrs = match ops::make_attrs(op, &[]) {
            Ok(attrs) => attrs,
            Err(e) => {
                self.error(t, e.to_string());
                Attrs::empty()
            }
        };
        self.add(Expr::Call { callee, args, attrs, type_args: Vec::new() }, start, end)
    }

    /// Begins the next argument of the call, or ends the call.
    pub(super) fn argument(&mut self, frames: &mut Vec<Frame>, call: Frame) -> Read<Next> {
        let Frame::Call { callee, start, args } = call else { unreachable!("only calls have arguments") };
        let mut given = Vec::new();
        if !self.at(b')') {
            let named = self.peek() == Kind::Ident && self.peek2() == Kind::Sign(b'=') && {
                let signs = &self.tokens[self.pos + 1..];
                !(signs.len() > 1 && signs[1].kind == Kind::Sign(b'=') && signs[1].start == signs[0].end)
            };
            let t = self.tokens[self.pos];
            let record = match t.kind == Kind::Meta && self.peek2() == Kind::Sign(b')') {
                true => self.meta_attrs(t),
                false => None,
            };
            if let Some(fields) = record {
                self.next();
                given = fields;
            } else if named {
                while !self.at(b')') {
                    given.push(self.attr()?);
                    if !self.eat(b',') && !self.at(b')') {
                        return Err(self.unexpected("`,` or `)` after an attribute"));
                    }
                }
            } else {
                frames.push(Frame::Call { callee, start, args });
                frames.push(self.sequence());
                return Ok(Next::Part);
            }
        }
        self.expect(b')', "after the arguments")?;
        let end = self.last_end();
        let attrs = match self.m[callee] {
            Expr::Op(op) => {
                // TVM wants it where an operator does not say it; the operator table always does.
                given.retain(|(_, n, _)| n.as_str() != "attrs_type_key");
                let fields: Vec<_> = given.iter().map(|(_, n, v)| (n.clone(), v.clone())).collect();
                ops::make_attrs(op, &fields).unwrap_or_else(|e| {
                    self.attr_error(&e, &given, start, end);
                    Attrs::empty()
                })
            }
            _ => Attrs::new(given.into_iter().map(|(_, n, v)| (n, v)).collect()),
        };
        let e = Expr::Call { callee, args, attrs, type_args: Vec::new() };
        Ok(Next::Operated(self.add(e, start, end), start))
    }

    fn attr_error(&mut self, e: &AttrError, given: &[Given], start: u32, end: u32) {
        let name = match e {
            AttrError::Unknown { name, .. } | AttrError::Duplicate { name, .. } => name.as_str(),
            AttrError::Missing { name, .. } | AttrError::Kind { name, .. } => name,
        };
        let span = match given.iter().rev().find(|(_, n, _)| n.as_str() == name) {
            Some((t, ..)) => self.token_span(*t),
            None => self.span(start, end),
        };
        self.report(Diagnostic::new(e.to_string()).at(Some(span)));
    }
}
