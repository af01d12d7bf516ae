//! Cost models by name.

use std::{path::Path, sync::Arc};

use super::{Calls, CostModel, Flops, Measured, MeasuredRoofline, NodeCount, Roofline, Table, Timer, Weighted};
use crate::{
    diag::{Diagnostic, Refused, nearest, read_text},
    ir::{Source, Span},
};

/// A shipped model.
struct Row {
    /// What it is called. What stands after a colon is its argument; in upper case, for any text.
    name: &'static str,
    make: fn(&Given) -> Result<Arc<dyn CostModel>, Refused>,
}

/// What a model is made of.
struct Given<'a> {
    name: &'a str,
    /// What stands after the colon.
    argument: &'a str,
    timer: Option<&'a Arc<dyn Timer>>,
    span: Span,
}

impl Given<'_> {
    fn refuse(&self, message: String) -> Refused {
        Diagnostic::new(message).at(Some(self.span.clone())).into()
    }

    fn timer(&self) -> Result<Arc<dyn Timer>, Refused> {
        let message = || format!("cost model `{}` measures, and there is no machine to measure on", self.name);
        self.timer.cloned().ok_or_else(|| self.refuse(message()))
    }
}

/// The shipped models.
const SHIPPED: &[Row] = &[
    Row { name: "roofline", make: |_| Ok(Arc::new(Roofline)) },
    Row {
        name: "roofline:measured",
        make: |given| {
            let peaks = given.timer()?.peaks();
            let peaks = peaks.map_err(|why| given.refuse(format!("the machine's peaks can't be measured: {why}")))?;
            Ok(Arc::new(MeasuredRoofline::new(peaks)))
        },
    },
    Row { name: "measured", make: |given| Ok(Arc::new(Measured::new(given.timer()?))) },
    Row { name: "flops", make: |_| Ok(Arc::new(Flops)) },
    Row { name: "nodes", make: |_| Ok(Arc::new(NodeCount)) },
    Row { name: "calls", make: |_| Ok(Arc::new(Calls::default())) },
    Row {
        name: "table:FILE",
        make: |given| Ok(Arc::new(Table::parse(given.argument, &read_text(given.argument.as_ref())?)?)),
    },
];

impl Row {
    /// Whether it is the model of that name and argument.
    fn is(&self, name: &str, argument: Option<&str>) -> bool {
        match (self.name.split_once(':'), argument) {
            (None, None) => self.name == name,
            (Some((own, wanted)), Some(given)) => own == name && (wanted == given || is_open(wanted)),
            _ => false,
        }
    }
}

/// Whether an argument stands for any text.
fn is_open(argument: &str) -> bool {
    argument.chars().all(|c| c.is_ascii_uppercase())
}

/// The shipped models' names.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|row| row.name)
}

/// All names, for messages.
fn known() -> String {
    names().collect::<Vec<_>>().join(", ")
}

/// The model that a text names: `roofline`, `table:prices.json`, or a sum such as `0.9*roofline + 1e-7*nodes`. A file name
/// that holds `+`, `*` or blanks stands in quotes where more follows it.
///
/// Models that measure need a timer; without one they are refused, as are unknown names, tables that can't be read, and
/// what is no sum.
pub fn parse(text: &str, timer: Option<&Arc<dyn Timer>>) -> Result<Arc<dyn CostModel>, Refused> {
    let source = Arc::new(Source { name: "<cost>".into(), text: text.to_owned() });
    let mut reader = Reader { source, at: 0, timer };
    let mut parts = vec![reader.product()?];
    while reader.take('+') {
        parts.push(reader.product()?);
    }
    if !reader.rest().is_empty() {
        return Err(reader.refuse("`+`, `*` or the end"));
    }
    Ok(match parts.as_slice() {
        [(weight, model)] if *weight == 1.0 => model.clone(),
        _ => Arc::new(Weighted::new(parts)),
    })
}

