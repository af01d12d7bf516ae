//! Expressions in text.
//!
//! What is begun and not yet ended lies on an explicit stack of frames, so that nesting has no limit.

use super::{
    lexer::{Kind, Token, Word},
    literal,
    names::Mark,
    parser::{Parser, Read},
};
use crate::{
    ir::{AttrValue, Attrs, Clause, Expr, ExprId, Function, Pattern, Type, TypeVarId, VarId},
    tensor::Tensor,
};

/// An infix operator, as TVM's parser knows them: all associate to the left, a larger level binds tighter.
pub(super) struct Infix {
    pub op: &'static str,
    pub level: u8,
    /// Bytes of the sign.
    pub len: u32,
    pub start: u32,
}

/// A part of a sequence whose value is being read.
pub(super) enum Part {
    /// The sequence's value, or an expression that is evaluated and forgotten.
    Plain,
    /// `let`, with the variable in scope already: the value is a function, which may be recursive.
    Let(VarId, u32),
    /// `let`, whose variable comes into scope after the value.
    LetAfter(Token, Option<Type>, u32),
    /// `%0 = …`.
    Graph(u64),
}

/// What stands between braces or parentheses: bindings and expressions, then the value.
pub(super) struct Sequence {
    pub mark: Mark,
    pub lets: Vec<(Option<VarId>, ExprId, u32)>,
    pub part: Part,
    /// Whether it is a `let`'s value without parentheses, as TVM prints it: it ends with the first expression.
    pub bare: bool,
}

/// Something begun and not yet ended.
pub(super) enum Frame {
    /// A sequence of bindings and expressions.
    Sequence(Sequence),
    /// Operands and the infix operators between them.
    Operation { operands: Vec<(ExprId, u32)>, ops: Vec<Infix> },
    /// `-` before an operand.
    Negation { start: u32 },
    /// `{ … }` as an expression.
    Braces,
    /// A parenthesized expression or tuple.
    Paren { start: u32, items: Vec<ExprId> },
    /// A call's arguments.
    Call { callee: ExprId, start: u32, args: Vec<ExprId> },
    /// The arguments of `ref`, `ref_read` or `ref_write`.
    Cell { word: Word, start: u32, args: Vec<ExprId> },
    /// A conditional.
    If { start: u32, parts: Vec<ExprId> },
    /// A function's body.
    Func { start: u32, func: Box<Header>, mark: Mark, type_mark: Mark },
    /// What a `match` looks at.
    MatchData { start: u32, complete: bool },
    /// A clause's body.
    Clause { start: u32, complete: bool, data: ExprId, clauses: Vec<Clause>, pattern: Pattern, mark: Mark },
}

/// A function but for its body.
pub(super) struct Header {
    pub type_params: Vec<TypeVarId>,
    pub params: Vec<VarId>,
    pub ret: Option<Type>,
    pub attrs: Attrs,
}

/// What comes next.
pub(super) enum Next {
    /// A part of a sequence begins.
    Part,
    /// An operand begins.
    Operand,
    /// An operand is complete, but for projections and calls that may follow. With the byte that it begins at.
    Operated(ExprId, u32),
    /// An expression is complete.
    Done(ExprId, u32),
}

impl<'a> Parser<'a> {
    /// One expression, bindings before it included.
    pub(super) fn expression(&mut self) -> Read<ExprId> {
        let frame = self.sequence();
        self.run(vec![frame], Next::Part)
    }

    /// A function from its type parameters to the closing brace; it begins at byte `start`.
    pub(super) fn function(&mut self, start: u32) -> Read<ExprId> {
        let func = self.header(start)?;
        let body = self.sequence();
        self.run(vec![func, body], Next::Part)
    }

    pub(super) fn sequence(&self) -> Frame {
        Frame::Sequence(Sequence { mark: self.vars.mark(), lets: Vec::new(), part: Part::Plain, bare: false })
    }

    fn operation() -> Frame {
        Frame::Operation { operands: Vec::new(), ops: Vec::new() }
    }

    fn run(&mut self, mut frames: Vec<Frame>, mut next: Next) -> Read<ExprId> {
        loop {
            next = match next {
                Next::Part => self.part(&mut frames)?,
                Next::Operand => self.operand(&mut frames)?,
                Next::Operated(e, start) => self.operated(&mut frames, e, start)?,
                Next::Done(e, start) => match frames.pop() {
                    Some(frame) => self.done(&mut frames, frame, e, start)?,
                    None => return Ok(e),
                },
            };
        }
    }

