//! A rank that fails on purpose, for tests.

use std::time::Duration;

use super::{Begun, How, Lost, Ranks};

/// Fault of a rank in one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Skips this exchange and all later ones.
    Die,
    /// Fails before sending anything.
    Error,
    /// Takes part after this delay.
    Delay(Duration),
    /// Takes no part, and returns after this time.
    Hang(Duration),
    /// Sends its bytes with a bit inverted, but receives its own unchanged.
    WrongBytes,
}

/// A rank with at most one fault.
#[derive(Debug)]
pub struct Faulty<R> {
    /// `None` after [`Fault::Die`].
    inner: Option<R>,
    rank: usize,
    count: usize,
    /// Number of the faulty exchange, from 1, and its fault.
    fault: Option<(u64, Fault)>,
    number: u64,
}

impl<R: Ranks> Faulty<R> {
    /// Wraps `inner`, with a fault in the exchange of the given number, from 1.
    pub fn new(inner: R, fault: Option<(u64, Fault)>) -> Self {
        let (rank, count) = (inner.rank(), inner.count());
        Self { inner: Some(inner), rank, count, fault, number: 0 }
    }
}

impl<R: Ranks> Ranks for Faulty<R> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost> {
        self.number += 1;
        let failed = Begun::new(self.number, mine.len(), Duration::ZERO);
        let fault = self.fault.filter(|(number, _)| *number == self.number).map(|(_, fault)| fault);
        match fault {
            Some(Fault::Die) => self.inner = None,
            Some(Fault::Error) => return Err(failed.lost(self.rank, How::Ended)),
            Some(Fault::Delay(time)) => std::thread::sleep(time),
            Some(Fault::Hang(time)) => {
                std::thread::sleep(time);
                return Err(failed.lost(self.rank, How::Silent));
            }
            Some(Fault::WrongBytes) | None => {}
        }
        let Some(inner) = &mut self.inner else { return Err(failed.lost(self.rank, How::Ended)) };
        let mut wrong = Vec::new();
        if fault == Some(Fault::WrongBytes) {
            wrong.extend_from_slice(mine);
            if let Some(byte) = wrong.first_mut() {
                *byte ^= 0x10;
            }
        }
        inner.gather(if wrong.is_empty() { mine } else { &wrong }, all)
    }
}
