//! Ensembles of decision trees: all trees go down a level at a time, each row and tree with the number of the node where it is.

use hashbrown::HashMap;

use super::{Labels, TRANSFORMS, Transform, classified, floats, matrix, ml, of_one_score};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node, ops::Row},
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] =
    &[ml("TreeEnsemble", ensemble), ml("TreeEnsembleClassifier", classifier), ml("TreeEnsembleRegressor", regressor)];

/// How a node compares, in the order of `TreeEnsemble`'s numbers.
const MODES: [(&str, &str); 6] = [
    ("BRANCH_LEQ", "less_equal"),
    ("BRANCH_LT", "less"),
    ("BRANCH_GTE", "greater_equal"),
    ("BRANCH_GT", "greater"),
    ("BRANCH_EQ", "equal"),
    ("BRANCH_NEQ", "not_equal"),
];

/// The mode of nodes that ask whether a value is in a set.
const MEMBER: usize = MODES.len();

/// The most levels that are laid out.
const MOST_LEVELS: usize = 4096;

/// A node that compares. `next` are the nodes where the comparison does not hold and where it does.
struct Branch {
    feature: i64,
    value: f64,
    mode: usize,
    set: Vec<f64>,
    missing: bool,
    next: [usize; 2],
}

/// A leaf's weights, by target.
type Leaf = Vec<(usize, f64)>;

enum Tree {
    Branch(Branch),
    Leaf(Leaf),
}

/// Trees whose nodes are numbered throughout.
struct Forest {
    nodes: Vec<Tree>,
    roots: Vec<usize>,
    targets: usize,
    dtype: DType,
}

/// How leaves of all trees become one score.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Fold {
    Average,
    Sum,
    Min,
    Max,
}

/// Folds by the numbers that `TreeEnsemble` has for them, with their names.
const FOLDS: [(&str, Fold); 4] =
    [("AVERAGE", Fold::Average), ("SUM", Fold::Sum), ("MIN", Fold::Min), ("MAX", Fold::Max)];

/// Numbers that an attribute holds as floats or, under another name, as a tensor of any floats; and their type.
fn numbers(n: &Node, name: &str) -> Convert<(Vec<f64>, DType)> {
    match n.tensor_attr(&format!("{name}_as_tensor"))? {
        Some((_, t)) => Ok((t.to_f64_vec(), t.dtype())),
        None => Ok((n.floats(name)?.unwrap_or_default(), DType::F32)),
    }
}

