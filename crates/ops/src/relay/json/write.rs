//! Modules as TVM's JSON.

use hashbrown::HashMap;

use super::{
    graph::Node,
    schema,
    value::{Writer, refuse},
};
use crate::{
    diag::Refused,
    ir::{Attrs, Dim, Expr, ExprId, Function, Module, Name, Pattern, TensorType, Type, TypeVarId, VarId, reachable},
};

/// TVM's numbers for kinds of types.
mod kind {
    pub(super) const TYPE: &str = "0";
    pub(super) const ADT: &str = "5";
}

struct ModuleWriter<'a> {
    m: &'a Module,
    w: Writer,
    exprs: HashMap<ExprId, usize>,
    vars: HashMap<VarId, usize>,
    type_vars: HashMap<TypeVarId, usize>,
    globals: HashMap<Name, usize>,
    adts: HashMap<Name, usize>,
    constructors: HashMap<Name, usize>,
    ops: HashMap<Name, usize>,
}

/// The module as `tvm.ir.save_json` writes it, without inferred types and source places, but numbered in the order of
/// the module's expressions (TVM reads any order), so that reading it back gives the very same module. What TVM has no objects
/// for is refused.
pub fn print_module(m: &Module) -> Result<String, Refused> {
    let mut w = ModuleWriter {
        m,
        w: Writer::new(),
        exprs: HashMap::new(),
        vars: HashMap::new(),
        type_vars: HashMap::new(),
        globals: HashMap::new(),
        adts: HashMap::new(),
        constructors: HashMap::new(),
        ops: HashMap::new(),
    };
    w.w.graph.root = w.module()?;
    Ok(w.w.graph.print())
}

fn number(n: usize) -> String {
    n.to_string()
}

