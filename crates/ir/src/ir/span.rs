//! Where in a source text something stands.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A named source text, kept for messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// File name, or what stands in for one (`<stdin>`).
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// A range of bytes in a [`Source`].
#[derive(Debug, Clone)]
pub struct Span {
    /// The text that the range is in.
    pub source: Arc<Source>,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// Line and column of the start, both from 1; columns count characters.
    pub fn line_col(&self) -> (usize, usize) {
        let before = &self.source.text[..(self.start as usize).min(self.source.text.len())];
        let line = before.matches('\n').count() + 1;
        let col = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (line, col)
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (line, col) = self.line_col();
        write!(f, "{}:{line}:{col}", self.source.name)
    }
}