/// The forest of a node as it was before version 5: lists of nodes, and of leaves' weights whose names begin with `leaf`.
fn listed(n: &Node, leaf: &str, targets: usize) -> Convert<Forest> {
    let list = |name: &str| -> Convert<Vec<i64>> { Ok(n.ints(name)?.unwrap_or_default()) };
    let (trees, ids) = (list("nodes_treeids")?, list("nodes_nodeids")?);
    let (features, yes, no) = (list("nodes_featureids")?, list("nodes_truenodeids")?, list("nodes_falsenodeids")?);
    let modes = n.texts("nodes_modes")?.unwrap_or_default();
    let missing = list("nodes_missing_value_tracks_true")?;
    let (values, dtype) = numbers(n, "nodes_values")?;
    let count = ids.len();
    let fits = [trees.len(), features.len(), yes.len(), no.len(), modes.len(), values.len()];
    n.ensure(fits.iter().all(|&l| l == count) && (missing.is_empty() || missing.len() == count), || {
        format!("its lists of nodes have different lengths: {count} and {fits:?}")
    })?;
    let at: HashMap<(i64, i64), usize> = (0..count).map(|i| ((trees[i], ids[i]), i)).collect();
    n.ensure(at.len() == count, || "two of its nodes have the same number".into())?;
    let mut roots = Vec::new();
    let mut nodes = Vec::new();
    for i in 0..count {
        if i == 0 || trees[i - 1] != trees[i] {
            roots.push(i);
        }
        if modes[i] == "LEAF" {
            nodes.push(Tree::Leaf(Vec::new()));
            continue;
        }
        let mode = MODES.iter().position(|m| m.0 == modes[i]);
        let mode = mode.ok_or_else(|| n.refuse(format!("the mode `{}` is not supported", modes[i])))?;
        let child = |id: i64| {
            let found = at.get(&(trees[i], id)).copied();
            found.ok_or_else(|| n.refuse(format!("its tree {} has no node {id}", trees[i])))
        };
        nodes.push(Tree::Branch(Branch {
            feature: features[i],
            value: values[i],
            mode,
            set: Vec::new(),
            missing: missing.get(i) == Some(&1),
            next: [child(no[i])?, child(yes[i])?],
        }));
    }
    let (of_trees, of_nodes, which) =
        (list(&format!("{leaf}_treeids"))?, list(&format!("{leaf}_nodeids"))?, list(&format!("{leaf}_ids"))?);
    let (weights, _) = numbers(n, &format!("{leaf}_weights"))?;
    n.ensure([of_trees.len(), of_nodes.len(), which.len()].iter().all(|&l| l == weights.len()), || {
        "its lists of weights have different lengths".into()
    })?;
    for (k, &weight) in weights.iter().enumerate() {
        let target = usize::try_from(which[k]).ok().filter(|&t| t < targets);
        let target = target.ok_or_else(|| n.refuse(format!("it has no target {}", which[k])))?;
        let node = at.get(&(of_trees[k], of_nodes[k])).copied();
        match node.map(|i| &mut nodes[i]) {
            Some(Tree::Leaf(l)) => l.push((target, weight)),
            // Weights of nodes that branch count for nothing.
            Some(Tree::Branch(_)) => {}
            None => return Err(n.refuse(format!("its tree {} has no node {}", of_trees[k], of_nodes[k]))),
        }
    }
    Ok(Forest { nodes, roots, targets, dtype })
}

/// The forest of a node since version 5.
fn compact(n: &Node, targets: usize) -> Convert<Forest> {
    let list = |name: &str| -> Convert<Vec<i64>> { Ok(n.ints(name)?.unwrap_or_default()) };
    let tensor = |name: &str| -> Convert<Tensor> {
        Ok(n.tensor_attr(name)?.ok_or_else(|| n.refuse(format!("its attribute `{name}` is not given")))?.1)
    };
    let (splits, modes, weights) = (tensor("nodes_splits")?, tensor("nodes_modes")?, tensor("leaf_weights")?);
    let (features, roots) = (list("nodes_featureids")?, list("tree_roots")?);
    let next = [list("nodes_falsenodeids")?, list("nodes_truenodeids")?];
    let leafs = [list("nodes_falseleafs")?, list("nodes_trueleafs")?];
    let (missing, which) = (list("nodes_missing_value_tracks_true")?, list("leaf_targetids")?);
    let count = features.len();
    let lengths = [next[0].len(), next[1].len(), leafs[0].len(), leafs[1].len(), splits.len(), modes.len()];
    n.ensure(lengths.iter().all(|&l| l == count) && which.len() == weights.len(), || {
        format!("its lists of nodes have different lengths: {count} and {lengths:?}")
    })?;
    let members = n.tensor_attr("membership_values")?.map(|t| t.1.to_f64_vec()).unwrap_or_default();
    let mut sets = members.split(|v| v.is_nan());
    let mut nodes = Vec::new();
    for i in 0..count {
        let mode = modes.get_i64(i) as usize;
        n.ensure(mode <= MEMBER, || format!("there is no mode {mode}"))?;
        let child = |side: usize| -> Convert<usize> {
            let (leaf, at) = (leafs[side][i] != 0, usize::try_from(next[side][i]).ok());
            let at = at.filter(|&a| a < if leaf { weights.len() } else { count });
            let at = at.ok_or_else(|| n.refuse(format!("there is no node or leaf {}", next[side][i])))?;
            Ok(if leaf { count + at } else { at })
        };
        let set = if mode == MEMBER { sets.next().unwrap_or_default().to_vec() } else { Vec::new() };
        nodes.push(Tree::Branch(Branch {
            feature: features[i],
            value: splits.get_f64(i),
            mode,
            set,
            missing: missing.get(i) == Some(&1),
            next: [child(0)?, child(1)?],
        }));
    }
    for (k, &target) in which.iter().enumerate() {
        let target = usize::try_from(target).ok().filter(|&t| t < targets);
        let target = target.ok_or_else(|| n.refuse(format!("it has no target {}", which[k])))?;
        nodes.push(Tree::Leaf(vec![(target, weights.get_f64(k))]));
    }
    let roots = roots.iter().map(|&r| usize::try_from(r).ok().filter(|&r| r < count)).collect::<Option<Vec<_>>>();
    let mut roots = roots.ok_or_else(|| n.refuse("its roots are no nodes"))?;
    for r in &mut roots {
        // A tree that is one leaf has a root whose children are the same leaf.
        if let Tree::Branch(b) = &nodes[*r]
            && b.next[0] == b.next[1]
            && matches!(nodes[b.next[0]], Tree::Leaf(_))
        {
            *r = b.next[0];
        }
    }
    Ok(Forest { nodes, roots, targets, dtype: splits.dtype() })
}

