//! Many hands on one object: each turn is won by one of them.

use std::sync::Arc;

use seriatim_processor::error::StoreError;
use seriatim_processor::inspect::Inspect;
use seriatim_processor::store::{Committed, ObjectBatch, Store};
use tokio::sync::Barrier;

use crate::sample::{batch, events, key, object, objects_of_one_bucket, read, unique};

const TASKS: usize = 8;
const TURNS: i64 = 10;

/// Commits as a processor would: a lost answer is resolved by reading.
async fn wins<S: Store>(store: &S, group: &[ObjectBatch]) -> bool {
    let (key, row) = (&group[0].key, &group[0].rows[0]);
    let bucket = key.bucket(store.buckets());
    let mut is_in_doubt = false;
    loop {
        match store.commit(bucket, group).await {
            Ok(Committed::Applied) => return true,
            Ok(Committed::Refused) if !is_in_doubt => return false,
            Ok(Committed::Refused) | Err(StoreError::Unknown(_) | StoreError::Unavailable(_)) => {
                let view = read(store, key, &[&row.row]).await;
                if let Some(found) = view.rows.get(&row.row) {
                    return found.attempt == row.attempt;
                }
                if view.head.map(|h| h.turn) != group[0].turn {
                    return false;
                }
                is_in_doubt = true;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub async fn concurrent_commits_have_one_winner_per_turn<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "contended");
    let barrier = Arc::new(Barrier::new(TASKS));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, key, barrier) = (store.clone(), key.clone(), barrier.clone());
            tokio::spawn(async move {
                let mut won = Vec::new();
                for turn in 0..TURNS {
                    let head = read(&*store, &key, &[]).await.head;
                    assert_eq!(head.as_ref().map_or(0, |h| h.turn), turn, "one turn for each round");
                    let mine = batch(&key, head.as_ref(), &[&format!("turn {turn} by {task}")]);
                    barrier.wait().await;
                    if wins(&*store, std::slice::from_ref(&mine)).await {
                        won.push(mine);
                    }
                    barrier.wait().await;
                }
                won
            })
        })
        .collect();
    let mut won = Vec::new();
    for task in tasks {
        won.extend(task.await.expect("no task panics"));
    }
    won.sort_by_key(|batch| batch.head.turn);
    assert_eq!(
        won.iter().map(|b| b.head.turn).collect::<Vec<_>>(),
        (1..=TURNS).collect::<Vec<_>>(),
        "one winner per turn"
    );
    let rows: Vec<_> = won.iter().flat_map(|b| b.rows.clone()).collect();
    assert_eq!(events(&*store, &key).await, rows, "the rows are the winners'");
    let last = won.pop().expect("ten turns were won");
    let object = object(&*store, &key).await.expect("it is there");
    assert_eq!((object.head, object.state), (last.head, last.state));
}

/// Groups that share some objects: whoever loses one of them has written none.
pub async fn overlapping_groups_never_apply_in_part<S: Store + Inspect>(store: Arc<S>) {
    let keys = objects_of_one_bucket(&*store, &unique("t"), TASKS + 2);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let row = format!("by {task}");
            let group: Vec<_> = keys[task..task + 3].iter().map(|key| batch(key, None, &[&row])).collect();
            let store = store.clone();
            tokio::spawn(async move { wins(&*store, &group).await })
        })
        .collect();
    let mut winners = Vec::new();
    for (task, won) in tasks.into_iter().enumerate() {
        if won.await.expect("no task panics") {
            winners.push(task);
        }
    }
    assert!(!winners.is_empty() && winners.windows(2).all(|pair| pair[1] - pair[0] >= 3), "{winners:?} do not overlap");
    for (place, key) in keys.iter().enumerate() {
        let owner = winners.iter().find(|task| (**task..**task + 3).contains(&place));
        let expected: Vec<_> = owner.map(|task| format!("by {task}")).into_iter().collect();
        let found: Vec<_> = events(&*store, key).await.into_iter().map(|row| row.row).collect();
        assert_eq!(found, expected, "{key}");
        assert_eq!(object(&*store, key).await.is_some(), owner.is_some(), "{key}");
    }
}
