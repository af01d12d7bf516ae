//! Types in text.

use std::sync::Arc;

use super::{
    DEEPEST,
    lexer::{Kind, Token, Word},
    literal,
    parser::{Parser, Read, Stop},
};
use crate::ir::{Dim, FuncType, TensorType, Type};

impl Parser<'_> {
    /// A type that is nested `depth` levels deep.
    pub(super) fn ty(&mut self, depth: usize) -> Read<Type> {
        let t = self.tokens[self.pos];
        if depth >= DEEPEST {
            self.error(t, format!("types may nest at most {DEEPEST} levels"));
            return Err(Stop);
        }
        match t.kind {
            Kind::Sign(b'(') => Ok(Type::Tuple(self.types(b'(', b')', depth)?.into())),
            Kind::Word(Word::Fn) => self.func_type(depth),
            Kind::Word(Word::Ref) => {
                self.next();
                self.expect(b'(', "after `ref`")?;
                let inner = self.ty(depth + 1)?;
                self.expect(b')', "after the type of the cell")?;
                Ok(Type::Ref(Arc::new(inner)))
            }
            Kind::Ident => self.named_type(depth),
            _ => Err(self.unexpected("a type")),
        }
    }

    /// Types in brackets, separated by commas.
    fn types(&mut self, open: u8, close: u8, depth: usize) -> Read<Vec<Type>> {
        self.expect(open, "before the types")?;
        let mut types = Vec::new();
        while !self.eat(close) {
            types.push(self.ty(depth + 1)?);
            if !self.eat(b',') && !self.at(close) {
                return Err(self.unexpected(&format!("`,` or `{}` after a type", close as char)));
            }
        }
        Ok(types)
    }

    fn func_type(&mut self, depth: usize) -> Read<Type> {
        self.next();
        let (type_params, mark) = self.type_params()?;
        let params = self.types(b'(', b')', depth)?;
        self.expect(b'-', "and `>` before the result's type")?;
        self.expect(b'>', "before the result's type")?;
        let ret = self.ty(depth + 1)?;
        self.type_vars.leave(mark);
        Ok(Type::Func(Arc::new(FuncType { type_params, params, ret })))
    }

    fn named_type(&mut self, depth: usize) -> Read<Type> {
        let t = self.next();
        let name = self.text_of(t);
        if name == "_" {
            self.holes += 1;
            return Ok(Type::Hole(self.holes - 1));
        }
        if name == "Tensor" && self.at(b'[') {
            return self.tensor_type();
        }
        if let Some(v) = self.type_vars.get(name) {
            return Ok(Type::Var(v));
        }
        if let Ok(dtype) = name.parse() {
            return Ok(Type::Tensor(TensorType::of([], dtype)));
        }
        let args = match self.at(b'[') {
            true => self.types(b'[', b']', depth)?,
            false => Vec::new(),
        };
        // TVM has types of short vectors, as `int8x4`, that no operator takes: they are carried by name.
        let vector = name.split_once('x').is_some_and(|(base, lanes)| {
            base.parse::<crate::tensor::DType>().is_ok() && lanes.parse::<u16>().is_ok_and(|n| n > 1)
        });
        if !vector {
            self.type_uses.push((name, t));
        }
        Ok(Type::Adt(name.into(), args.into()))
    }

    /// `[(1, ?, 3), float32]`.
    fn tensor_type(&mut self) -> Read<Type> {
        self.next();
        self.expect(b'(', "before the tensor's shape")?;
        let mut shape = Vec::new();
        while !self.eat(b')') {
            shape.push(self.dim()?);
            if !self.eat(b',') && !self.at(b')') {
                return Err(self.unexpected("`,` or `)` in the tensor's shape"));
            }
        }
        self.expect(b',', "before the tensor's element type")?;
        if self.peek() != Kind::Ident {
            return Err(self.unexpected("an element type"));
        }
        let t = self.next();
        let dtype = self.dtype(t)?;
        self.expect(b']', "after the tensor's element type")?;
        Ok(Type::Tensor(TensorType::of(shape, dtype)))
    }

    fn dtype(&mut self, t: Token) -> Read<crate::tensor::DType> {
        let name = self.text_of(t);
        name.parse().map_err(|_| {
            let known = crate::tensor::DType::ALL.map(|d| d.name());
            self.unknown(t, "element type", name, known);
            Stop
        })
    }

    fn dim(&mut self) -> Read<Dim> {
        let t = self.tokens[self.pos];
        match t.kind {
            Kind::Sign(b'?') => {
                self.next();
                Ok(Dim::Any)
            }
            Kind::Int => {
                self.next();
                match literal::int(self.text_of(t)) {
                    Ok((n, _)) if n >= 0 => Ok(Dim::Known(n)),
                    Ok(_) => {
                        self.error(t, "an extent may not be negative");
                        Ok(Dim::Known(0))
                    }
                    Err(e) => {
                        self.error(t, e);
                        Ok(Dim::Known(0))
                    }
                }
            }
            // TVM's symbolic extents: known only when the program runs.
            Kind::Meta if self.text_of(t).starts_with("meta[tir.") => {
                self.next();
                Ok(Dim::Any)
            }
            Kind::Ident if self.type_vars.get(self.text_of(t)).is_some() => {
                self.next();
                let v = self.type_vars.get(self.text_of(t));
                Ok(v.map_or(Dim::Any, Dim::Var))
            }
            _ => Err(self.unexpected("an extent: a number or `?`")),
        }
    }
}