impl Forest {
    /// How many levels the deepest tree has below its root.
    fn levels(&self, n: &Node) -> Convert<usize> {
        let mut at: Vec<usize> = self.roots.clone();
        for level in 0..=MOST_LEVELS {
            let mut below = Vec::new();
            for &i in &at {
                if let Tree::Branch(b) = &self.nodes[i] {
                    below.extend(b.next);
                }
            }
            if below.is_empty() {
                return Ok(level);
            }
            // A tree has no node twice.
            n.ensure(below.len() <= self.nodes.len(), || "its trees share nodes, or have cycles".into())?;
            at = below;
        }
        Err(n.refuse(format!("trees of more than {MOST_LEVELS} levels are not supported")))
    }

    /// Of each node a number, as a table.
    fn table(
        &self,
        n: &mut Node,
        dtype: DType,
        of: impl Fn(usize, &Branch) -> f64,
        leaf: impl Fn(usize) -> f64,
    ) -> ExprId {
        let all: Vec<f64> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(i, node)| match node {
                Tree::Branch(b) => of(i, b),
                Tree::Leaf(_) => leaf(i),
            })
            .collect();
        let t = match dtype.is_float() {
            true => Tensor::from_f64_fn(dtype, &[all.len()], |i| all[i]),
            false => Tensor::from_i64_fn(dtype, &[all.len()], |i| all[i] as i64),
        };
        n.im.b.weight(&n.proto.output[0], t)
    }

    fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.nodes.iter().filter_map(|t| if let Tree::Branch(b) = t { Some(b) } else { None })
    }

    /// The leaves that rows of features reach, (rows, trees).
    fn reached(&self, n: &mut Node, x: ExprId) -> Convert {
        let levels = self.levels(n)?;
        let width = n.dims(x)?[1];
        let known = |b: &Branch| b.feature >= 0 && width.is_none_or(|w| b.feature < w);
        n.ensure(self.branches().all(known), || "its nodes ask for features that its input lacks".into())?;
        let x = n.cast(x, self.dtype)?;
        let rows = n.size(x, 0, DType::I64)?;
        let rows = n.reshape(rows, &[1])?;
        let trees = n.im.b.ints(&[self.roots.len() as i64]);
        let shape = n.concat(&[rows, trees], 0)?;
        let roots = Tensor::from_i64_fn(DType::I32, &[1, self.roots.len()], |i| self.roots[i] as i64);
        let roots = n.constant(roots);
        let mut at = n.broadcast_to(roots, shape)?;
        if levels == 0 {
            return Ok(at);
        }
        let feature = self.table(n, DType::I32, |_, b| b.feature as f64, |_| 0.0);
        let value = self.table(n, self.dtype, |_, b| b.value, |_| 0.0);
        let next = [0, 1].map(|side| self.table(n, DType::I32, |_, b| b.next[side] as f64, |i| i as f64));
        let mut used: Vec<usize> = self.branches().map(|b| b.mode).collect();
        used.sort_unstable();
        used.dedup();
        let mode = self.table(n, DType::I32, |_, b| b.mode as f64, |_| 0.0);
        let missing = self.branches().any(|b| b.missing);
        let missing = missing.then(|| self.table(n, DType::I32, |_, b| b.missing.into(), |_| 0.0));
        let sets = self.sets(n)?;
        for _ in 0..levels {
            let which = n.take(feature, at, 0)?;
            let v = n.op("gather", &[x, which], &[("axis", 1.into())])?;
            let than = n.take(value, at, 0)?;
            let modes = n.take(mode, at, 0)?;
            let mut holds = None;
            for &m in &used {
                let this = match (m, sets) {
                    (MEMBER, Some(sets)) => {
                        let set = n.take(sets, at, 0)?;
                        let v = n.trailing(v, 1)?;
                        let same = n.bin("equal", v, set)?;
                        n.reduce("any", same, &[2], false)?
                    }
                    _ => n.bin(MODES[m].1, v, than)?,
                };
                holds = Some(match holds {
                    None => this,
                    Some(others) => {
                        let mine = n.with("equal", modes, m as f64)?;
                        n.select(mine, this, others)?
                    }
                });
            }
            let mut holds = holds.ok_or_else(|| n.refuse("its trees have no nodes"))?;
            if let Some(missing) = missing {
                let absent = n.un("isnan", v)?;
                let goes = n.take(missing, at, 0)?;
                let goes = n.cast(goes, DType::Bool)?;
                let goes = n.bin("logical_and", absent, goes)?;
                holds = n.bin("logical_or", holds, goes)?;
            }
            let (no, yes) = (n.take(next[0], at, 0)?, n.take(next[1], at, 0)?);
            at = n.select(holds, yes, no)?;
        }
        Ok(at)
    }

    /// The sets that nodes ask for, filled up with NaN, which is in none.
    fn sets(&self, n: &mut Node) -> Convert<Option<ExprId>> {
        let most = self.branches().filter(|b| b.mode == MEMBER).map(|b| b.set.len().max(1)).max();
        let Some(most) = most else { return Ok(None) };
        n.ensure(self.nodes.len().saturating_mul(most) <= 1 << 26, || "its sets are too large".into())?;
        let item = |i: usize| match &self.nodes[i / most] {
            Tree::Branch(b) => b.set.get(i % most).copied().unwrap_or(f64::NAN),
            Tree::Leaf(_) => f64::NAN,
        };
        let t = Tensor::from_f64_fn(self.dtype, &[self.nodes.len(), most], item);
        Ok(Some(n.im.b.weight(&n.proto.output[0], t)))
    }

    /// Scores, (rows, targets).
    fn scores(&self, n: &mut Node, x: ExprId, fold: Fold, base: &[f64]) -> Convert {
        let at = self.reached(n, x)?;
        let leaves: Vec<&Leaf> =
            self.nodes.iter().filter_map(|t| if let Tree::Leaf(l) = t { Some(l) } else { None }).collect();
        let mut row = 0;
        let mut rows = vec![0i64; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            if matches!(node, Tree::Leaf(_)) {
                rows[i] = row;
                row += 1;
            }
        }
        n.ensure(leaves.len().saturating_mul(self.targets) <= 1 << 28, || "its leaves are too many".into())?;
        let nothing = match fold {
            Fold::Average | Fold::Sum => 0.0,
            Fold::Min => f64::INFINITY,
            Fold::Max => f64::NEG_INFINITY,
        };
        let mut weights = vec![nothing; leaves.len() * self.targets];
        for (k, leaf) in leaves.iter().enumerate() {
            for &(target, w) in *leaf {
                let cell = &mut weights[k * self.targets + target];
                *cell = if cell.is_finite() { *cell + w } else { w };
            }
        }
        let weights = floats(n, self.dtype, &[leaves.len(), self.targets], &weights);
        let rows = Tensor::from_i64_fn(DType::I32, &[rows.len()], |i| rows[i]);
        let rows = n.im.b.weight(&n.proto.output[0], rows);
        let which = n.take(rows, at, 0)?;
        let reached = n.take(weights, which, 0)?;
        let mut y = match fold {
            Fold::Sum => n.reduce("sum", reached, &[1], false)?,
            Fold::Average => {
                let sum = n.reduce("sum", reached, &[1], false)?;
                n.with("divide", sum, self.roots.len() as f64)?
            }
            Fold::Min | Fold::Max => {
                let best = n.reduce(if fold == Fold::Min { "min" } else { "max" }, reached, &[1], false)?;
                let some = n.un("isfinite", best)?;
                let zero = n.c(best, 0.0)?;
                n.select(some, best, zero)?
            }
        };
        if !base.is_empty() {
            n.ensure(base.len() == 1 || base.len() == self.targets, || format!("it has {} base values", base.len()))?;
            let base = floats(n, self.dtype, &[base.len()], base);
            y = n.add(y, base)?;
        }
        Ok(y)
    }
}

