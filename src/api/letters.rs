//! Dead letters, looked at and acted on. However many there are, only what is shown, or acted on in one go, is read
//! whole.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use seriatim_processor::inspect::{After, Inspect, LetterHead, RowName, Scope};

use super::direct::{Direct, SCAN_PAGE, Search, parse_place, place};
use super::operations::{LettersAct, OperationError};
use super::rows::{
    Group, LeftAlone, LetterFilter, LetterRow, LetterSummary, LettersDone, LettersRequest, Page, Paging,
};
use crate::operate::{Redrive, Who};
use crate::output::instant;

const READS_AT_ONCE: usize = 16;
/// One go of an act ends after so many letters, or so long.
const ACTS_MAX: usize = 10_000;
const ACTS_WITHIN: Duration = Duration::from_secs(20);
/// Reasons told apart in one answer; what else was left alone is counted together.
const REASONS_MAX: usize = 100;

/// The order in which letters are acted on: as they were received, so that deltas are decided in that order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Received {
    recorded_ms: i64,
    record: String,
    name: RowName,
}

impl Received {
    fn of(head: &LetterHead) -> Self {
        let name = RowName::new(&head.of.key, &head.of.row);
        Self { recorded_ms: head.recorded_ms, record: head.record.to_string(), name }
    }
}

impl LetterFilter {
    fn scope(&self) -> Scope<'_> {
        Scope { tenant: self.tenant.as_deref(), source: self.source.as_deref() }
    }

    fn has(&self, head: &LetterHead) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
        let is_id = || is(&self.id, &head.event_id) || is(&self.id, &head.record.to_string());
        self.scope().has(&head.of.key.tenant, &head.of.key.source)
            && is(&self.object, &head.of.key.object)
            && is(&self.cause, &head.cause)
            && is_id()
    }
}

impl Direct {
    pub(super) async fn list_letters(
        &self,
        filter: &LetterFilter,
        paging: &Paging,
    ) -> Result<Page<LetterSummary>, OperationError> {
        let store = self.store().await?;
        let mut search = Search::begin(paging)?;
        let (found, after) = loop {
            let page = store.letters(filter.scope(), &search.after, search.limit).await?;
            let mut found = page.rows;
            found.retain(|head| filter.has(head));
            if let ControlFlow::Break(after) = search.go_on(&found, page.next) {
                break (found, after);
            }
        };
        let rows = found.into_iter().map(|head| summary(store, head));
        Ok(Page { rows: futures::stream::iter(rows).buffered(READS_AT_ONCE).try_collect().await?, after })
    }

    /// Shows every letter that the filter leaves to `see`.
    async fn scan(&self, filter: &LetterFilter, mut see: impl FnMut(LetterHead)) -> Result<(), OperationError> {
        let store = self.store().await?;
        let mut after = Some(After::default());
        while let Some(at) = after {
            let page = store.letters(filter.scope(), &at, SCAN_PAGE).await?;
            page.rows.into_iter().filter(|head| filter.has(head)).for_each(&mut see);
            after = page.next;
        }
        Ok(())
    }

    pub(super) async fn group_letters(&self, filter: &LetterFilter) -> Result<Page<Group>, OperationError> {
        let mut groups: BTreeMap<(String, String, String), (u64, String)> = BTreeMap::new();
        let see = |head: LetterHead| {
            let key = head.of.key;
            groups.entry((key.tenant, key.source, head.cause)).or_insert((0, head.detail)).0 += 1;
        };
        self.scan(filter, see).await?;
        let to_group =
            |((tenant, source, cause), (letters, example))| Group { tenant, source, cause, letters, example };
        Ok(Page { rows: groups.into_iter().map(to_group).collect(), after: None })
    }

    /// The first that died of those that an id names.
    pub(super) async fn find_letter(&self, tenant: &str, source: &str, id: &str) -> Result<LetterRow, OperationError> {
        let (tenant, source) = (tenant.to_owned(), source.to_owned());
        let missing = || OperationError::NotFound(format!("no dead letter {id} of {tenant}/{source}"));
        let filter = LetterFilter {
            tenant: Some(tenant.clone()),
            source: Some(source.clone()),
            id: Some(id.to_owned()),
            ..LetterFilter::default()
        };
        let mut first: Option<LetterHead> = None;
        let see = |head: LetterHead| {
            if first.as_ref().is_none_or(|first| (head.dead_ms, &head.of.row) < (first.dead_ms, &first.of.row)) {
                first = Some(head);
            }
        };
        self.scan(&filter, see).await?;
        let store = self.store().await?;
        let head = first.ok_or_else(missing)?;
        let letter = store.letter(&head).await?.ok_or_else(missing)?;
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let value = String::from_utf8(letter.value.to_vec()).ok();
        Ok(LetterRow {
            summary: summary(store, head).await?,
            bytes: letter.value.len() as u64,
            headers: letter.headers.iter().map(|(name, value)| (name.clone(), lossy(value))).collect(),
            value_base64: value.is_none().then(|| STANDARD.encode(&letter.value)),
            value,
        })
    }

