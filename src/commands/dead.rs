//! `dead`: events that could not be decided, and effects that a sink refused, kept whole.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use super::Context;
use crate::api::operations::{LettersAct, Operations, collect};
use crate::api::rows::{Group, LetterFilter, LetterSummary, LettersRequest};
use crate::output::{at, print_fields, print_rows, say, write_bytes};

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
        filter: LetterFilter,
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
struct Acts {
    #[command(flatten)]
    filter: LetterFilter,
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
    /// Who does this; with --server it is the token's name that counts
    #[arg(long, env = "USER", default_value = "unknown")]
    pub by: String,
    /// Why
    #[arg(long)]
    pub reason: Option<String>,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let operations = context.operations()?;
    match args.command {
        DeadCommand::List { filter, group: true } => group(context, &*operations, &filter).await?,
        DeadCommand::List { filter, group: false } => list(context, &*operations, &filter).await?,
        DeadCommand::Show { tenant, source, id, raw } => {
            let letter = operations.letter(&tenant, &source, &id).await?;
            match (raw, &letter.value, &letter.value_base64) {
                (false, ..) => print_fields(context.format, &letter)?,
                (true, Some(text), _) => write_bytes(text.as_bytes())?,
                (true, None, coded) => {
                    write_bytes(&STANDARD.decode(coded.as_deref().unwrap_or_default()).context("value_base64")?)?;
                }
            }
        }
        DeadCommand::Redrive { acts } => act(&*operations, LettersAct::Redrive, acts).await?,
        DeadCommand::Discard { acts } => act(&*operations, LettersAct::Discard, acts).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context, operations: &dyn Operations, filter: &LetterFilter) -> anyhow::Result<()> {
    let mut rows = collect(async |paging| operations.letters(filter, &paging).await).await?;
    rows.sort_by_cached_key(|letter| at(&letter.dead));
    let columns = ["tenant", "source", "object", "event", "cause", "detail", "state", "since"];
    let cells = |l: &LetterSummary| {
        let state = if l.resolved { "resolved" } else { "dead" };
        let texts = [&l.tenant, &l.source, &l.object, &l.event_id, &l.cause, &l.detail];
        texts.into_iter().cloned().chain([state.to_owned(), l.dead.clone()]).collect()
    };
    print_rows(context.format, &columns, &rows, cells)
}

async fn group(context: &Context, operations: &dyn Operations, filter: &LetterFilter) -> anyhow::Result<()> {
    let rows = operations.letter_groups(filter).await?.rows;
    let cells =
        |g: &Group| vec![g.tenant.clone(), g.source.clone(), g.cause.clone(), g.letters.to_string(), g.example.clone()];
    print_rows(context.format, &["tenant", "source", "cause", "letters", "example"], &rows, cells)
}

/// Goes on where each answer says, until all is done.
async fn act(operations: &dyn Operations, act: LettersAct, acts: Acts) -> anyhow::Result<()> {
    let Acts { filter, all, dry_run, rate, who: Who { by, reason } } = acts;
    let mut request = LettersRequest { filter, all, dry_run, rate, reason, after: None };
    let (mut done, mut left) = (0, BTreeMap::<String, u64>::new());
    let mut bar: Option<ProgressBar> = None;
    let total = loop {
        let before = done + left.values().sum::<u64>();
        let went = operations.act_on_letters(act, &request, &by).await;
        let went = if before > 0 { went.with_context(|| format!("after {before} letters"))? } else { went? };
        done += went.done;
        for one in went.left_alone {
            *left.entry(one.reason).or_default() += one.letters;
        }
        let total = before + went.matching;
        bar.get_or_insert_with(|| progress(total)).set_position(done + left.values().sum::<u64>());
        request.after = went.after;
        if request.after.is_none() {
            break total;
        }
    };
    bar.iter().for_each(ProgressBar::finish_and_clear);
    for (reason, count) in &left {
        say(&format!("left alone: {count} ({reason})"));
    }
    let word = match (dry_run, act) {
        (true, _) => "would act on",
        (false, LettersAct::Redrive) => "redriven",
        (false, LettersAct::Discard) => "discarded",
    };
    say(&format!("{word} {done} of {total} letters"));
    Ok(())
}

fn progress(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {eta}").expect("a valid template");
    ProgressBar::new(count).with_style(style)
}
