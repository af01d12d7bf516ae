//! The pieces that the printer puts together: calls, names, types, attributes, objects of the metadata section.

use hashbrown::HashMap;

use super::{literal, printer::Printer};
use crate::{
    ir::{AttrValue, Attrs, ConstAttr, Dim, Expr, ExprId, Function, Name, OpId, Pattern, Type, TypeVarId, VarId},
    ops::AttrKind,
    relay::json::{self, Metadata},
    tensor::Tensor,
};

impl Printer<'_> {
    pub(super) fn call(&mut self, callee: ExprId, args: &[ExprId], attrs: &Attrs) {
        // A constructor without fields stands for its call.
        if let Expr::Constructor(name) = &self.m[callee]
            && args.is_empty()
            && self.m.constructor(name).is_none_or(|(adt, tag)| adt.constructors[tag].fields.is_empty())
        {
            self.out.push_str(name);
            return;
        }
        self.reference(callee);
        self.out.push('(');
        self.references(args);
        let fields = match self.m[callee] {
            Expr::Op(op) => op_fields(op, attrs),
            _ => attrs.iter().map(|(n, v)| (n.clone(), v.clone())).collect(),
        };
        for (i, (name, value)) in fields.iter().enumerate() {
            if i > 0 || !args.is_empty() {
                self.out.push_str(", ");
            }
            self.attr(name, value);
        }
        self.out.push(')');
    }

    pub(super) fn cell(&mut self, word: &str, args: &[ExprId]) {
        self.out.push_str(word);
        self.references(args);
        self.out.push(')');
    }

    /// `[A](%x: T, attr=1) -> R `.
    pub(super) fn header(&mut self, f: &Function) {
        self.type_params(&f.type_params);
        self.out.push('(');
        let mut first = true;
        for &v in &f.params {
            if !std::mem::take(&mut first) {
                self.out.push_str(", ");
            }
            self.var(v);
        }
        for (name, value) in f.attrs.iter() {
            if !std::mem::take(&mut first) {
                self.out.push_str(", ");
            }
            self.attr(name, value);
        }
        self.out.push_str(") ");
        if let Some(ret) = &f.ret {
            self.out.push_str("-> ");
            self.ty(ret);
            self.out.push(' ');
        }
    }

    /// Patterns nest as deep as the parser lets them.
    pub(super) fn pattern(&mut self, p: &Pattern) {
        let fields = match p {
            Pattern::Wildcard => return self.out.push('_'),
            Pattern::Var(v) => return self.var(*v),
            Pattern::Constructor(name, fields) => {
                self.out.push_str(name);
                if fields.is_empty() {
                    return;
                }
                fields
            }
            Pattern::Tuple(fields) => fields,
        };
        self.out.push('(');
        for (i, field) in fields.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.pattern(field);
        }
        self.out.push(')');
    }
}

