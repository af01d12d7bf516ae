//! Passes by name, as the command line gives them: `FoldConstant, Saturate(algebra, layout), Quantize(from_layer=1)`.

use crate::{
    diag::{Diagnostic, Refused},
    ir::{Source, Span},
};

/// A pass and its arguments, not looked up yet.
#[derive(Clone, Debug)]
pub struct PassSpec {
    /// The pass' name.
    pub name: String,
    /// Its arguments, in written order.
    pub args: Vec<SpecArg>,
    /// Where it stands.
    pub span: Span,
}

/// One argument of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecArg {
    /// The name, where it was given by name.
    pub name: Option<String>,
    /// The value as written, without the quotes of a string.
    pub value: String,
}

/// Reads a list of passes. The text counts as its own source: places in errors are columns of it.
pub fn parse_specs(text: &str) -> Result<Vec<PassSpec>, Refused> {
    Ok(read(text, false)?.into_iter().map(|(spec, _)| spec).collect())
}

/// The same where a question mark behind a pass says that it may be left out; whether there is one.
pub fn parse_optional_specs(text: &str) -> Result<Vec<(PassSpec, bool)>, Refused> {
    read(text, true)
}

fn read(text: &str, optional: bool) -> Result<Vec<(PassSpec, bool)>, Refused> {
    let source = std::sync::Arc::new(Source { name: "<passes>".into(), text: text.to_owned() });
    let mut reader = Reader { source, at: 0 };
    let mut specs = Vec::new();
    reader.blank();
    while reader.at < text.len() {
        let spec = reader.spec()?;
        let may_miss = optional && reader.rest().starts_with('?');
        reader.at += may_miss as usize;
        specs.push((spec, may_miss));
        reader.blank();
        if reader.at < text.len() {
            reader.expect(',')?;
            reader.blank();
        }
    }
    Ok(specs)
}

struct Reader {
    source: std::sync::Arc<Source>,
    at: usize,
}

impl Reader {
    fn rest(&self) -> &str {
        &self.source.text[self.at..]
    }

    fn blank(&mut self) {
        self.at = self.source.text.len() - self.rest().trim_start().len();
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span { source: self.source.clone(), start: start as u32, end: end as u32 }
    }

    fn refuse(&self, wanted: &str) -> Refused {
        let found = self.rest().chars().next();
        let found = found.map_or("the end".to_owned(), |c| format!("`{c}`"));
        let end = self.at + self.rest().chars().next().map_or(0, char::len_utf8);
        Diagnostic::new(format!("found {found} where {wanted} was expected")).at(Some(self.span(self.at, end))).into()
    }

    fn expect(&mut self, c: char) -> Result<(), Refused> {
        if !self.rest().starts_with(c) {
            return Err(self.refuse(&format!("`{c}`")));
        }
        self.at += c.len_utf8();
        Ok(())
    }

    fn word(&mut self, wanted: &str) -> Result<String, Refused> {
        let len =
            self.rest().find(|c: char| !(c.is_alphanumeric() || "_.-/:+".contains(c))).unwrap_or(self.rest().len());
        if len == 0 {
            return Err(self.refuse(wanted));
        }
        let word = self.rest()[..len].to_owned();
        self.at += len;
        Ok(word)
    }

    fn value(&mut self) -> Result<String, Refused> {
        let Some(quote) = self.rest().chars().next().filter(|c| "\"'".contains(*c)) else {
            return self.word("a value");
        };
        self.at += 1;
        let Some(len) = self.rest().find(quote) else { return Err(self.refuse("a closing quote")) };
        let value = self.rest()[..len].to_owned();
        self.at += len + 1;
        Ok(value)
    }

    fn spec(&mut self) -> Result<PassSpec, Refused> {
        let start = self.at;
        let name = self.word("a pass' name")?;
        let mut args = Vec::new();
        if self.rest().starts_with('(') {
            self.at += 1;
            self.blank();
            while !self.rest().starts_with(')') {
                let value = self.value()?;
                self.blank();
                if self.rest().starts_with('=') {
                    self.at += 1;
                    self.blank();
                    args.push(SpecArg { name: Some(value), value: self.value()? });
                } else {
                    args.push(SpecArg { name: None, value });
                }
                self.blank();
                if !self.rest().starts_with(')') {
                    self.expect(',')?;
                    self.blank();
                }
            }
            self.at += 1;
        }
        Ok(PassSpec { name, args, span: self.span(start, self.at) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_arguments() {
        let specs =
            parse_specs("FoldConstant, Saturate(algebra, qnn) ,ConvertLayout(to=\"NHWC4c\",from=NHWC)").unwrap();
        let names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["FoldConstant", "Saturate", "ConvertLayout"]);
        assert_eq!(specs[1].args[1], SpecArg { name: None, value: "qnn".into() });
        assert_eq!(specs[2].args[0], SpecArg { name: Some("to".into()), value: "NHWC4c".into() });
    }

    #[test]
    fn errors_have_a_place() {
        let e = parse_specs("A, B(x=)").unwrap_err().to_string();
        assert_eq!(e, "<passes>:1:8: found `)` where a value was expected");
    }
}
