//! Approximate index of prefixes: which prompts were sent to which workers. Pure.
//!
//! A worker that was sent a prompt probably caches it. Entries used long ago are forgotten first: there are
//! two generations of them, a search moves what it finds into the younger, and when that is full the older is
//! dropped.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::prompt::Mark;

/// Memory of an entry, with the free places of its table, in bytes.
const ENTRY_BYTES: usize = 48;
/// Workers of an entry before it becomes a bitset.
const FEW: usize = 7;
/// [`Holders::count`] of an entry with a bitset.
const WIDE: u16 = u16::MAX;

/// Which worker was sent which beginnings of prompts.
#[derive(Debug)]
pub struct Prefixes {
    young: Generation,
    old: Generation,
    /// Most entries of a generation.
    capacity: usize,
    /// Words of a bitset.
    words: usize,
}

/// Marks are hashes with a secret seed, so they need no further hashing.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Debug, Default)]
struct Generation {
    entries: HashMap<u64, Holders, BuildHasherDefault<AsIs>>,
    /// Bitsets of the entries with many workers, one after another.
    wide: Vec<u64>,
}

/// Workers that were sent a prefix.
#[derive(Debug, Clone, Copy)]
struct Holders {
    /// Up to [`FEW`] workers, or the place of the bitset in two parts.
    few: [u16; FEW],
    count: u16,
}

impl Holders {
    fn place(&self) -> usize {
        usize::from(self.few[0]) | usize::from(self.few[1]) << 16
    }
}

impl Prefixes {
    /// An empty index over `workers` workers that uses at most about `max_bytes`.
    pub fn new(workers: usize, max_bytes: usize) -> Self {
        let capacity = (max_bytes / 2 / ENTRY_BYTES).max(1);
        Self {
            young: Generation::default(),
            old: Generation::default(),
            capacity,
            words: workers.div_ceil(64).max(1),
        }
    }

    /// Sets, for each worker, the tokens of `marks` that it was sent; others keep their value.
    pub fn search(&self, marks: &[Mark], tokens: &mut [u32]) {
        for mark in marks {
            let found = [&self.young, &self.old]
                .into_iter()
                .filter_map(|generation| Some((generation, generation.entries.get(&mark.hash)?)));
            let mut known = false;
            for (generation, holders) in found {
                known = true;
                generation.each(holders, self.words, |worker| {
                    if let Some(tokens) = tokens.get_mut(worker) {
                        *tokens = mark.tokens();
                    }
                });
            }
            if !known {
                return;
            }
        }
    }

    /// Records that `worker` was sent a prompt with these marks.
    pub fn sent(&mut self, marks: &[Mark], worker: u32) {
        for mark in marks {
            if self.young.entries.len() >= self.capacity
                || self.young.wide.len() * 8 > self.capacity * ENTRY_BYTES
            {
                self.old = std::mem::take(&mut self.young);
            }
            let known = self.young.entries.contains_key(&mark.hash);
            if !known && let Some(holders) = self.old.entries.get(&mark.hash) {
                let (old, young, words) = (&self.old, &mut self.young, self.words);
                old.each(holders, words, |held_by| young.add(mark.hash, held_by as u32, words));
            }
            self.young.add(mark.hash, worker, self.words);
        }
    }

    /// Forgets everything about a worker: it has restarted, so its cache is empty.
    pub fn forget(&mut self, worker: u32) {
        for generation in [&mut self.young, &mut self.old] {
            generation.forget(worker, self.words);
        }
    }
}

impl Generation {
    fn each(&self, holders: &Holders, words: usize, mut found: impl FnMut(usize)) {
        if holders.count != WIDE {
            holders.few[..usize::from(holders.count)].iter().for_each(|&worker| found(usize::from(worker)));
            return;
        }
        let bits = &self.wide[holders.place() * words..][..words];
        for (word, &bits) in bits.iter().enumerate() {
            (0..64).filter(|bit| bits >> bit & 1 == 1).for_each(|bit| found(word * 64 + bit));
        }
    }

