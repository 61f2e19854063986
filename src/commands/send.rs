//! `send`: signed test traffic, and whether the system did with it what it promises.

mod verify;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use seriatim_ingest::secret::read_secret;
use seriatim_schemas::preset::{ExampleRequest, Preset};
use seriatim_schemas::source::Source;

use super::{Context, Failure, dev};
use crate::config::Config;
use crate::output::{print_fields, print_rows, say};
use crate::sign::private_key::PrivateKey;
use crate::sign::{Outgoing, Signer};
use crate::traffic::{MADE, Plan, Share, Traffic, path};

/// Seed of the demonstration of `dev`.
const DEMO_SEED: u64 = 1;
/// First and longest wait before a request that got no success is sent again.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Send signed test events of a preset, late, twice and out of order
///
/// Events of stripe, github, shopify, standard_webhooks and hmac are made, as many as asked for; of any other
/// preset the example requests are sent, signed as the provider would.
///
/// Without a configuration file it sends to `seriatim dev`. Like a provider, it sends again what got no
/// success. With --verify it waits until all is processed, then compares: each event that was answered with
/// success must have arrived, each effect must be there once, each object's state must be its newest event.
#[derive(Debug, Parser)]
pub struct Args {
    /// The preset whose provider is played
    #[arg(long, default_value = "stripe")]
    preset: String,
    /// Tenant to send to [default: the one whose source has the preset]
    #[arg(long)]
    tenant: Option<String>,
    /// Source to send to [default: the one that has the preset]
    #[arg(long)]
    source: Option<String>,
    /// Where to send [default: ingest.listen of the configuration]; several take turns
    #[arg(long)]
    url: Vec<String>,
    /// Signing secret [default: the source's first]
    #[arg(long)]
    secret: Option<String>,
    /// File with the private key to sign with, where the source's secrets are public keys; made where it is
    /// missing. What to configure as the secret is printed
    #[arg(long)]
    private_key: Option<PathBuf>,
    /// Send this body once, signed for the source: for sources without a preset
    #[arg(long)]
    body: Option<PathBuf>,
    /// Headers of that request, NAME: VALUE
    #[arg(long, requires = "body")]
    header: Vec<String>,
    /// Requests to send, repeated ones included
    #[arg(long, default_value_t = 100)]
    count: usize,
    /// Objects that the events are about
    #[arg(long, default_value_t = 10)]
    objects: usize,
    /// Share of requests that repeat an earlier event
    #[arg(long, default_value = "0%")]
    duplicates: Share,
    /// Send in a random order
    #[arg(long)]
    shuffle: bool,
    /// Requests per second; 0: as fast as they are answered
    #[arg(long, default_value_t = 0)]
    rate: u32,
    /// The same seed and counts give the same events: sending again sends duplicates [default: another each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Requests under way at once
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How long a request without success is sent again, in seconds
    #[arg(long, default_value_t = 60)]
    retry_s: u64,
    /// Wait until all is processed, and compare log, effects and state with what was answered
    #[arg(long)]
    verify: bool,
    /// Files of JSON lines that hold the effects [default: those of the configuration]
    #[arg(long)]
    effects: Vec<PathBuf>,
    /// Admin addresses of the processors, to count rounds [default: admin.listen]
    #[arg(long)]
    admin: Vec<SocketAddr>,
    /// How long --verify waits until all is processed, in seconds
    #[arg(long, default_value_t = 120)]
    wait_s: u64,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
struct Report {
    requests: usize,
    events: usize,
    answered_2xx: u64,
    tries: u64,
    given_up: u64,
    seconds: f64,
    requests_per_s: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    verified: Option<verify::Verified>,
}

/// How often each event was answered with success.
pub struct Ledger {
    pub acknowledged: Vec<u64>,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let config = context.load_or_dev()?;
    let plan = Plan {
        preset: args.preset.clone(),
        count: args.count,
        objects: args.objects,
        duplicates: args.duplicates,
        shuffle: args.shuffle,
        seed: args.seed.unwrap_or_else(fresh_seed),
    };
    if args.seed.is_none() && MADE.contains(&args.preset.as_str()) {
        say(&format!("seed {}", plan.seed));
    }
    let target = Target::find(&config, &args)?;
    if let Some(path) = &args.body {
        let headers = args.header.iter().map(|line| {
            let pair = line.split_once(':').with_context(|| format!("{line:?} is no header: NAME: VALUE"))?;
            Ok((pair.0.trim().to_owned(), pair.1.trim().to_owned()))
        });
        let request = Outgoing {
            method: "POST".to_owned(),
            query: String::new(),
            headers: headers.collect::<anyhow::Result<_>>()?,
            body: std::fs::read(path).with_context(|| format!("{}", path.display()))?,
        };
        return send_each(context, &target, vec![request]).await;
    }
    if !MADE.contains(&args.preset.as_str()) {
        if args.verify {
            bail!("--verify counts made events: it goes with preset {}", MADE.join(", "));
        }
        return send_each(context, &target, examples(&args.preset)?).await;
    }
    let (report, is_good) = send_and_verify(&config, &plan, &target, &args).await?;
    print_fields(context.format, &report)?;
    if !is_good {
        return Err(Failure::Check("what was processed differs from what was answered; see above".to_owned()).into());
    }
    Ok(ExitCode::SUCCESS)
}

async fn send_and_verify(config: &Config, plan: &Plan, target: &Target, args: &Args) -> anyhow::Result<(Report, bool)> {
    let traffic = plan.traffic();
    let admins = if args.admin.is_empty() { vec![config.admin.listen] } else { args.admin.clone() };
    let rounds_before = verify::rounds(&admins).await;
    let started = Instant::now();
    let (ledger, tries) = send_all(plan, &traffic, target, args).await?;
    let seconds = started.elapsed().as_secs_f64();
    let answered: u64 = ledger.acknowledged.iter().sum();
    let mut report = Report {
        requests: traffic.requests.len(),
        events: traffic.events.len(),
        answered_2xx: answered,
        tries,
        given_up: traffic.requests.len() as u64 - answered,
        seconds: (seconds * 1000.0).round() / 1000.0,
        requests_per_s: (answered as f64 / seconds) as u64,
        verified: None,
    };
    if !args.verify {
        let is_good = report.given_up == 0;
        return Ok((report, is_good));
    }
    let effects = if args.effects.is_empty() { effect_files(config) } else { args.effects.clone() };
    let check = verify::Check {
        config,
        plan,
        traffic: &traffic,
        ledger: &ledger,
        target,
        effects: &effects,
        started,
        wait: Duration::from_secs(args.wait_s),
    };
    let mut verified = check.run().await?;
    if let (Some(before), Some(after)) = (rounds_before, verify::rounds(&admins).await) {
        verified.set_rounds(after - before);
    }
    let is_good = verified.is_good();
    report.verified = Some(verified);
    Ok((report, is_good))
}

/// Small enough to read, and to keep object ids within a provider's numbers.
fn fresh_seed() -> u64 {
    jiff::Timestamp::now().as_millisecond() as u64 % 10_000_000
}

fn effect_files(config: &Config) -> Vec<PathBuf> {
    config.sink.iter().filter_map(|s| s.json_lines.as_ref()).map(|l| l.path.clone()).collect()
}

/// Where to send, and with which secret.
pub struct Target {
    pub source: Source,
    urls: Vec<String>,
    signer: Signer,
}

impl Target {
    fn find(config: &Config, args: &Args) -> anyhow::Result<Self> {
        let names = |s: &Source| {
            args.tenant.as_ref().is_none_or(|t| *t == s.tenant) && args.source.as_ref().is_none_or(|n| *n == s.name)
        };
        // A body of its own fits any source that is named.
        let has_preset = |s: &Source| {
            s.preset.as_deref() == Some(args.preset.as_str()) || args.body.is_some() && args.source.is_some()
        };
        let found = config.sources().into_iter().find(|s| names(s) && has_preset(s));
        let source = match (found, &args.secret, Preset::named(&args.preset)) {
            (Some(source), _, _) => source,
            (None, _, None) => return Err(Failure::NotFound(format!("no preset {}", args.preset)).into()),
            (None, Some(_), Some(preset)) => Source {
                tenant: args.tenant.clone().unwrap_or_else(|| dev::TENANT.to_owned()),
                name: args.source.clone().unwrap_or_else(|| args.preset.clone()),
                preset: Some(args.preset.clone()),
                secrets: Vec::new(),
                public_url: None,
                settings: Default::default(),
                sinks: None,
                fetch: None,
                revision: preset.declare.revision(),
                declaration: preset.declare,
            },
            (None, None, Some(_)) => bail!(
                "no source with preset {} is configured here: start `seriatim dev`, name a configuration with --config, or give --secret",
                args.preset
            ),
        };
        let base =
            if args.url.is_empty() { vec![format!("http://{}", config.ingest.listen)] } else { args.url.clone() };
        let private = args.private_key.as_deref().map(|path| private_key(&source, path)).transpose()?;
        Self::new(source, base, args.secret.clone(), private)
    }

