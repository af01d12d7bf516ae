//! The printer: canonical text, with what is left to print on an explicit stack.

use hashbrown::HashMap;

use super::{
    literal,
    places::{BlockId, Places, is_atom},
};
use crate::{
    ir::{AdtDef, Expr, ExprId, Module, TypeVarId, VarId, free_vars},
    relay::json::{self, Metadata},
    tensor::Tensor,
};

const VERSION: &str = "#[version = \"0.0.5\"]\n";

/// Indentation grows no further from this depth on, or the text would grow with the square of it.
const DEEPEST_INDENT: usize = 50;

pub(super) fn module(m: &Module) -> String {
    whole(Printer::new(m))
}

/// The module without the contents of its constants.
pub(super) fn brief(m: &Module) -> String {
    whole(Printer { brief: true, ..Printer::new(m) })
}

fn whole(mut p: Printer<'_>) -> String {
    let m = p.m;
    let mut first = true;
    for adt in m.adts().iter().filter(|a| !a.is_extern) {
        p.gap(&mut first);
        p.adt(adt);
    }
    for (name, f) in m.functions() {
        p.gap(&mut first);
        p.out.push_str("def @");
        p.out.push_str(name);
        p.begin(f);
        p.header(m.func(f));
        p.out.push_str("{\n");
        p.free_vars(f, 1);
        p.indent(1);
        let body = p.places().block_of[&(f, 0)];
        p.run(vec![Task::Line(0), Task::Text("}"), Task::Line(0), Task::Block(body, 0, 1)]);
    }
    // TVM's parser reads nothing after an extern type.
    for adt in m.adts().iter().filter(|a| a.is_extern) {
        p.gap(&mut first);
        p.adt(adt);
    }
    p.finish()
}

pub(super) fn expr(m: &Module, e: ExprId) -> String {
    let mut p = Printer::new(m);
    p.begin(e);
    p.free_vars(e, 0);
    p.run(vec![Task::Line(0), Task::Block(0, 0, 0)]);
    p.finish()
}

/// What is left to print; the number is the indentation of the lines within.
enum Task {
    Text(&'static str),
    Line(usize),
    /// A block's value or (in parentheses, where TVM's grammar asks for them) a `let`'s: an expression, or its name.
    Value {
        e: ExprId,
        depth: usize,
        parens: bool,
    },
    /// An expression itself, not its name.
    Expr(ExprId, usize),
    /// `%0 = …;` and its line.
    Bind(ExprId, usize),
    /// A block from its `let` of that number on.
    Block(BlockId, usize, usize),
    /// `let %x: T = `, without the value.
    Let(ExprId),
    /// A pattern and the arrow after it.
    Clause(ExprId, usize),
}

pub(super) struct Printer<'a> {
    pub m: &'a Module,
    pub out: String,
    pub places: Option<Places>,
    /// Numbers of bound expressions. They go through the whole text: TVM's parser keeps the first of equal numbers.
    pub numbers: HashMap<ExprId, usize>,
    pub next_number: usize,
    pub vars: HashMap<VarId, String>,
    pub type_vars: HashMap<TypeVarId, String>,
    /// Names given in the present definition, and the numbers that made the last of each unique.
    pub names: HashMap<String, usize>,
    pub type_names: HashMap<String, usize>,
    pub metadata: Metadata,
    pub constants: HashMap<Tensor, usize>,
    /// Whether a digest stands for a constant's content.
    pub brief: bool,
}

