//! One binary for all targets; SERIATIM_FUZZ_TARGET names the one.
#![no_main]

#[path = "../../ingest/tests/fuzzing/mod.rs"]
mod fuzzing;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static RUN: LazyLock<fuzzing::Target> = LazyLock::new(|| {
    let name = std::env::var("SERIATIM_FUZZ_TARGET").expect("SERIATIM_FUZZ_TARGET names a target");
    let found = fuzzing::TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("{name} is no target")).1
});

fuzz_target!(|data: &[u8]| RUN(data));
