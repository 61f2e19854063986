//! A mistake in a configuration file: what, where, and the line with a caret under it.

use std::fmt::Write as _;
use std::ops::Range;

/// One mistake. `path` is dotted, with the index of a list entry as a segment: `source.2.declare.object`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub path: String,
    pub message: String,
    /// Bytes of the file that are at fault; none where the value came from the environment.
    pub span: Option<Range<usize>>,
}

impl Problem {
    pub fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), span: None }
    }

    /// The same problem, one level further out.
    pub fn under(mut self, parent: &str) -> Self {
        self.path = if self.path.is_empty() { parent.to_owned() } else { format!("{parent}.{}", self.path) };
        self
    }

    /// `FILE:LINE:COLUMN: PATH: MESSAGE`, the line, and a caret under the place.
    pub fn render(&self, file: &str, text: &str) -> String {
        let path = if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) };
        let Some(span) = self.span.clone().filter(|s| s.start <= text.len()) else {
            return format!("{file}: {path}{}", self.message);
        };
        let start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[span.start..].find('\n').map_or(text.len(), |at| span.start + at);
        let line = text[..span.start].matches('\n').count() + 1;
        let column = text[start..span.start].chars().count();
        let width = text[span.start..span.end.clamp(span.start, end)].chars().count().max(1);
        let gutter = " ".repeat(line.to_string().len());
        let mut out = format!("{file}:{line}:{}: {path}{}\n", column + 1, self.message);
        let _ = writeln!(out, "{gutter} |\n{line} | {}", &text[start..end]);
        let _ = write!(out, "{gutter} | {}{}", " ".repeat(column), "^".repeat(width));
        out
    }
}
