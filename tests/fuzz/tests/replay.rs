//! Runs every target on its seeds, on the corpus, and on changes of both: the same ones each time, so a
//! failure comes again. With `TEST_FUZZ_SECONDS` it goes on with further changes for that time, from
//! `TEST_FUZZ_SEED`. Without a fuzzer this finds what is near; `tests/fuzz/run` searches.

#![allow(clippy::unwrap_used)] // only `#[test]` functions are known as tests

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use skein_fuzz::{Mutator, Target, corpus, targets};
use skein_node::clock;

/// Inputs of `target` that are kept or written in its source.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let kept = std::fs::read_dir(corpus(target.name)).into_iter().flatten().flatten();
    let mut kept: Vec<_> = kept.map(|entry| entry.path()).collect();
    kept.sort();
    let kept = kept.iter().map(|path| std::fs::read(path).unwrap());
    (target.seeds)().into_iter().chain(kept).collect()
}

fn check(target: &Target, input: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        let path = std::env::temp_dir().join(format!("{}.failed", target.name));
        std::fs::write(&path, input).unwrap();
        panic!("{}: {what} fails; the input is {}", target.name, path.display());
    }
}

fn check_changed(target: &Target, inputs: &[Vec<u8>], seed: u64) {
    let at = |seed: u64| &inputs[(seed % inputs.len() as u64) as usize];
    let changed = Mutator::new(seed).change(at(seed), at(seed / 7));
    check(target, &changed, &format!("change {seed}"));
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

/// Replays the targets whose number leaves `part` when divided by 4: tests run beside each other.
fn replay(part: usize) {
    let targets = targets();
    let targets: Vec<(&Target, Vec<Vec<u8>>)> =
        targets.iter().skip(part).step_by(4).map(|target| (target, inputs(target))).collect();
    for (target, inputs) in &targets {
        assert!(!inputs.is_empty(), "{} has no seeds", target.name);
        for (at, input) in inputs.iter().enumerate() {
            check(target, input, &format!("input {at}"));
        }
        (0..u64::from(target.replays)).for_each(|seed| check_changed(target, inputs, seed));
        check(target, b"", "nothing");
    }
    let Some(seconds) = variable("TEST_FUZZ_SECONDS") else { return };
    let (began, first) = (clock::now(), variable("TEST_FUZZ_SEED").unwrap_or_default() << 32);
    let mut done = 0;
    while clock::now().since(began) < Duration::from_secs(seconds) {
        for (target, inputs) in &targets {
            (done..done + u64::from(target.replays) / 10)
                .for_each(|seed| check_changed(target, inputs, first + seed));
        }
        done += 100;
    }
    println!("part {part}: {done} changes of the targets with most, from seed {first}");
}

#[test]
fn every_first_target_survives_its_inputs() {
    replay(0);
}

#[test]
fn every_second_target_survives_its_inputs() {
    replay(1);
}

#[test]
fn every_third_target_survives_its_inputs() {
    replay(2);
}

#[test]
fn every_fourth_target_survives_its_inputs() {
    replay(3);
}

#[test]
fn names_are_unique_and_the_corpus_has_no_other_folders() {
    let names: Vec<&str> = targets().iter().map(|target| target.name).collect();
    let mut distinct = names.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len());
    for entry in std::fs::read_dir(corpus("")).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(names.contains(&&*name), "no target reads the folder {name}");
    }
}
