//! Attributes of calls and functions in text.

use super::{
    DEEPEST,
    lexer::{Kind, Token},
    literal,
    parser::{Parser, Read, Stop},
};
use crate::{
    diag::Diagnostic,
    ir::{AttrValue, Name},
};

/// An attribute as given, with the token that names it.
pub(super) type Given = (Token, Name, AttrValue);

impl Parser<'_> {
    /// `name=value`.
    pub(super) fn attr(&mut self) -> Read<Given> {
        if self.peek() != Kind::Ident {
            return Err(self.unexpected("an attribute, as in `axis=1`"));
        }
        let t = self.next();
        self.expect(b'=', "and the attribute's value")?;
        let value = self.attr_value(0)?;
        Ok((t, self.text_of(t).into(), value))
    }

    fn attr_value(&mut self, depth: usize) -> Read<AttrValue> {
        let t = self.tokens[self.pos];
        if depth >= DEEPEST {
            self.error(t, format!("attribute values may nest at most {DEEPEST} levels"));
            return Err(Stop);
        }
        let text = self.text_of(t);
        let value = match t.kind {
            Kind::Int => literal::int(text).map(|(v, _)| AttrValue::Int(v)),
            Kind::Float => literal::float(text).map(|(v, _)| v.into()),
            Kind::Bool(b) => Ok(b.into()),
            Kind::Str => Ok(AttrValue::Str(literal::unquote(text).into())),
            Kind::Sign(b'?') => Ok(AttrValue::AnyDim),
            Kind::Bad => Ok(AttrValue::None),
            Kind::Ident if matches!(text, "None" | "nullptr") => Ok(AttrValue::None),
            Kind::Meta => {
                self.next();
                return Ok(self.meta(t).unwrap_or(AttrValue::None));
            }
            Kind::Sign(b'[') => return self.attr_list(b']', depth),
            Kind::Sign(b'(') => return self.attr_list(b')', depth),
            Kind::Sign(b'{') => return self.attr_dict(depth),
            _ => return Err(self.unexpected("an attribute's value")),
        };
        self.next();
        value.map_err(|e| {
            self.error(t, e);
            Stop
        })
    }

    /// A list in brackets. In parentheses a single value without a comma is itself, as in TVM.
    fn attr_list(&mut self, close: u8, depth: usize) -> Read<AttrValue> {
        self.next();
        let mut items = Vec::new();
        let mut comma = false;
        while !self.eat(close) {
            items.push(self.attr_value(depth + 1)?);
            comma = self.eat(b',');
            if !comma && !self.at(close) {
                return Err(self.unexpected(&format!("`,` or `{}` in the list", close as char)));
            }
        }
        match items.len() {
            1 if close == b')' && !comma => Ok(items.remove(0)),
            _ => Ok(AttrValue::List(items.into())),
        }
    }

    /// `{"key"=value, …}`.
    fn attr_dict(&mut self, depth: usize) -> Read<AttrValue> {
        self.next();
        let mut items: Vec<(Name, AttrValue)> = Vec::new();
        while !self.eat(b'}') {
            let t = self.next();
            let key = match t.kind {
                Kind::Ident => self.text_of(t).into(),
                Kind::Str => literal::unquote(self.text_of(t)).into(),
                _ => {
                    self.pos -= 1;
                    return Err(self.unexpected("a key"));
                }
            };
            self.expect(b'=', "after the key")?;
            items.push((key, self.attr_value(depth + 1)?));
            if !self.eat(b',') && !self.at(b'}') {
                return Err(self.unexpected("`,` or `}` in the map"));
            }
        }
        Ok(AttrValue::Dict(items.into()))
    }

    /// The object that `meta[key][index]` stands for; what is wrong with it is reported.
    pub(super) fn meta(&mut self, t: Token) -> Option<AttrValue> {
        let text = self.text_of(t);
        let parts = text.strip_prefix("meta[").and_then(|r| r.strip_suffix(']')).and_then(|r| r.split_once("]["));
        let Some((key, Ok(index))) = parts.map(|(key, index)| (key, index.trim().parse::<usize>())) else {
            self.error(t, "a reference into the metadata section is written `meta[relay.Constant][0]`");
            return None;
        };
        let group = self.metadata.iter().find(|(k, _)| k.as_str() == key).map(|(_, members)| members);
        match group.map(|members| members.get(index).ok_or(members.len())) {
            Some(Ok(value)) => Some(value.clone()),
            Some(Err(n)) => {
                self.error(
                    t,
                    format!("the metadata section has {n} objects of type `{key}`, none with number {index}"),
                );
                None
            }
            None if self.metadata_damaged => None,
            None if self.metadata.is_empty() => {
                let d = Diagnostic::new(format!(
                    "`{}` refers to the metadata section, which this text lacks",
                    self.text_of(t)
                ));
                let d = d.at(Some(self.token_span(t)));
                self.report(d.help("TVM prints it under `#[metadata]` at the end, unless it was told not to"));
                None
            }
            None => {
                let known: Vec<Name> = self.metadata.iter().map(|(k, _)| k.clone()).collect();
                self.unknown(t, "metadata type", key, known.iter().map(Name::as_str));
                None
            }
        }
    }

    /// The fields of the attribute record that the metadata reference stands for, where it does.
    pub(super) fn meta_attrs(&mut self, t: Token) -> Option<Vec<Given>> {
        if !self.text_of(t).contains("Attrs]") {
            return None;
        }
        match self.meta(t)? {
            AttrValue::Dict(fields) => Some(fields.iter().map(|(n, v)| (t, n.clone(), v.clone())).collect()),
            _ => None,
        }
    }
}
