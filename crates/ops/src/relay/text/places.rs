//! Where the printer puts what: which expressions get a `%0 = …;` of their own, and in which block it stands.
//!
//! A block is what stands between braces (or, for a `let` that is an operand, parentheses): a chain of `let`s with
//! bindings before each, then the block's value. An expression is bound at the innermost point that comes before all its
//! uses, so that it stays within the scope of its variables and out of the branches that need not evaluate it.

use hashbrown::HashMap;

use crate::ir::{Expr, ExprId, Module, children, reachable};

/// A block, by number.
pub(super) type BlockId = usize;

/// A point of a block: before its `let` number `.1`, or before its value where it has only that many.
pub(super) type Point = (BlockId, usize);

/// A block of text.
#[derive(Debug)]
pub(super) struct Block {
    /// The point of the enclosing block that it hangs from.
    parent: Option<Point>,
    depth: usize,
    /// The `let`s, outermost first.
    pub lets: Vec<ExprId>,
    /// The block's value.
    pub value: ExprId,
}

/// The layout of one function or expression.
#[derive(Debug)]
pub(super) struct Places {
    pub blocks: Vec<Block>,
    /// The block that a branch, a function's body or a `let` in parentheses makes: by the expression that it is part of,
    /// and the number of the part.
    pub block_of: HashMap<(ExprId, usize), BlockId>,
    /// The expressions that are bound at each point, in an order in which each comes after what it is made of.
    pub bound: HashMap<Point, Vec<ExprId>>,
    /// The uses of each expression so far.
    uses: HashMap<ExprId, Uses>,
}

#[derive(Debug)]
struct Uses {
    /// The innermost point that comes before them all.
    point: Point,
    /// Whether there is one use only, where the expression itself can stand: as a block's value or a `let`'s.
    here: bool,
    /// Whether that use is as a block's value.
    value: bool,
}

/// How an expression is used.
#[derive(Copy, Clone, PartialEq)]
enum Use {
    /// By name: as an operand.
    Operand,
    /// As a `let`'s value.
    Bound,
    /// As a block's value.
    Value,
}

/// Whether an expression is written out at each of its uses.
pub(super) fn is_atom(e: &Expr) -> bool {
    matches!(e, Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_))
}

impl Places {
    /// The layout of an expression whose text is one block, or (for a function) begins with one.
    pub(super) fn of(m: &Module, root: ExprId) -> Places {
        let mut p =
            Places { blocks: Vec::new(), block_of: HashMap::new(), bound: HashMap::new(), uses: HashMap::new() };
        let block = p.block(None, root);
        p.used(m, root, (block, 0), Use::Value);
        let ids = reachable(m, [root]);
        // Parents are younger than their children, so all uses of an expression are known when its turn comes.
        for &id in ids.iter().rev() {
            if !is_atom(&m[id]) {
                p.place(m, id);
            }
        }
        for &id in &ids {
            if !is_atom(&m[id]) && !p.stands_at_its_use(id) {
                p.bound.entry(p.uses[&id].point).or_default().push(id);
            }
        }
        p
    }

    /// Whether the expression has one use, and is written there.
    pub(super) fn stands_at_its_use(&self, id: ExprId) -> bool {
        self.uses[&id].here
    }

    fn block(&mut self, parent: Option<Point>, value: ExprId) -> BlockId {
        let depth = parent.map_or(0, |(b, _)| self.blocks[b].depth + 1);
        self.blocks.push(Block { parent, depth, lets: Vec::new(), value });
        self.blocks.len() - 1
    }

    /// The innermost point that comes before both.
    fn meet(&self, a: Point, b: Point) -> Point {
        let (mut a, mut b) = (a, b);
        let up = |p: Point| self.blocks[p.0].parent.expect("all blocks hang from the outermost one");
        while a.0 != b.0 {
            match self.blocks[a.0].depth.cmp(&self.blocks[b.0].depth) {
                std::cmp::Ordering::Greater => a = up(a),
                std::cmp::Ordering::Less => b = up(b),
                std::cmp::Ordering::Equal => (a, b) = (up(a), up(b)),
            }
        }
        (a.0, a.1.min(b.1))
    }

    fn used(&mut self, m: &Module, id: ExprId, at: Point, how: Use) {
        if is_atom(&m[id]) {
            return;
        }
        let here = how != Use::Operand;
        let uses = match self.uses.get(&id) {
            None => Uses { point: at, here, value: how == Use::Value },
            Some(u) => Uses { point: self.meet(u.point, at), here: false, value: false },
        };
        self.uses.insert(id, uses);
    }

    /// Places what the expression is made of.
    fn place(&mut self, m: &Module, id: ExprId) {
        let Uses { point, value, .. } = self.uses[&id];
        let inner = |p: &mut Places, part: usize, body: ExprId| {
            let block = p.block(Some(point), body);
            p.block_of.insert((id, part), block);
            p.used(m, body, (block, 0), Use::Value);
        };
        match &m[id] {
            Expr::Let { value: bound, body, .. } => {
                let (block, at) = match value {
                    true => point,
                    false => {
                        let block = self.block(Some(point), *body);
                        self.block_of.insert((id, 0), block);
                        (block, 0)
                    }
                };
                self.blocks[block].lets.push(id);
                self.blocks[block].value = *body;
                self.used(m, *bound, (block, at), Use::Bound);
                self.used(m, *body, (block, at + 1), Use::Value);
            }
            Expr::Func(f) => inner(self, 0, f.body),
            Expr::If { cond, then, otherwise } => {
                inner(self, 0, *then);
                inner(self, 1, *otherwise);
                self.used(m, *cond, point, Use::Operand);
            }
            Expr::Match { data, clauses, .. } => {
                for (i, c) in clauses.iter().enumerate() {
                    inner(self, i, c.body);
                }
                self.used(m, *data, point, Use::Operand);
            }
            e => children(e, |c| self.used(m, c, point, Use::Operand)),
        }
    }
}
