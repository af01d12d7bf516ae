//! Modules from TVM's JSON.

use hashbrown::HashMap;

use super::{graph::Graph, schema};
use crate::{
    diag::Refused,
    ir::{
        AdtDef, AttrValue, Attrs, Clause, Constructor, Dim, Expr, ExprId, FuncType, Function, Module, Name, OpId,
        Pattern, TensorType, Type, TypeVarId, VarId,
    },
    ops,
};

/// What a node has become.
#[derive(Clone)]
enum Made {
    /// Something that whoever refers to it reads itself.
    Plain,
    Expr(ExprId),
    Type(Type),
    Pattern(Pattern),
    Clause(Clause),
}

struct Reader<'a> {
    graph: &'a Graph,
    module: Module,
    made: HashMap<usize, Made>,
    vars: HashMap<usize, (VarId, ExprId)>,
    type_vars: HashMap<usize, TypeVarId>,
    /// How deep types and patterns nest.
    depths: HashMap<usize, usize>,
    holes: u32,
}

/// How deep types and patterns may nest; the list between each and the next counts too.
const DEEPEST: usize = 2 * crate::relay::DEEPEST;

/// Reads a program that `tvm.ir.save_json` wrote: a module, or one function, which becomes `@main`. `name` stands for the text
/// in messages.
///
/// Inferred types, devices and source places that TVM wrote along are not read.
pub fn parse_module(name: &str, text: &str) -> Result<Module, Refused> {
    let graph = Graph::parse(name, text)?;
    let mut reader = Reader {
        graph: &graph,
        module: Module::new(),
        made: HashMap::new(),
        vars: HashMap::new(),
        type_vars: HashMap::new(),
        depths: HashMap::new(),
        holes: 0,
    };
    match graph.key(graph.root) {
        "IRModule" => reader.module(graph.root)?,
        "relay.Function" => reader.function("main", graph.root)?,
        _ => return graph.refuse(graph.root, "a module or a function is wanted"),
    }
    Ok(reader.module)
}

