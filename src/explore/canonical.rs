//! Modules by content: what computes the same in the same way is one module, however passes numbered and named its parts.

use hashbrown::HashMap;

use crate::{
    ir::{Expr, ExprId, Module, Pattern, VarId, children, map_children},
    loops::{Digest, digest_bytes},
    tensor::Tensor,
};

/// Constants by content: modules that hold the same ones share their memory.
#[derive(Debug, Default)]
pub(super) struct Constants {
    known: HashMap<Digest, Tensor>,
    /// By the tensor's own digest: what was hashed before need not be hashed again.
    digests: HashMap<(u64, usize), Digest>,
}

impl Constants {
    fn share(&mut self, t: &Tensor) -> (Digest, Tensor) {
        let place = (t.digest(), t.bytes().as_ptr().addr());
        let digest = *self.digests.entry(place).or_insert_with(|| {
            let head = format!("{} {:?}", t.dtype(), t.shape());
            digest_bytes(&[head.as_bytes(), t.bytes()])
        });
        (digest, self.known.entry(digest).or_insert_with(|| t.clone()).clone())
    }
}

/// The same module without what its functions do not reach, its constants shared, and its digest: the same for modules that
/// differ in the names and numbers of variables and expressions only. The names of a function's own parameters count.
pub(super) fn canonical(m: &Module, constants: &mut Constants) -> (Module, Digest) {
    let mut out = m.derive();
    let mut text =
        Writer { m, bytes: Vec::new(), vars: HashMap::new(), numbers: HashMap::new(), digests: HashMap::new() };
    let mut new: HashMap<ExprId, ExprId> = HashMap::new();
    let mut functions = Vec::new();
    for adt in m.adts() {
        text.words(&format!("{adt:?}"));
    }
    for (name, root) in m.functions() {
        text.words(name.as_str());
        for &p in &m.func(root).params {
            text.words(m.var(p).name.as_str());
        }
        for id in post_order(m, root, &new) {
            let copy = match &m[id] {
                Expr::Constant(t) => {
                    let (digest, t) = constants.share(t);
                    text.digests.insert(id, digest);
                    Expr::Constant(t)
                }
                expr => {
                    text.expr(id, expr);
                    map_children(expr, |c| new[&c])
                }
            };
            new.insert(id, out.add_at(copy, m.span(id).cloned()));
        }
        text.child(root);
        functions.push((name.clone(), new[&root]));
    }
    for (name, root) in functions {
        out.define(name, root);
    }
    text.words(&format!("{:?}", m.attrs));
    (out, digest_bytes(&[&text.bytes]))
}

/// What the root needs and is not known, children before parents, in an order that depends on nothing but the expressions.
fn post_order(m: &Module, root: ExprId, known: &HashMap<ExprId, ExprId>) -> Vec<ExprId> {
    let (mut order, mut seen) = (Vec::new(), hashbrown::HashSet::new());
    let mut stack = vec![(root, false)];
    while let Some((id, ready)) = stack.pop() {
        if ready {
            order.push(id);
        } else if !known.contains_key(&id) && seen.insert(id) {
            stack.push((id, true));
            let from = stack.len();
            children(&m[id], |c| stack.push((c, false)));
            stack[from..].reverse();
        }
    }
    order
}

struct Writer<'a> {
    m: &'a Module,
    bytes: Vec<u8>,
    vars: HashMap<VarId, u32>,
    /// Of expressions that were written.
    numbers: HashMap<ExprId, u32>,
    /// Of constants.
    digests: HashMap<ExprId, Digest>,
}

