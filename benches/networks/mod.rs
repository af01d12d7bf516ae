//! Networks by recipe, as Relay modules: for benches and tests. Weights are parameters of `@main`; who wants a network with
//! constants binds [`Network::weights`].
#![allow(dead_code, unused_imports, reason = "each bench and test uses its part")]

mod models;
mod synthetic;
mod tensat;

use std::collections::BTreeMap;

use resat::{
    ir::{AttrValue, Expr, ExprId, Function, Module, Name, Type, reachable},
    ops::{make_attrs, op},
    pass::bind_params,
    tensor::{DType, Tensor},
};

pub(crate) use models::{bert, decoder, resnet50};
pub(crate) use synthetic::{layered, siblings};
pub(crate) use tensat::{Published, TENSAT, bert_attention, nasnet_a, nasrnn};

/// A network.
pub(crate) struct Network {
    /// Weights and inputs are parameters.
    pub(crate) module: Module,
    weights: Vec<Weight>,
}

struct Weight {
    name: Name,
    shape: Vec<usize>,
    /// How many products an output sums up.
    fan_in: i64,
}

impl Network {
    /// Random weights, by name: the same on every run, and so small that activations stay finite.
    pub(crate) fn weights(&self) -> Vec<(Name, Tensor)> {
        let made = |(seed, w): (usize, &Weight)| {
            let (mut state, bound) = (seed as u64, (3.0 / w.fan_in as f32).sqrt());
            let mut next = || {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * bound
            };
            let mut t = Tensor::zeros(DType::F32, &w.shape);
            t.as_mut_slice::<f32>().iter_mut().for_each(|x| *x = next());
            (w.name.clone(), t)
        };
        self.weights.iter().enumerate().map(made).collect()
    }

    /// Weights that differ in one element only: for who looks at programs and does not run them.
    pub(crate) fn cheap_weights(&self) -> Vec<(Name, Tensor)> {
        let made = |(seed, w): (usize, &Weight)| {
            let mut t = Tensor::zeros(DType::F32, &w.shape);
            t.set_f64(0, 1.0 + seed as f64);
            (w.name.clone(), t)
        };
        self.weights.iter().enumerate().map(made).collect()
    }

    /// The module with these weights.
    pub(crate) fn bound(&self, weights: &[(Name, Tensor)]) -> Module {
        bind_params(&self.module, weights).expect("weights are parameters of their types")
    }
}

/// How often a module calls each operator.
pub(crate) fn counts(m: &Module) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for id in reachable(m, m.functions().map(|(_, f)| f)) {
        if let Some((op, ..)) = m.op_call(id) {
            *counts.entry(op.op().name()).or_insert(0) += 1;
        }
    }
    counts
}

/// A network in the making.
#[derive(Default)]
pub(crate) struct Net {
    module: Module,
    types: BTreeMap<ExprId, Type>,
    params: Vec<resat::ir::VarId>,
    weights: Vec<Weight>,
}

/// What is added around an image so that a window of this stride gives `extent / stride` results, rounded up.
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum Padding {
    /// Nothing.
    Valid,
    /// As much as it takes, the same on both sides.
    Same,
}

impl Net {
    fn param(&mut self, name: String, shape: &[i64]) -> ExprId {
        let ty = Type::tensor(shape, DType::F32);
        let var = self.module.new_var(name, Some(ty.clone()));
        self.params.push(var);
        let id = self.module.add(Expr::Var(var));
        self.types.insert(id, ty);
        id
    }

    /// An input.
    pub(crate) fn input(&mut self, name: &str, shape: &[i64]) -> ExprId {
        self.param(name.to_owned(), shape)
    }

    /// A weight; every output sums up so many products with it.
    pub(crate) fn weight(&mut self, shape: &[i64], fan_in: i64) -> ExprId {
        let name = format!("w{}", self.weights.len());
        let shape_here = shape.iter().map(|&n| n as usize).collect();
        self.weights.push(Weight { name: name.as_str().into(), shape: shape_here, fan_in });
        self.param(name, shape)
    }

    /// The extents of a value.
    pub(crate) fn shape(&self, x: ExprId) -> Vec<i64> {
        self.types[&x].as_tensor().and_then(|t| t.known_shape()).expect("a tensor of known extents")
    }

    /// A call; attributes that are not given are at their defaults.
    pub(crate) fn call(&mut self, name: &str, attrs: &[(&str, AttrValue)], args: &[ExprId]) -> ExprId {
        let op = op(name);
        let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
        let attrs = make_attrs(op, &given).unwrap_or_else(|e| panic!("{name}: {e}"));
        let types: Vec<Type> = args.iter().map(|a| self.types[a].clone()).collect();
        let ty = op.op().infer(&attrs, &types).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let id = self.module.call_op(op, args.to_vec(), attrs);
        self.types.insert(id, ty);
        id
    }

