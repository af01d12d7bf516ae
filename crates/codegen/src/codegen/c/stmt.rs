//! Statements in C.

use std::fmt::Write;

use hashbrown::HashMap;

use super::{locals, memory_type, value_type};
use crate::{
    loops::{AxisId, BufferId, Kernel, LANE_LIMIT, LoopKind, Scalar, ScalarKind, Stmt, TileBlock, TileStep, affine},
    tensor::DType,
};

/// What a variable is where it stands.
#[derive(Clone)]
struct Bound {
    axis: AxisId,
    ty: &'static str,
    /// Its value in C.
    text: String,
}

/// The vector loop at hand.
#[derive(Clone)]
struct Lanes {
    axis: AxisId,
    /// How many, in C.
    count: String,
    /// How many at most.
    most: i64,
}

/// Prints the statements of a kernel.
pub(super) struct Printer<'a> {
    kernel: &'a Kernel,
    name: &'a str,
    /// Declarations that each function begins with.
    pointers: &'a str,
    out: String,
    depth: usize,
    scope: Vec<Bound>,
    /// Names of shared expressions that the statement at hand has computed. Expressions live as long as the kernel, so that
    /// addresses tell them apart.
    values: HashMap<usize, String>,
    /// The keys of `values` in the order in which they came, to forget those of a branch.
    value_log: Vec<usize>,
    /// What operations that C lacks are made of, by address: as long as this lives, so do these.
    expanded: HashMap<usize, Scalar>,
    names: usize,
    lanes: Option<Lanes>,
    /// The functions of parallel loops.
    bodies: Vec<String>,
}

impl<'a> Printer<'a> {
    pub(super) fn new(kernel: &'a Kernel, name: &'a str, pointers: &'a str) -> Self {
        Printer {
            kernel,
            name,
            pointers,
            out: String::new(),
            depth: 1,
            scope: Vec::new(),
            values: HashMap::new(),
            value_log: Vec::new(),
            expanded: HashMap::new(),
            names: 0,
            lanes: None,
            bodies: Vec::new(),
        }
    }

    /// The functions of parallel loops, and the statements.
    pub(super) fn finish(self) -> (String, String) {
        (self.bodies.concat(), self.out)
    }

    // Lines.

