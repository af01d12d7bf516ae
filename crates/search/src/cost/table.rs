//! Prices from a file.

use serde::Deserialize;

use super::{CostModel, Head, KernelView, NodeView, fused::Traffic};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{AttrValue, OpId, Source, Span, Type},
    ops,
};

/// A table of prices, read from JSON:
///
/// ```json
/// {
///   "default": { "cost": 1e-6, "per_flop": 2e-11, "per_byte": 1e-10 },
///   "rows": [
///     { "op": "nn.dense", "args": ["Tensor[(1, 512), float32]", null], "cost": 1.2e-5 },
///     { "op": "nn.conv2d", "attrs": { "groups": 1, "data_layout": "NCHW" }, "per_flop": 1e-11 },
///     { "op": "nn.relu" },
///     { "kernel": ["nn.conv2d", "add", "nn.relu"], "cost": 1e-6, "per_flop": 9e-12 }
///   ]
/// }
/// ```
///
/// A call of an operator costs what the first row says that fits it, and the default where none does: `cost`, plus `per_flop`
/// times the operator's arithmetic operations, plus `per_byte` times the bytes that it reads and writes; what is left out
/// is 0. A row fits where all that it names agrees: attributes by their JSON values (element types and layouts as strings),
/// arguments' types in Relay's notation (`Tensor[(3), float32]` for one axis, `float32` for none), `null` for any. An
/// expression that is carried through costs the default's `cost` besides what is inside of it; tuples and their fields are
/// free.
///
/// Where programs are priced by kernels, a row with `kernel` is for kernels of these operators in this order; `args` are
/// the kernel's arguments then, arithmetic is that of all its operators, and bytes are those of its arguments and its result. A kernel
/// that no such row fits costs what its operators cost.
#[derive(Debug)]
pub struct Table {
    name: String,
    default: Price,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Price,
    #[serde(default)]
    rows: Vec<FileRow>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Price {
    cost: f64,
    per_flop: f64,
    per_byte: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRow {
    #[serde(default)]
    op: Option<String>,
    #[serde(default)]
    kernel: Option<Vec<String>>,
    #[serde(default)]
    attrs: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    args: Option<Vec<Option<String>>>,
    #[serde(default)]
    cost: f64,
    #[serde(default)]
    per_flop: f64,
    #[serde(default)]
    per_byte: f64,
}

#[derive(Debug)]
struct Row {
    ops: Vec<OpId>,
    /// Whether it is for kernels: one operator is not the same as a kernel of one.
    is_kernel: bool,
    attrs: serde_json::Map<String, serde_json::Value>,
    args: Option<Vec<Option<String>>>,
    price: Price,
}

impl Table {
    /// Reads a table; `name` is the file's, for messages. Refused are texts of another form, operators and attributes that there
    /// are none of, and negative prices.
    pub fn parse(name: &str, text: &str) -> Result<Table, Refused> {
        let file: File = serde_json::from_str(text).map_err(|e| {
            let line_start: usize = text.split_inclusive('\n').take(e.line().saturating_sub(1)).map(str::len).sum();
            let at = (line_start + e.column().saturating_sub(1)).min(text.len()) as u32;
            let source = std::sync::Arc::new(Source { name: name.into(), text: text.to_owned() });
            let span = Span { source, start: at, end: at };
            Refused::from(Diagnostic::new(format!("a table of costs can't be read: {e}")).at(Some(span)))
        })?;
        let mut complaints = Vec::new();
        let mut rows = Vec::new();
        check(&file.default, &format!("{name}: the default"), &mut complaints);
        for (i, row) in file.rows.into_iter().enumerate() {
            let place = format!("{name}: row {i}");
            let price = Price { cost: row.cost, per_flop: row.per_flop, per_byte: row.per_byte };
            check(&price, &place, &mut complaints);
            let is_kernel = row.kernel.is_some();
            let names = match (row.op, row.kernel) {
                (Some(op), None) => vec![op],
                (None, Some(ops)) if !ops.is_empty() && row.attrs.is_empty() => ops,
                (None, Some(ops)) if !ops.is_empty() => {
                    complaints.push(Diagnostic::new(format!("{place}: the row of a kernel names no attributes")));
                    continue;
                }
                _ => {
                    complaints
                        .push(Diagnostic::new(format!("{place}: a row is for an `op`, or for a `kernel` of several")));
                    continue;
                }
            };
            let mut ops = Vec::new();
            for name in &names {
                match ops::lookup(name) {
                    Some(op) => ops.push(op),
                    None => {
                        let d = Diagnostic::new(format!("{place}: there is no operator `{name}`"));
                        complaints.push(match ops::suggest(name) {
                            Some(near) => d.help(format!("did you mean `{near}`?")),
                            None => d,
                        });
                    }
                }
            }
            for (field, op) in row.attrs.keys().flat_map(|f| ops.iter().map(move |op| (f, op))) {
                if !op.op().attrs().iter().any(|f| f.name == field.as_str()) {
                    complaints.push(Diagnostic::new(format!("{place}: `{op:?}` has no attribute `{field}`")));
                }
            }
            rows.push(Row { ops, is_kernel, attrs: row.attrs, args: row.args, price });
        }
        if complaints.is_empty() {
            Ok(Table { name: format!("table:{name}"), default: file.default, rows })
        } else {
            Err(Refused(complaints))
        }
    }
}

fn check(price: &Price, place: &str, complaints: &mut Vec<Diagnostic>) {
    if [price.cost, price.per_flop, price.per_byte].iter().any(|p| p.is_nan() || *p < 0.0) {
        complaints.push(Diagnostic::new(format!("{place}: prices are not negative")));
    }
}

impl Row {
    fn fits(&self, op: OpId, attrs: &crate::ir::Attrs, node: &NodeView) -> bool {
        let attrs_fit = || self.attrs.iter().all(|(name, v)| attrs.get(name).is_some_and(|a| equal(v, a)));
        !self.is_kernel && self.ops == [op] && attrs_fit() && self.args_fit(node.args)
    }

    fn fits_kernel(&self, kernel: &KernelView) -> bool {
        self.is_kernel && kernel.calls.iter().map(|c| c.op).eq(self.ops.iter().copied()) && self.args_fit(kernel.args)
    }

    fn args_fit(&self, args: &[Type]) -> bool {
        let Some(wanted) = &self.args else { return true };
        wanted.len() == args.len()
            && wanted.iter().zip(args).all(|(w, a)| w.as_ref().is_none_or(|w| *w == a.to_string()))
    }
}

/// Whether an attribute has the value that JSON says.
fn equal(json: &serde_json::Value, value: &AttrValue) -> bool {
    use serde_json::Value as Json;
    match (json, value) {
        (Json::Null, AttrValue::None) => true,
        (Json::Bool(a), AttrValue::Bool(b)) => a == b,
        (Json::Number(a), AttrValue::Int(b)) => a.as_i64() == Some(*b),
        (Json::Number(a), AttrValue::Float(b)) => a.as_f64() == Some(b.0),
        (Json::String(a), AttrValue::Str(b)) => a == b.as_str(),
        (Json::String(a), AttrValue::DType(b)) => a == b.name(),
        (Json::Array(a), AttrValue::List(b)) => a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b)),
        _ => false,
    }
}

