//! `source`: what can be received.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use seriatim_ingest::verify::Verifier;
use seriatim_ingest::verify::diagnose::Diagnosis;
use seriatim_schemas::key::encode_part;
use seriatim_schemas::preset::Preset;

use super::{Context, Failure};
use crate::explain::{page, summary};
use crate::output::{Format, print_json, print_rows, say, write_out};

/// Presets, live secrets, and the requests that were refused
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// List the presets, or explain one and show its file
    Presets { name: Option<String> },
    /// The last requests that a running edge refused, and step by step why; without names, those to sources that
    /// it does not know
    Refused {
        #[arg(requires = "source")]
        tenant: Option<String>,
        source: Option<String>,
        /// Admin address of the edge [default: admin.listen of the configuration]
        #[arg(long)]
        admin: Option<SocketAddr>,
    },
    /// The live secrets: where each stands, and its name in metrics and records
    Secrets,
}

/// A refused request, as the admin port tells it.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    at: String,
    reason: String,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body_bytes: usize,
    diagnosis: Option<Diagnosis>,
}

#[derive(Debug, Serialize)]
struct SecretRow {
    tenant: String,
    source: String,
    stands: String,
    name: String,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        SourceCommand::Presets { name: Some(name) } => explain_preset(context, &name)?,
        SourceCommand::Presets { name: None } => {
            let cells = |p: &Preset| {
                let row = summary(p);
                vec![row.name, row.title, row.verified_by, row.order, row.retries, row.state.to_owned()]
            };
            let columns = ["preset", "provider", "verified by", "order by", "tries again for", "state"];
            print_rows(context.format, &columns, &Preset::all(), cells)?;
        }
        SourceCommand::Refused { tenant, source, admin } => refused(context, tenant.zip(source), admin).await?,
        SourceCommand::Secrets => secrets(context)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn explain_preset(context: &Context, name: &str) -> anyhow::Result<()> {
    let preset = Preset::named(name).ok_or_else(|| Failure::NotFound(format!("preset {}", Preset::unknown(name))))?;
    match context.format {
        Format::Json => print_json(&preset),
        Format::Table => write_out(&page(&preset, Preset::text(name).unwrap_or_default())),
    }
}

async fn refused(context: &Context, source: Option<(String, String)>, admin: Option<SocketAddr>) -> anyhow::Result<()> {
    let admin = admin.map_or_else(|| context.load_or_dev().map(|config| config.admin.listen), Ok)?;
    let path = source.as_ref().map(|(tenant, name)| format!("/{}/{}", encode_part(tenant), encode_part(name)));
    let url = format!("http://{admin}/refused{}", path.as_deref().unwrap_or_default());
    let answer = reqwest::get(&url).await.with_context(|| format!("no edge answers at {admin}"))?;
    if answer.status() == 404 {
        return Err(Failure::NotFound(format!("the edge at {admin} has no source {}", path.unwrap_or_default())).into());
    }
    let all: Vec<Refusal> = serde_json::from_slice(&answer.error_for_status()?.bytes().await?)?;
    if context.format == Format::Json {
        return print_json(&all);
    }
    if all.is_empty() {
        say("none since the edge started");
    }
    for refusal in &all {
        write_out(&format!("{}  {}  {} {}\n", refusal.at, refusal.reason, refusal.method, refusal.target))?;
        for (name, value) in &refusal.headers {
            write_out(&format!("  {name}: {value}\n"))?;
        }
        match &refusal.diagnosis {
            Some(diagnosis) => write_out(&format!("{diagnosis}\n"))?,
            None => write_out(&format!("  a body of {} bytes, not looked at\n\n", refusal.body_bytes))?,
        }
    }
    Ok(())
}

fn secrets(context: &Context) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for source in context.load_or_dev()?.sources() {
        for secret in &source.secrets {
            let verify = source.declaration.verify.clone().context("validated with the declaration")?;
            let alone = Verifier::new(verify, std::slice::from_ref(secret));
            let name = match alone {
                Ok(verifier) => verifier.last_uses().into_keys().next().unwrap_or_else(|| "awaited".to_owned()),
                Err(error) => error.to_string(),
            };
            let (tenant, source, stands) = (source.tenant.clone(), source.name.clone(), format!("{secret:?}"));
            rows.push(SecretRow { tenant, source, stands, name });
        }
    }
    let cells = |r: &SecretRow| vec![r.tenant.clone(), r.source.clone(), r.stands.clone(), r.name.clone()];
    print_rows(context.format, &["tenant", "source", "stands in", "name"], &rows, cells)
}