struct Reader<'a> {
    source: Arc<Source>,
    at: usize,
    timer: Option<&'a Arc<dyn Timer>>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.source.text[self.at..]
    }

    fn blank(&mut self) {
        self.at = self.source.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, c: char) -> bool {
        self.blank();
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
            self.blank();
        }
        found
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span { source: self.source.clone(), start: start as u32, end: end as u32 }
    }

    fn refuse(&self, wanted: &str) -> Refused {
        let found = self.rest().chars().next();
        let shown = found.map_or("the end".to_owned(), |c| format!("`{c}`"));
        let end = self.at + found.map_or(0, char::len_utf8);
        Diagnostic::new(format!("found {shown} where {wanted} was expected"))
            .at(Some(self.span(self.at, end)))
            .help(format!("cost models are {}, and sums of them such as `0.9*roofline + 1e-7*nodes`", known()))
            .into()
    }

    /// A model and its weight.
    fn product(&mut self) -> Result<(f64, Arc<dyn CostModel>), Refused> {
        let (mut weight, mut model) = (1.0, None);
        loop {
            self.blank();
            match self.rest().chars().next() {
                Some(c) if c.is_ascii_digit() || c == '.' => weight *= self.number()?,
                Some(c) if c.is_alphabetic() && model.is_none() => model = Some(self.model()?),
                _ => return Err(self.refuse(if model.is_none() { "a cost model or a weight" } else { "a weight" })),
            }
            if !self.take('*') {
                break;
            }
        }
        match model {
            Some(model) => Ok((weight, model)),
            None => Err(self.refuse("`*` and a cost model")),
        }
    }

    fn number(&mut self) -> Result<f64, Refused> {
        let bytes = self.rest().as_bytes();
        let mut len = 0;
        while let Some(&b) = bytes.get(len) {
            let sign = matches!(b, b'+' | b'-') && len > 0 && matches!(bytes[len - 1], b'e' | b'E');
            if !(b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E') || sign) {
                break;
            }
            len += 1;
        }
        match self.rest()[..len].parse::<f64>() {
            Ok(n) if n.is_finite() => {
                self.at += len;
                Ok(n)
            }
            _ => Err(self.refuse("a weight such as 0.5 or 1e-7")),
        }
    }

    fn model(&mut self) -> Result<Arc<dyn CostModel>, Refused> {
        let start = self.at;
        let rest = self.rest();
        let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_')).unwrap_or(rest.len());
        let name = rest[..len].to_owned();
        self.at += len;
        let argument = if self.rest().starts_with(':') { Some(self.argument()?) } else { None };
        let span = self.span(start, self.at);
        if let Some(row) = SHIPPED.iter().find(|row| row.is(&name, argument.as_deref())) {
            let argument = argument.as_deref().unwrap_or_default();
            return (row.make)(&Given { name: &name, argument, timer: self.timer, span });
        }
        let wants_more = |n: &&str| n.split_once(':').is_some_and(|(own, a)| own == name && is_open(a));
        let given = &self.source.text[start..self.at];
        let d = match names().find(wants_more) {
            Some(full) => Diagnostic::new(format!("cost model `{given}` is given as `{full}`")),
            None => {
                let d = Diagnostic::new(format!("there is no cost model `{given}`; there are {}", known()));
                match nearest(given, names()) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                }
            }
        };
        Err(d.at(Some(span)).into())
    }

    /// What stands after a colon.
    fn argument(&mut self) -> Result<String, Refused> {
        self.at += 1;
        let rest = self.rest();
        let quote = rest.chars().next().filter(|c| "\"'".contains(*c));
        let (from, len) = match quote {
            Some(quote) => (1, rest[1..].find(quote).ok_or_else(|| self.refuse("a closing quote after this one"))?),
            // Names of files may hold anything: what is left is one where there is such a file.
            None if Path::new(rest.trim_end()).is_file() => (0, rest.trim_end().len()),
            None => (0, rest.find(|c: char| c.is_whitespace() || c == '+' || c == '*').unwrap_or(rest.len())),
        };
        let argument = rest[from..from + len].to_owned();
        self.at += len + 2 * from;
        Ok(argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cost::{Head, NodeView},
        ir::Type,
        ops::{make_attrs, op},
        target::Target,
        tensor::DType,
    };

    fn price(spec: &str) -> f64 {
        let x = Type::tensor(&[4], DType::F32);
        let relu = op("nn.relu");
        let attrs = make_attrs(relu, &[]).expect("no attributes");
        let target = Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal");
        let head = Head::Op(relu, &attrs);
        let view = NodeView { head, args: std::slice::from_ref(&x), constant: &[false], out: &x, target: &target };
        parse(spec, None).unwrap_or_else(|e| panic!("{spec}: {e}")).cost(&view)
    }

    #[test]
    fn sums_weigh() {
        assert_eq!(price("nodes"), 1.0);
        assert_eq!(price(" 2 * nodes "), 2.0);
        assert_eq!(price("nodes*0.5+nodes*1e+1"), 10.5);
        assert_eq!(price("roofline*0+ 3*nodes"), 3.0);
    }

    #[test]
    fn what_is_inside_of_carried_expressions_is_counted_once() {
        let model = parse("0.5*nodes + 0.5*nodes", None).expect("legal");
        let (out, target) = (Type::tensor(&[], DType::F32), Target::host());
        let head = Head::Carried { bodies: 7.0 };
        assert_eq!(model.cost(&NodeView { head, args: &[], constant: &[], out: &out, target: &target }), 8.0);
    }

    #[test]
    fn tables_have_any_name() {
        let folder = std::env::temp_dir().join(format!("resat-tables-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for name in ["a b.json", "a+b*c.json", "plain.json"] {
            let path = folder.join(name);
            std::fs::write(&path, r#"{"default": {"cost": 7.0}, "rows": []}"#).expect("it is written");
            assert_eq!(price(&format!("table:{}", path.display())), 7.0, "{name}");
            assert_eq!(price(&format!("2*table:'{}' + nodes", path.display())), 15.0, "{name}");
        }
        std::fs::remove_dir_all(&folder).expect("it can be removed");
    }

    #[test]
    fn wrong_names_are_refused_with_the_known_ones() {
        for (spec, part) in [
            ("", "found the end where a cost model or a weight was expected"),
            ("rooflin", "there is no cost model `rooflin`; there are roofline, roofline:measured, measured"),
            ("rooflin", "did you mean `roofline`"),
            ("roofline:x", "there is no cost model `roofline:x`"),
            ("nodes nodes", "found `n` where `+`, `*` or the end"),
            ("nodes*flops", "found `f` where a weight"),
            ("0.5", "`*` and a cost model"),
            ("-1*nodes", "found `-`"),
            ("measured", "no machine to measure on"),
            ("table", "`table:FILE`"),
            ("table:no such file", "no: "),
        ] {
            let said = parse(spec, None).err().unwrap_or_else(|| panic!("`{spec}` is taken")).to_string();
            assert!(said.contains(part), "{spec}: {said}");
        }
    }
}
