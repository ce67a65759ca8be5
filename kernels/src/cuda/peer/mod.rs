//! Memory that the devices of a group reach in each other: an inbox on each device, opened by all other
//! ranks, which are processes. [`super::ops::reduce`] sums through it in one launch.
//!
//! A driver may report access that does not work, and containers may separate processes, so nothing is
//! believed: [`Peers::open`] writes and reads in both directions and compares random sums with the host's
//! before it returns. All ranks come to one verdict; without peers NCCL carries everything.
//!
//! Not yet run on a GPU: tested on `skein-cuda-emulation`.

mod agreement;
mod check;
mod crossover;
mod error;
mod handles;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{CudaError, Device, DeviceBuffer, DeviceSlice, Kernels, PinnedBuffer, Stream};
use crate::collective::Ranks;
use crate::leaves::MAX_LEAVES;
use agreement::agree;
pub use crossover::Measured;
pub use error::NoPeers;
use handles::Opened;

/// Most ranks, as in `cu/ranks.cuh`.
pub const MAX_RANKS: usize = MAX_LEAVES;
/// Word of an inbox that nothing has arrived in, as in `cu/peer.cu`.
const EMPTY: u32 = 0xfff0_5ce1;
/// Small inboxes, which take turns.
const TURNS: usize = 3;
/// Words of `Rounds` in `cu/peer.cu`.
const ROUND_WORDS: usize = 6;
/// Words of `control` in `cu/peer.cu`, set by the host and by the device.
const ABORT: usize = 0;
const MISSING: usize = 1;
/// Inboxes and slots begin at multiples of this many words, which is a vector of the kernel.
const VECTOR: usize = 4;

/// Options of [`Peers::open`]; all ranks have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerOptions {
    /// Most bytes of a rank's sums in a small message.
    pub small_bytes: usize,
    /// Most bytes of a rank's sums in a large message.
    pub large_bytes: usize,
    /// Random sums that are compared with the host's, and the time after which no more are begun.
    pub checks: usize,
    /// See `checks`.
    pub checks_within: Duration,
    /// Longest wait of a launch for another rank.
    pub timeout: Duration,
}

/// How sums travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// To all ranks at once; words are their own flags.
    Small,
    /// By the owners of rows, with flags.
    Large,
}

/// A rank's inbox and those of all others.
#[derive(Debug)]
pub struct Peers {
    /// Others' inboxes as mapped here; closed first.
    others: Vec<Option<Opened>>,
    inbox: DeviceBuffer<u32>,
    rounds: DeviceBuffer<u32>,
    control: PinnedBuffer<u32>,
    layout: Layout,
    rank: usize,
    blocks: u32,
    timeout: Duration,
    /// Random sums compared with the host's at the start.
    checked: usize,
    /// Most bytes of a rank's sums by protocol.
    small_up_to: usize,
    large_up_to: usize,
    device: Arc<Device>,
}

// SAFETY: the host accesses the page-locked words only as atomics; everything else is immutable.
unsafe impl Sync for Peers {}

/// Words of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    ranks: usize,
    small_stride: usize,
    sums: usize,
    sums_stride: usize,
    results: usize,
    flags: usize,
    flags_stride: usize,
    total: usize,
}

impl Layout {
    fn new(ranks: usize, options: &PeerOptions, blocks: usize) -> Self {
        let words = |bytes: usize| (bytes / size_of::<f32>()).next_multiple_of(VECTOR);
        let (small_stride, sums_stride) = (words(options.small_bytes), words(options.large_bytes / ranks));
        let sums = TURNS * ranks * small_stride;
        let results = sums + ranks * sums_stride;
        // Results have two bytes.
        let flags = results + ranks * sums_stride / 2;
        let flags_stride = blocks.next_multiple_of(VECTOR);
        let total = flags + 2 * ranks * flags_stride;
        Self { ranks, small_stride, sums, sums_stride, results, flags, flags_stride, total }
    }

