//! Returns freed memory to the system. The allocator keeps what lies below memory that is still in use: after
//! large work nearly all that it took, after a crowd of connections most of theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use skein_node::task;
use tokio::runtime::Handle;

/// Delay until memory is returned, so that what is freed meanwhile shares one walk over the heap.
const AFTER: Duration = Duration::from_secs(1);
/// Fewer connections are no crowd.
const CROWD: usize = 1000;

/// Returns memory soon, once for all that ask meanwhile. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct GiveBack(Arc<AtomicBool>);

impl GiveBack {
    /// Has memory returned, after the caller has dropped its own as well.
    pub fn schedule(&self) {
        // Connections are also dropped where tasks no longer run.
        if Handle::try_current().is_err() || self.0.swap(true, Ordering::Relaxed) {
            return;
        }
        let scheduled = self.0.clone();
        task::spawn(async move {
            tokio::time::sleep(AFTER).await;
            scheduled.store(false, Ordering::Relaxed);
            // On a blocking thread, because it walks the whole heap.
            drop(tokio::task::spawn_blocking(skein_sys::memory::give_back).await);
        });
    }
}

/// Open connections, whose memory is returned each time that half of them have gone.
#[derive(Debug, Default)]
pub struct Crowd {
    open: AtomicUsize,
    /// Most at once since memory was last returned.
    most: AtomicUsize,
    give_back: GiveBack,
}

/// A connection, until it is dropped.
#[derive(Debug)]
pub struct Present(Arc<Crowd>);

impl Crowd {
    /// Counts a connection.
    pub fn enter(self: &Arc<Self>) -> Present {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(open, Ordering::Relaxed);
        Present(self.clone())
    }

    /// Counts one less; returns whether half of a crowd has gone since this was last so.
    fn leave(&self) -> bool {
        let open = self.open.fetch_sub(1, Ordering::Relaxed) - 1;
        let most = self.most.load(Ordering::Relaxed);
        let has_gone = most >= CROWD && open <= most / 2;
        has_gone && self.most.compare_exchange(most, open, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if self.0.leave() {
            self.0.give_back.schedule();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_each_time_that_half_of_a_crowd_has_gone() {
        let crowd = Arc::new(Crowd::default());
        (0..4 * CROWD).for_each(|_| std::mem::forget(crowd.enter()));
        let returned: Vec<usize> = (0..4 * CROWD).rev().filter(|_| crowd.leave()).collect();
        assert_eq!(returned, [2 * CROWD, CROWD, CROWD / 2], "a few have nothing to return");
    }
}
