//! S-expressions that remember where they stand. `symbolic_expressions` is the value type for printing; it keeps no
//! positions, which error messages need.

use std::{io::Write, sync::Arc};

use symbolic_expressions::{Formatter, Sexp, SexpError, encode_string, ser::to_string_with_formatter};

use crate::{
    diag::{Diagnostic, Refused},
    ir::{Source, Span},
};

/// No rule nests deeper than this; the later phases walk forms by recursion and rely on it.
const DEEPEST: usize = 64;

/// One s-expression with its place.
#[derive(Clone, Debug)]
pub(super) struct Form {
    /// From the first byte to the last.
    pub(super) span: Span,
    /// What it is.
    pub(super) kind: FormKind,
}

/// What an s-expression is.
#[derive(Clone, Debug)]
pub(super) enum FormKind {
    /// A bare word: a name, a variable, a number, `=>`.
    Word(String),
    /// A quoted string.
    Text(String),
    /// Forms in brackets of one kind.
    List(Bracket, Vec<Form>),
}

/// The kinds of brackets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Bracket {
    /// `( )`: calls.
    Round,
    /// `{ }`: attribute records.
    Curly,
    /// `[ ]`: lists.
    Square,
}

impl Bracket {
    fn of(c: u8) -> Option<(Bracket, bool)> {
        Some(match c {
            b'(' => (Bracket::Round, true),
            b')' => (Bracket::Round, false),
            b'{' => (Bracket::Curly, true),
            b'}' => (Bracket::Curly, false),
            b'[' => (Bracket::Square, true),
            b']' => (Bracket::Square, false),
            _ => return None,
        })
    }

    fn chars(self) -> (char, char) {
        match self {
            Bracket::Round => ('(', ')'),
            Bracket::Curly => ('{', '}'),
            Bracket::Square => ('[', ']'),
        }
    }
}

/// A form at the top of a file, with the comment lines right above it.
#[derive(Clone, Debug)]
pub(super) struct Top {
    /// The comment, its semicolons and first blanks taken off, lines kept.
    pub(super) comment: String,
    /// The form.
    pub(super) form: Form,
}

impl Form {
    /// The word, where it is one.
    pub(super) fn word(&self) -> Option<&str> {
        match &self.kind {
            FormKind::Word(w) => Some(w),
            _ => None,
        }
    }

    /// The items of a list in these brackets.
    pub(super) fn list(&self, bracket: Bracket) -> Option<&[Form]> {
        match &self.kind {
            FormKind::List(b, items) if *b == bracket => Some(items),
            _ => None,
        }
    }

    /// A complaint about this form.
    pub(super) fn complain(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(message).at(Some(self.span.clone()))
    }

    /// The form as a value of `symbolic_expressions`, and the brackets of its lists in order of their opening.
    fn to_sexp(&self, brackets: &mut Vec<Bracket>) -> Sexp {
        match &self.kind {
            FormKind::Word(w) => Sexp::String(w.clone()),
            // The printer puts strings of certain characters into quotes by itself.
            FormKind::Text(t) if encode_string(t) != *t => Sexp::String(t.clone()),
            FormKind::Text(t) => Sexp::String(format!("\"{t}\"")),
            FormKind::List(bracket, items) => {
                brackets.push(*bracket);
                Sexp::List(items.iter().map(|i| i.to_sexp(brackets)).collect())
            }
        }
    }
}

/// The form in its own notation, on one line: what [`read`] reads as the same form.
impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut brackets = Vec::new();
        let sexp = self.to_sexp(&mut brackets);
        let printer = Brackets { coming: brackets.into_iter(), open: Vec::new() };
        f.write_str(&to_string_with_formatter(&sexp, printer).expect("text is written into memory"))
    }
}

/// Prints lists in their own brackets; to `symbolic_expressions` they are all the same.
struct Brackets {
    coming: std::vec::IntoIter<Bracket>,
    open: Vec<Bracket>,
}

impl Formatter for Brackets {
    fn open<W: Write>(&mut self, out: &mut W, _: Option<&Sexp>) -> Result<(), SexpError> {
        let bracket = self.coming.next().expect("as many brackets as lists");
        self.open.push(bracket);
        Ok(write!(out, "{}", bracket.chars().0)?)
    }

    fn element<W: Write>(&mut self, out: &mut W, _: &Sexp) -> Result<(), SexpError> {
        Ok(out.write_all(b" ")?)
    }

    fn close<W: Write>(&mut self, out: &mut W) -> Result<(), SexpError> {
        let bracket = self.open.pop().expect("what closes was open");
        Ok(write!(out, "{}", bracket.chars().1)?)
    }
}

