//! The summary is what the states say, whatever changes.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use super::*;
use crate::ledger::Ledger;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_start(Duration::from_millis(ms))
}

fn standing(id: u32, now: u64, rng: &mut impl Rng) -> Standing {
    let mut soon = |most: u64| at(now + rng.random_range(0..most));
    let (able_until, open_at) = (soon(300), soon(20));
    let is_out = rng.random_ratio(1, 5);
    Standing {
        view: WorkerView {
            id: WorkerId(id),
            name_hash: u64::from(id),
            hit_tokens: 0,
            load: Ledger::default().current(),
            max_num_seqs: 8 * rng.random_range(1..3),
            block_size: 16,
            reads_adapter: false,
        },
        column: id,
        version: Version(rng.random_range(0..3)),
        serving_since_ms: rng.random_range(1..3),
        grammar_fingerprint: 0,
        limits: ModelLimits {
            max_model_len: rng.random_range(10..14),
            vocab_size: 300,
            max_num_seqs: rng.random_range(1..4),
            pools: false,
        },
        able_until: if is_out { Timestamp::ZERO } else { able_until },
        doubtful_at: able_until,
        open_at: if rng.random_ratio(4, 5) { Timestamp::ZERO } else { open_at },
        full_until: Timestamp::ZERO,
        backlog: Backlog::default(),
    }
}

#[test]
fn a_summary_says_what_the_states_say() {
    let (mut rng, mut kept) = (StdRng::seed_from_u64(5), 0);
    for round in 0..200 {
        let (mut standings, mut now) = (Standings::default(), 1);
        let only = (round % 3 == 0).then_some(Version(1));
        for _ in 0..200 {
            now += rng.random_range(0..4);
            match (rng.random_range(0..20), rng.random_range(0..6)) {
                (0, id) => standings.remove(WorkerId(id)),
                (1, id) => standings.set(standing(id, now, &mut rng)),
                // A worker that is heard from again.
                (_, id) => {
                    if let Some(known) = standings.all.iter().find(|known| known.view.id == WorkerId(id)) {
                        let later = known.able_until.max(at(now + 200));
                        standings.set(Standing { able_until: later, ..*known });
                    }
                }
            }
            kept += usize::from(standings.summary.is_some_and(|summary| summary.holds(at(now))));
            standings.summarise(at(now), |main| only.unwrap_or(main));
            let anew = Standings { all: standings.all.clone(), summary: None };
            let main = anew.main_version(at(now));
            assert_eq!(standings.main_version(at(now)), main);
            for version in [main, only.unwrap_or(main), Version::UNKNOWN] {
                assert_eq!(standings.limits(at(now), version), anew.limits(at(now), version));
            }
        }
    }
    assert!(kept > 10_000, "it was made anew nearly each time: {kept}");
}
