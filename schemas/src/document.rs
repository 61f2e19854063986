//! Reads a TOML file into a type and reports every mistake at once, each with its line.
//!
//! serde stops at the first mistake. So the entry at fault is taken out of the tree and the rest is
//! read again, until all of it is read; a field that is missing only because it was taken out is not
//! reported a second time.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::Problem;

/// Most mistakes reported of one file.
pub const PROBLEMS_MAX: usize = 100;

/// One value from the environment: a dotted path and the text to put there.
#[derive(Debug, Clone)]
pub struct Overlay {
    pub variable: String,
    pub path: String,
    pub text: String,
}

/// Reads `text`, lays `overlays` over it, and validates. On mistakes: all of them, in order of the file.
pub fn read<T: DeserializeOwned>(
    text: &str,
    overlays: &[Overlay],
    validate: impl FnOnce(&T) -> Vec<Problem>,
) -> Result<T, Vec<Problem>> {
    let literals: Vec<String> = overlays.iter().map(|o| literal(&o.text)).collect();
    let (mut tree, syntax) = DeTable::parse_recoverable(text);
    let mut problems: Vec<_> = syntax.iter().map(|e| problem("", e.message(), e.span())).collect();
    for (overlay, literal) in overlays.iter().zip(&literals) {
        if let Err(message) = lay_over(&mut tree, &overlay.path, literal) {
            problems.push(Problem::at(overlay.variable.clone(), message));
        }
    }
    let whole = tree.clone();
    let mut taken_out: Vec<TakenOut> = Vec::new();
    while problems.len() < PROBLEMS_MAX {
        let error = match T::deserialize(toml::Deserializer::from(tree.clone())) {
            Ok(value) => {
                let found = validate(&value).into_iter().map(|p| restore_path(p, &taken_out));
                let is_echo = |p: &Problem| taken_out.iter().any(|t| is_within(&t.path, &p.path));
                problems.extend(found.filter(|p| !is_echo(p)).map(|p| locate(&whole, p)));
                if problems.is_empty() {
                    return Ok(value);
                }
                break;
            }
            Err(error) => error,
        };
        let removed = error.span().and_then(|span| take_out(tree.get_mut(), &span, String::new()));
        let removed = removed.map(|mut taken| {
            taken.path = restore_path(Problem::at(taken.path, ""), &taken_out).path;
            taken
        });
        let path = removed.as_ref().map_or("", |t| t.path.as_str());
        if !taken_out.iter().any(|t| t.explains(&error, path)) {
            problems.push(problem(path, error.message(), error.span()));
        }
        match removed {
            Some(taken) => taken_out.push(taken),
            None => break,
        }
    }
    problems.sort_by_key(|p| p.span.as_ref().map_or(usize::MAX, |s| s.start));
    problems.dedup();
    Err(problems)
}

/// An entry that was at fault.
struct TakenOut {
    /// Where it stood in the file.
    path: String,
    /// It was an element of a list, so those behind it moved up.
    is_element: bool,
}

impl TakenOut {
    /// Whether a mistake is there only because this entry is gone.
    fn explains(&self, error: &toml::de::Error, path: &str) -> bool {
        match error.message().strip_prefix("missing field `") {
            Some(rest) => self.path.rsplit('.').next() == rest.strip_suffix('`') && is_within(&self.path, path),
            None => is_within(&self.path, path),
        }
    }
}

fn is_within(path: &str, parent: &str) -> bool {
    parent.is_empty() || path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The path in the file of a path in what is left of it.
fn restore_path(mut problem: Problem, taken_out: &[TakenOut]) -> Problem {
    let mut elements: Vec<_> =
        taken_out.iter().filter(|t| t.is_element).filter_map(|t| t.path.rsplit_once('.')).collect();
    elements.sort_by_key(|(list, index)| (list.len(), index.parse::<usize>().unwrap_or(0)));
    for (list, index) in elements {
        let Some(rest) = problem.path.strip_prefix(list).and_then(|r| r.strip_prefix('.')) else { continue };
        let (own, behind) = rest.split_once('.').map_or((rest, None), |(own, behind)| (own, Some(behind)));
        let (Ok(own), Ok(index)) = (own.parse::<usize>(), index.parse::<usize>()) else { continue };
        if own >= index {
            let behind = behind.map_or(String::new(), |b| format!(".{b}"));
            problem.path = format!("{list}.{}{behind}", own + 1);
        }
    }
    problem
}

fn problem(path: &str, message: &str, span: Option<Range<usize>>) -> Problem {
    Problem { path: path.to_owned(), message: message.to_owned(), span }
}

/// A TOML literal of the text: itself where it is one (`8080`, `true`, `[1]`), else a string.
fn literal(text: &str) -> String {
    if DeValue::parse(text).is_ok() { text.to_owned() } else { toml::Value::String(text.to_owned()).to_string() }
}

fn lay_over<'t>(tree: &mut Spanned<DeTable<'t>>, path: &str, literal: &'t str) -> Result<(), String> {
    let value = DeValue::parse(literal).map_err(|e| e.message().to_owned())?;
    let mut table = tree.get_mut();
    let mut segments = path.split('.').peekable();
    while let Some(segment) = segments.next() {
        let key = Spanned::new(0..0, segment.to_owned().into());
        if segments.peek().is_none() {
            table.insert(key, Spanned::new(0..0, value.into_inner()));
            return Ok(());
        }
        let empty = || Spanned::new(0..0, DeValue::Table(DeTable::new()));
        match table.entry(key).or_insert_with(empty).get_mut() {
            DeValue::Table(inner) => table = inner,
            _ => return Err(format!("{segment} is not a section")),
        }
    }
    Ok(())
}