fn regressor(n: &mut Node) -> Convert<Vec<Val>> {
    let x = matrix(n)?;
    let targets = usize::try_from(n.int("n_targets", 1)?).unwrap_or(0).max(1);
    let name = n.text("aggregate_function", "SUM")?;
    let fold = FOLDS.iter().find(|f| f.0 == name).map(|f| f.1);
    let fold = fold.ok_or_else(|| n.refuse(format!("there is no aggregate `{name}`")))?;
    let forest = listed(n, "target", targets)?;
    let (base, _) = numbers(n, "base_values")?;
    let scores = forest.scores(n, x, fold, &base)?;
    let transform = Transform::of(n)?;
    let y = of_targets(n, scores, targets, transform)?;
    let y = n.cast(y, DType::F32)?;
    n.one(y)
}

/// Scores of targets as they are given. One by itself is changed by no softmax.
fn of_targets(n: &mut Node, scores: ExprId, targets: usize, transform: Transform) -> Convert {
    match (targets, transform) {
        (1, Transform::Softmax | Transform::SoftmaxZero) => Ok(scores),
        _ => transform.of_several(n, scores),
    }
}

fn ensemble(n: &mut Node) -> Convert<Vec<Val>> {
    let x = matrix(n)?;
    let targets = usize::try_from(n.int("n_targets", 1)?).unwrap_or(0).max(1);
    let by_number = |n: &Node, name: &str, default: i64, count: usize| -> Convert<usize> {
        let k = n.int(name, default)?;
        usize::try_from(k).ok().filter(|&k| k < count).ok_or_else(|| n.refuse(format!("there is no {name} {k}")))
    };
    let fold = FOLDS[by_number(n, "aggregate_function", 1, FOLDS.len())?].1;
    let transform = TRANSFORMS[by_number(n, "post_transform", 0, TRANSFORMS.len())?].1;
    let forest = compact(n, targets)?;
    let scores = forest.scores(n, x, fold, &[])?;
    let y = of_targets(n, scores, targets, transform)?;
    n.one(y)
}

