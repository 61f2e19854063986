//! `dead`: events that could not be decided, and effects that a sink refused, kept whole.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use seriatim_processor::inspect::Inspect;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::DeadLetter;

use super::{Context, Failure};
use crate::engine;
use crate::operate::{Operator, Redrive};
use crate::output::{instant, print_fields, print_rows, say, write_bytes};

/// Dead letters: events that could not be decided, and effects that a sink refused
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// All dead letters, or those that the filters leave
    List {
        #[command(flatten)]
        filter: Filter,
        /// Count them by tenant, source and cause instead
        #[arg(long)]
        group: bool,
    },
    /// One dead letter, by its event id or record id
    Show {
        tenant: String,
        source: String,
        id: String,
        /// Write the raw bytes to stdout, and nothing else
        #[arg(long)]
        raw: bool,
    },
    /// Decide events again by the declaration of today, and send refused effects again
    ///
    /// The event is read anew: with a mended declaration it may be of another object. What would be a dead letter
    /// again is left alone and named. Acts are records of the log: the processor does them in order.
    Redrive {
        #[command(flatten)]
        acts: Acts,
    },
    /// Remove dead letters that nobody wants
    Discard {
        #[command(flatten)]
        acts: Acts,
    },
}

#[derive(Debug, clap::Args)]
struct Filter {
    #[arg(long)]
    tenant: Option<String>,
    #[arg(long)]
    source: Option<String>,
    #[arg(long)]
    object: Option<String>,
    /// Event id or record id
    #[arg(long)]
    id: Option<String>,
    /// The word that the list shows, such as version, unroutable or refused
    #[arg(long)]
    cause: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Acts {
    #[command(flatten)]
    filter: Filter,
    /// All that the filters leave, even where there is no filter
    #[arg(long)]
    all: bool,
    /// Only count what would be done
    #[arg(long)]
    dry_run: bool,
    /// Letters a second at most
    #[arg(long, default_value_t = 100)]
    rate: u32,
    #[command(flatten)]
    who: Who,
}

/// Who acts, and why: it stands in the ledger.
#[derive(Debug, clap::Args)]
pub struct Who {
    /// Who does this
    #[arg(long, env = "USER", default_value = "unknown")]
    pub by: String,
    /// Why
    #[arg(long)]
    pub reason: Option<String>,
}

#[derive(Serialize)]
struct Letter {
    tenant: String,
    source: String,
    object: String,
    event_id: String,
    #[serde(rename = "type")]
    event_type: String,
    record: String,
    cause: String,
    detail: String,
    /// A later delivery of the same event was applied.
    resolved: bool,
    received: String,
    dead: String,
    position: String,
    bytes: usize,
    headers: Vec<(String, String)>,
    value: String,
}

#[derive(Serialize)]
struct Group {
    tenant: String,
    source: String,
    cause: String,
    letters: usize,
    example: String,
}

impl Filter {
    fn is_empty(&self) -> bool {
        [&self.tenant, &self.source, &self.object, &self.id, &self.cause].iter().all(|f| f.is_none())
    }

    async fn letters(&self, store: &dyn Inspect) -> anyhow::Result<Vec<DeadLetter>> {
        let mut letters = store.dead(self.tenant.as_deref(), self.source.as_deref()).await?;
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
        letters.retain(|l| is(&self.object, &l.object) && is(&self.cause, &l.cause));
        letters.retain(|l| is(&self.id, &l.event_id) || is(&self.id, &l.record.to_string()));
        Ok(letters)
    }
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let store = engine::open_inspect(&context.load_or_dev()?).await?;
    match args.command {
        DeadCommand::List { filter, group: true } => group(context, filter.letters(&*store).await?),
        DeadCommand::List { filter, group: false } => list(context, &*store, filter.letters(&*store).await?).await,
        DeadCommand::Show { tenant, source, id, raw } => show(context, &*store, tenant, source, id, raw).await,
        DeadCommand::Redrive { acts } => act(context, &*store, acts, true).await,
        DeadCommand::Discard { acts } => act(context, &*store, acts, false).await,
    }
}

async fn list(context: &Context, store: &dyn Inspect, letters: Vec<DeadLetter>) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    for letter in letters {
        let resolved = is_resolved(store, &letter).await?;
        rows.push(to_letter(letter, resolved));
    }
    let columns = ["tenant", "source", "object", "event", "cause", "detail", "state", "since"];
    let cells = |l: &Letter| {
        let state = if l.resolved { "resolved" } else { "dead" };
        let texts = [&l.tenant, &l.source, &l.object, &l.event_id, &l.cause, &l.detail];
        texts.into_iter().cloned().chain([state.to_owned(), l.dead.clone()]).collect()
    };
    print_rows(context.format, &columns, &rows, cells)?;
    Ok(ExitCode::SUCCESS)
}

