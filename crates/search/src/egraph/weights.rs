//! Which variables of a module are weights: values that a deployment knows before the program runs, though nobody has bound
//! them yet.

use hashbrown::HashSet;

use crate::{
    infer::TypedModule,
    ir::{Expr, ExprId, Type, VarId, children},
    ops::Class,
};

/// How a value is used, over all its uses.
#[derive(Copy, Clone, Default)]
struct Use {
    /// As kernel, bias, scale or the like.
    weight: bool,
    /// As what the program works on, or in a way that says nothing.
    data: bool,
}

impl Use {
    const DATA: Use = Use { weight: false, data: true };
    const WEIGHT: Use = Use { weight: true, data: false };

    fn add(&mut self, other: Use) {
        self.weight |= other.weight;
        self.data |= other.data;
    }
}

/// The variables that are weights by all their uses: as other than the first argument of a convolution or product, as the
/// parameters of a normalization, or as the smaller side of elementwise arithmetic; through moves and arithmetic on the way.
pub fn weights(module: &TypedModule) -> HashSet<VarId> {
    let mut uses = vec![Use::default(); module.len()];
    let ids: Vec<ExprId> = module.ids().collect();
    for (_, f) in module.functions() {
        uses[f.index()] = Use::DATA;
    }
    for &id in ids.iter().rev() {
        let mine = uses[id.index()];
        match (&module[id], module.op_call(id)) {
            (_, Some((op, args, _))) => {
                for (i, &arg) in args.iter().enumerate() {
                    let name = op.op().inputs().get(i).copied().unwrap_or("");
                    let parameter = ["weight", "kernel", "bias", "gamma", "beta", "moving_mean", "moving_var"];
                    let how = match op.op().class() {
                        _ if i > 0 && parameter.contains(&name) => Use::WEIGHT,
                        Class::Contract if i > 0 => Use::WEIGHT,
                        Class::Elementwise | Class::Injective if args.len() == 1 => mine,
                        Class::Broadcast if args.len() == 2 => match smaller(module, arg, args[1 - i]) {
                            true => Use::WEIGHT,
                            false => mine,
                        },
                        _ => Use::DATA,
                    };
                    uses[arg.index()].add(how);
                }
            }
            (Expr::Tuple(fields), _) => fields.iter().for_each(|f| uses[f.index()].add(mine)),
            (Expr::Proj(of, _), _) => uses[of.index()].add(mine),
            (other, _) => children(other, |c| uses[c.index()].add(Use::DATA)),
        }
    }
    let mut found = HashSet::new();
    let mut data = HashSet::new();
    for &id in &ids {
        if let Expr::Var(v) = module[id] {
            let how = uses[id.index()];
            if how.data {
                data.insert(v);
            } else if how.weight {
                found.insert(v);
            }
        }
    }
    found.retain(|v| !data.contains(v));
    found
}

/// Whether the first value has fewer elements than the second, both known.
fn smaller(module: &TypedModule, a: ExprId, b: ExprId) -> bool {
    let elements = |e: ExprId| match module.ty(e) {
        Type::Tensor(t) => t.elements(),
        _ => None,
    };
    matches!((elements(a), elements(b)), (Some(a), Some(b)) if a < b)
}
