//! Features as numbers that models take: scaled, encoded, filled in.

use super::{Labels, floats, ml, points, texts};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
            ops::{Row, logic::same_length},
            tensors,
        },
    },
    tensor::{DType, Tensor},
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] = &[
    ml("CategoryMapper", category_mapper),
    ml("FeatureVectorizer", feature_vectorizer),
    ml("Imputer", imputer),
    ml("LabelEncoder", label_encoder),
    ml("Normalizer", normalizer),
    ml("OneHotEncoder", one_hot),
    ml("Scaler", scaler),
    ml("ZipMap", |n| {
        let values = n.tens(0)?;
        let keys = Labels::of(n, "classlabels_int64s", "classlabels_strings")?;
        let columns = n.dims(values.e)?;
        n.ensure(columns.len() == 2 && columns[1].is_none_or(|c| c == keys.count as i64), || {
            format!("it has {} keys for a tensor of shape {columns:?}", keys.count)
        })?;
        Ok(vec![Val::Maps { values, keys: Tens { e: keys.names, elem: keys.elem } }])
    }),
];

fn scaler(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let x = n.cast(x, DType::F32)?;
    let (offset, scale) = (n.floats("offset")?.unwrap_or_default(), n.floats("scale")?.unwrap_or_default());
    let mut y = x;
    if !offset.is_empty() {
        let o = floats(n, DType::F32, &[offset.len()], &offset);
        y = n.sub(y, o)?;
    }
    if !scale.is_empty() {
        let s = floats(n, DType::F32, &[scale.len()], &scale);
        y = n.mul(y, s)?;
    }
    n.one(y)
}

fn normalizer(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let x = n.cast(x, DType::F32)?;
    let last = n.rank(x)?.checked_sub(1).ok_or_else(|| n.refuse("its input has no axes"))?;
    let norm = match n.text("norm", "MAX")?.as_str() {
        "MAX" => n.reduce("max", x, &[last], true)?,
        "L1" => {
            let magnitude = n.un("abs", x)?;
            n.reduce("sum", magnitude, &[last], true)?
        }
        "L2" => {
            let squares = n.mul(x, x)?;
            let sum = n.reduce("sum", squares, &[last], true)?;
            n.un("sqrt", sum)?
        }
        other => return Err(n.refuse(format!("there is no norm `{other}`"))),
    };
    // What has no length stays as it is.
    let none = n.with("equal", norm, 0.0)?;
    let one = n.c(norm, 1.0)?;
    let norm = n.select(none, one, norm)?;
    let y = n.div(x, norm)?;
    n.one(y)
}

fn imputer(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let dtype = n.dtype(x)?;
    let (value, missing) = if dtype.is_float() {
        let values = n.floats("imputed_value_floats")?.unwrap_or_default();
        let replaced = n.float("replaced_value_float", 0.0)?;
        let missing = if replaced.is_nan() { n.un("isnan", x)? } else { n.with("equal", x, replaced)? };
        (floats(n, dtype, &[values.len()], &values), missing)
    } else {
        let values = n.ints("imputed_value_int64s")?.unwrap_or_default();
        let missing = n.with("equal", x, n.int("replaced_value_int64", 0)? as f64)?;
        (n.constant(Tensor::from_i64_fn(dtype, &[values.len()], |i| values[i])), missing)
    };
    n.ensure(n.dims(value)?[0] != Some(0), || "it has no values of its input's type".into())?;
    let y = n.select(missing, value, x)?;
    n.one(y)
}

fn feature_vectorizer(n: &mut Node) -> Convert<Vec<Val>> {
    let widths = n.ints("inputdimensions")?.unwrap_or_default();
    let mut parts = Vec::new();
    for (i, x) in n.all()?.into_iter().enumerate() {
        let x = n.cast(x, DType::F32)?;
        let x = if n.rank(x)? == 1 { n.trailing(x, 1)? } else { n.flattened(x, 1)? };
        let have = n.extent(x, 1)?;
        let want = widths.get(i).copied().unwrap_or(have);
        n.ensure(want >= 0, || format!("it wants {want} features"))?;
        parts.push(if want <= have {
            n.slice(x, 1, 0, want)?
        } else {
            let zero = n.c(x, 0.0)?;
            n.pad(x, &[0, 0], &[0, want - have], zero)?
        });
    }
    n.ensure(!parts.is_empty(), || "it has no inputs".into())?;
    let y = n.concat(&parts, 1)?;
    n.one(y)
}

/// Which of a vector of keys each element is: the elements' axes, and one for the keys.
fn hits(n: &mut Node, x: Tens, keys: Tens) -> Convert {
    n.ensure((x.elem == Elem::Text) == (keys.elem == Elem::Text), || {
        format!("its keys are of {}, but its input is of {}", keys.elem.name(), x.elem.name())
    })?;
    if x.elem == Elem::Text {
        let rank = n.rank(x.e)?;
        let x = Tens { e: n.expand(x.e, rank - 1, 1)?, ..x };
        let (x, keys) = same_length(n, x, keys)?;
        let same = n.bin("equal", x.e, keys.e)?;
        return n.reduce("all", same, &[rank], false);
    }
    let dtype = n.dtype(x.e)?;
    let keys = n.cast(keys.e, dtype)?;
    let x = n.trailing(x.e, 1)?;
    let same = n.bin("equal", x, keys)?;
    if !dtype.is_float() || n.version < 4 {
        return Ok(same);
    }
    // Since version 4 NaN is a key like others.
    let (a, b) = (n.un("isnan", x)?, n.un("isnan", keys)?);
    let both = n.bin("logical_and", a, b)?;
    n.bin("logical_or", same, both)
}