fn group(context: &Context, letters: Vec<DeadLetter>) -> anyhow::Result<ExitCode> {
    let mut groups: BTreeMap<(String, String, String), (usize, String)> = BTreeMap::new();
    for letter in letters {
        let group = groups.entry((letter.tenant, letter.source, letter.cause)).or_insert((0, letter.detail));
        group.0 += 1;
    }
    let to_group = |((tenant, source, cause), (letters, example))| Group { tenant, source, cause, letters, example };
    let rows: Vec<_> = groups.into_iter().map(to_group).collect();
    let cells =
        |g: &Group| vec![g.tenant.clone(), g.source.clone(), g.cause.clone(), g.letters.to_string(), g.example.clone()];
    print_rows(context.format, &["tenant", "source", "cause", "letters", "example"], &rows, cells)?;
    Ok(ExitCode::SUCCESS)
}

async fn show(
    context: &Context,
    store: &dyn Inspect,
    tenant: String,
    source: String,
    id: String,
    raw: bool,
) -> anyhow::Result<ExitCode> {
    let missing = || Failure::NotFound(format!("no dead letter {id} of {tenant}/{source}"));
    let letters = store.dead(Some(&tenant), Some(&source)).await?;
    let is_it = |l: &DeadLetter| l.event_id == id || l.record.to_string() == id;
    let letter = letters.into_iter().find(is_it).ok_or_else(missing)?;
    if raw {
        write_bytes(&letter.value)?;
    } else {
        let resolved = is_resolved(store, &letter).await?;
        print_fields(context.format, &to_letter(letter, resolved))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn act(context: &Context, store: &dyn Inspect, acts: Acts, redrives: bool) -> anyhow::Result<ExitCode> {
    if acts.filter.is_empty() && !acts.all {
        return Err(Failure::Config("name a filter, such as --source, or say --all".to_owned()).into());
    }
    let config = context.load_or_dev()?;
    let mut letters = acts.filter.letters(store).await?;
    // As they were received: deltas are then decided in that order.
    letters.sort_by_key(|letter| (letter.recorded_ms, letter.record));
    let log = engine::open_append(&config).await?;
    let operator = Operator::new(log, &config, acts.who.by, acts.who.reason)?;
    let bar = progress(letters.len());
    let mut tick = tokio::time::interval(Duration::from_secs(1) / acts.rate.max(1));
    let (mut done, mut left) = (0, BTreeMap::<String, usize>::new());
    for letter in &letters {
        match plan(&operator, letter, redrives) {
            Ok(None) if acts.dry_run => done += 1,
            Ok(Some(Redrive::StillDead(reason))) => *left.entry(reason).or_default() += 1,
            Ok(Some(_)) if acts.dry_run => done += 1,
            Ok(Some(plan)) => {
                tick.tick().await;
                operator.redrive(letter, plan).await.with_context(|| format!("after {done} letters"))?;
                done += 1;
            }
            Ok(None) => {
                tick.tick().await;
                operator.discard(letter).await.with_context(|| format!("after {done} letters"))?;
                done += 1;
            }
            Err(error) => *left.entry(error.to_string()).or_default() += 1,
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    for (reason, count) in &left {
        say(&format!("left alone: {count} ({reason})"));
    }
    let word = match (acts.dry_run, redrives) {
        (true, _) => "would act on",
        (false, true) => "redriven",
        (false, false) => "discarded",
    };
    say(&format!("{word} {done} of {} letters", letters.len()));
    Ok(ExitCode::SUCCESS)
}

/// None: the letter is discarded.
fn plan(operator: &Operator, letter: &DeadLetter, redrives: bool) -> anyhow::Result<Option<Redrive>> {
    if redrives { operator.plan(letter).map(Some) } else { Ok(None) }
}

fn progress(count: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {eta}").expect("a valid template");
    ProgressBar::new(count as u64).with_style(style)
}

/// Whether the event was applied since. A refused effect is of an event that was.
async fn is_resolved(store: &dyn Inspect, letter: &DeadLetter) -> anyhow::Result<bool> {
    let key = ObjectKey::new(&letter.tenant, &letter.source, &letter.object);
    Ok(store.events(&key).await?.iter().any(|e| e.row == letter.event_row))
}

fn to_letter(letter: DeadLetter, resolved: bool) -> Letter {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Letter {
        tenant: letter.tenant,
        source: letter.source,
        object: letter.object,
        event_id: letter.event_id,
        event_type: letter.event_type,
        record: letter.record.to_string(),
        cause: letter.cause,
        detail: letter.detail,
        resolved,
        received: instant(letter.recorded_ms),
        dead: instant(letter.dead_ms),
        position: letter.position,
        bytes: letter.value.len(),
        headers: letter.headers.iter().map(|(n, v)| (n.clone(), text(v))).collect(),
        value: text(&letter.value),
    }
}