    fn fits(&self, protocol: Protocol, rows: usize, n: usize) -> bool {
        match protocol {
            Protocol::Small => rows * n <= self.small_stride,
            Protocol::Large => rows.div_ceil(self.ranks) * n <= self.sums_stride,
        }
    }
}

/// `Peers` of `cu/peer.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct View {
    inbox: [u64; MAX_RANKS],
    rounds: u64,
    control: u64,
    limit: u64,
    rank: i32,
    ranks: i32,
    small_stride: u32,
    sums: u32,
    sums_stride: u32,
    results: u32,
    flags: u32,
    flags_stride: u32,
}

/// Bytes of the kernel's argument.
pub(super) type ViewBytes = [u8; size_of::<View>()];

impl Peers {
    /// Opens the inboxes of all ranks and checks them on these devices. `ranks` connects the same processes
    /// in host memory.
    ///
    /// # Errors
    /// If a rank cannot reach another, or any bit is wrong: then on all ranks. If the group is lost.
    pub fn open(
        device: &Arc<Device>,
        kernels: &Kernels,
        ranks: &mut dyn Ranks,
        options: &PeerOptions,
    ) -> Result<Self, NoPeers> {
        let mut peers = Self::connect(device, ranks, options)?;
        peers.check_access(ranks)?;
        peers.checked = peers.check_sums(kernels, ranks, options)?;
        Ok(peers)
    }

    fn connect(device: &Arc<Device>, ranks: &mut dyn Ranks, options: &PeerOptions) -> Result<Self, NoPeers> {
        let (rank, count) = (ranks.rank(), ranks.count());
        let (own, blocks) = handles::exchange_devices(device, ranks)?;
        let layout = Layout::new(count, options, blocks as usize);
        let allocate = || {
            if !count.is_power_of_two() || count > MAX_RANKS {
                return Err(CudaError::invalid(format!(
                    "{count} ranks are no power of two up to {MAX_RANKS}"
                )));
            }
            let stream = Stream::new(device)?;
            let inbox = DeviceBuffer::<u32>::new(device, layout.total)?;
            let rounds = DeviceBuffer::<u32>::new(device, ROUND_WORDS)?;
            inbox.fill_words(&stream, EMPTY)?;
            rounds.fill_words(&stream, 0)?;
            stream.synchronize()?;
            Ok((inbox, rounds, PinnedBuffer::new(device, 2)?))
        };
        let allocated = allocate().map_err(|error| format!("has no memory for an inbox: {error}"));
        let (inbox, rounds, control) = agree(ranks, allocated)?;
        let others = handles::open_inboxes(device, ranks, &own, inbox.address())?;
        Ok(Self {
            others,
            inbox,
            rounds,
            control,
            layout,
            rank,
            blocks,
            timeout: options.timeout,
            checked: 0,
            small_up_to: layout.small_stride * size_of::<f32>(),
            large_up_to: layout.sums_stride * count * size_of::<f32>(),
            device: Arc::clone(device),
        })
    }

