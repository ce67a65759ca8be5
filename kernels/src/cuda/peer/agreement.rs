//! What all ranks decide alike.

use std::time::{Duration, Instant};

use super::error::NoPeers;
use crate::collective::Ranks;

/// Longest reason that travels, in bytes.
const MOST: usize = 240;

/// First byte of a reason.
const UNUSABLE: u8 = 1;
const WRONG: u8 = 2;

/// Why a rank cannot use peers.
pub(super) struct Reason {
    why: String,
    is_wrong: bool,
}

impl Reason {
    /// A wrong bit.
    pub fn wrong(why: String) -> Self {
        Self { why, is_wrong: true }
    }
}

impl From<String> for Reason {
    fn from(why: String) -> Self {
        Self { why, is_wrong: false }
    }
}

/// Exchanges the outcomes of a part of the work on all ranks, after which all have done it.
///
/// # Errors
/// If a rank has failed: its reason, on all ranks. If the group is lost.
pub(super) fn agree<T>(ranks: &mut dyn Ranks, own: Result<T, impl Into<Reason>>) -> Result<T, NoPeers> {
    let own: Result<T, Reason> = own.map_err(Into::into);
    let mut mine = [0; MOST];
    if let Err(Reason { why, is_wrong }) = &own {
        let length = why.floor_char_boundary(MOST - 2);
        mine[0] = if *is_wrong { WRONG } else { UNUSABLE };
        mine[1] = length as u8;
        mine[2..2 + length].copy_from_slice(&why.as_bytes()[..length]);
    }
    let mut all = vec![0; MOST * ranks.count()];
    ranks.gather(&mine, &mut all)?;
    for (rank, reason) in all.chunks_exact(MOST).enumerate() {
        if reason[0] != 0 {
            let length = usize::from(reason[1]).min(MOST - 2);
            let why = String::from_utf8_lossy(&reason[2..2 + length]).into_owned();
            return Err(NoPeers::Unusable { rank, why, is_wrong: reason[0] == WRONG });
        }
    }
    let rank = ranks.rank();
    own.map_err(|Reason { why, is_wrong }| NoPeers::Unusable { rank, why, is_wrong })
}

/// Rank 0's clock, for work that all ranks end together.
pub(super) struct Budget {
    began: Instant,
    most: Duration,
}

impl Budget {
    /// Lasts `most` from now on.
    #[allow(clippy::disallowed_methods)] // how long a start takes
    pub fn new(most: Duration) -> Self {
        Self { began: Instant::now(), most }
    }

    /// Whether time is left, by rank 0's clock.
    ///
    /// # Errors
    /// If the group is lost.
    pub fn is_left(&self, ranks: &mut dyn Ranks) -> Result<bool, NoPeers> {
        let mine = [u8::from(self.began.elapsed() < self.most)];
        let mut all = vec![0; ranks.count()];
        ranks.gather(&mine, &mut all)?;
        Ok(all[0] != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Threads;

    #[test]
    fn all_ranks_hear_the_first_reason() {
        let verdicts: Vec<_> = std::thread::scope(|scope| {
            let start = |(rank, mut ranks): (usize, Threads)| {
                scope.spawn(move || {
                    let own = if rank == 1 { Err(Reason::wrong("é".repeat(300))) } else { Ok(rank) };
                    (agree(&mut ranks, Ok::<_, String>(7)), agree(&mut ranks, own))
                })
            };
            let started: Vec<_> =
                Threads::new(3, Duration::from_secs(10)).into_iter().enumerate().map(start).collect();
            started.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (first, second) in verdicts {
            assert_eq!(first, Ok(7));
            assert_eq!(second, Err(NoPeers::Unusable { rank: 1, why: "é".repeat(119), is_wrong: true }));
        }
    }
}
