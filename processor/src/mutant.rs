//! Deliberate breaks of the protocol, each a rule that is left out: the simulation must find them all, since a checker
//! that cannot fail proves nothing. They exist under the feature `mutants` alone; without it [`is`] is false at compile
//! time, and nothing of them is left; a variant that no code names is then refused by the compiler.

#[cfg(feature = "mutants")]
use std::cell::{Cell, RefCell};
#[cfg(feature = "mutants")]
use std::collections::HashMap;

use uuid::Uuid;

use crate::decide::View;

/// Names the mutants, and lists them.
macro_rules! mutants {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$attribute])* $name,)*
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

mutants! {
    /// All tries have one attempt id, so a row of an earlier one counts as this one's.
    AttemptIsConstant,
    /// A lost answer counts as a yes.
    UnknownIsApplied,
    /// A lost answer counts as a no for good.
    UnknownIsRefused,
    /// A refused batch counts as applied.
    RefusedIsApplied,
    /// A batch that the store refuses for good makes dead letters of all its events.
    DeadTogether,
    /// Event rows are read before the heads that say whether they are all.
    RowsBeforeHeads,
    /// After a refusal the heads are read again, and the event rows are those of before.
    #[cfg_attr(not(feature = "mutants"), allow(dead_code))]
    RowsKept,
    /// A batch is committed whatever the turn is.
    CommitWithoutTurn,
    /// A decision leaves the turn as it was.
    TurnNotRaised,
    /// An act on what waits leaves the turn as it was.
    ActsRaiseNoTurn,
    /// Two groups of a bucket are worked at once.
    GroupsTogether,
    /// The events of one batch share a rev.
    RevPerBatch,
    /// An event that comes twice within a group is applied twice.
    DuplicateInGroup,
    /// A record whose event another one had brought is sent.
    DuplicateSentAgain,
    /// What was decided before counts as sent, though no arrival says so.
    OwnRowIsDone,
    /// What was decided before, and may have been sent, is sent again without a mark.
    ResendUnmarked,
    /// An older snapshot becomes the state.
    StaleApplied,
    /// An older snapshot lifts a tombstone.
    TombstoneLifted,
    /// Of equal versions the later in the log wins.
    TieByLog,
    /// An equal event of a greater id leaves the order key as it was.
    EqualNotRaised,
    /// A number that is ahead of its turn is applied.
    GapIgnored,
    /// A new owner does not learn of a gap.
    GapNotMarked,
    /// A gap is passed further than the record says.
    PassedTooFar,
    /// An event whose number was passed counts as a duplicate.
    PassedIsDuplicate,
    /// Events are decided before the held ones whose turn it is.
    ReleaseIsPassed,
    /// Held events are released while effects of their object are on their way.
    NotPutAside,
    /// The arrival is recorded before the effects are out.
    RecordedBeforeEmit,
    /// The low watermark passes what is not done.
    WatermarkPastHole,
    /// The low watermark is how far was read.
    FloorAhead,
    /// Effects are sent while earlier ones of their object wait.
    WaitingPassed,
    /// What waits by the head, and is not known otherwise, is passed.
    HeadsWaitingIgnored,
    /// What a lane could not get rid of goes behind what came meanwhile.
    RestBeforeFirst,
    /// Effects that were tried go to the store without a mark.
    AttemptedUnmarked,
    /// What a drain has tried before has no mark.
    TriedForgotten,
    /// Waiting effects name the process as their writer, though it may have lost the partition meanwhile.
    WriterOfProcess,
    /// Effects without a row have no mark.
    OverflowUnmarked,
    /// What finds no room in the store is forgotten.
    OverflowForgotten,
    /// Effects get rows again while earlier ones have none.
    RowsBehindOverflow,
    /// Waiting effects are sent from the last to the first.
    WaitingReversed,
    /// Waiting effects that were not taken lose their rows.
    RowGoneUnsent,
    /// An object counts as clear while effects of it are left.
    MarkGoneTooSoon,
    /// Acts on one object and sink are committed together, none of which sees what the others leave.
    ActsTogether,
    /// An act counts as done that the store has refused.
    RefusedIsPut,
    /// What a sink refuses counts as taken.
    RefusedIsTaken,
    /// The head expires with the rows of its events.
    HeadExpires,
    /// Nobody waits for the owner of another partition.
    GateLeftOut,
    /// The head names the partition of its first decisions for good.
    RunNotMoved,
    /// What waits is found when a partition is assigned, and never looked for again.
    NoLookAgain,
}

#[cfg(feature = "mutants")]
thread_local! {
    static CURRENT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// From here on everything on this thread is this mutant, or none.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    CURRENT.set(mutant);
}

/// Whether what runs is this mutant.
#[cfg(feature = "mutants")]
pub fn is(mutant: Mutant) -> bool {
    CURRENT.get() == Some(mutant)
}

/// The views with the event rows of the first that were read under `attempt`, where that is the mutant.
#[cfg(feature = "mutants")]
pub fn with_rows_kept(mut views: Vec<View>, attempt: Uuid) -> Vec<View> {
    thread_local! {
        static KEPT: RefCell<HashMap<Uuid, Vec<View>>> = RefCell::default();
    }
    if is(Mutant::RowsKept) {
        KEPT.with_borrow_mut(|kept| {
            let first = kept.entry(attempt).or_insert_with(|| views.clone());
            views.iter_mut().zip(first).for_each(|(view, first)| view.rows.clone_from(&first.rows));
        });
    }
    views
}

#[cfg(not(feature = "mutants"))]
pub const fn is(_: Mutant) -> bool {
    false
}

#[cfg(not(feature = "mutants"))]
pub fn with_rows_kept(views: Vec<View>, _: Uuid) -> Vec<View> {
    views
}