impl Printer<'_> {
    /// A variable where it is bound: a name that is unique in the definition, and the annotation.
    pub(super) fn var(&mut self, v: VarId) {
        let info = self.m.var(v);
        let name = unique(&mut self.names, readable(&info.name));
        self.out.push('%');
        self.out.push_str(&name);
        self.vars.insert(v, name);
        if let Some(ty) = &info.ty {
            self.out.push_str(": ");
            self.ty(ty);
        }
    }

    /// The name that a bound variable was given.
    pub(super) fn var_name(&self, v: VarId) -> String {
        self.vars.get(&v).cloned().unwrap_or_else(|| readable(&self.m.var(v).name))
    }

    pub(super) fn type_params(&mut self, params: &[TypeVarId]) {
        for (i, &v) in params.iter().enumerate() {
            self.out.push_str(if i == 0 { "[" } else { ", " });
            let name = unique(&mut self.type_names, self.m.type_var(v).to_string());
            self.out.push_str(&name);
            self.type_vars.insert(v, name);
        }
        if !params.is_empty() {
            self.out.push(']');
        }
    }

    pub(super) fn types(&mut self, types: &[Type]) {
        for (i, ty) in types.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.ty(ty);
        }
    }

    fn type_var(&mut self, v: TypeVarId) {
        match self.type_vars.get(&v) {
            Some(name) => self.out.push_str(name),
            None => self.out.push_str(self.m.type_var(v)),
        }
    }

    /// Types nest as deep as the parser lets them.
    pub(super) fn ty(&mut self, ty: &Type) {
        match ty {
            Type::Tensor(t) if t.shape.is_empty() => self.out.push_str(t.dtype.name()),
            Type::Tensor(t) => {
                self.out.push_str("Tensor[(");
                for (i, dim) in t.shape.iter().enumerate() {
                    if i > 0 {
                        self.out.push_str(", ");
                    }
                    match dim {
                        Dim::Known(n) => self.out.push_str(&n.to_string()),
                        Dim::Var(v) => self.type_var(*v),
                        // An extent that is not inferred yet is as unknown as one that can't be.
                        Dim::Any | Dim::Hole(_) => self.out.push('?'),
                    }
                }
                self.out.push_str("), ");
                self.out.push_str(t.dtype.name());
                self.out.push(']');
            }
            Type::Tuple(fields) => {
                self.out.push('(');
                self.types(fields);
                self.out.push_str(if fields.len() == 1 { ",)" } else { ")" });
            }
            Type::Func(f) => {
                self.out.push_str("fn ");
                self.type_params(&f.type_params);
                self.out.push('(');
                self.types(&f.params);
                self.out.push_str(") -> ");
                self.ty(&f.ret);
            }
            Type::Ref(t) => {
                self.out.push_str("ref(");
                self.ty(t);
                self.out.push(')');
            }
            Type::Adt(name, args) => {
                self.out.push_str(name);
                if !args.is_empty() {
                    self.out.push('[');
                    self.types(args);
                    self.out.push(']');
                }
            }
            Type::Var(v) => self.type_var(*v),
            Type::Hole(_) => self.out.push('_'),
        }
    }

    pub(super) fn attr(&mut self, name: &str, value: &AttrValue) {
        self.out.push_str(name);
        self.out.push('=');
        self.attr_value(value);
    }

    /// Attribute values nest as deep as the readers let them.
    fn attr_value(&mut self, value: &AttrValue) {
        match value {
            AttrValue::None => self.out.push_str("None"),
            AttrValue::Bool(b) => self.out.push_str(if *b { "True" } else { "False" }),
            AttrValue::Int(i) => self.out.push_str(&i.to_string()),
            AttrValue::Float(f) => self.out.push_str(&literal::float_attr(f.0)),
            AttrValue::Str(s) => self.out.push_str(&literal::quote(s)),
            AttrValue::DType(d) => self.out.push_str(&literal::quote(d.name())),
            AttrValue::AnyDim => self.out.push('?'),
            AttrValue::List(items) => {
                self.out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        self.out.push_str(", ");
                    }
                    self.attr_value(item);
                }
                self.out.push(']');
            }
            AttrValue::Tensor(t) => self.constant(&t.0),
            AttrValue::Dict(_) => self.object("Map", value),
            AttrValue::Opaque(key, _) => self.object(key, value),
            AttrValue::Type(_) => self.object("relay.TensorType", value),
        }
    }

    /// A constant of the metadata section; equal ones are one.
    pub(super) fn constant(&mut self, t: &Tensor) {
        let group = group(&mut self.metadata, "relay.Constant");
        let index = *self.constants.entry(t.clone()).or_insert_with(|| {
            group.push(AttrValue::Tensor(ConstAttr(t.clone())));
            group.len() - 1
        });
        self.out.push_str(&format!("meta[relay.Constant][{index}]"));
    }

    /// Another object of the metadata section.
    fn object(&mut self, key: &str, value: &AttrValue) {
        if let Err(e) = json::print_metadata(&[(key.into(), vec![value.clone()])]) {
            // Only a pass can have made it. What it is stays readable, and the text is refused if it is read.
            self.out.push_str(&format!("/* {e} */"));
            return;
        }
        let members = group(&mut self.metadata, key);
        let index = members.iter().position(|m| m == value).unwrap_or_else(|| {
            members.push(value.clone());
            members.len() - 1
        });
        self.out.push_str(&format!("meta[{key}][{index}]"));
    }
}

fn group<'m>(metadata: &'m mut Metadata, key: &str) -> &'m mut Vec<AttrValue> {
    let at = metadata.iter().position(|(k, _)| k.as_str() == key).unwrap_or_else(|| {
        metadata.push((key.into(), Vec::new()));
        metadata.len() - 1
    });
    &mut metadata[at].1
}

/// The fields of an operator's record that are not at their defaults.
fn op_fields(op: OpId, attrs: &Attrs) -> Vec<(Name, AttrValue)> {
    let schema = op.op().attrs();
    let mut fields = Vec::new();
    for (name, value) in attrs.iter() {
        let field = schema.iter().find(|f| f.name == name.as_str());
        if field.is_some_and(|f| f.default_value().as_ref() == Some(value)) {
            continue;
        }
        // TVM writes the absence of an element type as an empty string.
        let void = *value == AttrValue::None && field.is_some_and(|f| f.kind == AttrKind::DType);
        fields.push((name.clone(), if void { "".into() } else { value.clone() }));
    }
    if let Some(key) = json::untyped_attrs(op.op().name())
        && !fields.is_empty()
    {
        fields.push(("attrs_type_key".into(), key.into()));
    }
    fields
}

/// A name that the parser reads as the same name; TVM's does too, unless it has dots or `::`.
fn readable(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 1);
    if name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() {
        out.push('v');
    }
    out.extend(name.chars().map(|c| if c.is_alphanumeric() || matches!(c, '_' | '/' | '.' | ':') { c } else { '_' }));
    let reads_back = super::lexer::is_local_name(&out);
    if reads_back { out } else { out.replace(['.', ':', '/'], "_") }
}

/// The name itself where it is new, else with a number that makes it so.
fn unique(given: &mut HashMap<String, usize>, name: String) -> String {
    let mut new = name.clone();
    if let Some(last) = given.get(&name).copied() {
        let mut n = last;
        loop {
            n += 1;
            new = format!("{name}{n}");
            if !given.contains_key(&new) {
                break;
            }
        }
        given.insert(name, n);
    }
    given.insert(new.clone(), 0);
    new
}