impl<'a> Printer<'a> {
    fn new(m: &'a Module) -> Printer<'a> {
        Printer {
            m,
            out: VERSION.to_owned(),
            places: None,
            numbers: HashMap::new(),
            next_number: 0,
            vars: HashMap::new(),
            type_vars: HashMap::new(),
            names: HashMap::new(),
            type_names: HashMap::new(),
            metadata: Metadata::new(),
            constants: HashMap::new(),
            brief: false,
        }
    }

    fn finish(mut self) -> String {
        if !self.metadata.is_empty() {
            self.out.push_str("\n#[metadata]\n");
            let json = json::print_metadata(&self.metadata).expect("objects are tried before they are put there");
            self.out.push_str(&json);
            self.out.push('\n');
        }
        self.out
    }

    fn gap(&mut self, first: &mut bool) {
        if !std::mem::take(first) {
            self.out.push('\n');
        }
    }

    fn adt(&mut self, adt: &AdtDef) {
        self.type_names.clear();
        self.out.push_str(if adt.is_extern { "extern type " } else { "type " });
        self.out.push_str(&adt.name);
        self.type_params(&adt.params);
        if !adt.is_extern {
            self.out.push_str(" {\n");
            for c in &adt.constructors {
                self.out.push_str("  ");
                self.out.push_str(&c.name);
                if !c.fields.is_empty() {
                    self.out.push('(');
                    self.types(&c.fields);
                    self.out.push(')');
                }
                self.out.push_str(",\n");
            }
            self.out.push('}');
        }
        self.out.push('\n');
    }

    /// Makes ready for a function or expression: names start over.
    fn begin(&mut self, root: ExprId) {
        self.names.clear();
        self.type_names.clear();
        self.vars.clear();
        self.type_vars.clear();
        self.numbers.clear();
        self.places = Some(Places::of(self.m, root));
    }

    fn free_vars(&mut self, root: ExprId, indent: usize) {
        for v in free_vars(self.m, root) {
            self.indent(indent);
            self.out.push_str("free_var ");
            self.var(v);
            self.out.push_str(";\n");
        }
    }

    pub(super) fn places(&self) -> &Places {
        self.places.as_ref().expect("a definition is being printed")
    }

    fn indent(&mut self, depth: usize) {
        for _ in 0..depth.min(DEEPEST_INDENT) {
            self.out.push_str("  ");
        }
    }

    fn run(&mut self, mut tasks: Vec<Task>) {
        while let Some(task) = tasks.pop() {
            match task {
                Task::Text(t) => self.out.push_str(t),
                Task::Line(depth) => {
                    self.out.push('\n');
                    self.indent(depth);
                }
                Task::Expr(e, depth) => self.expr(e, depth, &mut tasks),
                Task::Value { e, .. } if is_atom(&self.m[e]) || !self.places().stands_at_its_use(e) => {
                    self.reference(e)
                }
                Task::Value { e, depth, parens: true } => self.operand(e, depth, &mut tasks),
                Task::Value { e, depth, .. } => self.expr(e, depth, &mut tasks),
                Task::Block(b, at, depth) => self.block(b, at, depth, &mut tasks),
                Task::Bind(e, depth) => {
                    let number = self.next_number;
                    self.next_number += 1;
                    self.numbers.insert(e, number);
                    self.out.push_str(&format!("%{number} = "));
                    tasks.push(Task::Line(depth));
                    tasks.push(Task::Text(";"));
                    self.operand(e, depth, &mut tasks);
                }
                Task::Let(e) => {
                    if let Expr::Let { var, .. } = self.m[e] {
                        self.out.push_str("let ");
                        self.var(var);
                        self.out.push_str(" = ");
                    }
                }
                Task::Clause(e, i) => {
                    if let Expr::Match { clauses, .. } = &self.m[e] {
                        self.pattern(&clauses[i].pattern);
                        self.out.push_str(" => {");
                    }
                }
            }
        }
    }

    /// An expression where TVM's grammar has no `let` and no `match` but in parentheses.
    fn operand(&mut self, e: ExprId, depth: usize, tasks: &mut Vec<Task>) {
        match &self.m[e] {
            Expr::Let { .. } => {
                let block = self.places().block_of[&(e, 0)];
                tasks.extend([Task::Text(")"), Task::Line(depth), Task::Block(block, 0, depth + 1)]);
                tasks.extend([Task::Line(depth + 1), Task::Text("(")]);
            }
            Expr::Match { .. } => {
                tasks.extend([Task::Text(")"), Task::Line(depth), Task::Expr(e, depth + 1)]);
                tasks.extend([Task::Line(depth + 1), Task::Text("(")]);
            }
            _ => tasks.push(Task::Expr(e, depth)),
        }
    }

    /// A block from its `let` number `at` on: bindings, the `let`, and so on; at last its value.
    fn block(&mut self, b: BlockId, at: usize, depth: usize, tasks: &mut Vec<Task>) {
        let places = self.places.as_ref().expect("a definition is being printed");
        let block = &places.blocks[b];
        match block.lets.get(at) {
            Some(&e) => {
                tasks.push(Task::Block(b, at + 1, depth));
                tasks.push(Task::Line(depth));
                tasks.push(Task::Text(";"));
                if let Expr::Let { value, .. } = self.m[e] {
                    tasks.push(Task::Value { e: value, depth, parens: true });
                }
                tasks.push(Task::Let(e));
            }
            None => tasks.push(Task::Value { e: block.value, depth, parens: false }),
        }
        if let Some(bound) = places.bound.get(&(b, at)) {
            tasks.extend(bound.iter().rev().map(|&e| Task::Bind(e, depth)));
        }
    }

    /// An expression's name, or itself where it is an atom.
    pub(super) fn reference(&mut self, e: ExprId) {
        match &self.m[e] {
            Expr::Var(v) => {
                let name = self.var_name(*v);
                self.out.push('%');
                self.out.push_str(&name);
            }
            Expr::Global(name) => {
                self.out.push('@');
                self.out.push_str(name);
            }
            Expr::Constant(t) => match literal::scalar(t) {
                Some(text) => self.out.push_str(&text),
                None if self.brief => {
                    let extents = t.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                    self.out.push_str(&format!("constant(({extents}), {}, …{:08x})", t.dtype(), t.digest() as u32));
                }
                None => self.constant(t),
            },
            Expr::Op(op) => self.out.push_str(op.op().name()),
            Expr::Constructor(name) => self.out.push_str(name),
            _ => {
                let number = self.numbers[&e];
                self.out.push_str(&format!("%{number}"));
            }
        }
    }

    pub(super) fn references(&mut self, es: &[ExprId]) {
        for (i, &e) in es.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.reference(e);
        }
    }

