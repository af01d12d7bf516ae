//! What is said to a user whose input can't be taken: a message, its place in the source, and advice.

use std::fmt;

use miette::{LabeledSpan, MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

use crate::ir::Span;

/// One complaint about the input.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// What was found and what was wanted; lower case, no full stop.
    pub message: String,
    /// Where, if it has a place in a text.
    pub span: Option<Span>,
    /// A few words at the place.
    pub label: Option<String>,
    /// What to do about it, such as the near name of a misspelt one.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A complaint without a place.
    pub fn new(message: impl Into<String>) -> Diagnostic {
        Diagnostic { message: message.into(), span: None, label: None, help: None }
    }

    /// The same complaint at a place.
    pub fn at(mut self, span: Option<Span>) -> Diagnostic {
        self.span = span.or(self.span);
        self
    }

    /// The same complaint with words at its place.
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = Some(label.into());
        self
    }

    /// The same complaint with advice.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(span) = &self.span {
            write!(f, "{span}: ")?;
        }
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

/// The content of a file that should be text.
///
/// # Errors
/// Names the line and column of the first byte that is not UTF-8.
pub fn utf8<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, Refused> {
    std::str::from_utf8(bytes).map_err(|e| {
        let valid = &bytes[..e.valid_up_to()];
        let line = valid.iter().filter(|&&b| b == b'\n').count() + 1;
        let start = valid.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let column = String::from_utf8_lossy(&valid[start..]).chars().count() + 1;
        Diagnostic::new(format!("{name}:{line}:{column}: not UTF-8 text")).into()
    })
}

/// The text of a file.
///
/// # Errors
/// Says why the file can't be read, or where it is not UTF-8.
pub fn read_text(path: &std::path::Path) -> Result<String, Refused> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| Refused::from(Diagnostic::new(format!("{name}: {e}"))))?;
    utf8(&name, &bytes).map(str::to_owned)
}

/// The input was refused, for one reason or several. The command line exits with 2 and shows each with its source line.
#[derive(Clone)]
pub struct Refused(pub Vec<Diagnostic>);

impl fmt::Debug for Refused {
    /// As for a terminal: this is what a `main` that returns the error prints of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused\n{}", self.render().trim_end())
    }
}

impl From<Diagnostic> for Refused {
    fn from(d: Diagnostic) -> Refused {
        Refused(vec![d])
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{d}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// A [`Diagnostic`] in the form that miette renders.
#[derive(Debug)]
struct Shown<'a> {
    d: &'a Diagnostic,
    line: Option<Line<'a>>,
}

/// The line that a diagnostic is about, or the part of it around the place where it is overlong.
#[derive(Debug)]
struct Line<'a> {
    span: &'a Span,
    /// The bytes of the text that are shown.
    from: usize,
    to: usize,
}

/// Longer lines are not shown whole: Relay's signatures run to tens of thousands of characters.
const LONGEST_SHOWN_LINE: usize = 200;

impl<'a> Line<'a> {
    fn of(span: &'a Span) -> Line<'a> {
        let text = &span.source.text;
        let start = (span.start as usize).min(text.len());
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        if line_end - line_start <= LONGEST_SHOWN_LINE {
            return Line { span, from: line_start, to: line_end };
        }
        let from = text.floor_char_boundary(start.saturating_sub(LONGEST_SHOWN_LINE / 4).max(line_start));
        let to = text.floor_char_boundary((start + LONGEST_SHOWN_LINE / 2).min(line_end));
        Line { span, from, to }
    }

    /// The bytes to point at: of the span, what is shown.
    fn marked(&self) -> (usize, usize) {
        let start = (self.span.start as usize).min(self.to);
        (start, (self.span.end as usize).clamp(start, self.to) - start)
    }
}

impl SourceCode for Line<'_> {
    fn read_span<'b>(
        &'b self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'b> + 'b>, MietteError> {
        let (line, column) = self.span.line_col();
        // Without context lines only the position is wanted.
        let (from, to) = match (before, after) {
            (0, 0) => (span.offset(), span.offset() + span.len()),
            _ => (self.from, self.to),
        };
        let data = self.span.source.text.as_bytes().get(from..to).ok_or(MietteError::OutOfBounds)?;
        let shown = SourceSpan::new(from.into(), to - from);
        let name = self.span.source.name.clone();
        Ok(Box::new(MietteSpanContents::new_named(name, data, shown, line - 1, column - 1, 1)))
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.d.span {
            Some(span) => write!(f, "{span}: {}", self.d.message),
            None => f.write_str(&self.d.message),
        }
    }
}