    fn new(
        source: Source,
        base: Vec<String>,
        secret: Option<String>,
        private: Option<PrivateKey>,
    ) -> anyhow::Result<Self> {
        let secret = match (secret, source.secrets.first()) {
            (Some(secret), _) => secret,
            (None, Some(secret)) => read_secret(secret)?,
            (None, None) if private.is_some() => String::new(),
            (None, None) => bail!("the source has no secret: give --secret"),
        };
        let path = path(&source.tenant, &source.name);
        let urls = base
            .iter()
            .map(|url| if url.contains("/in/") { url.clone() } else { format!("{}{path}", url.trim_end_matches('/')) });
        Ok(Self { urls: urls.collect(), signer: Signer::new(&source, &secret, private)?, source })
    }
}

/// The provider's private key; its public part is told, to be configured.
fn private_key(source: &Source, path: &Path) -> anyhow::Result<PrivateKey> {
    let recipe = source.declaration.verify.as_ref().and_then(|verify| verify.0.first());
    let recipe = recipe.context("the source verifies nothing")?;
    let key = PrivateKey::open(path, recipe)?;
    say(&format!("secret of the source, a public key:\n{}", key.public(recipe)?));
    Ok(key)
}

/// Sends all requests. Returns the ledger, and the count of tries.
async fn send_all(plan: &Plan, traffic: &Traffic, target: &Target, args: &Args) -> anyhow::Result<(Ledger, u64)> {
    let client =
        reqwest::Client::builder().pool_max_idle_per_host(args.connections).timeout(Duration::from_secs(30)).build()?;
    let bar = ProgressBar::new(traffic.requests.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} requests  {per_sec}  {eta}").expect("a valid template"),
    );
    let acknowledged: Vec<AtomicU64> = traffic.events.iter().map(|_| AtomicU64::new(0)).collect();
    let tries = AtomicU64::new(0);
    // A wrong address would be tried for as long as a sender that is away: told at once instead.
    for url in &target.urls {
        let reached = client.get(url).send().await;
        reached.map_err(|e| Failure::Check(format!("nothing answers at {url}: is it running? ({e})")))?;
    }
    let started = Instant::now();
    let send_one = |(n, event): (usize, usize)| {
        let (client, bar, acknowledged, tries) = (&client, &bar, &acknowledged, &tries);
        async move {
            if args.rate > 0 {
                let due = started + Duration::from_secs_f64(n as f64 / f64::from(args.rate));
                tokio::time::sleep_until(due.into()).await;
            }
            let unsigned = plan.request(&traffic.events[event]);
            let deadline = Instant::now() + Duration::from_secs(args.retry_s);
            let mut wait = RETRY_MIN;
            for turn in 0.. {
                // Signed for each try, as a provider does: the timestamp is that of the attempt.
                let mut signed = unsigned.clone();
                target.signer.sign(&mut signed, jiff::Timestamp::now())?;
                tries.fetch_add(1, Ordering::Relaxed);
                let answer = deliver(client, &target.urls[(n + turn) % target.urls.len()], signed).await;
                match answer {
                    Ok(answer) if answer.status().is_success() => {
                        acknowledged[event].fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    // A refusal stays one.
                    Ok(answer) if answer.status().as_u16() == 401 => bail!("401: is this the source's secret?"),
                    _ if Instant::now() >= deadline => break,
                    _ => {
                        tokio::time::sleep(wait).await;
                        wait = (wait * 2).min(RETRY_MAX);
                    }
                }
            }
            bar.inc(1);
            Ok(())
        }
    };
    let numbered = traffic.requests.iter().copied().enumerate();
    let mut sending = futures::stream::iter(numbered.map(send_one)).buffer_unordered(args.connections.max(1));
    while let Some(result) = sending.next().await {
        result?;
    }
    drop(sending);
    bar.finish_and_clear();
    let acknowledged = acknowledged.into_iter().map(AtomicU64::into_inner).collect();
    Ok((Ledger { acknowledged }, tries.into_inner()))
}

async fn deliver(client: &reqwest::Client, url: &str, signed: Outgoing) -> reqwest::Result<reqwest::Response> {
    let method = reqwest::Method::from_bytes(signed.method.as_bytes()).unwrap_or(reqwest::Method::POST);
    let url = if signed.query.is_empty() { url.to_owned() } else { format!("{url}?{}", signed.query) };
    let mut request = client.request(method, url).body(signed.body);
    for (name, value) in &signed.headers {
        request = request.header(name, value);
    }
    request.send().await
}

/// What a request was answered with.
#[derive(Debug, Serialize)]
struct Sent {
    request: usize,
    status: u16,
    answer: String,
}

/// The example requests of a preset.
fn examples(preset: &str) -> anyhow::Result<Vec<Outgoing>> {
    let example = Preset::example(preset).context("every preset has an example")?;
    let outgoing = |request: ExampleRequest| Outgoing {
        method: request.method,
        query: request.query,
        headers: request.headers.into_iter().collect(),
        body: request.body.into_bytes(),
    };
    Ok(example.requests.into_iter().map(outgoing).collect())
}

/// Sends each request once, signed.
async fn send_each(context: &Context, target: &Target, requests: Vec<Outgoing>) -> anyhow::Result<ExitCode> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build()?;
    let mut answers = Vec::new();
    for (n, mut request) in requests.into_iter().enumerate() {
        target.signer.sign(&mut request, jiff::Timestamp::now())?;
        let url = &target.urls[n % target.urls.len()];
        let answer = deliver(&client, url, request).await;
        let answer = answer.map_err(|e| Failure::Check(format!("nothing answers at {url}: is it running? ({e})")))?;
        let (status, body) = (answer.status().as_u16(), answer.text().await?);
        answers.push(Sent { request: n, status, answer: body });
    }
    let cells = |a: &Sent| vec![a.request.to_string(), a.status.to_string(), a.answer.clone()];
    print_rows(context.format, &["request", "status", "answer"], &answers, cells)?;
    match answers.iter().find(|answer| !(200..300).contains(&answer.status)) {
        Some(answer) => Err(Failure::Check(format!("answered {}; see `source refused`", answer.status)).into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The demonstration of `dev`: a few events of each object, what was sent, and what became of it.
pub async fn demo(context: &Context, config: &Config, edge: SocketAddr, admin: SocketAddr) -> anyhow::Result<()> {
    let source = config
        .sources()
        .into_iter()
        .find(|s| s.preset.as_deref() == Some("stripe"))
        .context("no source with preset stripe")?;
    let target = Target::new(source, vec![format!("http://{edge}")], None, None)?;
    let url = target.urls[0].clone();
    let args =
        Args::parse_from(["send", "--count", "200", "--objects", "4", "--duplicates", "30%", "--shuffle", "--verify"]);
    let args = Args { admin: vec![admin], ..args };
    let plan = Plan {
        preset: "stripe".into(),
        count: args.count,
        objects: args.objects,
        duplicates: args.duplicates,
        shuffle: true,
        seed: DEMO_SEED,
    };
    say(&format!(
        "demonstration: {} signed Stripe events of {} subscriptions, 30% of them twice, in random order, to {url}",
        plan.count, plan.objects
    ));
    let (report, is_good) = send_and_verify(config, &plan, &target, &args).await?;
    print_fields(context.format, &report)?;
    let store = crate::engine::open_inspect(config).await?;
    let objects = store.objects(&target.source.tenant, &target.source.name).await?;
    let line = |o: &seriatim_processor::inspect::ObjectState| {
        let last = o.head.snapshot.as_ref().map_or("-", |s| s.event_row.as_str());
        let version = o.head.snapshot.as_ref().map_or("-", |s| s.version.as_str());
        vec![o.key.object.clone(), o.head.rev.to_string(), version.to_owned(), last.to_owned()]
    };
    let rows: Vec<_> = objects.iter().map(line).collect();
    crate::output::print_rows(context.format, &["object", "rev", "version", "last event"], &rows, |row| row.clone())?;
    if !is_good {
        bail!("what was processed differs from what was answered");
    }
    Ok(())
}