/// Removes the innermost entry, of a table or of a list, that covers `span`.
fn take_out(table: &mut DeTable<'_>, span: &Range<usize>, path: String) -> Option<TakenOut> {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    for (key, value) in table.iter_mut() {
        let inner = take_out_of_value(value, span, join(key.get_ref()));
        if inner.is_some() {
            return inner;
        }
    }
    let hit = table.iter().find(|(key, value)| covers(&key.span(), span) || covers(&value.span(), span))?;
    let key = hit.0.get_ref().to_string();
    table.remove(key.as_str());
    Some(TakenOut { path: join(&key), is_element: false })
}

fn take_out_of_value(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>, path: String) -> Option<TakenOut> {
    match value.get_mut() {
        DeValue::Table(table) => take_out(table, span, path),
        DeValue::Array(entries) => {
            let place = |i: usize| format!("{path}.{i}");
            let inner = entries.iter_mut().enumerate().find_map(|(i, e)| take_out_of_value(e, span, place(i)));
            if inner.is_some() {
                return inner;
            }
            let hit = entries.iter().position(|entry| covers(&entry.span(), span))?;
            let rest = entries.iter().enumerate().filter(|(i, _)| *i != hit);
            *entries = rest.map(|(_, entry)| entry.clone()).collect();
            Some(TakenOut { path: place(hit), is_element: true })
        }
        _ => None,
    }
}

fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Finds the bytes of `problem.path`, or of the nearest parent that the file holds.
fn locate(tree: &Spanned<DeTable<'_>>, mut problem: Problem) -> Problem {
    let mut table = Some(tree.get_ref());
    let mut value: Option<&Spanned<DeValue<'_>>> = None;
    for segment in problem.path.split('.') {
        let next = match (table, value.map(Spanned::get_ref)) {
            (Some(table), _) => table.get(segment),
            (None, Some(DeValue::Table(table))) => table.get(segment),
            (None, Some(DeValue::Array(entries))) => segment.parse().ok().and_then(|i: usize| entries.get(i)),
            _ => None,
        };
        let Some(next) = next else { break };
        table = None;
        value = Some(next);
    }
    problem.span = value.map(Spanned::span).filter(|s| !s.is_empty());
    problem
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        ports: Vec<Port>,
        server: Server,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Port {
        number: u16,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Server {
        listen: String,
    }

    fn validate(file: &File) -> Vec<Problem> {
        let zero =
            |(i, p): (usize, &Port)| (p.number == 0).then(|| Problem::at(format!("ports.{i}.number"), "is zero"));
        file.ports.iter().enumerate().filter_map(zero).collect()
    }

    #[test]
    fn all_mistakes_come_at_once_with_their_lines() {
        let text = "[server]\nlisten = 5\nlsten = \"x\"\n[[ports]]\nnumber = \"a\"\n[[ports]]\nnumber = 1\nnmber = 2\n";
        let problems = read(text, &[], validate).expect_err("mistakes");
        let rendered: Vec<_> = problems.iter().map(|p| p.render("f.toml", text)).collect();
        let starts = [
            "f.toml:2:10: server.listen: ",
            "f.toml:3:1: server.lsten: ",
            "f.toml:5:10: ports.0.number: ",
            "f.toml:8:1: ports.1.nmber: ",
        ];
        assert_eq!(rendered.len(), starts.len(), "{rendered:#?}");
        for (line, start) in rendered.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
        assert!(rendered[0].ends_with("2 | listen = 5\n  |          ^"), "{}", rendered[0]);
    }

    #[test]
    fn validation_points_at_its_value() {
        let text = "server.listen = \"x\"\n[[ports]]\nnumber = 0\n";
        let problems = read(text, &[], validate).expect_err("a zero");
        assert!(problems[0].render("f", text).starts_with("f:3:10: ports.0.number: is zero"), "{problems:?}");
    }

    #[test]
    fn syntax_errors_have_a_line_too() {
        let text = "[server]\nlisten = \"x\n";
        let problems = read::<File>(text, &[], |_| Vec::new()).expect_err("no end of the string");
        assert!(problems[0].render("f", text).starts_with("f:2:"), "{problems:?}");
    }

    #[test]
    fn the_environment_lies_over_the_file() {
        let overlay = |path: &str, text: &str| Overlay { variable: "V".into(), path: path.into(), text: text.into() };
        let file: File = read("", &[overlay("server.listen", "127.0.0.1:80")], |_| Vec::new()).expect("valid");
        assert_eq!(file.server, Server { listen: "127.0.0.1:80".into() });
        let problems = read::<File>("server.listen = \"x\"", &[overlay("server.listen", "5")], |_| Vec::new());
        assert_eq!(problems.expect_err("a number")[0].path, "server.listen");
    }
}
