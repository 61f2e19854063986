//! A forger learns nothing from answers: an unknown source, a bad signature and one whose beginning is right get the
//! same status, headers and body, in the same time.

use std::time::{Duration, Instant};

use crate::support::{Engine, Role, SECRET, System, block_on, sign, source};

/// Probes of each kind.
const PROBES: usize = 5000;

/// Sounds alike: the chance that a probe of one kind takes longer than one of the other.
const ALIKE: std::ops::RangeInclusive<f64> = 0.47..=0.53;
/// The machine is not ours alone: a figure that is off is taken again.
const TURNS: usize = 4;

const BODY: &[u8] = br#"{"id":"evt_1","object":"thing-1","type":"thing.updated"}"#;
const KINDS: [&str; 3] = ["unknown source", "bad signature", "good prefix"];

struct Probe {
    url: String,
    signature: String,
}

fn kinds(system: &System) -> [Probe; 3] {
    let right = sign(SECRET, BODY);
    let flip = |c: char| if c == '0' { '1' } else { '0' };
    let bad: String = right.chars().map(flip).collect();
    let prefix: String = right[..62].chars().chain(right[62..].chars().map(flip)).collect();
    let probe = |source: &str, signature: String| Probe { url: system.url("acme", source), signature };
    [probe("sham", bad.clone()), probe("hmac", bad), probe("hmac", prefix)]
}

/// Seconds of each probe by kind, one after the other on one connection; and the one answer that all got.
async fn measure(probes: &[Probe; 3], count: usize) -> ([Vec<f64>; 3], (u16, Vec<String>, Vec<u8>)) {
    let client = reqwest::Client::builder().pool_max_idle_per_host(1).build().expect("a client");
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut seen = None;
    for n in 0..count * 3 {
        // Each kind follows each other one equally often.
        let kind = [0, 1, 2, 0, 2, 1][n % 6];
        let probe = &probes[kind];
        let request = client.post(&probe.url).header("x-signature", &probe.signature).body(BODY);
        let started = Instant::now();
        let answer = request.send().await.expect("an answer");
        let taken = started.elapsed();
        let headers = answer.headers().iter().filter(|(name, _)| *name != "date");
        let headers: Vec<_> = headers.map(|(n, v)| format!("{n}: {}", v.to_str().expect("text"))).collect();
        let told = (answer.status().as_u16(), headers, answer.bytes().await.expect("a body").to_vec());
        assert_eq!(seen.get_or_insert(told.clone()), &told, "{}", KINDS[kind]);
        times[kind].push(taken.as_secs_f64());
    }
    (times, seen.expect("at least one probe"))
}

/// Mann and Whitney: the share of pairs in which `a` is longer than `b`, equal ones counting half.
fn auc(a: &[f64], b: &[f64]) -> f64 {
    let mut sorted = b.to_vec();
    sorted.sort_by(f64::total_cmp);
    let share = |x: &f64| {
        let (below, not_above) = (sorted.partition_point(|y| y < x), sorted.partition_point(|y| y <= x));
        (below + not_above) as f64 / 2.0
    };
    a.iter().map(share).sum::<f64>() / (a.len() * b.len()) as f64
}

#[test]
fn refusals_are_alike_in_what_they_say_and_in_time() {
    let declare = "declare = { object = 'body:/object' }";
    let mut system = System::new(Engine::Embedded, &source("hmac", SECRET, declare));
    system.start(Role::All);
    let probes_of = kinds(&system);
    block_on(async {
        // What is made once, such as a first connection, is no part of it.
        measure(&probes_of, 50).await;
        let mut last = Vec::new();
        for turn in 1..=TURNS {
            let (times, told) = measure(&probes_of, PROBES).await;
            assert_eq!(told.0, 401);
            assert_eq!(told.2, b"");
            let pairs = [(0, 1), (0, 2), (1, 2)];
            last = pairs.map(|(a, b)| (KINDS[a], KINDS[b], auc(&times[a], &times[b]))).to_vec();
            println!("turn {turn}, {PROBES} probes of each kind: {last:.4?}");
            if last.iter().all(|(.., auc)| ALIKE.contains(auc)) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("told apart by time: {last:.4?}");
    });
    assert_eq!(system.log_count(), 0);
}

#[test]
fn the_measure_tells_apart_what_differs() {
    let fast: Vec<f64> = (0..1000).map(|n| f64::from(n % 100)).collect();
    let slow: Vec<f64> = fast.iter().map(|t| t + 10.0).collect();
    assert!((auc(&fast, &fast) - 0.5).abs() < 1e-9);
    assert!(auc(&slow, &fast) > 0.55 && auc(&fast, &slow) < 0.45);
}