impl Writer<'_> {
    fn tag(&mut self, t: u8) {
        self.bytes.push(t);
    }

    fn number(&mut self, n: u32) {
        self.bytes.extend(n.to_le_bytes());
    }

    fn words(&mut self, text: &str) {
        self.number(text.len() as u32);
        self.bytes.extend(text.as_bytes());
    }

    fn var(&mut self, v: VarId) {
        let next = self.vars.len() as u32;
        let known = *self.vars.entry(v).or_insert(next);
        self.number(known);
        if known == next {
            let ty = format!("{:?}", self.m.var(v).ty);
            self.words(&ty);
        }
    }

    /// Attributes hold tensors at times, which are shown in part only: their hash holds them whole.
    fn attrs(&mut self, attrs: &crate::ir::Attrs) {
        use std::hash::{Hash, Hasher};
        let mut h = rustc_hash::FxHasher::default();
        for (name, value) in attrs.iter() {
            self.words(name.as_str());
            self.words(&format!("{value:?}"));
            value.hash(&mut h);
        }
        self.bytes.extend(h.finish().to_le_bytes());
    }

    /// A use of an expression: its number, or, where it is a leaf, the leaf itself. Whether leaves are shared does not count.
    fn child(&mut self, id: ExprId) {
        let m = self.m;
        match &m[id] {
            Expr::Var(v) => {
                self.tag(b'v');
                self.var(*v);
            }
            Expr::Global(name) => {
                self.tag(b'g');
                self.words(name.as_str());
            }
            Expr::Constant(_) => {
                self.tag(b'k');
                let digest = self.digests[&id];
                self.bytes.extend(digest.0.to_le_bytes());
            }
            Expr::Op(op) => {
                self.tag(b'o');
                self.words(op.op().name());
            }
            Expr::Constructor(name) => {
                self.tag(b'c');
                self.words(name.as_str());
            }
            _ => {
                self.tag(b'#');
                self.number(self.numbers[&id]);
            }
        }
    }

    fn expr(&mut self, id: ExprId, expr: &Expr) {
        let mut uses = Vec::new();
        children(expr, |c| uses.push(c));
        match expr {
            // Written where they are used.
            Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_) => return,
            Expr::Call { attrs, type_args, .. } => {
                self.tag(b'(');
                self.attrs(attrs);
                self.words(&format!("{type_args:?}"));
            }
            Expr::Tuple(_) => self.tag(b't'),
            Expr::Proj(_, i) => {
                self.tag(b'p');
                self.number(*i as u32);
            }
            Expr::Let { var, .. } => {
                self.tag(b'l');
                self.var(*var);
            }
            Expr::If { .. } => self.tag(b'i'),
            Expr::Func(f) => {
                self.tag(b'f');
                self.number(f.type_params.len() as u32);
                f.params.iter().for_each(|&p| self.var(p));
                self.words(&format!("{:?}", f.ret));
                self.attrs(&f.attrs);
            }
            Expr::Match { clauses, complete, .. } => {
                self.tag(if *complete { b'm' } else { b'?' });
                clauses.iter().for_each(|c| self.pattern(&c.pattern));
            }
            Expr::RefNew(_) => self.tag(b'n'),
            Expr::RefRead(_) => self.tag(b'r'),
            Expr::RefWrite(..) => self.tag(b'w'),
        }
        self.number(uses.len() as u32);
        uses.into_iter().for_each(|c| self.child(c));
        let next = self.numbers.len() as u32;
        self.numbers.insert(id, next);
    }

    fn pattern(&mut self, pattern: &Pattern) {
        let mut stack = vec![pattern];
        while let Some(p) = stack.pop() {
            match p {
                Pattern::Wildcard => self.tag(b'_'),
                Pattern::Var(v) => {
                    self.tag(b'v');
                    self.var(*v);
                }
                Pattern::Constructor(name, fields) => {
                    self.tag(b'c');
                    self.words(name.as_str());
                    self.number(fields.len() as u32);
                    stack.extend(fields.iter().rev());
                }
                Pattern::Tuple(fields) => {
                    self.tag(b't');
                    self.number(fields.len() as u32);
                    stack.extend(fields.iter().rev());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::text::parse_module;

    fn digest(body: &str) -> Digest {
        let text = format!("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 3), float32]) {{ {body} }}");
        canonical(&parse_module("test", &text).unwrap(), &mut Constants::default()).1
    }

    #[test]
    fn names_and_numbers_do_not_count() {
        let a = digest("let %a = nn.relu(%x); let %b = tanh(%x); add(%a, %b)");
        assert_eq!(a, digest("let %c = nn.relu(%x); let %d = tanh(%x); add(%c, %d)"));
        assert_ne!(a, digest("let %c = nn.relu(%x); let %d = tanh(%x); add(%d, %c)"));
        assert_eq!(digest("%0 = nn.relu(%x); %1 = tanh(%x); add(%0, %1)"), digest("add(nn.relu(%x), tanh(%x))"));
    }

    #[test]
    fn constants_attributes_and_sharing_count() {
        assert_ne!(digest("add(%x, 1f)"), digest("add(%x, 2f)"));
        assert_ne!(digest("sum(%x, axis=[0])"), digest("sum(%x, axis=[1])"));
        assert_ne!(digest("%0 = tanh(%x); add(%0, %0)"), digest("add(tanh(%x), tanh(%x))"));
        assert_ne!(digest("fn (%a: float32) { %a }(1f)"), digest("fn (%a: float64) { %a }(1f)"));
    }

    #[test]
    fn equal_constants_are_shared() {
        let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { add(add(%x, 3f), 3f) }";
        let m = parse_module("test", text).unwrap();
        let mut constants = Constants::default();
        let (copy, digest) = canonical(&m, &mut constants);
        assert_eq!(constants.known.len(), 1);
        assert_eq!(canonical(&copy, &mut constants).1, digest);
    }
}
