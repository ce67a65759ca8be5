//! Collective exchange between the ranks that share a model, through host memory.
//!
//! Ranks exchange bytes but never add: each rank receives the data of all ranks and computes the same sum in
//! the same order. All ranks therefore have equal bits, whatever the message size.
//!
//! Every wait has a deadline. After a failed exchange a rank cannot take part in the next one, so its group
//! ends.

mod alone;
mod faulty;
mod grid;
pub mod link;
mod ring;
mod shared;
mod sockets;
mod stream;
mod threads;

use std::fmt;
use std::time::{Duration, Instant};

pub use alone::Alone;
pub use faulty::{Fault, Faulty};
pub use grid::Grid;
pub use ring::{Ring, RingError, RingReader, RingWriter};
pub use shared::{End, Shared};
pub use sockets::{Closer, Sockets};
pub use stream::Stream;
pub use threads::Threads;

/// Most ranks in a group.
pub const MAX_RANKS: usize = 64;

/// Connection of a rank to all ranks of its group.
pub trait Ranks: Send {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn count(&self) -> usize;
    /// All-gather: sends `mine` and sets `all` to the bytes of every rank, in rank order. All ranks must call
    /// it with the same number of bytes, in the same order of calls.
    ///
    /// # Errors
    /// If a rank does not answer in time, has ended, or sends a different number of bytes.
    ///
    /// # Panics
    /// If `all` is not [`count`](Self::count) times as long as `mine`.
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost>;

    /// [`gather`](Self::gather) for values.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    fn gather_values(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), Lost> {
        self.gather(bytemuck::cast_slice(mine), bytemuck::cast_slice_mut(all))
    }
}

/// A failed exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} {how} in {doing}, after {} ms", after.as_millis())]
pub struct Lost {
    /// Rank that failed.
    pub rank: usize,
    /// Kind of failure.
    pub how: How,
    /// Exchange that failed.
    pub doing: Exchange,
    /// Time since the start of the exchange.
    pub after: Duration,
}

/// Identifies an exchange on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Number of the exchange, from 1. A long message takes several.
    pub number: u64,
    /// Bytes that each rank sends.
    pub bytes: usize,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exchange {} of {} bytes", self.number, self.bytes)
    }
}

/// Failure of a rank in an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It did not answer before the deadline.
    Silent,
    /// It ended, or the group ended because of it.
    Ended,
    /// It sent this many bytes, so the ranks run different versions.
    Differs(u64),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => write!(f, "did not answer"),
            Self::Ended => write!(f, "ended"),
            Self::Differs(bytes) => write!(f, "gave {bytes} bytes"),
        }
    }
}

/// An exchange in progress.
#[derive(Debug, Clone, Copy)]
struct Begun {
    doing: Exchange,
    at: Instant,
    timeout: Duration,
}

impl Begun {
    #[allow(clippy::disallowed_methods)] // deadlines of waits between threads and processes
    fn new(number: u64, bytes: usize, timeout: Duration) -> Self {
        Self { doing: Exchange { number, bytes }, at: Instant::now(), timeout }
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.at.elapsed())
    }

    fn lost(&self, rank: usize, how: How) -> Lost {
        Lost { rank, how, doing: self.doing, after: self.at.elapsed() }
    }
}

