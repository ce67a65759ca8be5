//! Workers whose model has a state: a prompt resumes only after a block that has one.

use skein_proto::runs::Gap;

use super::*;

/// A cache and the prefixes after which a prompt can resume.
#[derive(Default)]
struct WithStates {
    cache: Cache,
    ends: BTreeSet<Prefix>,
}

impl WithStates {
    /// A random change; returns the report for routers.
    fn change(&mut self, rng: &mut StdRng) -> CacheChange {
        let mut change = CacheChange::default();
        let prefix = prefix(rng);
        let hash = hashes(&prefix).last().copied().expect("prefixes are not empty");
        match rng.random_range(0..4) {
            0 => change.truncated.extend(self.cache.evict(rng)),
            1 => change.stored.extend(self.cache.store(&prefix)),
            2 => {
                // The end of a prompt gets a state with its last block.
                change.stored.extend(self.cache.store(&prefix));
                change.gaps.extend(self.ends.insert(prefix).then_some(Gap { hash, is_open: false }));
            }
            // States are evicted apart from blocks.
            _ => change.gaps.extend(self.ends.remove(&prefix).then_some(Gap { hash, is_open: true })),
        }
        let lost: Vec<Prefix> = self.ends.difference(&self.cache.held).cloned().collect();
        for prefix in lost {
            let hash = hashes(&prefix).last().copied().expect("prefixes are not empty");
            change.gaps.push(Gap { hash, is_open: true });
            self.ends.remove(&prefix);
        }
        change
    }

    fn gaps(&self) -> Gaps {
        let hashes = self.ends.iter().filter_map(|prefix| hashes(prefix).last().copied()).collect();
        Gaps { window_blocks: 0, hashes, are_ends: true }
    }

    fn resumable_blocks(&self, prefix: &[u8]) -> usize {
        let held = self.cache.leading_blocks(prefix);
        (0..=held).rev().find(|&end| end == 0 || self.ends.contains(&prefix[..end])).unwrap_or(0)
    }
}

#[test]
fn it_knows_exactly_where_each_worker_can_resume() {
    for seed in 0..seeds() {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut index = PrefixIndex::new(DEFAULT_MAX_BYTES);
        let mut workers: Vec<WithStates> = (0..3).map(|_| WithStates::default()).collect();
        let replace = |index: &mut PrefixIndex, id: usize, worker: &WithStates| {
            // The last one does not say where it can resume: anywhere.
            let gaps = if id == 2 { Gaps::default() } else { worker.gaps() };
            index.replace(WorkerId(id as u32), &worker.cache.snapshot(), &gaps).expect("a snapshot fits");
        };
        workers.iter().enumerate().for_each(|(id, worker)| replace(&mut index, id, worker));
        for _ in 0..200 {
            let id = rng.random_range(0..workers.len());
            let worker = &mut workers[id];
            match rng.random_range(0..20) {
                0 => {
                    index.remove(WorkerId(id as u32));
                    *worker = WithStates::default();
                    replace(&mut index, id, worker);
                }
                1 => replace(&mut index, id, worker),
                _ => {
                    let change = worker.change(&mut rng);
                    index.apply(WorkerId(id as u32), &change).expect("a change fits");
                }
            }
            let asked = prefix(&mut rng);
            for (id, worker) in workers.iter().enumerate() {
                let got = leading_blocks(&mut index, WorkerId(id as u32), &hashes(&asked));
                let anywhere = worker.cache.leading_blocks(&asked);
                let expected = if id == 2 { anywhere } else { worker.resumable_blocks(&asked) };
                assert_eq!(got, expected, "seed {seed}, worker {id}, {asked:?}");
            }
        }
        (0..3).for_each(|which| index.remove(WorkerId(which)));
        assert!(index.gaps.is_empty(), "seed {seed}: nothing is left behind");
    }
}

#[test]
fn an_expected_prompt_can_be_resumed_at_its_end_only() {
    let (worker, asked) = (WorkerId(1), hashes(&[1, 2, 3, 4]));
    let mut index = PrefixIndex::new(DEFAULT_MAX_BYTES);
    let check = |index: &mut PrefixIndex, expected: [usize; 4], when: &str| {
        let got = [1, 2, 3, 4].map(|end| leading_blocks(index, worker, &asked[..end]));
        assert_eq!(got, expected, "{when}");
    };
    let ends = |hashes: &[BlockHash]| Gaps { window_blocks: 0, hashes: hashes.to_vec(), are_ends: true };
    index.replace(worker, &[], &ends(&[])).expect("an empty snapshot fits");
    index.expect(worker, Expectation::Placed(1), &asked[..3], at(0));
    check(&mut index, [0, 0, 3, 3], "placed");
    index.expect(worker, Expectation::Admitted, &asked[..1], at(0));
    check(&mut index, [1, 1, 3, 3], "a second one ends in its middle");
    index.withdraw(worker, 1);
    check(&mut index, [1, 1, 1, 1], "withdrawn");
    let stored = |hashes: &[BlockHash], gaps: &[Gap]| {
        let run = RunStored { handle: 1, parent: 0, depth: 0, hashes: hashes.to_vec() };
        CacheChange { stored: vec![run], gaps: gaps.to_vec(), ..CacheChange::default() }
    };
    index.apply(worker, &stored(&asked[..1], &[])).expect("it fits");
    check(&mut index, [0; 4], "it was cached without a state");
    index.expect(worker, Expectation::Admitted, &asked, at(0));
    let end = Gap { hash: asked[3], is_open: false };
    let run = RunStored { handle: 1, parent: 0, depth: 1, hashes: asked[1..].to_vec() };
    index
        .apply(worker, &CacheChange { stored: vec![run], gaps: vec![end], ..CacheChange::default() })
        .expect("it fits");
    check(&mut index, [0, 0, 0, 4], "it was cached with one");

    // A prompt within cached blocks: its state comes without a run.
    index.expect(worker, Expectation::Admitted, &asked[..2], at(0));
    check(&mut index, [0, 2, 2, 4], "expected");
    let change =
        |is_open| CacheChange { gaps: vec![Gap { hash: asked[1], is_open }], ..CacheChange::default() };
    index.apply(worker, &change(false)).expect("it fits");
    assert!(index.expected.is_empty());
    check(&mut index, [0, 2, 2, 4], "it came");
    index.apply(worker, &change(true)).expect("it fits");
    check(&mut index, [0, 0, 0, 4], "it went");

    // A worker whose model has no state can resume anywhere.
    index.expect(WorkerId(2), Expectation::Admitted, &asked, at(0));
    assert_eq!(leading_blocks(&mut index, WorkerId(2), &asked[..2]), 2);
}