impl CostModel for Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("table {:?} {:?}", self.default, self.rows))
    }

    fn cost(&self, node: &NodeView) -> f64 {
        match node.head {
            Head::Tuple | Head::Proj(_) => 0.0,
            Head::Carried { bodies } => self.default.cost + bodies,
            Head::Op(op, attrs) => {
                let price = self.rows.iter().find(|r| r.fits(op, attrs, node)).map_or(self.default, |r| r.price);
                if price.per_flop == 0.0 && price.per_byte == 0.0 {
                    return price.cost;
                }
                let work = op.op().work(attrs, node.args, node.out);
                price.cost + price.per_flop * work.flops + price.per_byte * (work.bytes_read + work.bytes_written)
            }
        }
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        let Some(row) = self.rows.iter().find(|r| r.fits_kernel(kernel)) else {
            return kernel.nodes().map(|node| self.cost(&node)).sum();
        };
        let flops: f64 = kernel.calls.iter().map(|c| c.op.op().work(c.attrs, &c.args, c.out).flops).sum();
        row.price.cost + row.price.per_flop * flops + row.price.per_byte * Traffic::of(kernel).bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ops::make_attrs, target::Target, tensor::DType};

    fn price(table: &Table, name: &str, shape: &[i64]) -> f64 {
        let op = ops::op(name);
        let x = Type::tensor(shape, DType::F32);
        let attrs = make_attrs(op, &[]).expect("no attributes are needed");
        let args = vec![x.clone(); op.op().inputs().len()];
        let constant = vec![false; args.len()];
        let out = op.op().infer(&attrs, &args).expect("well typed");
        let target = Target::host();
        table.cost(&NodeView {
            head: Head::Op(op, &attrs),
            args: &args,
            constant: &constant,
            out: &out,
            target: &target,
        })
    }

    #[test]
    fn the_first_row_that_fits_counts() {
        let text = r#"{
            "default": {"cost": 1, "per_byte": 1},
            "rows": [
                {"op": "nn.dense", "args": ["Tensor[(2, 2), float32]", null], "cost": 5},
                {"op": "nn.dense", "attrs": {"units": null}, "cost": 6},
                {"op": "nn.dense", "attrs": {"units": 3}, "cost": 7},
                {"op": "nn.relu"}
            ]
        }"#;
        let table = Table::parse("t.json", text).expect("legal");
        assert_eq!(price(&table, "nn.dense", &[2, 2]), 5.0);
        assert_eq!(price(&table, "nn.dense", &[3, 3]), 6.0);
        assert_eq!(price(&table, "nn.relu", &[3]), 0.0);
        assert_eq!(price(&table, "exp", &[3]), 1.0 + 24.0);
    }

    #[test]
    fn wrong_tables_are_refused() {
        for (text, part) in [
            ("{\n  \"rows\": []\n}", "t.json:3:"),
            ("{\"default\": {}, \"row\": 1}", "unknown field `row`"),
            ("{\"default\": {}, \"rows\": [{\"op\": \"nn.relo\"}]}", "did you mean `nn.relu`"),
            ("{\"default\": {}, \"rows\": [{\"op\": \"nn.relu\", \"attrs\": {\"a\": 1}}]}", "no attribute `a`"),
            ("{\"default\": {\"cost\": -1}}", "not negative"),
        ] {
            let said = Table::parse("t.json", text).expect_err("refused").to_string();
            assert!(said.contains(part), "{text}: {said}");
        }
    }
}