    /// Begins a part of the sequence on top of the stack.
    fn part(&mut self, frames: &mut Vec<Frame>) -> Read<Next> {
        let t = self.tokens[self.pos];
        let mut part = Part::Plain;
        match t.kind {
            Kind::Sign(b'{') => {
                self.next();
                self.set_part(frames, part);
                frames.push(Frame::Braces);
                frames.push(self.sequence());
                return Ok(Next::Part);
            }
            Kind::Word(Word::FreeVar) => {
                self.next();
                if self.peek() != Kind::Local {
                    return Err(self.unexpected("a variable after `free_var`"));
                }
                let name = self.next();
                let ty = self.annotation()?;
                let text = &self.text_of(name)[1..];
                let v = self.m.new_var(text, ty);
                self.free.insert(text, v);
                self.expect(b';', "after the variable's declaration")?;
                return Ok(Next::Part);
            }
            Kind::Word(Word::Let) => {
                self.next();
                if self.peek() != Kind::Local {
                    return Err(self.unexpected("a variable, as in `let %x = …`"));
                }
                let name = self.next();
                let ty = self.annotation()?;
                self.expect(b'=', "and the variable's value")?;
                part = match self.peek() {
                    Kind::Word(Word::Fn) => Part::Let(self.bind_var(name, ty), t.start),
                    _ => Part::LetAfter(name, ty, t.start),
                };
                if self.peek() == Kind::Word(Word::Let) {
                    self.set_part(frames, part);
                    frames.push(Frame::Sequence(Sequence {
                        mark: self.vars.mark(),
                        lets: Vec::new(),
                        part: Part::Plain,
                        bare: true,
                    }));
                    return Ok(Next::Part);
                }
            }
            Kind::Local if self.peek2() == Kind::Sign(b'=') && self.graph_number(t).is_some() => {
                let signs = &self.tokens[self.pos + 1..];
                let equality = signs.len() > 1 && signs[1].kind == Kind::Sign(b'=') && signs[1].start == signs[0].end;
                if let (false, Some(n)) = (equality, self.graph_number(t)) {
                    self.pos += 2;
                    part = Part::Graph(n);
                }
            }
            _ => {}
        }
        self.set_part(frames, part);
        frames.push(Self::operation());
        Ok(Next::Operand)
    }

    fn set_part(&self, frames: &mut [Frame], new: Part) {
        match frames.last_mut() {
            Some(Frame::Sequence(s)) => s.part = new,
            _ => unreachable!("parts are read in sequences"),
        }
    }