fn one_hot(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.tens(0)?;
    n.ensure(n.flag("zeros", true)?, || "failing for values that are in no category is not supported".into())?;
    let keys = match n.texts("cats_strings")?.filter(|_| x.elem == Elem::Text) {
        Some(all) => Tens { e: texts(n, &all), elem: Elem::Text },
        None => {
            let all = n.ints("cats_int64s")?.unwrap_or_default();
            Tens { e: n.im.b.ints(&all), elem: Elem::Plain(DType::I64) }
        }
    };
    // Categories are integers: what is not is cut.
    let x = match x.elem {
        Elem::Plain(d) if d != DType::I64 => Tens { e: n.cast(x.e, DType::I64)?, elem: keys.elem },
        _ => x,
    };
    let hit = hits(n, x, keys)?;
    let y = n.cast(hit, DType::F32)?;
    n.one(y)
}

/// Keys or values of a mapping, by the first attribute that is there: each is of strings, integers or floats, or a tensor.
fn list(n: &mut Node, kind: &str) -> Convert<Option<(Elem, Tensor)>> {
    if let Some(all) = n.texts(&format!("{kind}_strings"))? {
        let all: Vec<Vec<u32>> = all.iter().map(|s| points(s)).collect();
        return Ok(Some((Elem::Text, tensors::of_points(&[all.len()], &all))));
    }
    if let Some(all) = n.ints(&format!("{kind}_int64s"))? {
        return Ok(Some((Elem::Plain(DType::I64), Tensor::from_slice(&[all.len()], &all))));
    }
    if let Some(all) = n.floats(&format!("{kind}_floats"))? {
        return Ok(Some((Elem::Plain(DType::F32), Tensor::from_f64_fn(DType::F32, &[all.len()], |i| all[i]))));
    }
    n.tensor_attr(&format!("{kind}_tensor"))
}

/// The value of each element's key, or the default.
fn mapped(n: &mut Node, x: Tens, keys: (Elem, Tensor), values: (Elem, Tensor), default: Tensor) -> Convert<Vec<Val>> {
    let text = usize::from(values.0 == Elem::Text);
    let count = |t: &(Elem, Tensor)| t.1.shape().first().copied().unwrap_or(0);
    let (k, v) = (count(&keys), count(&values));
    n.ensure(k == v && k > 0, || format!("it has {k} keys, but {v} values"))?;
    let (keys, table) = (Tens { e: n.constant(keys.1), elem: keys.0 }, n.constant(values.1));
    let default = n.constant(default);
    // The default comes after the values.
    let table = if text == 1 {
        let (a, b) = (Tens { e: table, elem: Elem::Text }, Tens { e: default, elem: Elem::Text });
        let (a, b) = same_length(n, a, b)?;
        n.concat(&[a.e, b.e], 0)?
    } else {
        let default = n.reshape(default, &[1])?;
        n.concat(&[table, default], 0)?
    };
    let hit = hits(n, x, keys)?;
    let axis = n.rank(hit)? - 1;
    let any = n.reduce("any", hit, &[axis], false)?;
    let hit = n.cast(hit, DType::I32)?;
    let first = n.op("argmax", &[hit], &[("axis", [axis as i64].into())])?;
    let none = n.c(first, k as f64)?;
    let which = n.select(any, first, none)?;
    let e = n.take(table, which, 0)?;
    Ok(vec![Val::Tensor(Tens { e, elem: values.0 })])
}

/// The default of a mapping to elements of that type.
fn default_of(n: &mut Node, elem: Elem) -> Convert<Tensor> {
    if let Some((e, t)) = n.tensor_attr("default_tensor")? {
        n.ensure(e == elem && (t.len() == 1 || e == Elem::Text), || {
            "its default is of another type than its values".into()
        })?;
        return Ok(t);
    }
    match elem {
        Elem::Text => Ok(tensors::of_points(&[1], &[points(&n.text("default_string", "_Unused")?)])),
        Elem::Plain(d) if d.is_float() => {
            let v = n.float("default_float", -0.0)?;
            Ok(Tensor::from_f64_fn(d, &[1], |_| v))
        }
        Elem::Plain(d) => {
            let v = n.int("default_int64", -1)?;
            Ok(Tensor::from_i64_fn(d, &[1], |_| v))
        }
        Elem::Small(_) => Err(n.refuse(format!("values of {} are not supported", elem.name()))),
    }
}

fn label_encoder(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.tens(0)?;
    if let Some(classes) = n.texts("classes_strings")? {
        return between(n, x, &classes, &(0..classes.len() as i64).collect::<Vec<_>>());
    }
    let (keys, values) = (list(n, "keys")?, list(n, "values")?);
    let (Some(keys), Some(values)) = (keys, values) else { return Err(n.refuse("it lacks keys or values")) };
    let default = default_of(n, values.0)?;
    mapped(n, x, keys, values, default)
}

/// From texts to integers, or the way back, as the input asks for.
fn between(n: &mut Node, x: Tens, names: &[String], numbers: &[i64]) -> Convert<Vec<Val>> {
    let lines: Vec<Vec<u32>> = names.iter().map(|s| points(s)).collect();
    let names = (Elem::Text, tensors::of_points(&[lines.len()], &lines));
    let numbers = (Elem::Plain(DType::I64), Tensor::from_slice(&[numbers.len()], numbers));
    let (keys, values) = if x.elem == Elem::Text { (names, numbers) } else { (numbers, names) };
    let default = default_of(n, values.0)?;
    mapped(n, x, keys, values, default)
}

fn category_mapper(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.tens(0)?;
    let (names, numbers) = (n.texts("cats_strings")?.unwrap_or_default(), n.ints("cats_int64s")?.unwrap_or_default());
    between(n, x, &names, &numbers)
}