impl Reader<'_> {
    fn module(&mut self, root: usize) -> Result<(), Refused> {
        let g = self.graph;
        for (name, data) in g.entries(g.reference(root, "type_definitions")?)? {
            self.adt(name, data)?;
        }
        let functions = g.entries(g.reference(root, "functions")?)?;
        for (name, function) in functions {
            self.function(&name, function)?;
        }
        let attrs = self.dict_attrs(g.reference(root, "attrs")?)?;
        if !attrs.is_empty() {
            self.module.attrs = Some(attrs);
        }
        Ok(())
    }

    fn adt(&mut self, name: String, data: usize) -> Result<(), Refused> {
        let g = self.graph;
        if g.key(data) != "relay.TypeData" {
            return g.refuse(data, "a type definition is wanted here");
        }
        let params = g.list(data, "type_vars")?.iter().map(|&v| self.type_var(v)).collect::<Result<_, _>>()?;
        let mut constructors = Vec::new();
        for &c in g.list(data, "constructors")? {
            if g.key(c) != "relay.Constructor" {
                return g.refuse(c, "a constructor is wanted here");
            }
            let name = Name::from(g.string(c, "name_hint")?);
            let fields = g.list(c, "inputs")?.iter().map(|&t| self.whole_type(t)).collect::<Result<_, _>>()?;
            constructors.push(Constructor { name, fields });
        }
        let is_extern = constructors.is_empty();
        self.module.add_adt(AdtDef { name: name.into(), params, constructors, is_extern });
        Ok(())
    }

    fn function(&mut self, name: &str, node: usize) -> Result<(), Refused> {
        if self.graph.key(node) != "relay.Function" {
            return self.graph.refuse(node, format_args!("`@{name}` should be a Relay function"));
        }
        self.make_all(node)?;
        let id = self.expr(node)?;
        self.module.define(name, id);
        Ok(())
    }

    fn whole_type(&mut self, node: usize) -> Result<Type, Refused> {
        self.make_all(node)?;
        self.ty(node)
    }

    /// Makes everything that a node is made of, and the node itself.
    fn make_all(&mut self, root: usize) -> Result<(), Refused> {
        let (graph, made) = (self.graph, &self.made);
        let mut ordered = true;
        let mut order = graph.in_order(root, |n| {
            let parts = if made.contains_key(&n) { Vec::new() } else { parts(graph, n)? };
            ordered &= parts.iter().all(|&p| p < n);
            Ok(parts)
        })?;
        // TVM numbers parents first. A file that numbers them last, as resat's do, keeps its order.
        if ordered {
            order.sort_unstable();
        }
        for node in order {
            if !self.made.contains_key(&node) {
                let made = self.make(node)?;
                if !matches!(made, Made::Expr(_) | Made::Clause(_)) {
                    let depth =
                        parts(graph, node)?.iter().filter_map(|p| self.depths.get(p)).max().map_or(0, |d| d + 1);
                    if depth > DEEPEST {
                        return graph.refuse(node, "types or patterns nest too deep");
                    }
                    self.depths.insert(node, depth);
                }
                self.made.insert(node, made);
            }
        }
        Ok(())
    }

    fn expr(&self, node: usize) -> Result<ExprId, Refused> {
        match self.made.get(&node) {
            Some(Made::Expr(e)) => Ok(*e),
            _ => self.graph.refuse(node, "an expression is wanted here"),
        }
    }

    fn expr_at(&self, node: usize, field: &str) -> Result<ExprId, Refused> {
        self.expr(self.graph.reference(node, field)?)
    }

    fn exprs_at(&self, node: usize, field: &str) -> Result<Vec<ExprId>, Refused> {
        self.graph.list(node, field)?.iter().map(|&e| self.expr(e)).collect()
    }

    fn ty(&self, node: usize) -> Result<Type, Refused> {
        match self.made.get(&node) {
            Some(Made::Type(t)) => Ok(t.clone()),
            _ => self.graph.refuse(node, "a type is wanted here"),
        }
    }

    fn types_at(&self, node: usize, field: &str) -> Result<Vec<Type>, Refused> {
        self.graph.list(node, field)?.iter().map(|&t| self.ty(t)).collect()
    }

    /// A type that may be left out: null, or not known.
    fn annotation(&self, node: usize, field: &str) -> Result<Option<Type>, Refused> {
        let ty = self.graph.reference(node, field)?;
        match self.graph.key(ty) {
            "" | "IncompleteType" => Ok(None),
            _ => self.ty(ty).map(Some),
        }
    }

    fn patterns_at(&self, node: usize, field: &str) -> Result<Vec<Pattern>, Refused> {
        self.graph.list(node, field)?.iter().map(|&p| self.pattern(p)).collect()
    }

    fn pattern(&self, node: usize) -> Result<Pattern, Refused> {
        match self.made.get(&node) {
            Some(Made::Pattern(p)) => Ok(p.clone()),
            _ => self.graph.refuse(node, "a pattern is wanted here"),
        }
    }

    fn var_at(&self, node: usize, field: &str) -> Result<VarId, Refused> {
        self.bound_var(self.graph.reference(node, field)?)
    }

    fn bound_var(&self, node: usize) -> Result<VarId, Refused> {
        match self.made.get(&node) {
            Some(Made::Expr(e)) if let Expr::Var(v) = self.module[*e] => Ok(v),
            _ => self.graph.refuse(node, "a variable is wanted here"),
        }
    }

    fn type_var(&mut self, node: usize) -> Result<TypeVarId, Refused> {
        if let Some(v) = self.type_vars.get(&node) {
            return Ok(*v);
        }
        if self.graph.key(node) != "TypeVar" {
            return self.graph.refuse(node, "a type parameter is wanted here");
        }
        let v = self.module.new_type_var(self.graph.string(node, "name_hint")?);
        self.type_vars.insert(node, v);
        Ok(v)
    }

    fn make(&mut self, node: usize) -> Result<Made, Refused> {
        let g = self.graph;
        let expr = match g.key(node) {
            "relay.Var" => return self.var(node).map(Made::Expr),
            "GlobalVar" => Expr::Global(g.string(node, "name_hint")?.into()),
            "relay.Constant" => Expr::Constant(g.array(node, "data")?.clone()),
            "Op" => Expr::Op(self.op(node)?),
            "relay.Constructor" => Expr::Constructor(g.string(node, "name_hint")?.into()),
            "relay.Call" => self.call(node)?,
            "relay.Tuple" => Expr::Tuple(self.exprs_at(node, "fields")?),
            "relay.TupleGetItem" => match usize::try_from(g.int(node, "index")?) {
                Ok(i) => Expr::Proj(self.expr_at(node, "tuple_value")?, i),
                Err(_) => return g.refuse(node, "a field's number is from 0"),
            },
            "relay.Let" => Expr::Let {
                var: self.var_at(node, "var")?,
                value: self.expr_at(node, "value")?,
                body: self.expr_at(node, "body")?,
            },
            "relay.If" => Expr::If {
                cond: self.expr_at(node, "cond")?,
                then: self.expr_at(node, "true_branch")?,
                otherwise: self.expr_at(node, "false_branch")?,
            },
            "relay.Function" => {
                let params = g.list(node, "params")?.iter().map(|&p| self.bound_var(p)).collect::<Result<_, _>>()?;
                let type_params =
                    g.list(node, "type_params")?.iter().map(|&v| self.type_var(v)).collect::<Result<_, _>>()?;
                Expr::Func(Box::new(Function {
                    type_params,
                    params,
                    ret: self.annotation(node, "ret_type")?,
                    body: self.expr_at(node, "body")?,
                    attrs: self.dict_attrs(g.reference(node, "attrs")?)?,
                }))
            }
            "relay.Match" => {
                let clauses = g.list(node, "clauses")?.iter().map(|c| match self.made.get(c) {
                    Some(Made::Clause(clause)) => Ok(clause.clone()),
                    _ => g.refuse(*c, "a case of a match is wanted here"),
                });
                let clauses = clauses.collect::<Result<_, _>>()?;
                Expr::Match { data: self.expr_at(node, "data")?, clauses, complete: g.int(node, "complete")? != 0 }
            }
            "relay.RefCreate" => Expr::RefNew(self.expr_at(node, "value")?),
            "relay.RefRead" => Expr::RefRead(self.expr_at(node, "ref")?),
            "relay.RefWrite" => Expr::RefWrite(self.expr_at(node, "ref")?, self.expr_at(node, "value")?),
            "relay.PatternWildcard" => return Ok(Made::Pattern(Pattern::Wildcard)),
            "relay.PatternVar" => return Ok(Made::Pattern(Pattern::Var(self.var_at(node, "var")?))),
            "relay.PatternTuple" => return Ok(Made::Pattern(Pattern::Tuple(self.patterns_at(node, "patterns")?))),
            "relay.PatternConstructor" => {
                let constructor = g.reference(node, "constructor")?;
                let name = g.string(constructor, "name_hint")?.into();
                return Ok(Made::Pattern(Pattern::Constructor(name, self.patterns_at(node, "patterns")?)));
            }
            "relay.Clause" => {
                let pattern = self.pattern(g.reference(node, "lhs")?)?;
                return Ok(Made::Clause(Clause { pattern, body: self.expr_at(node, "rhs")? }));
            }
            _ => return self.make_type(node),
        };
        Ok(Made::Expr(self.module.add(expr)))
    }

    /// Variables are the same where their identity node is.
    fn var(&mut self, node: usize) -> Result<ExprId, Refused> {
        let g = self.graph;
        let id = g.reference(node, "vid")?;
        if let Some((_, e)) = self.vars.get(&id) {
            return Ok(*e);
        }
        let ty = self.annotation(node, "type_annotation")?;
        let var = self.module.new_var(g.string(id, "name_hint")?, ty);
        let e = self.module.add(Expr::Var(var));
        self.vars.insert(id, (var, e));
        Ok(e)
    }

    fn op(&self, node: usize) -> Result<OpId, Refused> {
        let name = self.graph.repr(node)?;
        match ops::lookup(&name) {
            Some(op) => Ok(op),
            None => {
                if let Some(reason) = ops::unsupported(&name) {
                    return self.graph.refuse(node, format_args!("operator `{name}` is not supported: {reason}"));
                }
                let near = ops::suggest(&name).map(|s| format!("; did you mean `{s}`?")).unwrap_or_default();
                self.graph.refuse(node, format_args!("unknown operator `{name}`{near}"))
            }
        }
    }

    fn call(&self, node: usize) -> Result<Expr, Refused> {
        let g = self.graph;
        let callee = self.expr_at(node, "op")?;
        let record = g.reference(node, "attrs")?;
        let attrs = match self.module[callee] {
            Expr::Op(op) => self.op_attrs(node, op, record)?,
            _ => self.dict_attrs(record)?,
        };
        Ok(Expr::Call {
            callee,
            args: self.exprs_at(node, "args")?,
            attrs,
            type_args: self.types_at(node, "type_args")?,
        })
    }

    fn op_attrs(&self, call: usize, op: OpId, record: usize) -> Result<Attrs, Refused> {
        let g = self.graph;
        let mut given = match g.key(record) {
            "" => Vec::new(),
            "DictAttrs" => g.dict_fields(record)?,
            key if key.starts_with(schema::ATTRS_PREFIX) => g.record(record)?,
            _ => return g.refuse(record, "attributes are wanted here"),
        };
        // TVM writes fields out that nothing set, as null; what that stands for is the table's default.
        let schema = op.op().attrs();
        given.retain(|(name, value)| {
            *value != AttrValue::None
                || schema.iter().any(|f| f.name == name.as_str() && f.default == ops::AttrDefault::None)
        });
        ops::make_attrs(op, &given).or_else(|e| g.refuse(call, e))
    }

    fn dict_attrs(&self, node: usize) -> Result<Attrs, Refused> {
        match self.graph.key(node) {
            "" => Ok(Attrs::empty()),
            "DictAttrs" => self.graph.dict_fields(node).map(Attrs::new),
            key if key.starts_with(schema::ATTRS_PREFIX) => self.graph.record(node).map(Attrs::new),
            _ => self.graph.refuse(node, "attributes are wanted here"),
        }
    }

    fn make_type(&mut self, node: usize) -> Result<Made, Refused> {
        let g = self.graph;
        Ok(Made::Type(match g.key(node) {
            "relay.TensorType" => self.tensor_type(node)?.into(),
            "TupleType" => Type::Tuple(self.types_at(node, "fields")?.into()),
            "FuncType" => {
                if !g.list(node, "type_constraints")?.is_empty() {
                    return g.refuse(node, "type constraints are not supported");
                }
                let type_params =
                    g.list(node, "type_params")?.iter().map(|&v| self.type_var(v)).collect::<Result<_, _>>()?;
                let params = self.types_at(node, "arg_types")?;
                Type::Func(FuncType { type_params, params, ret: self.ty(g.reference(node, "ret_type")?)? }.into())
            }
            "relay.RefType" => Type::Ref(self.ty(g.reference(node, "value")?)?.into()),
            "TypeCall" => {
                let head = g.reference(node, "func")?;
                Type::Adt(g.string(head, "name_hint")?.into(), self.types_at(node, "args")?.into())
            }
            "GlobalTypeVar" => Type::Adt(g.string(node, "name_hint")?.into(), [].into()),
            "TypeVar" => Type::Var(self.type_var(node)?),
            "IncompleteType" => {
                self.holes += 1;
                Type::Hole(self.holes - 1)
            }
            "" | "Array" => return Ok(Made::Plain),
            _ => return g.refuse(node, "an object of this type has no place in a Relay program"),
        }))
    }

    fn tensor_type(&mut self, node: usize) -> Result<TensorType, Refused> {
        let g = self.graph;
        if let Some(t) = g.tensor_type(node)? {
            return Ok(t);
        }
        let extent = |&n: &usize| match g.key(n) {
            "IntImm" => g.int(n, "value").map(Dim::Known),
            "tir.Any" => Ok(Dim::Any),
            "tir.Var" if g.key(g.reference(n, "type_annotation")?) == "TypeVar" => {
                self.type_var(g.reference(n, "type_annotation")?).map(Dim::Var)
            }
            _ => g.refuse(n, "extents that are expressions are not supported"),
        };
        let shape = g.list(node, "shape")?.iter().map(extent).collect::<Result<Vec<Dim>, _>>()?;
        match g.dtype(node, "dtype")? {
            Some(dtype) => Ok(TensorType::of(shape, dtype)),
            None => g.refuse(node, "a tensor type needs an element type"),
        }
    }
}