    /// Values side by side.
    pub(crate) fn tuple(&mut self, fields: &[ExprId]) -> ExprId {
        let ty = Type::tuple(fields.iter().map(|f| self.types[f].clone()));
        let id = self.module.add(Expr::Tuple(fields.to_vec()));
        self.types.insert(id, ty);
        id
    }

    /// A field of a tuple.
    pub(crate) fn project(&mut self, tuple: ExprId, field: usize) -> ExprId {
        let ty = self.types[&tuple].as_tuple().expect("a tuple")[field].clone();
        let id = self.module.add(Expr::Proj(tuple, field));
        self.types.insert(id, ty);
        id
    }

    /// A constant scalar.
    pub(crate) fn number(&mut self, x: f64) -> ExprId {
        let id = self.module.constant(Tensor::from_f64_fn(DType::F32, &[], |_| x));
        self.types.insert(id, Type::tensor(&[], DType::F32));
        id
    }

    /// A call without attributes.
    pub(crate) fn apply(&mut self, name: &str, args: &[ExprId]) -> ExprId {
        self.call(name, &[], args)
    }

    /// `nn.conv2d` with a new weight.
    pub(crate) fn conv(
        &mut self,
        x: ExprId,
        channels: i64,
        kernel: [i64; 2],
        stride: i64,
        groups: i64,
        padding: Padding,
    ) -> ExprId {
        let shape = self.shape(x);
        let inputs = shape[1] / groups;
        let w = self.weight(&[channels, inputs, kernel[0], kernel[1]], inputs * kernel[0] * kernel[1]);
        let pads = pads(&shape, kernel, stride, padding);
        let attrs = [
            ("strides", AttrValue::ints(&[stride, stride])),
            ("padding", pads),
            ("groups", groups.into()),
            ("channels", channels.into()),
            ("kernel_size", AttrValue::ints(&kernel)),
        ];
        self.call("nn.conv2d", &attrs, &[x, w])
    }

    /// `nn.max_pool2d` or `nn.avg_pool2d` over squares; what lies outside of the image does not count.
    pub(crate) fn pool(&mut self, name: &str, x: ExprId, kernel: i64, stride: i64, padding: Padding) -> ExprId {
        let pads = pads(&self.shape(x), [kernel, kernel], stride, padding);
        let attrs = [
            ("pool_size", AttrValue::ints(&[kernel, kernel])),
            ("strides", AttrValue::ints(&[stride, stride])),
            ("padding", pads),
        ];
        self.call(name, &attrs, &[x])
    }

    /// `nn.matmul` with a new weight.
    pub(crate) fn matmul(&mut self, x: ExprId, columns: i64) -> ExprId {
        let rows = *self.shape(x).last().expect("a matrix");
        let w = self.weight(&[rows, columns], rows);
        self.apply("nn.matmul", &[x, w])
    }

    /// `concatenate`.
    pub(crate) fn concat(&mut self, axis: i64, parts: &[ExprId]) -> ExprId {
        let parts = self.tuple(parts);
        self.call("concatenate", &[("axis", axis.into())], &[parts])
    }

    /// `reshape`.
    pub(crate) fn reshape(&mut self, x: ExprId, shape: &[i64]) -> ExprId {
        self.call("reshape", &[("newshape", AttrValue::ints(shape))], &[x])
    }

    /// `transpose`.
    pub(crate) fn transpose(&mut self, x: ExprId, axes: &[i64]) -> ExprId {
        self.call("transpose", &[("axes", AttrValue::ints(axes))], &[x])
    }

    /// The network that gives this value.
    pub(crate) fn finish(mut self, result: ExprId) -> Network {
        let main = Function::new(self.params, result, Some(self.types[&result].clone()));
        let main = self.module.add(Expr::Func(Box::new(main)));
        self.module.define("main", main);
        Network { module: self.module, weights: self.weights }
    }
}

fn pads(image: &[i64], kernel: [i64; 2], stride: i64, padding: Padding) -> AttrValue {
    let one = |axis: usize| match padding {
        Padding::Valid => 0,
        Padding::Same => {
            let extent = image[2 + axis];
            let missing = ((extent + stride - 1) / stride - 1) * stride + kernel[axis] - extent;
            (missing.max(0) + 1) / 2
        }
    };
    AttrValue::ints(&[one(0), one(1), one(0), one(1)])
}