    fn expr(&mut self, e: ExprId, depth: usize, tasks: &mut Vec<Task>) {
        match &self.m[e] {
            Expr::Call { callee, args, attrs, .. } => self.call(*callee, args, attrs),
            Expr::Tuple(items) => {
                self.out.push('(');
                self.references(items);
                self.out.push_str(if items.len() == 1 { ",)" } else { ")" });
            }
            Expr::Proj(base, i) => {
                // Where `%x.0` is a variable too, the projection of `%x` needs parentheses.
                let taken = matches!(self.m[*base], Expr::Var(v) if {
                    let name = self.var_name(v);
                    self.names.contains_key(&format!("{name}.{i}"))
                });
                let bare = !taken && !matches!(self.m[*base], Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_));
                self.out.push_str(if bare { "" } else { "(" });
                self.reference(*base);
                self.out.push_str(if bare { "" } else { ")" });
                self.out.push_str(&format!(".{i}"));
            }
            Expr::RefNew(v) => self.cell("ref(", &[*v]),
            Expr::RefRead(cell) => self.cell("ref_read(", &[*cell]),
            Expr::RefWrite(cell, v) => self.cell("ref_write(", &[*cell, *v]),
            Expr::Func(f) => {
                let body = self.places().block_of[&(e, 0)];
                self.out.push_str("fn ");
                self.header(f);
                self.out.push('{');
                tasks.extend([Task::Text("}"), Task::Line(depth), Task::Block(body, 0, depth + 1)]);
                tasks.push(Task::Line(depth + 1));
            }
            Expr::If { cond, .. } => {
                let (then, otherwise) = (self.places().block_of[&(e, 0)], self.places().block_of[&(e, 1)]);
                self.out.push_str("if (");
                self.reference(*cond);
                self.out.push_str(") {");
                tasks.extend([Task::Text("}"), Task::Line(depth), Task::Block(otherwise, 0, depth + 1)]);
                tasks.extend([Task::Line(depth + 1), Task::Text("} else {"), Task::Line(depth)]);
                tasks.extend([Task::Block(then, 0, depth + 1), Task::Line(depth + 1)]);
            }
            Expr::Match { data, clauses, complete } => {
                self.out.push_str(if *complete { "match (" } else { "match? (" });
                self.reference(*data);
                self.out.push_str(") {");
                tasks.extend([Task::Text("}"), Task::Line(depth)]);
                for i in (0..clauses.len()).rev() {
                    let body = self.places().block_of[&(e, i)];
                    tasks.extend([Task::Text("},"), Task::Line(depth + 1), Task::Block(body, 0, depth + 2)]);
                    tasks.extend([Task::Line(depth + 2), Task::Clause(e, i), Task::Line(depth + 1)]);
                }
            }
            Expr::Let { .. } => unreachable!("a `let` is one of its block's, or an operand"),
            Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_) => {
                unreachable!("atoms are printed by reference")
            }
        }
    }
}
