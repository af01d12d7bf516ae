//! Quantized operators: int8 dot products by the library, all else in integers by own code, so that results are what Relay says
//! to the last bit.

use super::{
    translate::{Sum, Translator, Val, View},
    words::{axis, fixed, known},
};
use crate::{
    ir::{Attrs, ExprId},
    runtime::onednn::{Integer, Kind, Rescale, ValueId, What},
    tensor::{DType, Tensor},
};

/// The range of `int32`, which takes nothing away.
const WHOLE: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);

fn range(dtype: DType) -> Result<(i64, i64), String> {
    Ok(match dtype {
        DType::U8 => (0, 255),
        DType::I8 => (-128, 127),
        DType::I32 => WHOLE,
        other => return Err(format!("a result of {other}")),
    })
}

fn is_quantized(d: DType) -> bool {
    matches!(d, DType::U8 | DType::I8 | DType::I32)
}

impl Translator<'_> {
    /// A call on integers; `None` where it is none.
    pub(super) fn integers(
        &mut self,
        e: ExprId,
        name: &str,
        attrs: &Attrs,
        given: &[&Val],
    ) -> Result<Option<Val>, String> {
        let Some((shape, dtype)) = known(self.typed.ty(e)) else { return Ok(None) };
        let result = match name {
            "qnn.conv2d" | "qnn.dense" => {
                let zero = self.number(given[2], "the data's zero point")?;
                let weight_zero = self.numbers(given[3], "the weight's zero point")?;
                if (0..weight_zero.len()).any(|i| weight_zero.get_i64(i) != 0) {
                    return Err("the weight's zero point is not 0".into());
                }
                self.product(name, attrs, given, &shape, zero)?
            }
            "nn.conv1d" | "nn.conv2d" | "nn.conv3d" | "nn.dense" if dtype == DType::I32 => {
                self.product(name, attrs, given, &shape, 0)?
            }
            "nn.bias_add" | "add" if dtype == DType::I32 => self.add(name, attrs, given, &shape)?,
            "qnn.requantize" => self.requantize(attrs, given, dtype)?,
            "qnn.add" => self.sum(attrs, given, &shape, dtype)?,
            "clip" | "nn.relu" if is_quantized(dtype) => {
                let (low, high) = range(dtype)?;
                let (low, high) = match name {
                    "clip" => {
                        (low.max(attrs.float("a_min").ceil() as i64), high.min(attrs.float("a_max").floor() as i64))
                    }
                    _ => (0, high),
                };
                let v = self.materialize(given[0])?;
                let axis = self.channel(&v);
                self.own(&[(v.base, false)], &v, axis, dtype, (low, high))
            }
            _ => return Ok(None),
        };
        Ok(Some(result))
    }

    /// Own code on terms, in the order of a tensor's axes.
    fn own(&mut self, terms: &[(ValueId, bool)], like: &View, axis: usize, dtype: DType, range: (i64, i64)) -> Val {
        let integer = Integer {
            terms: terms.to_vec(),
            per_channel: vec![],
            rescaled: vec![],
            rescale: None,
            offset: 0,
            range,
            axis,
        };
        self.integer(integer, like, dtype)
    }

    fn integer(&mut self, integer: Integer, like: &View, dtype: DType) -> Val {
        let shape = self.graph.shape(like.base).to_vec();
        let base = self.graph.step(What::Integer(integer), vec![], &shape, dtype);
        Val::Tensor(View { base, axes: like.axes.clone() })
    }

    /// The axis of the graph's tensor whose elements own code keeps next to each other.
    fn channel(&self, v: &View) -> usize {
        usize::from(self.graph.shape(v.base).len() > 1)
    }

    fn numbers(&self, v: &Val, what: &str) -> Result<Tensor, String> {
        self.constant(v).ok_or_else(|| format!("{what} is not constant"))
    }

    fn number(&self, v: &Val, what: &str) -> Result<i64, String> {
        let t = self.numbers(v, what)?;
        if t.len() == 1 { Ok(t.get_i64(0)) } else { Err(format!("{what} is not one number")) }
    }

    fn product(&mut self, name: &str, attrs: &Attrs, given: &[&Val], shape: &[i64], zero: i64) -> Result<Val, String> {
        let (data, weight) = (self.materialize(given[0])?, self.materialize(given[1])?);
        let types = (self.graph.dtype(data.base), self.graph.dtype(weight.base));
        let (low, high) = match types {
            (DType::U8, DType::I8) => (0, 255),
            (DType::I8, DType::I8) => (-128, 127),
            (d, w) => return Err(format!("a product of {d} and {w}")),
        };
        if !(low..=high).contains(&zero) {
            return Err(format!("the data's zero point is {zero}, which is no {}", types.0));
        }
        let made = match name.ends_with("dense") {
            true => {
                if shape.len() != 2 {
                    return Err("data of more than two axes".into());
                }
                self.dense(What::Exact(Kind::InnerProduct, zero), &data, &weight, shape, DType::I32)?
            }
            false => {
                let name = name.replace("qnn.", "nn.");
                self.convolution(&name, attrs, &data, &weight, shape, DType::I32, &|k| What::Exact(k, zero))?
            }
        };
        let Val::Tensor(v) = made else { unreachable!("products are tensors") };
        Ok(Val::Sum(Sum { terms: vec![(v.base, false)], per_channel: vec![], axes: v.axes }))
    }

    /// The tensor of a sum.
    pub(super) fn summed(&mut self, s: &Sum) -> View {
        let like = View { base: s.terms[0].0, axes: s.axes.clone() };
        let axis = self.channel(&like);
        let integer = Integer {
            terms: s.terms.clone(),
            per_channel: s.per_channel.clone(),
            rescaled: vec![],
            rescale: None,
            offset: 0,
            range: WHOLE,
            axis,
        };
        match self.integer(integer, &like, DType::I32) {
            Val::Tensor(v) => v,
            _ => unreachable!("own code makes tensors"),
        }
    }

    fn as_sum(&mut self, v: &Val) -> Result<Sum, String> {
        Ok(match v {
            Val::Sum(s) => s.clone(),
            other => {
                let v = self.materialize(other)?;
                Sum { terms: vec![(v.base, false)], per_channel: vec![], axes: v.axes }
            }
        })
    }

    /// A sum with a vector along the channels.
    fn add(&mut self, name: &str, attrs: &Attrs, given: &[&Val], shape: &[i64]) -> Result<Val, String> {
        let mut sum = self.as_sum(given[0])?;
        let bias = self.materialize(given[1])?;
        let extents = self.shape(&bias);
        let at = match name {
            "nn.bias_add" => axis(attrs.int("axis"), shape.len()).ok_or("no such axis")?,
            _ => {
                // Aligned at the end, as all that is repeated.
                let long: Vec<usize> = (0..extents.len()).filter(|&k| extents[k] != 1).collect();
                match long[..] {
                    [] => 0,
                    [k] => k + shape.len() - extents.len(),
                    _ => return Err("the second operand is no vector".into()),
                }
            }
        };
        let n: i64 = extents.iter().product();
        let base = self.graph.shape(sum.terms[0].0);
        if n != 1 && (sum.axes[at] != usize::from(base.len() > 1) || n != shape[at]) {
            return Err("the second operand is no vector along the channels".into());
        }
        let plain = self.plain(&bias);
        sum.per_channel.push(plain);
        // A vector of one element along any axis is for all channels.
        Ok(Val::Sum(sum))
    }

    /// The axis of the graph's tensor along which scales lie, where there are several.
    fn scale_axis(&self, params: [&Tensor; 2], at: i64, v: &View) -> Result<usize, String> {
        if params.iter().all(|p| p.len() == 1) {
            return Ok(self.channel(v));
        }
        let k = if v.axes.len() == 1 { Some(0) } else { axis(at, v.axes.len()) };
        k.map(|k| v.axes[k]).ok_or_else(|| "no such axis".into())
    }

    fn rescale(&self, scale: &Tensor, zero: &Tensor, to_scale: f64, to_zero: i64, away: bool) -> Rescale {
        let factor = (0..scale.len()).map(|c| fixed(scale.get_f64(c) / to_scale)).collect();
        Rescale { zero: zero.to_i64_vec(), factor: Some(factor), away, to_zero }
    }

    fn requantize(&mut self, attrs: &Attrs, given: &[&Val], dtype: DType) -> Result<Val, String> {
        let (scale, zero) = (self.numbers(given[1], "a scale")?, self.numbers(given[2], "a zero point")?);
        let to_scale = self.numbers(given[3], "a scale")?;
        let to_zero = self.number(given[4], "a zero point")?;
        if !matches!(attrs.str("compute_dtype"), "None" | "int64") {
            return Err("its arithmetic is not in integers".into());
        }
        let away = attrs.str("rounding") == "TONEAREST";
        let rescale = self.rescale(&scale, &zero, to_scale.get_f64(0), to_zero, away);
        let mut sum = self.as_sum(given[0])?;
        let like = View { base: sum.terms[0].0, axes: sum.axes.clone() };
        let source = self.graph.dtype(like.base);
        if !is_quantized(source) {
            return Err(format!("data of {source}"));
        }
        let at = self.scale_axis([&scale, &zero], attrs.int("axis"), &like)?;
        if at != self.channel(&like) && !sum.per_channel.is_empty() {
            let v = self.summed(&sum);
            sum = Sum { terms: vec![(v.base, false)], per_channel: vec![], axes: v.axes };
        }
        let integer = Integer {
            terms: sum.terms,
            per_channel: sum.per_channel,
            rescaled: vec![],
            rescale: Some(rescale),
            offset: 0,
            range: range(dtype)?,
            axis: at,
        };
        Ok(self.integer(integer, &like, dtype))
    }

    fn sum(&mut self, attrs: &Attrs, given: &[&Val], shape: &[i64], dtype: DType) -> Result<Val, String> {
        let mut numbers = Vec::new();
        for v in &given[2..8] {
            numbers.push(self.numbers(v, "a scale or zero point")?);
        }
        let (x, y) = (self.materialize(given[0])?, self.materialize(given[1])?);
        if self.shape(&x) != shape || self.shape(&y) != shape {
            return Err("an operand is repeated".into());
        }
        let order: Vec<usize> = (0..x.axes.len()).map(|a| x.axes.iter().position(|&k| k == a).unwrap_or(a)).collect();
        let second = self.in_order(&y, &order);
        let (to_scale, to_zero) = (numbers[4].get_f64(0), numbers[5].get_i64(0));
        let other = View { base: second, axes: x.axes.clone() };
        let ax = self.scale_axis([&numbers[0], &numbers[1]], attrs.int("lhs_axis"), &x)?;
        let ay = self.scale_axis([&numbers[2], &numbers[3]], attrs.int("rhs_axis"), &other)?;
        let single = |i: usize| numbers[i].len() == 1 && numbers[i + 1].len() == 1;
        if ax != ay && !single(0) && !single(2) {
            return Err("scales along different axes".into());
        }
        let at = if single(0) { ay } else { ax };
        let integer = Integer {
            terms: vec![],
            per_channel: vec![],
            rescaled: vec![
                (x.base, self.rescale(&numbers[0], &numbers[1], to_scale, to_zero, false)),
                (second, self.rescale(&numbers[2], &numbers[3], to_scale, to_zero, false)),
            ],
            rescale: None,
            offset: -to_zero,
            range: range(dtype)?,
            axis: at,
        };
        Ok(self.integer(integer, &x, dtype))
    }
}