impl ModuleWriter<'_> {
    fn module(&mut self) -> Result<usize, Refused> {
        let (mut types, mut type_names) = (Vec::new(), Vec::new());
        for (tag, adt) in self.m.adts().iter().enumerate() {
            let header = self.adt(&adt.name);
            let type_vars = adt.params.iter().map(|&v| self.type_var(v)).collect();
            let type_vars = self.w.array(type_vars);
            let mut constructors = Vec::new();
            for (i, c) in adt.constructors.iter().enumerate() {
                let inputs = self.types(&c.fields)?;
                // TVM tells constructors of different types apart by the upper byte of their tags.
                let fields = [("inputs", number(inputs)), ("tag", (((tag & 0x7f) << 24) | i).to_string())];
                constructors.push(self.constructor(&c.name, header, &fields));
            }
            let constructors = self.w.array(constructors);
            let fields =
                [("header", number(header)), ("type_vars", number(type_vars)), ("constructors", number(constructors))];
            types.extend([header, self.w.object("relay.TypeData", &fields)]);
            type_names.push((adt.name.to_string(), header));
        }
        let (mut functions, mut names) = (Vec::new(), Vec::new());
        for (name, id) in self.m.functions() {
            let function = self.expr(id)?;
            let global = self.global(name);
            functions.extend([global, function]);
            names.push((name.to_string(), global));
        }
        let functions = self.w.pairs(functions);
        let types = self.w.pairs(types);
        let (names, type_names) = (self.w.map(names), self.w.map(type_names));
        let sources = self.w.map(Vec::new());
        let sources = self.w.object("SourceMap", &[("source_map", number(sources))]);
        let attrs = self.dict_attrs(self.m.attrs.as_ref().unwrap_or(&Attrs::empty()))?;
        let fields = [
            ("functions", number(functions)),
            ("type_definitions", number(types)),
            ("global_var_map_", number(names)),
            ("global_type_var_map_", number(type_names)),
            ("source_map", number(sources)),
            ("attrs", number(attrs)),
        ];
        Ok(self.w.object("IRModule", &fields))
    }

    /// An object with nothing but a name, made once.
    fn named(&mut self, type_key: &str, name: &str, more: &[(&str, String)]) -> usize {
        let hint = self.w.string(name);
        let mut fields = vec![("name_hint", number(hint))];
        fields.extend_from_slice(more);
        self.w.object(type_key, &fields)
    }

    fn global(&mut self, name: &Name) -> usize {
        if let Some(&n) = self.globals.get(name) {
            return n;
        }
        let n = self.named("GlobalVar", name, &[]);
        self.globals.insert(name.clone(), n);
        n
    }

    fn adt(&mut self, name: &Name) -> usize {
        if let Some(&n) = self.adts.get(name) {
            return n;
        }
        let n = self.named("GlobalTypeVar", name, &[("kind", kind::ADT.to_owned())]);
        self.adts.insert(name.clone(), n);
        n
    }

    fn constructor(&mut self, name: &Name, adt: usize, fields: &[(&str, String)]) -> usize {
        let mut more = vec![("belong_to", number(adt))];
        more.extend_from_slice(fields);
        let n = self.named("relay.Constructor", name, &more);
        self.constructors.insert(name.clone(), n);
        n
    }

    fn known_constructor(&self, name: &Name) -> Result<usize, Refused> {
        match self.constructors.get(name) {
            Some(&n) => Ok(n),
            None => refuse(format!("the constructor `{name}` belongs to no data type of the module")),
        }
    }

    fn type_var(&mut self, v: TypeVarId) -> usize {
        if let Some(&n) = self.type_vars.get(&v) {
            return n;
        }
        let n = self.named("TypeVar", self.m.type_var(v), &[("kind", kind::TYPE.to_owned())]);
        self.type_vars.insert(v, n);
        n
    }

    fn var(&mut self, v: VarId) -> Result<usize, Refused> {
        if let Some(&n) = self.vars.get(&v) {
            return Ok(n);
        }
        let info = self.m.var(v);
        let vid = self.named("relay.Id", &info.name, &[]);
        let ty = self.annotation(info.ty.as_ref())?;
        let n = self.w.object("relay.Var", &[("vid", number(vid)), ("type_annotation", number(ty))]);
        self.vars.insert(v, n);
        Ok(n)
    }

    fn annotation(&mut self, ty: Option<&Type>) -> Result<usize, Refused> {
        ty.map_or(Ok(0), |t| self.ty(t))
    }

    fn types(&mut self, types: &[Type]) -> Result<usize, Refused> {
        // A plain loop: this recurses, and iterators would take more of the stack.
        let mut ids = Vec::with_capacity(types.len());
        for t in types {
            ids.push(self.ty(t)?);
        }
        Ok(self.w.array(ids))
    }

    fn tensor_type(&mut self, t: &TensorType) -> usize {
        let vars = t.shape.iter().filter_map(|d| match d {
            Dim::Var(v) => Some((*v, self.type_var(*v))),
            _ => None,
        });
        let vars: HashMap<TypeVarId, usize> = vars.collect();
        let m = self.m;
        // An extent's parameter is told apart from others of its name by its type.
        let shape = self.w.shape(&t.shape, |w, d| match d {
            Dim::Var(v) => {
                let name = w.string(m.type_var(v));
                let fields =
                    [("name", number(name)), ("dtype", "int32".to_owned()), ("type_annotation", number(vars[&v]))];
                w.object("tir.Var", &fields)
            }
            _ => w.object("tir.Any", &[("dtype", "int32".to_owned())]),
        });
        self.w.object("relay.TensorType", &[("shape", number(shape)), ("dtype", t.dtype.to_string())])
    }

    /// Types nest as deep as the program's author wrote them, which the parsers bound.
    fn ty(&mut self, ty: &Type) -> Result<usize, Refused> {
        Ok(match ty {
            Type::Tensor(t) => self.tensor_type(t),
            Type::Tuple(fields) => {
                let fields = self.types(fields)?;
                self.w.object("TupleType", &[("fields", number(fields))])
            }
            Type::Func(f) => {
                let (params, ret) = (self.types(&f.params)?, self.ty(&f.ret)?);
                let type_params = f.type_params.iter().map(|&v| self.type_var(v)).collect();
                let (type_params, constraints) = (self.w.array(type_params), self.w.array(Vec::new()));
                let fields = [
                    ("arg_types", number(params)),
                    ("ret_type", number(ret)),
                    ("type_params", number(type_params)),
                    ("type_constraints", number(constraints)),
                ];
                self.w.object("FuncType", &fields)
            }
            Type::Ref(t) => {
                let value = self.ty(t)?;
                self.w.object("relay.RefType", &[("value", number(value))])
            }
            Type::Adt(name, args) if args.is_empty() => self.adt(name),
            Type::Adt(name, args) => {
                let (func, args) = (self.adt(name), self.types(args)?);
                self.w.object("TypeCall", &[("func", number(func)), ("args", number(args))])
            }
            Type::Var(v) => self.type_var(*v),
            Type::Hole(_) => self.w.object("IncompleteType", &[("kind", kind::TYPE.to_owned())]),
        })
    }

    fn expr(&mut self, root: ExprId) -> Result<usize, Refused> {
        for id in reachable(self.m, [root]) {
            if !self.exprs.contains_key(&id) {
                let n = self.write(id)?;
                self.exprs.insert(id, n);
            }
        }
        Ok(self.exprs[&root])
    }

    /// The number of a child, which is older and so written already.
    fn at(&self, id: ExprId) -> String {
        number(self.exprs[&id])
    }

    fn list(&mut self, ids: &[ExprId]) -> String {
        let numbers = ids.iter().map(|id| self.exprs[id]).collect();
        number(self.w.array(numbers))
    }

    fn write(&mut self, id: ExprId) -> Result<usize, Refused> {
        let m = self.m;
        let (key, fields) = match &m[id] {
            Expr::Var(v) => return self.var(*v),
            Expr::Global(name) => return Ok(self.global(name)),
            Expr::Constant(t) => return Ok(self.w.constant(t)),
            Expr::Op(op) => return Ok(self.op(op.op().name())),
            Expr::Constructor(name) => return self.known_constructor(name),
            Expr::Call { callee, args, attrs, type_args } => {
                let record = match m[*callee] {
                    Expr::Op(op) => self.op_attrs(op.op().name(), attrs)?,
                    _ if attrs.is_empty() => 0,
                    _ => self.dict_attrs(attrs)?,
                };
                let (args, type_args) = (self.list(args), self.types(type_args)?);
                let fields = vec![
                    ("op", self.at(*callee)),
                    ("args", args),
                    ("attrs", number(record)),
                    ("type_args", number(type_args)),
                ];
                ("relay.Call", fields)
            }
            Expr::Tuple(fields) => ("relay.Tuple", vec![("fields", self.list(fields))]),
            Expr::Proj(e, i) => ("relay.TupleGetItem", vec![("tuple_value", self.at(*e)), ("index", number(*i))]),
            Expr::Let { var, value, body } => {
                let var = number(self.var(*var)?);
                ("relay.Let", vec![("var", var), ("value", self.at(*value)), ("body", self.at(*body))])
            }
            Expr::If { cond, then, otherwise } => {
                let branches = [("true_branch", self.at(*then)), ("false_branch", self.at(*otherwise))];
                ("relay.If", [vec![("cond", self.at(*cond))], branches.into()].concat())
            }
            Expr::Func(f) => ("relay.Function", self.function(f)?),
            Expr::Match { data, clauses, complete } => {
                let mut numbers = Vec::new();
                for c in clauses {
                    let pattern = self.pattern(&c.pattern)?;
                    numbers.push(self.w.object("relay.Clause", &[("lhs", number(pattern)), ("rhs", self.at(c.body))]));
                }
                let clauses = number(self.w.array(numbers));
                let complete = (*complete as u8).to_string();
                ("relay.Match", vec![("data", self.at(*data)), ("clauses", clauses), ("complete", complete)])
            }
            Expr::RefNew(e) => ("relay.RefCreate", vec![("value", self.at(*e))]),
            Expr::RefRead(e) => ("relay.RefRead", vec![("ref", self.at(*e))]),
            Expr::RefWrite(cell, e) => ("relay.RefWrite", vec![("ref", self.at(*cell)), ("value", self.at(*e))]),
        };
        Ok(self.w.object(key, &fields))
    }

    fn function(&mut self, f: &Function) -> Result<Vec<(&'static str, String)>, Refused> {
        let params = f.params.iter().map(|&v| self.var(v)).collect::<Result<_, _>>()?;
        let type_params = f.type_params.iter().map(|&v| self.type_var(v)).collect();
        let ret = self.annotation(f.ret.as_ref())?;
        let attrs = if f.attrs.is_empty() { 0 } else { self.dict_attrs(&f.attrs)? };
        Ok(vec![
            ("params", number(self.w.array(params))),
            ("body", self.at(f.body)),
            ("ret_type", number(ret)),
            ("type_params", number(self.w.array(type_params))),
            ("attrs", number(attrs)),
        ])
    }

    fn pattern(&mut self, p: &Pattern) -> Result<usize, Refused> {
        let inner: &[Pattern] = match p {
            Pattern::Tuple(ps) | Pattern::Constructor(_, ps) => ps,
            Pattern::Wildcard | Pattern::Var(_) => &[],
        };
        // A plain loop, as for types.
        let mut ids = Vec::with_capacity(inner.len());
        for p in inner {
            ids.push(self.pattern(p)?);
        }
        self.pattern_of(p, ids)
    }

    /// A pattern whose parts are these objects.
    fn pattern_of(&mut self, p: &Pattern, parts: Vec<usize>) -> Result<usize, Refused> {
        Ok(match p {
            Pattern::Wildcard => self.w.object("relay.PatternWildcard", &[]),
            Pattern::Var(v) => {
                let var = self.var(*v)?;
                self.w.object("relay.PatternVar", &[("var", number(var))])
            }
            Pattern::Tuple(_) => {
                let ps = self.w.array(parts);
                self.w.object("relay.PatternTuple", &[("patterns", number(ps))])
            }
            Pattern::Constructor(name, _) => {
                let (constructor, ps) = (self.known_constructor(name)?, self.w.array(parts));
                let fields = [("constructor", number(constructor)), ("patterns", number(ps))];
                self.w.object("relay.PatternConstructor", &fields)
            }
        })
    }

    fn op(&mut self, name: &str) -> usize {
        if let Some(&n) = self.ops.get(name) {
            return n;
        }
        let n = self.w.graph.add(Node::with_repr("Op", name));
        self.ops.insert(name.into(), n);
        n
    }

    fn op_attrs(&mut self, op: &str, attrs: &Attrs) -> Result<usize, Refused> {
        match schema::attrs_of(op) {
            Some(key) => self.w.record(key, attrs.iter()),
            None if attrs.is_empty() => Ok(0),
            None => refuse(format!("TVM's operator `{op}` has no attributes, so these can't be written as JSON")),
        }
    }

    fn dict_attrs(&mut self, attrs: &Attrs) -> Result<usize, Refused> {
        let entries =
            attrs.iter().map(|(k, v)| Ok((k.to_string(), self.w.value(v)?))).collect::<Result<_, Refused>>()?;
        let dict = self.w.map(entries);
        Ok(self.w.object("DictAttrs", &[("__dict__", number(dict))]))
    }
}