/// Reads all forms of a text. Errors of the reader stop it: what follows an unbalanced bracket means nothing.
pub(super) fn read(source: &Arc<Source>) -> Result<Vec<Top>, Refused> {
    let text = source.text.as_bytes();
    let span = |start: usize, end: usize| Span { source: source.clone(), start: start as u32, end: end as u32 };
    let mut tops = Vec::new();
    let mut open: Vec<(Bracket, usize, Vec<Form>)> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let start = at;
        let c = text[at];
        let form = if c == b';' {
            let end = text[at..].iter().position(|&c| c == b'\n').map_or(text.len(), |n| at + n);
            if open.is_empty() {
                let line = source.text[at..end].trim_start_matches(';');
                comment.push(line.strip_prefix(' ').unwrap_or(line).trim_end());
            }
            at = end + 1;
            continue;
        } else if c.is_ascii_whitespace() {
            // A blank line ends a comment: what stands above it is not about the next form.
            if c == b'\n' && open.is_empty() && at > 0 && text[at - 1] == b'\n' {
                comment.clear();
            }
            at += 1;
            continue;
        } else if c == b'"' {
            let Some(n) = text[at + 1..].iter().position(|&c| c == b'"') else {
                return Err(Diagnostic::new("this string is not closed").at(Some(span(at, at + 1))).into());
            };
            at += n + 2;
            FormKind::Text(source.text[start + 1..at - 1].to_owned())
        } else if let Some((bracket, opens)) = Bracket::of(c) {
            at += 1;
            if opens {
                if open.len() == DEEPEST {
                    let d = Diagnostic::new(format!("brackets are nested deeper than {DEEPEST}"));
                    return Err(d.at(Some(span(start, at))).into());
                }
                open.push((bracket, start, Vec::new()));
                continue;
            }
            match open.pop() {
                Some((b, from, items)) if b == bracket => {
                    let form = Form { span: span(from, at), kind: FormKind::List(bracket, items) };
                    match open.last_mut() {
                        Some((_, _, siblings)) => siblings.push(form),
                        None => tops.push(Top { comment: std::mem::take(&mut comment).join("\n"), form }),
                    }
                    continue;
                }
                Some((b, from, _)) => {
                    let (o, c) = (b.chars().0, bracket.chars().1);
                    let (line, col) = span(from, from + 1).line_col();
                    let d = Diagnostic::new(format!("`{c}` closes the `{o}` of line {line}, column {col}"));
                    return Err(d.at(Some(span(start, at))).into());
                }
                None => {
                    let d = Diagnostic::new(format!("`{}` closes nothing", bracket.chars().1));
                    return Err(d.at(Some(span(start, at))).into());
                }
            }
        } else {
            let ends = |c: u8| c.is_ascii_whitespace() || c == b';' || c == b'"' || Bracket::of(c).is_some();
            at += text[at..].iter().position(|&c| ends(c)).unwrap_or(text.len() - at);
            FormKind::Word(source.text[start..at].to_owned())
        };
        let form = Form { span: span(start, at), kind: form };
        match open.last_mut() {
            Some((_, _, siblings)) => siblings.push(form),
            None => tops.push(Top { comment: std::mem::take(&mut comment).join("\n"), form }),
        }
    }
    match open.pop() {
        Some((b, from, _)) => {
            let d = Diagnostic::new(format!("this `{}` is not closed", b.chars().0));
            Err(d.at(Some(span(from, from + 1))).into())
        }
        None => Ok(tops),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Arc<Source> {
        Arc::new(Source { name: "t.rules".into(), text: text.into() })
    }

    #[test]
    fn forms_print_as_they_were_read() {
        let text = "(rule a (f {axis ?k ..?a} ?x) => \"NCHW\" :for [8 16])";
        let tops = read(&source(text)).expect("well formed");
        assert_eq!(tops[0].form.to_string(), text);
    }

    #[test]
    fn comments_belong_to_the_form_right_below() {
        let tops = read(&source(";; Far.\n\n;; Near,\n;; and long.\n(a)\n(b)")).expect("well formed");
        assert_eq!(tops[0].comment, "Near,\nand long.");
        assert_eq!(tops[1].comment, "");
    }

    #[test]
    fn unbalanced_brackets_are_refused_where_they_stand() {
        for (text, wanted) in [
            ("(a\n (b)", "t.rules:1:1: this `(` is not closed"),
            ("(a]", "t.rules:1:3: `]` closes the `(` of line 1, column 1"),
            (")", "t.rules:1:1: `)` closes nothing"),
            ("(\"a)", "t.rules:1:2: this string is not closed"),
        ] {
            assert_eq!(read(&source(text)).expect_err("unbalanced").to_string(), wanted);
        }
        let deep = "(".repeat(10_000);
        assert!(read(&source(&deep)).expect_err("deep").to_string().contains("nested deeper"));
    }
}