/// # Panics
/// If the length of `all` does not fit `count` ranks.
fn check_lengths(mine: &[u8], all: &[u8], count: usize) {
    assert_eq!(all.len(), mine.len() * count, "{count} ranks give {} bytes each", mine.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `work` on every rank of `ranks`, and returns the results in order.
    fn on_all<R: Ranks + 'static, T: Send + 'static>(
        ranks: Vec<R>,
        work: impl Fn(&mut R) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let run = |mut rank: R| {
            let work = work.clone();
            std::thread::spawn(move || work(&mut rank))
        };
        let running: Vec<_> = ranks.into_iter().map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    const TIMEOUT: Duration = Duration::from_secs(20);
    /// Timeout of exchanges that fail.
    const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

    /// Message of `rank` in a round; its length depends only on the round.
    fn message(rank: usize, round: usize) -> Vec<u8> {
        let length = [0, 1, 8, 13, 200, 1000][round % 6];
        (0..length).map(|i| (i * 7 + rank * 31 + round * 3) as u8).collect()
    }

    fn exchange_many<R: Ranks>(ranks: &mut R) {
        for round in 0..300 {
            let mine = message(ranks.rank(), round);
            let mut all = vec![0xee; mine.len() * ranks.count()];
            ranks.gather(&mine, &mut all).unwrap();
            let expected: Vec<u8> = (0..ranks.count()).flat_map(|rank| message(rank, round)).collect();
            assert_eq!(all, expected, "rank {} in round {round}", ranks.rank());
        }
    }

    #[test]
    fn every_rank_gets_what_all_gave_in_the_order_of_ranks() {
        exchange_many(&mut Alone);
        for count in [1, 2, 3, 4] {
            on_all(Threads::new(count, TIMEOUT), exchange_many);
            for capacity in [64, 4096] {
                on_all(Shared::in_one_process(count, capacity, TIMEOUT).unwrap(), exchange_many);
            }
        }
    }

    /// A TCP connection between each two of `count` ranks, over loopback.
    fn connected(count: usize, timeout: Duration) -> Vec<Sockets> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut streams: Vec<Vec<Box<dyn Stream>>> = (0..count).map(|_| Vec::new()).collect();
        for (low, high) in (0..count).flat_map(|high| (0..high).map(move |low| (low, high))) {
            let connected = std::net::TcpStream::connect(listener.local_addr().unwrap());
            streams[high].push(Box::new(connected.unwrap()));
            streams[low].push(Box::new(listener.accept().unwrap().0));
        }
        let ranks = streams.into_iter().enumerate();
        ranks.map(|(rank, streams)| Sockets::new(rank, streams, timeout).unwrap()).collect()
    }

    /// Ranks on `machines` machines, `places` on each.
    fn grid(machines: usize, places: usize, timeout: Duration) -> Vec<Grid<Sockets, Shared>> {
        let mut across: Vec<_> = (0..places).map(|_| connected(machines, timeout).into_iter()).collect();
        let on_machine = |_| {
            let within = Shared::in_one_process(places, 4096, timeout).unwrap();
            let pairs = across.iter_mut().zip(within);
            pairs.map(|(across, within)| Grid::new(across.next().unwrap(), within)).collect::<Vec<_>>()
        };
        (0..machines).flat_map(on_machine).collect()
    }

    #[test]
    fn ranks_of_several_machines_get_what_all_gave() {
        for count in [1, 2, 3] {
            on_all(connected(count, TIMEOUT), exchange_many);
        }
        for (machines, places) in [(2, 1), (2, 2), (3, 2)] {
            on_all(grid(machines, places, TIMEOUT), exchange_many);
        }
    }

    #[test]
    fn messages_longer_than_a_sockets_buffers_do_not_block() {
        on_all(connected(3, TIMEOUT), |ranks| {
            let mine = vec![ranks.rank() as u8; 9 << 20];
            let mut all = vec![7; 3 * mine.len()];
            ranks.gather(&mine, &mut all).unwrap();
            assert!(
                all.chunks(mine.len()).zip(0..).all(|(part, rank)| part.iter().all(|byte| *byte == rank))
            );
        });
    }

    #[test]
    fn a_closed_connection_ends_the_wait_at_once() {
        let mut ranks = connected(2, TIMEOUT);
        let closer = Closer::new(vec![ranks[0].peers_of_test()]);
        let mut first = ranks.remove(0);
        let waiting = std::thread::spawn(move || first.gather(&[1], &mut [0; 2]));
        std::thread::sleep(Duration::from_millis(5));
        closer.close();
        let lost = waiting.join().unwrap().unwrap_err();
        assert_eq!((lost.rank, lost.how), (1, How::Ended));
    }

    #[test]
    fn values_keep_their_bits() {
        let results = on_all(Threads::new(2, TIMEOUT), |ranks| {
            let mine = [-0.0, f32::from_bits(0x7fc0_1234), ranks.rank() as f32];
            let mut all = [0.0; 6];
            ranks.gather_values(&mine, &mut all).unwrap();
            all.map(f32::to_bits)
        });
        let expected = [-0.0, f32::from_bits(0x7fc0_1234), 0.0, -0.0, f32::from_bits(0x7fc0_1234), 1.0];
        assert_eq!(results, [expected.map(f32::to_bits); 2]);
    }

    /// Result of each rank's third exchange, in which rank 1 has the fault `fault`.
    fn with_fault<R: Ranks + 'static>(ranks: Vec<R>, fault: Fault) -> Vec<Result<Vec<u8>, Lost>> {
        let ranks = ranks.into_iter().map(|inner| {
            let fault = if inner.rank() == 1 { Some((3, fault)) } else { None };
            Faulty::new(inner, fault)
        });
        on_all(ranks.collect(), |ranks| {
            let mut all = vec![0; 4 * ranks.count()];
            for round in 1..=3 {
                ranks.gather(&[round, 0, 0, ranks.rank() as u8], &mut all)?;
            }
            Ok(all)
        })
    }

    fn both(fault: Fault, timeout: Duration, check: impl Fn(Vec<Result<Vec<u8>, Lost>>)) {
        check(with_fault(Threads::new(3, timeout), fault));
        check(with_fault(Shared::in_one_process(3, 64, timeout).unwrap(), fault));
        // Over sockets, a rank that failed because of another may be seen to end before its bytes arrive, and
        // is then reported itself. With two ranks there is no third.
        let fails = matches!(fault, Fault::Hang(_) | Fault::Die | Fault::Error);
        check(with_fault(connected(if fails { 2 } else { 3 }, timeout), fault));
    }

    const GOOD: [u8; 12] = [3, 0, 0, 0, 3, 0, 0, 1, 3, 0, 0, 2];

    #[test]
    fn a_late_rank_is_waited_for() {
        both(Fault::Delay(Duration::from_millis(30)), TIMEOUT, |results| {
            assert_eq!(results, vec![Ok(GOOD.to_vec()); 3]);
        });
    }

    #[test]
    fn wrong_bytes_arrive_as_they_are() {
        both(Fault::WrongBytes, TIMEOUT, |results| {
            for result in results {
                let all = result.unwrap();
                assert_ne!(all, GOOD);
                assert_eq!((&all[..4], &all[8..]), (&GOOD[..4], &GOOD[8..]));
            }
        });
    }

    #[test]
    fn a_rank_that_hangs_or_dies_or_fails_is_named_in_time() {
        for fault in [Fault::Hang(3 * SHORT_TIMEOUT), Fault::Die, Fault::Error] {
            both(fault, SHORT_TIMEOUT, |results| {
                for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
                    let lost = result.unwrap_err();
                    assert_eq!(
                        (lost.rank, lost.doing.number, lost.doing.bytes),
                        (1, 3, 4),
                        "{rank} {fault:?}"
                    );
                    assert!(lost.after < 2 * SHORT_TIMEOUT + Duration::from_secs(2), "{lost}");
                }
            });
        }
    }

    #[test]
    fn a_rank_that_gives_another_number_of_bytes_is_named() {
        fn differ<R: Ranks>(ranks: &mut R) -> Result<(), Lost> {
            let mine = vec![0; 8 * (1 + ranks.rank())];
            ranks.gather(&mine, &mut vec![0; 2 * mine.len()])
        }
        let check = |results: Vec<Result<(), Lost>>| {
            let lost = results[0].unwrap_err();
            assert_eq!((lost.rank, lost.how), (1, How::Differs(16)));
            assert!(lost.to_string().starts_with("rank 1 gave 16 bytes in exchange 1 of 8 bytes, after "));
            assert_eq!(results[1].unwrap_err().how, How::Differs(8));
        };
        check(on_all(Threads::new(2, TIMEOUT), differ));
        check(on_all(Shared::in_one_process(2, 64, TIMEOUT).unwrap(), differ));
        check(on_all(grid(2, 1, TIMEOUT), differ));
    }
}