    pub(super) fn line(&mut self, text: &str) {
        self.out.push_str(&"  ".repeat(self.depth));
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Lines that were printed aside.
    pub(super) fn lines(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Prints something elsewhere, as the statements of a branch: what it computes is known in it alone.
    pub(super) fn aside<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> (String, T) {
        let outer = std::mem::take(&mut self.out);
        let known = self.value_log.len();
        self.depth += 1;
        let done = f(self);
        self.depth -= 1;
        while self.value_log.len() > known {
            let key = self.value_log.pop().expect("it is longer");
            self.values.remove(&key);
        }
        (std::mem::replace(&mut self.out, outer), done)
    }

    fn indented(&mut self, head: &str, f: impl FnOnce(&mut Self)) {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        f(self);
        self.depth -= 1;
        self.line("}");
    }

    // Names.

    pub(super) fn name(&mut self) -> String {
        self.names += 1;
        format!("t{}", self.names)
    }

    pub(super) fn known(&self, e: &Scalar) -> Option<String> {
        self.values.get(&e.key()).cloned()
    }

    /// A dot product, a fixed-point multiplication or a saturating conversion by operations that C has.
    pub(super) fn expanded(&mut self, e: &Scalar) -> Scalar {
        let plain = self.expanded.entry(e.key());
        plain.or_insert_with(|| e.expanded().expect("only such operations are expanded")).clone()
    }

    /// Names what an expression is, for the rest of the statement.
    pub(super) fn keep(&mut self, e: &Scalar, text: String) -> String {
        let name = self.name();
        self.line(&format!("const {} {name} = {text};", value_type(e.dtype())));
        self.values.insert(e.key(), name.clone());
        self.value_log.push(e.key());
        name
    }

    pub(super) fn variable(&self, axis: AxisId) -> String {
        let found = self.scope.iter().rev().find(|b| b.axis == axis);
        found.expect("the checker found every variable bound").text.clone()
    }

    /// Memory or control may change: what was computed before is computed again.
    fn forget(&mut self) {
        self.values.clear();
        self.value_log.clear();
    }

    fn with(&mut self, axis: AxisId, ty: &'static str, text: String, f: impl FnOnce(&mut Self)) {
        self.scope.push(Bound { axis, ty, text });
        f(self);
        self.scope.pop();
    }

    // Statements.

    pub(super) fn stmt(&mut self, s: &Stmt) {
        self.forget();
        match s {
            Stmt::Block(all) => all.iter().for_each(|s| self.stmt(s)),
            Stmt::Store { buffer, index, value } => match self.lanes.clone() {
                None => self.indented("", |p| p.store(*buffer, index, value)),
                Some(lanes) => self.vector_store(lanes, *buffer, index, value),
            },
            // C99 has no word for it.
            Stmt::Prefetch { .. } => {}
            Stmt::Transpose { from, at, stride, to, extent } => self.indented("", |p| {
                let (at, stride) = (p.expr(at, true), p.expr(stride, false));
                let (r, c) = (p.name(), p.name());
                p.line(&format!("for (int64_t {r} = 0; {r} < {extent}; {r}++)"));
                p.line(&format!("  for (int64_t {c} = 0; {c} < {extent}; {c}++)"));
                p.line(&format!("    b{}[{c} * {extent} + {r}] = b{}[{at} + {r} * {stride} + {c}];", to.0, from.0));
            }),
            Stmt::Let { var, value, body } => match self.lanes.clone() {
                None => self.indented("", |p| {
                    let text = p.expr(value, false);
                    let (name, ty) = (format!("i{}", var.0), value_type(value.dtype()));
                    p.line(&format!("const {ty} {name} = {text};"));
                    p.line(&format!("(void){name};"));
                    p.with(*var, ty, name, |p| p.stmt(body));
                }),
                Some(lanes) => self.vector_let(lanes, *var, value, body),
            },
            Stmt::If { cond, then, otherwise } => self.indented("", |p| {
                let c = p.expr(cond, false);
                p.indented(&format!("if ({c})"), |p| p.stmt(then));
                if let Some(otherwise) = otherwise {
                    p.indented("else", |p| p.stmt(otherwise));
                }
            }),
            Stmt::While { cond, body } => self.indented("for (;;)", |p| {
                let c = p.expr(cond, false);
                p.line(&format!("if (!{c}) break;"));
                p.stmt(body);
            }),
            Stmt::For { var, extent, kind, body } => self.for_loop(*var, extent, *kind, body),
            Stmt::Tiles { block, step } => self.indented("", |p| p.tiles(block, step)),
        }
    }

    /// Sums of tiles are in memory all the time.
    fn tiles(&mut self, block: &TileBlock, step: &TileStep) {
        let (sums, width, depth) = (block.sums.0, block.width(), block.depth);
        let (left, right) = match step {
            TileStep::Load | TileStep::Store | TileStep::Wake => return,
            TileStep::Clear => {
                let all = block.height() * width;
                return self.line(&format!("for (int64_t i = 0; i < {all}; i++) b{sums}[i] = 0;"));
            }
            TileStep::Add { left, right } => (left, right),
        };
        let [a_at, b_at] = [left, right].map(|o| o.at.iter().map(|at| self.expr(at, true)).collect::<Vec<String>>());
        let dtype = |b: BufferId| self.kernel.buffers[b.0 as usize].dtype;
        let number = |b: BufferId, at: String| match dtype(b) {
            DType::BF16 => format!("from_bf16(b{}[{at}])", b.0),
            _ => format!("(int32_t)b{}[{at}]", b.0),
        };
        let count = 4 / dtype(left.buffer).bytes() as i64;
        let (ty, words) = (if count == 2 { "float" } else { "int32_t" }, depth * count);
        for (k, [r, c, m, n]) in block.tiles().enumerate() {
            let a = number(left.buffer, format!("{} + m * {} + k", a_at[k / block.columns.len()], left.stride));
            let b = &b_at[k % block.columns.len()];
            let b = number(right.buffer, format!("{b} + k / {count} * {} + n * {count} + k % {count}", right.stride));
            self.line(&format!("for (int64_t m = 0; m < {m}; m++) for (int64_t n = 0; n < {n}; n++) {{"));
            self.line(&format!("  {ty} *sum = b{sums} + (m + {r}) * {width} + n + {c};"));
            self.line(&format!("  for (int64_t k = 0; k < {words}; k++) *sum += {a} * {b};\n  }}"));
        }
    }

    fn store(&mut self, buffer: BufferId, index: &Scalar, value: &Scalar) {
        let at = self.expr(index, true);
        let v = self.expr(value, false);
        let text = self.stored(buffer, &v);
        self.line(&format!("b{}[{at}] = {text};", buffer.0));
    }

    /// A value as a buffer holds it.
    fn stored(&self, buffer: BufferId, v: &str) -> String {
        let d = self.kernel.buffers[buffer.0 as usize].dtype;
        match d {
            DType::F16 => format!("to_f16({v})"),
            DType::BF16 => format!("to_bf16({v})"),
            d => format!("({}){v}", memory_type(d)),
        }
    }

    fn for_loop(&mut self, var: AxisId, extent: &Scalar, kind: LoopKind, body: &Stmt) {
        if kind == LoopKind::Parallel {
            return self.parallel(var, extent, body);
        }
        if kind == LoopKind::Vector {
            return self.indented("", |p| {
                let count = p.expr(extent, true);
                p.lanes = Some(Lanes { axis: var, count, most: extent.as_int().unwrap_or(LANE_LIMIT).max(1) });
                p.with(var, "int64_t", format!("i{}", var.0), |p| p.stmt(body));
                p.lanes = None;
            });
        }
        let name = format!("i{}", var.0);
        self.indented("", |p| {
            // The extent may read what the body writes, but counts as it was before.
            let n = p.expr(extent, true);
            let head = match extent.as_int() {
                Some(n) => format!("for (int64_t {name} = 0; {name} < {n}; {name}++)"),
                None => format!("for (int64_t {name} = 0, n{0} = {n}; {name} < n{0}; {name}++)", var.0),
            };
            p.indented(&head, |p| p.with(var, "int64_t", name, |p| p.stmt(body)));
        });
    }

    /// The iterations of a parallel loop are a function of their own, which finds the buffers again and is given the variables.
    fn parallel(&mut self, var: AxisId, extent: &Scalar, body: &Stmt) {
        let number = self.bodies.len();
        let (name, kernel) = (format!("i{}", var.0), self.name);
        let captured: Vec<Bound> = self.scope.clone();
        let fields: String = captured.iter().map(|b| format!(" {} {};", b.ty, b.text)).collect();
        let env = format!("struct {kernel}_env{number}");
        let mut text = format!("{env} {{ void *const *args; unsigned char *workspace;{fields} }};\n");
        let _ = writeln!(text, "static void {kernel}_body{number}(void *env_, int64_t begin_, int64_t end_) {{");
        let _ = writeln!(text, "  const {env} *env = (const {env} *)env_;");
        text += "  void *const *args = env->args;\n  unsigned char *workspace = env->workspace;\n";
        text += self.pointers;
        for b in &captured {
            let _ = writeln!(text, "  const {} {name} = env->{name};\n  (void){name};", b.ty, name = b.text);
        }
        text += "  (void)args, (void)workspace;\n";
        let _ = writeln!(text, "  for (int64_t {name} = begin_; {name} < end_; {name}++) {{");
        // What was computed before is in another function.
        self.forget();
        let outer = std::mem::replace(&mut self.depth, 1);
        let (lines, ()) = self.aside(|p| p.with(var, "int64_t", name, |p| p.stmt(body)));
        self.depth = outer;
        text += &locals(self.kernel);
        text += &lines;
        text += "  }\n}\n\n";
        self.bodies.push(text);
        self.forget();
        self.indented("", |p| {
            let n = p.expr(extent, true);
            let given: String = captured.iter().map(|b| format!(", {}", b.text)).collect();
            p.line(&format!("{env} env = {{args, workspace{given}}};"));
            p.line(&format!("resat_for(ctx, {kernel}_body{number}, &env, {n});"));
        });
    }

    // Vectors: every statement is done for all lanes before the next.

    fn each_lane(&mut self, lanes: &Lanes, f: impl FnOnce(&mut Self)) {
        let name = format!("i{}", lanes.axis.0);
        self.forget();
        self.indented(&format!("for (int64_t {name} = 0; {name} < {}; {name}++)", lanes.count), f);
    }

    fn vector_store(&mut self, lanes: Lanes, buffer: BufferId, index: &Scalar, value: &Scalar) {
        // A lane that reads where another one writes must read before: all values come first then.
        let crosses = affine::any(value, &mut |e| match e.kind() {
            ScalarKind::Read(b, at) => *b == buffer && at[0] != *index,
            _ => false,
        });
        if !crosses {
            return self.each_lane(&lanes, |p| p.store(buffer, index, value));
        }
        let name = self.name();
        let ty = value_type(value.dtype());
        self.indented("", |p| {
            p.line(&format!("{ty} {name}[{}];", lanes.most));
            p.each_lane(&lanes, |p| {
                let v = p.expr(value, false);
                p.line(&format!("{name}[i{}] = {v};", lanes.axis.0));
            });
            p.each_lane(&lanes, |p| {
                let at = p.expr(index, true);
                let text = p.stored(buffer, &format!("{name}[i{}]", lanes.axis.0));
                p.line(&format!("b{}[{at}] = {text};", buffer.0));
            });
        });
    }

    fn vector_let(&mut self, lanes: Lanes, var: AxisId, value: &Scalar, body: &Stmt) {
        let (name, ty) = (format!("i{}", var.0), value_type(value.dtype()));
        self.indented("", |p| {
            p.line(&format!("{ty} {name}[{}];", lanes.most));
            p.each_lane(&lanes, |p| {
                let v = p.expr(value, false);
                p.line(&format!("{name}[i{}] = {v};", lanes.axis.0));
            });
            p.with(var, ty, format!("{name}[i{}]", lanes.axis.0), |p| p.stmt(body));
        });
    }
}