impl std::error::Error for Shown<'_> {}

impl miette::Diagnostic for Shown<'_> {
    fn help<'b>(&'b self) -> Option<Box<dyn fmt::Display + 'b>> {
        self.d.help.as_ref().map(|h| Box::new(h) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.line.as_ref().map(|s| s as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let (start, len) = self.line.as_ref()?.marked();
        Some(Box::new(std::iter::once(LabeledSpan::new(self.d.label.clone(), start, len))))
    }
}

impl Refused {
    /// Every complaint with its source line, for a terminal.
    pub fn render(&self) -> String {
        let theme = miette::GraphicalTheme::none();
        let handler = miette::GraphicalReportHandler::new_themed(theme).with_width(LONGEST_SHOWN_LINE);
        let mut out = String::new();
        for d in &self.0 {
            let shown = Shown { d, line: d.span.as_ref().map(Line::of) };
            // Rendering into a String fails only where the source can't be read at the span; the plain form always can.
            if handler.render_report(&mut out, &shown).is_err() {
                out.push_str(&format!("{d}\n"));
            }
        }
        out
    }
}

/// Longer names are nobody's slip: comparing two takes time and memory by the product of their lengths.
const LONGEST_NAME: usize = 200;

/// The candidate that a misspelt name most likely meant: fewest edits, and no more than a third of its length.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .filter(|c| c.len().max(name.len()) <= LONGEST_NAME)
        .map(|c| (strsim::damerau_levenshtein(name, c), c))
        .filter(|(edits, c)| *edits <= (c.len().max(name.len()) / 3).max(1))
        .min()
        .map(|(_, c)| c)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ir::Source;

    fn rendered(text: &str, part: &str) -> String {
        let source = Arc::new(Source { name: "f.relay".into(), text: text.into() });
        let start = text.find(part).expect("the part is in the text");
        let span = Span { source, start: start as u32, end: (start + part.len()) as u32 };
        Refused::from(Diagnostic::new("no good").at(Some(span)).help("do better")).render()
    }

    #[test]
    fn the_nearest_of_long_names_is_not_looked_for() {
        assert_eq!(nearest("convv", ["conv", "dense"]), Some("conv"));
        // These would take 80 GB.
        let long = "x".repeat(100_000);
        assert_eq!(nearest(&long, [format!("{long}y").as_str(), "dense"]), None);
    }

    #[test]
    fn the_line_is_shown_under_its_number() {
        let shown = rendered("one\ntwo\nthree\n", "wo");
        for part in ["f.relay:2:2: no good", "2 | two", "^^", "help: do better"] {
            assert!(shown.contains(part), "{part}\nis not in\n{shown}");
        }
        assert!(!shown.contains("three"), "{shown}");
    }

    #[test]
    fn an_overlong_line_keeps_its_number_and_column() {
        let text = format!("one\n{}ä target {}\n", "x".repeat(5000), "y".repeat(5000));
        let shown = rendered(&text, "target");
        for part in ["f.relay:2:5003: no good", "[f.relay:2:5003]", "2 | x", "ä target y", "^^^^^^"] {
            assert!(shown.contains(part), "{part}\nis not in\n{shown}");
        }
        assert!(shown.lines().all(|l| l.len() < 300), "{shown}");
    }

    #[test]
    fn debug_shows_the_line_and_not_the_source() {
        let text = format!("{}\ntwo\n", "one\n".repeat(10_000));
        let source = Arc::new(Source { name: "f.relay".into(), text: text.clone() });
        let start = text.find("two").expect("it is there") as u32;
        let at = Span { source, start, end: start + 3 };
        let refused = Refused::from(Diagnostic::new("no good").at(Some(at)));
        let shown = format!("{refused:?}");
        assert!(shown.contains("no good") && shown.contains("10002 | two") && shown.len() < 300, "{shown}");
    }

    #[test]
    fn every_place_can_be_shown() {
        let text = "a\n\nbä";
        let source = Arc::new(Source { name: "f".into(), text: text.into() });
        for start in 0..=text.len() as u32 + 1 {
            for end in start..=text.len() as u32 + 1 {
                let span = Span { source: source.clone(), start, end };
                if text.is_char_boundary((start as usize).min(text.len())) {
                    assert!(Refused::from(Diagnostic::new("m").at(Some(span))).render().contains('m'));
                }
            }
        }
    }
}