/// What must be made before a node: what it refers to, but for what is read with it and what is not read at all.
fn parts(g: &Graph, node: usize) -> Result<Vec<usize>, Refused> {
    let fields: &[&str] = match g.key(node) {
        "Array" => return Ok(g.nodes[node].data.clone()),
        "relay.Var" => &["type_annotation"],
        "relay.Call" => &["op", "args", "type_args"],
        "relay.Tuple" | "TupleType" => &["fields"],
        "relay.TupleGetItem" => &["tuple_value"],
        "relay.Let" => &["var", "value", "body"],
        "relay.If" => &["cond", "true_branch", "false_branch"],
        "relay.Function" => &["params", "type_params", "ret_type", "body"],
        "relay.Match" => &["data", "clauses"],
        "relay.Clause" => &["lhs", "rhs"],
        "relay.PatternVar" => &["var"],
        "relay.PatternTuple" | "relay.PatternConstructor" => &["patterns"],
        "relay.RefCreate" | "relay.RefType" => &["value"],
        "relay.RefRead" => &["ref"],
        "relay.RefWrite" => &["ref", "value"],
        "FuncType" => &["type_params", "arg_types", "ret_type"],
        "TypeCall" => &["args"],
        _ => &[],
    };
    fields.iter().map(|f| g.reference(node, f)).collect()
}