    /// `%12` as a number, where it is one.
    fn graph_number(&self, t: Token) -> Option<u64> {
        let digits = &self.text_of(t)[1..];
        digits.bytes().all(|c| c.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    }

    /// Begins an operand.
    fn operand(&mut self, frames: &mut Vec<Frame>) -> Read<Next> {
        let t = self.tokens[self.pos];
        let atom = match t.kind {
            Kind::Int => literal::int_tensor(self.text_of(t)),
            Kind::Float => literal::float_tensor(self.text_of(t)),
            Kind::Bool(b) => Ok(Tensor::from_bools(&[], &[b])),
            Kind::Bad => Ok(Tensor::scalar(0i32)),
            _ => return self.operand_of(t, frames),
        };
        self.next();
        let tensor = atom.unwrap_or_else(|e| {
            self.error(t, e);
            Tensor::scalar(0i32)
        });
        Ok(Next::Operated(self.add(Expr::Constant(tensor), t.start, t.end), t.start))
    }

    fn operand_of(&mut self, t: Token, frames: &mut Vec<Frame>) -> Read<Next> {
        match t.kind {
            Kind::Local => {
                self.next();
                Ok(Next::Operated(self.local(t), t.start))
            }
            Kind::Global => {
                self.next();
                self.global_uses.push(t);
                let name = self.text_of(t)[1..].into();
                Ok(Next::Operated(self.add(Expr::Global(name), t.start, t.end), t.start))
            }
            Kind::Ident => {
                self.next();
                Ok(Next::Operated(self.named(t), t.start))
            }
            Kind::Meta => {
                self.next();
                let e = match self.meta(t) {
                    Some(AttrValue::Tensor(c)) => Expr::Constant(c.0),
                    Some(_) => {
                        self.error(t, "this metadata object is not an expression");
                        Expr::Tuple(Vec::new())
                    }
                    None => Expr::Tuple(Vec::new()),
                };
                Ok(Next::Operated(self.add(e, t.start, t.end), t.start))
            }
            Kind::Word(Word::Fn) => {
                self.next();
                let func = self.header(t.start)?;
                frames.push(func);
                frames.push(self.sequence());
                Ok(Next::Part)
            }
            Kind::Word(Word::If) => {
                self.next();
                self.expect(b'(', "before the condition")?;
                frames.push(Frame::If { start: t.start, parts: Vec::new() });
                frames.push(self.sequence());
                Ok(Next::Part)
            }
            Kind::Word(word @ (Word::Match | Word::PartialMatch)) => {
                self.next();
                frames.push(Frame::MatchData { start: t.start, complete: word == Word::Match });
                Ok(Next::Operand)
            }
            Kind::Word(word @ (Word::Ref | Word::RefRead | Word::RefWrite)) => {
                self.next();
                self.expect(b'(', "before the argument")?;
                frames.push(Frame::Cell { word, start: t.start, args: Vec::new() });
                frames.push(self.sequence());
                Ok(Next::Part)
            }
            Kind::Sign(b'-') => {
                self.next();
                frames.push(Frame::Negation { start: t.start });
                Ok(Next::Operand)
            }
            Kind::Sign(b'(') => {
                self.next();
                if self.eat(b')') {
                    let end = self.last_end();
                    return Ok(Next::Operated(self.add(Expr::Tuple(Vec::new()), t.start, end), t.start));
                }
                frames.push(Frame::Paren { start: t.start, items: Vec::new() });
                frames.push(self.sequence());
                Ok(Next::Part)
            }
            _ => Err(self.unexpected("an expression")),
        }
    }

    /// After an operand: projections, calls, then what the operand is for.
    fn operated(&mut self, frames: &mut Vec<Frame>, e: ExprId, start: u32) -> Read<Next> {
        if self.eat(b'.') {
            let t = self.tokens[self.pos];
            return match (t.kind, self.text_of(t).parse()) {
                (Kind::Int, Ok(i)) => {
                    self.next();
                    Ok(Next::Operated(self.add(Expr::Proj(e, i), start, t.end), start))
                }
                _ => Err(self.unexpected("the number of a tuple's field")),
            };
        }
        if self.eat(b'(') {
            return self.argument(frames, Frame::Call { callee: e, start, args: Vec::new() });
        }
        match frames.last_mut() {
            Some(Frame::Operation { operands, .. }) => operands.push((e, start)),
            _ => return Ok(Next::Done(e, start)),
        }
        let infix = self.infix();
        let Some(Frame::Operation { mut operands, mut ops }) = frames.pop() else {
            unreachable!("the frame was there");
        };
        while let Some(last) = ops.pop_if(|last| infix.as_ref().is_none_or(|i| last.level >= i.level)) {
            if let (Some((right, _)), Some((left, left_start))) = (operands.pop(), operands.pop()) {
                operands.push((self.operator_call(&last, vec![left, right], left_start), left_start));
            }
        }
        match (infix, operands.pop()) {
            (None, Some((e, start))) => Ok(Next::Done(e, start)),
            (Some(infix), Some(last)) => {
                self.pos += infix.len as usize;
                operands.push(last);
                ops.push(infix);
                frames.push(Frame::Operation { operands, ops });
                Ok(Next::Operand)
            }
            (_, None) => unreachable!("an operand was just pushed"),
        }
    }

    /// An expression is complete: gives it to the frame that waited for it.
    fn done(&mut self, frames: &mut Vec<Frame>, frame: Frame, e: ExprId, start: u32) -> Read<Next> {
        match frame {
            Frame::Sequence(s) => self.part_done(frames, s, e, start),
            Frame::Operation { .. } => unreachable!("operations end where their operands do"),
            Frame::Negation { start } => {
                let sign = Infix { op: "negative", level: 0, len: 1, start };
                Ok(Next::Operated(self.operator_call(&sign, vec![e], start), start))
            }
            Frame::Braces => {
                self.expect(b'}', "after the expression")?;
                Ok(Next::Done(e, start))
            }
            Frame::Paren { start, mut items } => {
                let comma = self.eat(b',');
                if self.eat(b')') {
                    if items.is_empty() && !comma {
                        return Ok(Next::Operated(e, start));
                    }
                    items.push(e);
                    let end = self.last_end();
                    return Ok(Next::Operated(self.add(Expr::Tuple(items), start, end), start));
                }
                if !comma {
                    return Err(self.unexpected("`,` or `)`"));
                }
                items.push(e);
                frames.push(Frame::Paren { start, items });
                frames.push(self.sequence());
                Ok(Next::Part)
            }
            Frame::Call { callee, start, mut args } => {
                args.push(e);
                if !self.eat(b',') && !self.at(b')') {
                    return Err(self.unexpected("`,` or `)` after an argument"));
                }
                self.argument(frames, Frame::Call { callee, start, args })
            }
            Frame::Cell { word, start, mut args } => {
                args.push(e);
                if word == Word::RefWrite && args.len() == 1 {
                    self.expect(b',', "and the value to write")?;
                    frames.push(Frame::Cell { word, start, args });
                    frames.push(self.sequence());
                    return Ok(Next::Part);
                }
                self.expect(b')', "after the argument")?;
                let expr = match (word, &args[..]) {
                    (Word::Ref, [value]) => Expr::RefNew(*value),
                    (Word::RefRead, [cell]) => Expr::RefRead(*cell),
                    (_, [cell, value]) => Expr::RefWrite(*cell, *value),
                    _ => unreachable!("each of the three takes as many arguments as were read"),
                };
                let end = self.last_end();
                Ok(Next::Operated(self.add(expr, start, end), start))
            }
            Frame::If { start, mut parts } => {
                parts.push(e);
                match &parts[..] {
                    [_] => {
                        self.expect(b')', "after the condition")?;
                        self.expect(b'{', "before the case that the condition holds")?;
                    }
                    [_, _] => {
                        self.expect(b'}', "after the case that the condition holds")?;
                        if self.peek() != Kind::Word(Word::Else) {
                            return Err(self.unexpected("`else`"));
                        }
                        self.next();
                        self.expect(b'{', "after `else`")?;
                    }
                    &[cond, then, otherwise] => {
                        self.expect(b'}', "after the other case")?;
                        let end = self.last_end();
                        let e = self.add(Expr::If { cond, then, otherwise }, start, end);
                        return Ok(Next::Operated(e, start));
                    }
                    _ => unreachable!("a conditional has three parts"),
                }
                frames.push(Frame::If { start, parts });
                frames.push(self.sequence());
                Ok(Next::Part)
            }
            Frame::Func { start, func, mark, type_mark } => {
                self.expect(b'}', "after the function's body")?;
                self.vars.leave(mark);
                self.type_vars.leave(type_mark);
                let Header { type_params, params, ret, attrs } = *func;
                let func = Function { type_params, params, ret, body: e, attrs };
                let end = self.last_end();
                let e = self.add(Expr::Func(Box::new(func)), start, end);
                // A definition ends with its brace: what follows neither calls nor projects it.
                Ok(if frames.is_empty() { Next::Done(e, start) } else { Next::Operated(e, start) })
            }
            Frame::MatchData { start, complete } => {
                self.expect(b'{', "before the clauses")?;
                self.clause(frames, start, complete, e, Vec::new())
            }
            Frame::Clause { start, complete, data, mut clauses, pattern, mark } => {
                self.vars.leave(mark);
                clauses.push(Clause { pattern, body: e });
                if !self.eat(b',') && !self.at(b'}') {
                    return Err(self.unexpected("`,` or `}` after a clause"));
                }
                self.clause(frames, start, complete, data, clauses)
            }
        }
    }

    /// Begins the next clause of a `match`, or ends it.
    fn clause(
        &mut self,
        frames: &mut Vec<Frame>,
        start: u32,
        complete: bool,
        data: ExprId,
        clauses: Vec<Clause>,
    ) -> Read<Next> {
        if self.eat(b'}') {
            let end = self.last_end();
            let e = self.add(Expr::Match { data, clauses, complete }, start, end);
            return Ok(Next::Operated(e, start));
        }
        let mark = self.vars.mark();
        let pattern = self.pattern(0)?;
        self.expect(b'=', "and `>` after the pattern")?;
        self.expect(b'>', "after the pattern")?;
        frames.push(Frame::Clause { start, complete, data, clauses, pattern, mark });
        frames.push(self.sequence());
        Ok(Next::Part)
    }

    /// A part of a sequence is complete: goes on to the next, or ends the sequence.
    fn part_done(&mut self, frames: &mut Vec<Frame>, sequence: Sequence, e: ExprId, start: u32) -> Read<Next> {
        let Sequence { mark, mut lets, part, bare } = sequence;
        match part {
            Part::Let(v, at) => lets.push((Some(v), e, at)),
            Part::LetAfter(name, ty, at) => {
                let v = self.bind_var(name, ty);
                lets.push((Some(v), e, at));
            }
            Part::Graph(n) => drop(self.graph.insert(n, e)),
            Part::Plain if self.at(b';') && !bare => lets.push((None, e, start)),
            Part::Plain => {
                self.vars.leave(mark);
                let end = self.last_end();
                let first = lets.first().map_or(start, |l| l.2);
                let mut body = e;
                for (var, value, at) in lets.into_iter().rev() {
                    // As in TVM, an expression whose value is not used is bound to a variable without a name.
                    let var = var.unwrap_or_else(|| self.m.new_var("_", None));
                    body = self.add(Expr::Let { var, value, body }, at, end);
                }
                return Ok(Next::Done(body, first));
            }
        }
        self.expect(b';', "after the binding")?;
        frames.push(Frame::Sequence(Sequence { mark, lets, part: Part::Plain, bare }));
        Ok(Next::Part)
    }
}