    fn add(&mut self, hash: u64, worker: u32, words: usize) {
        let Ok(short) = u16::try_from(worker) else { return };
        let holders = self.entries.entry(hash).or_insert(Holders { few: [0; FEW], count: 0 });
        let count = usize::from(holders.count);
        if holders.count == WIDE {
            set(&mut self.wide, holders.place() * words, worker);
        } else if holders.few[..count].contains(&short) {
        } else if count < FEW {
            holders.few[count] = short;
            holders.count += 1;
        } else {
            let place = self.wide.len() / words;
            self.wide.resize(self.wide.len() + words, 0);
            let few = std::mem::replace(&mut holders.few, [0; FEW]);
            few.iter().chain([&short]).for_each(|&worker| set(&mut self.wide, place * words, worker.into()));
            (holders.few[0], holders.few[1], holders.count) = (place as u16, (place >> 16) as u16, WIDE);
        }
    }

    fn forget(&mut self, worker: u32, words: usize) {
        for holders in self.entries.values_mut() {
            if holders.count == WIDE {
                let at = holders.place() * words + worker as usize / 64;
                self.wide[at] &= !(1 << (worker % 64));
            } else if let Some(at) =
                holders.few[..usize::from(holders.count)].iter().position(|&held| u32::from(held) == worker)
            {
                holders.count -= 1;
                holders.few.swap(at, usize::from(holders.count));
            }
        }
    }
}

fn set(wide: &mut [u64], from: usize, worker: u32) {
    if let Some(word) = wide.get_mut(from + worker as usize / 64) {
        *word |= 1 << (worker % 64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn marks(hashes: &[u64]) -> Vec<Mark> {
        hashes.iter().zip(1..).map(|(&hash, nth)| Mark { hash, bytes: nth * 64 }).collect()
    }

    fn hits(index: &Prefixes, hashes: &[u64], workers: usize) -> Vec<u32> {
        let mut tokens = vec![0; workers];
        index.search(&marks(hashes), &mut tokens);
        tokens
    }

    #[test]
    fn each_worker_has_what_it_was_sent() {
        let mut index = Prefixes::new(3, 1 << 20);
        index.sent(&marks(&[1, 2, 3]), 0);
        index.sent(&marks(&[1, 2]), 2);
        assert_eq!(hits(&index, &[1, 2, 3, 4], 3), [48, 0, 32]);
        assert_eq!(hits(&index, &[9], 3), [0, 0, 0]);
        index.forget(0);
        assert_eq!(hits(&index, &[1, 2, 3], 3), [0, 0, 32]);
    }

    /// Against a literal reference: a set of workers for each hash.
    #[test]
    fn any_number_of_holders_is_remembered() {
        let (workers, mut random) = (200, StdRng::seed_from_u64(3));
        let (mut index, mut reference) =
            (Prefixes::new(workers, 1 << 24), HashMap::<u64, HashSet<u32>>::new());
        for round in 0..3000 {
            let worker = random.random_range(0..workers as u32);
            let hashes: Vec<u64> = (0..4).map(|depth| depth * 1000 + random.random_range(0..20)).collect();
            index.sent(&marks(&hashes), worker);
            for hash in &hashes {
                reference.entry(*hash).or_default().insert(worker);
            }
            if round % 500 == 0 {
                index.forget(worker);
                for holders in reference.values_mut() {
                    holders.remove(&worker);
                }
            }
        }
        for (hash, holders) in &reference {
            let found: HashSet<u32> = (0..)
                .zip(hits(&index, &[*hash], workers))
                .filter(|(_, tokens)| *tokens > 0)
                .map(|(at, _)| at)
                .collect();
            assert_eq!(&found, holders, "{hash}");
        }
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut index = Prefixes::new(2, 1000 * ENTRY_BYTES);
        for filler in 0..100_000u64 {
            index.sent(&marks(&[7, 8]), 1);
            index.sent(&marks(&[1 << 40 | filler]), 0);
            assert!(index.young.entries.len() + index.old.entries.len() <= 1000);
        }
        assert_eq!(hits(&index, &[7, 8], 2), [0, 32]);
        assert_eq!(hits(&index, &[1 << 40], 2), [0, 0]);
    }
}