    /// Number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.layout.ranks
    }

    /// Most blocks of a launch, the same on all ranks.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Most bytes of a rank's sums that travel by [`Protocol::Small`] and by [`Protocol::Large`].
    pub fn limits(&self) -> (usize, usize) {
        (self.small_up_to, self.large_up_to)
    }

    /// How `[rows, n]` sums travel; `None` if not by peers. The same on all ranks.
    pub fn protocol(&self, rows: usize, n: usize) -> Option<Protocol> {
        let bytes = rows * n * size_of::<f32>();
        let fits = |protocol| n.is_multiple_of(VECTOR) && self.layout.fits(protocol, rows, n);
        if bytes <= self.small_up_to && fits(Protocol::Small) {
            return Some(Protocol::Small);
        }
        (bytes <= self.large_up_to && fits(Protocol::Large)).then_some(Protocol::Large)
    }

    /// Whether an inbox has room for `[rows, n]` sums.
    pub(super) fn fits(&self, protocol: Protocol, rows: usize, n: usize) -> bool {
        self.layout.fits(protocol, rows, n)
    }

    /// Bytes of device memory that [`open`](Self::open) allocates on each of `ranks` devices like `device`.
    pub fn planned_bytes(device: &Device, ranks: usize, options: &PeerOptions) -> usize {
        let layout = Layout::new(ranks, options, device.multiprocessors as usize);
        (layout.total + ROUND_WORDS) * size_of::<u32>()
    }

    /// Random sums that had the host's bits at the start.
    pub fn checked(&self) -> usize {
        self.checked
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.inbox.bytes() + self.rounds.bytes()
    }

    /// Ends all waits of the device; the launches' results are wrong.
    pub fn abort(&self) {
        self.word(ABORT).store(1, Ordering::Release);
    }

    /// Checks that no launch has given up. Cheap, and allowed from any thread.
    ///
    /// # Errors
    /// If one has. Then all later results are wrong.
    pub fn check(&self) -> Result<(), CudaError> {
        match self.word(MISSING).load(Ordering::Acquire) {
            0 => Ok(()),
            missing => Err(CudaError::Missing { rank: missing as usize - 1, within: self.timeout }),
        }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        let word: *const u32 = &raw const self.control[index];
        // SAFETY: an aligned word, alive with `self`, that host and device access only as a whole.
        unsafe { AtomicU32::from_ptr(word.cast_mut()) }
    }

    /// The inbox of `rank` in this process.
    fn inbox_of(&self, rank: usize) -> DeviceSlice<u32> {
        let address = self.others[rank].as_ref().map_or(self.inbox.address(), Opened::address);
        DeviceSlice::from_raw(address, self.layout.total)
    }

    /// The kernel's argument.
    pub(super) fn view(&self) -> ViewBytes {
        let Layout { ranks, small_stride, sums, sums_stride, results, flags, flags_stride, .. } = self.layout;
        let mut inbox = [0; MAX_RANKS];
        for (rank, inbox) in inbox[..ranks].iter_mut().enumerate() {
            *inbox = self.inbox_of(rank).address();
        }
        let view = View {
            inbox,
            rounds: self.rounds.address(),
            // Page-locked memory has one address on host and device (unified addressing).
            control: self.control.as_ptr() as u64,
            limit: self.timeout.as_nanos() as u64,
            rank: self.rank as i32,
            ranks: ranks as i32,
            small_stride: small_stride as u32,
            sums: sums as u32,
            sums_stride: sums_stride as u32,
            results: results as u32,
            flags: flags as u32,
            flags_stride: flags_stride as u32,
        };
        // SAFETY: plain numbers without padding: eleven of 8 bytes, then eight of 4.
        unsafe { std::mem::transmute::<View, ViewBytes>(view) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_of_an_inbox_do_not_overlap_and_hold_what_fits() {
        for (ranks, small_bytes, large_bytes, blocks) in
            [(2, 128 << 10, 8 << 20, 132), (4, 1000, 5000, 4), (8, 16, 0, 7)]
        {
            let second = Duration::from_secs(1);
            let options =
                PeerOptions { small_bytes, large_bytes, checks: 0, checks_within: second, timeout: second };
            let at = Layout::new(ranks, &options, blocks);
            assert_eq!(at.sums, 3 * ranks * at.small_stride);
            assert_eq!(at.results - at.sums, ranks * at.sums_stride);
            assert!(at.flags >= at.results && at.total >= at.flags + 2 * ranks * blocks);
            assert!([at.small_stride, at.sums, at.sums_stride].iter().all(|it| it.is_multiple_of(VECTOR)));
            for (rows, n) in [(1, 64), (3, 64), (16, 64), (300, 4096), (0, 4)] {
                let results = rows * n / 2;
                if at.fits(Protocol::Large, rows, n) {
                    assert!(at.results + results <= at.flags, "{rows} x {n} on {ranks} ranks");
                }
            }
        }
    }
}