fn classifier(n: &mut Node) -> Convert<Vec<Val>> {
    let x = matrix(n)?;
    let labels = Labels::of(n, "classlabels_int64s", "classlabels_strings")?;
    let transform = Transform::of(n)?;
    let (base, _) = numbers(n, "base_values")?;
    let mut forest = listed(n, "class", labels.count)?;
    let weights = || forest.nodes.iter().flat_map(|t| if let Tree::Leaf(l) = t { l.as_slice() } else { &[] });
    let one = weights().map(|w| w.0).min().filter(|&w| weights().all(|o| o.0 == w));
    let positive = weights().all(|w| w.1 >= 0.0);
    let bound = if positive { 0.5 } else { 0.0 };
    if (labels.count, one) == (2, Some(0)) {
        // Leaves that weigh the first class only: it stands for what is decided, and the other one is what is left.
        forest.targets = 1;
        let score = forest.scores(n, x, Fold::Sum, &base)?;
        return of_one_score(n, &labels, score, transform, bound, positive);
    }
    let scores = forest.scores(n, x, Fold::Sum, &base)?;
    if (labels.count, one) == (2, Some(1)) {
        let score = n.slice(scores, 1, 1, 2)?;
        let label = labels.above(n, score, bound)?;
        let shown = transform.of_several(n, scores)?;
        let shown = n.cast(shown, DType::F32)?;
        return Ok(vec![label, n.out(shown)?]);
    }
    classified(n, &labels, scores, transform)
}
