//! `dev`: everything in one process, without configuration. The first thing a newcomer runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::source::{SecretRef, SourceConfig};

use super::{Context, send};
use crate::config::{Config, JsonLinesConfig, SinkConfig};
use crate::logging;
use crate::output::say;
use crate::service::{Roles, Service};
use crate::signals::Signals;

/// Folder of a development run.
pub const DATA: &str = "data";
/// Tenant of its sources; each is named as its preset.
pub const TENANT: &str = "dev";
/// The presets it starts with. Any other needs its own configuration: a public URL, a key of the provider's.
const PRESETS: [&str; 5] = ["stripe", "github", "shopify", "standard_webhooks", "hmac"];

/// Run everything in one process, with SQLite in ./data and no configuration
///
/// Sources stripe, github, shopify, standard_webhooks and hmac, at /in/dev/NAME, all with one generated secret. With a seriatim.toml in the
/// folder, its sources and settings are used instead.
#[derive(Debug, Parser)]
pub struct Args {
    /// Folder of log, state and effects
    #[arg(long, default_value = DATA)]
    data: PathBuf,
    /// Send signed test events (late, twice and out of order), show what became of them, and go on
    #[arg(long)]
    demo: bool,
    /// Stop after the demonstration
    #[arg(long, requires = "demo")]
    exit: bool,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    logging::start("warn");
    let has_file = context.config.exists();
    let config = if has_file { context.load()? } else { config(&args.data, Some(make_secret(&args.data)?))? };
    let mut signals = Signals::catch()?;
    let starting = Service::start(&config, Roles { ingest: true, processor: true });
    let Some(service) = signals.unless(starting).await.transpose()? else { return Ok(ExitCode::SUCCESS) };
    let edge = service.edge_addr.expect("dev runs an edge");
    say(&format!("seriatim listens on http://{edge}/in/TENANT/SOURCE (admin on http://{})", service.admin_addr));
    for source in config.source.iter().take(10) {
        say(&format!("  http://{edge}/in/{}/{}", source.tenant, source.name));
    }
    if !has_file {
        say(&format!(
            "secret of all of them: {} (kept in {})",
            secret_of(&args.data)?,
            secret_file(&args.data).display()
        ));
    }
    say("try it: seriatim send --preset stripe --count 100 --objects 5 --duplicates 20% --shuffle --verify");
    let admin = service.admin_addr;
    let mut failed = None;
    let done = async {
        if args.demo {
            failed = send::demo(context, &config, edge, admin).await.err();
        }
        if !args.exit {
            say("stop with Ctrl-C");
            std::future::pending::<()>().await;
        }
    };
    service.run(signals, done).await?;
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn secret_file(data: &Path) -> PathBuf {
    data.join("dev-secret")
}

/// The secret of an earlier run in this folder.
pub fn secret_of(data: &Path) -> anyhow::Result<String> {
    let path = secret_file(data);
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("{}: run `seriatim dev` first", path.display()))?;
    Ok(text.trim().to_owned())
}

fn make_secret(data: &Path) -> anyhow::Result<String> {
    if let Ok(secret) = secret_of(data) {
        return Ok(secret);
    }
    std::fs::create_dir_all(data).with_context(|| format!("cannot make {}", data.display()))?;
    // 32 hex digits are base64 as well, so one secret serves every preset.
    let secret = format!("whsec_{}", uuid::Uuid::new_v4().simple());
    std::fs::write(secret_file(data), format!("{secret}\n"))?;
    Ok(secret)
}

/// The configuration of a development run in `data`.
pub fn config(data: &Path, secret: Option<String>) -> anyhow::Result<Config> {
    let mut config = Config::from_environment()?;
    if config.data == Path::new(DATA) {
        config.data = data.to_owned();
    }
    let secrets: Vec<_> = secret.into_iter().map(SecretRef::Value).collect();
    let source = |preset: &str| SourceConfig {
        tenant: TENANT.to_owned(),
        name: preset.to_owned(),
        preset: Some(preset.to_owned()),
        secrets: secrets.clone(),
        public_url: None,
        settings: Default::default(),
        sinks: None,
        fetch: None,
        declare: generic_fields(preset),
    };
    // Without a secret there is nothing to send to or to serve; what is stored can still be looked at.
    if !secrets.is_empty() {
        config.source = PRESETS.into_iter().map(source).collect();
    }
    let path = config.data.join("effects.jsonl");
    let json_lines = Some(JsonLinesConfig { path });
    config.sink = vec![SinkConfig { name: "effects".to_owned(), json_lines, ..SinkConfig::default() }];
    Ok(config)
}

/// What the generic presets leave to their user.
fn generic_fields(preset: &str) -> Declaration {
    let text = match preset {
        "standard_webhooks" => "object = 'body:/data/id'",
        "hmac" => "object = 'body:/object'\nversion = { from = 'body:/version', kind = 'integer' }",
        _ => "",
    };
    toml::from_str(text).expect("valid: dev is run by a test")
}
