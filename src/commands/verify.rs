//! `verify`: why does this signature fail? From a saved request, by a configured source.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use clap::Parser;
use jiff::Timestamp;
use seriatim_ingest::request::RequestView;
use seriatim_ingest::verify::Verifier;

use super::{Context, Failure};
use crate::output::{Format, print_json, write_out};

/// Check a saved request step by step, and say why its signature holds or fails
///
/// The file is the request as it went over the wire: the request line, the headers, an empty line, and the
/// body's exact bytes. Secrets come from the configuration and are never shown. Exit code 4: it does not verify.
/// For requests that a running edge refused, see `source refused`.
#[derive(Debug, Parser)]
pub struct Args {
    tenant: String,
    source: String,
    /// The saved request
    request: PathBuf,
    /// The body, where the file holds only the head
    #[arg(long)]
    body: Option<PathBuf>,
    /// What time it was, RFC 3339 [default: now]
    #[arg(long)]
    at: Option<Timestamp>,
}

/// A request, read from a file.
#[derive(Debug)]
struct Saved {
    method: String,
    query: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let config = context.load_or_dev()?;
    let found = config.sources().into_iter().find(|s| s.tenant == args.tenant && s.name == args.source);
    let missing = || Failure::NotFound(format!("no source {}/{} is configured", args.tenant, args.source));
    let source = found.ok_or_else(missing)?;
    let mut file = std::fs::read(&args.request).with_context(|| format!("{}", args.request.display()))?;
    if let Some(path) = &args.body {
        file.extend_from_slice(b"\r\n\r\n");
        file.extend(std::fs::read(path).with_context(|| format!("{}", path.display()))?);
    }
    let saved = read(&file)?;
    let verify = source.declaration.verify.clone().context("validated with the declaration")?;
    let verifier = Verifier::new(verify, &source.secrets)?;
    let verifier = verifier.with_settings(source.settings.clone(), source.public_url.clone());
    let view = RequestView {
        method: &saved.method,
        headers: &saved.headers,
        query: &saved.query,
        body: &saved.body,
        claims: None,
        item: None,
        settings: verifier.settings(),
    };
    let diagnosis = verifier.diagnose(&view, args.at.unwrap_or_else(Timestamp::now));
    match context.format {
        Format::Json => print_json(&diagnosis)?,
        Format::Table => write_out(&diagnosis.to_string())?,
    }
    if !diagnosis.verified {
        return Err(Failure::Check("the request does not verify".to_owned()).into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Head lines end in CR LF or in LF; the first empty one ends the head.
fn read(file: &[u8]) -> anyhow::Result<Saved> {
    let mut lines = Vec::new();
    let mut rest = file;
    let body = loop {
        let Some(at) = rest.iter().position(|b| *b == b'\n') else {
            bail!("no empty line ends the head of the request")
        };
        let line = rest[..at].strip_suffix(b"\r").unwrap_or(&rest[..at]);
        rest = &rest[at + 1..];
        if line.is_empty() {
            break rest;
        }
        lines.push(std::str::from_utf8(line).context("the head is not text")?);
    };
    let mut first = lines.first().context("the request line is missing")?.split(' ');
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    if method.is_empty() || target.is_empty() {
        bail!("the first line must be a request line, such as POST /in/acme/shop HTTP/1.1");
    }
    let mut headers = HeaderMap::new();
    for line in &lines[1..] {
        let (name, value) = line.split_once(':').with_context(|| format!("{line:?} is no header: NAME: VALUE"))?;
        headers.append(HeaderName::try_from(name.trim())?, HeaderValue::try_from(value.trim())?);
    }
    let query = target.split_once('?').map_or("", |(_, query)| query).to_owned();
    Ok(Saved { method: method.to_owned(), query, headers, body: body.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_requests_are_read() {
        for end in ["\r\n", "\n"] {
            let text = format!("POST /in/a/b?x=1 HTTP/1.1{end}Host: a{end}X-A:  v {end}{end}{{\"a\":1}}\n");
            let saved = read(text.as_bytes()).expect("a request");
            assert_eq!((saved.method.as_str(), saved.query.as_str()), ("POST", "x=1"));
            assert_eq!(saved.headers["x-a"], "v");
            assert_eq!(saved.body, b"{\"a\":1}\n");
        }
        for bad in ["", "POST / HTTP/1.1\r\n", "\r\n\r\n", "POST / HTTP/1.1\nno header\n\n"] {
            assert!(read(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
