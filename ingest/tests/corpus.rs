//! Replays the fuzzer's corpus, and changes of it, through the code that reads outsiders' bytes. The fuzzer itself
//! (fuzz/run) searches on; what it found stays found here.

mod fuzzing;

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Changed inputs of each target. SERIATIM_TEST_CASES=1000000 for a long run.
fn cases() -> usize {
    std::env::var("SERIATIM_TEST_CASES").map_or(20_000, |text| text.parse().expect("a number"))
}

/// An input of a few kilobytes that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(2);

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

/// A few bytes changed, cut, doubled, or taken from another input.
fn changed(inputs: &[Vec<u8>], random: &mut SmallRng) -> Vec<u8> {
    let mut input = inputs.choose(random).expect("a corpus").clone();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=input.len());
        match random.random_range(0..6) {
            0 if at < input.len() => input[at] = random.random(),
            1 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
            2 => input.truncate(at),
            3 => input.insert(at, *b"\"{}[],:/|\n\\*~<>&=%\0\xff0".choose(random).expect("some")),
            4 => {
                let other = inputs.choose(random).expect("a corpus");
                let from = random.random_range(0..=other.len());
                let to = random.random_range(from..=other.len().min(from + 64));
                input.splice(at..at, other[from..to].iter().copied());
            }
            _ if at < input.len() => {
                let to = random.random_range(at..=input.len().min(at + 16));
                let doubled = input[at..to].to_vec();
                input.splice(at..at, doubled);
            }
            _ => {}
        }
    }
    input
}

#[test]
fn no_bytes_of_outsiders_do_harm() {
    let seed: u64 = std::env::var("SERIATIM_TEST_SEED").map_or_else(|_| rand::random(), |t| t.parse().expect("a seed"));
    println!("SERIATIM_TEST_SEED={seed}");
    for (target, run) in fuzzing::TARGETS {
        let inputs = corpus(target);
        let mut random = SmallRng::seed_from_u64(seed);
        let changes = (0..cases()).map(|_| changed(&inputs, &mut random)).collect::<Vec<_>>();
        for input in inputs.iter().chain(&changes) {
            let started = Instant::now();
            let result = std::panic::catch_unwind(|| run(input));
            assert!(result.is_ok(), "{target}: {}", input.escape_ascii());
            assert!(started.elapsed() < LONGEST, "{target}: {:?} for {}", started.elapsed(), input.escape_ascii());
        }
        println!("{target}: {} inputs of the corpus, {} changed ones", inputs.len(), changes.len());
    }
}