    /// How many letters the filter leaves behind a place, and the first of them in order.
    async fn first_behind(
        &self,
        filter: &LetterFilter,
        after: Option<&Received>,
    ) -> Result<(u64, BTreeMap<Received, LetterHead>), OperationError> {
        let (mut count, mut first) = (0, BTreeMap::new());
        let see = |head: LetterHead| {
            let received = Received::of(&head);
            if after.is_some_and(|after| received <= *after) {
                return;
            }
            count += 1;
            first.insert(received, head);
            if first.len() > ACTS_MAX {
                first.pop_last();
            }
        };
        self.scan(filter, see).await?;
        Ok((count, first))
    }

    pub(super) async fn act_on_some(
        &self,
        act: LettersAct,
        request: &LettersRequest,
        who: &Who,
    ) -> Result<LettersDone, OperationError> {
        let begin = Instant::now();
        let after: Option<Received> = parse_place(request.after.as_deref())?;
        let (matching, letters) = self.first_behind(&request.filter, after.as_ref()).await?;
        let mut tick = tokio::time::interval(Duration::from_secs(1) / request.rate);
        let mut left_alone: BTreeMap<String, u64> = BTreeMap::new();
        let (mut seen, mut done, mut last) = (0, 0, None);
        for (received, head) in letters {
            if seen > 0 && begin.elapsed() > ACTS_WITHIN {
                break;
            }
            if !request.dry_run {
                tick.tick().await;
            }
            let acted = self.act_on_letter(act, &head, request.dry_run, who).await;
            match acted.map_err(|error| error.under(&format!("after {done} letters")))? {
                Acted::Done => done += 1,
                Acted::Gone => {}
                Acted::LeftAlone(reason) => {
                    let is_new = !left_alone.contains_key(&reason);
                    let is_too_many = is_new && left_alone.len() == REASONS_MAX;
                    let reason = if is_too_many { "other reasons".to_owned() } else { reason };
                    *left_alone.entry(reason).or_default() += 1;
                }
            }
            seen += 1;
            last = Some(received);
        }
        let left_alone = left_alone.into_iter().map(|(reason, letters)| LeftAlone { reason, letters }).collect();
        let after = last.filter(|_| seen < matching).map(|last| place(&last));
        Ok(LettersDone { matching, done, left_alone, after })
    }

    async fn act_on_letter(
        &self,
        act: LettersAct,
        head: &LetterHead,
        dry_run: bool,
        who: &Who,
    ) -> Result<Acted, OperationError> {
        let Some(letter) = self.store().await?.letter(head).await? else { return Ok(Acted::Gone) };
        let operator = self.operator().await?;
        let plan = match act {
            LettersAct::Discard => None,
            LettersAct::Redrive => Some(operator.plan(&letter)),
        };
        let appended = match plan {
            Some(Redrive::StillDead(reason)) => return Ok(Acted::LeftAlone(reason)),
            _ if dry_run => return Ok(Acted::Done),
            None => operator.discard(&letter, who).await,
            Some(Redrive::Again(records)) => operator.redrive(&letter, records, who).await,
            Some(Redrive::Effect { sink, event_row }) => operator.redrive_effect(&letter, sink, event_row, who).await,
        };
        appended.map_err(|error| OperationError::from(error).under("the log did not take the act"))?;
        Ok(Acted::Done)
    }
}

/// What became of one letter.
enum Acted {
    Done,
    /// By another hand, meanwhile.
    Gone,
    LeftAlone(String),
}

/// Whether the event was applied since. A refused effect is of an event that was.
async fn summary(store: &dyn Inspect, head: LetterHead) -> Result<LetterSummary, OperationError> {
    let resolved = store.event(&head.of.key, &head.of.row).await?.is_some();
    Ok(LetterSummary {
        tenant: head.of.key.tenant,
        source: head.of.key.source,
        object: head.of.key.object,
        event_id: head.event_id,
        event_type: head.event_type,
        record: head.record.to_string(),
        cause: head.cause,
        detail: head.detail,
        resolved,
        received: instant(head.recorded_ms),
        dead: instant(head.dead_ms),
        position: head.position,
    })
}
