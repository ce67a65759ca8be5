//! Memory that several processes write and read: words with acquire and release order, bytes between them,
//! and a wait for a word to change.
//!
//! Every access is atomic, so a process that violates its protocol only reads wrong bytes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use memmap2::MmapRaw;

/// Distance at which two words do not share cache lines: two lines, because processors fetch them in pairs.
pub const APART: usize = 128;

/// Bytes copied at a time.
const WORD: usize = size_of::<u64>();

/// A mapping of shared memory. Clones share it.
#[derive(Debug, Clone)]
pub struct SharedMemory {
    map: Arc<MmapRaw>,
    #[cfg(target_os = "linux")]
    file: Arc<std::fs::File>,
}

impl SharedMemory {
    /// Creates `bytes` of zeros without a name. Child processes inherit them under [`Self::descriptor`], and
    /// the system frees them with the last process.
    #[cfg(target_os = "linux")]
    pub fn create(bytes: usize) -> io::Result<Self> {
        use std::os::fd::FromRawFd;
        // No `MFD_CLOEXEC`: a child process opens the memory by its number.
        // SAFETY: the name is a string that ends with 0.
        let descriptor = unsafe { libc::memfd_create(c"skein".as_ptr(), 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was opened above, and nothing else owns it.
        let file = unsafe { std::fs::File::from_raw_fd(descriptor) };
        file.set_len(bytes as u64)?;
        Self::map(file)
    }

    /// Maps the memory inherited from the parent as `descriptor`, which stays open.
    #[cfg(target_os = "linux")]
    pub fn inherited(descriptor: i32) -> io::Result<Self> {
        Self::map(
            std::fs::File::options().read(true).write(true).open(format!("/proc/self/fd/{descriptor}"))?,
        )
    }

    #[cfg(target_os = "linux")]
    fn map(file: std::fs::File) -> io::Result<Self> {
        Ok(Self { map: Arc::new(MmapRaw::map_raw(&file)?), file: Arc::new(file) })
    }

    /// Descriptor under which a child process finds this memory.
    #[cfg(target_os = "linux")]
    pub fn descriptor(&self) -> i32 {
        use std::os::fd::AsRawFd;
        self.file.as_raw_fd()
    }

    /// Memory of this process only: on this system, child processes cannot inherit it.
    #[cfg(not(target_os = "linux"))]
    pub fn create(bytes: usize) -> io::Result<Self> {
        Ok(Self { map: Arc::new(MmapRaw::from(memmap2::MmapMut::map_anon(bytes.max(1))?)) })
    }

    /// Size of the mapping, in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the mapping is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at byte offset `at`.
    ///
    /// # Panics
    /// If the offset is out of bounds or not a multiple of the word size.
    pub fn word(&self, at: usize) -> &AtomicU32 {
        self.check(at, size_of::<u32>());
        // SAFETY: inside the mapping and aligned, as checked; the mapping lives as long as `self`. Every
        // process and thread accesses this memory by atomics only.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    /// The 64-bit word at byte offset `at`.
    ///
    /// # Panics
    /// As for [`Self::word`].
    pub fn long(&self, at: usize) -> &AtomicU64 {
        self.check(at, WORD);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    /// Copies `bytes` to offset `at`, a multiple of 8, followed by up to seven zeros. A later release store
    /// to a word publishes them.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let to = self.longs(at, bytes.len());
        let (whole, rest) = bytes.as_chunks::<WORD>();
        for (to, bytes) in to.iter().zip(whole) {
            to.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            to[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    /// Copies the bytes at offset `at`, a multiple of 8, to `bytes`. It must follow an acquire load of the
    /// word that published them.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn get(&self, at: usize, bytes: &mut [u8]) {
        let from = self.longs(at, bytes.len());
        let (whole, rest) = bytes.as_chunks_mut::<WORD>();
        for (from, bytes) in from.iter().zip(whole.iter_mut()) {
            *bytes = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        if !rest.is_empty() {
            let last = from[whole.len()].load(Ordering::Relaxed).to_ne_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
        fence(Ordering::Acquire);
    }

    /// [`put`](Self::put) for words of four bytes.
    ///
    /// # Panics
    /// As for [`put`](Self::put).
    pub fn put_words(&self, at: usize, words: &[u32]) {
        self.put(at, bytemuck::cast_slice(words));
    }

    /// [`get`](Self::get) for words of four bytes.
    ///
    /// # Panics
    /// As for [`get`](Self::get).
    pub fn get_words(&self, at: usize, words: &mut [u32]) {
        self.get(at, bytemuck::cast_slice_mut(words));
    }

    /// The words that cover `bytes` bytes from offset `at`.
    fn longs(&self, at: usize, bytes: usize) -> &[AtomicU64] {
        let count = bytes.div_ceil(WORD);
        self.check(at, WORD);
        assert!(count <= (self.len() - at) / WORD, "{bytes} bytes at {at} lie inside {}", self.len());
        // SAFETY: inside the mapping and aligned, as checked; see `word`.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().add(at).cast(), count) }
    }

    fn check(&self, at: usize, size: usize) {
        assert!(at.is_multiple_of(size), "{at} is a multiple of {size}");
        assert!(at.checked_add(size).is_some_and(|end| end <= self.len()), "{at} lies inside {}", self.len());
    }
}

/// Sleeps while `word` equals `seen`, until [`wake`] or for up to `most`. May return early.
pub fn sleep_while(word: &AtomicU32, seen: u32, most: Duration) {
    #[cfg(target_os = "linux")]
    {
        let most = libc::timespec {
            tv_sec: most.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: most.subsec_nanos() as _,
        };
        // SAFETY: the word and the time are readable during the call, which writes neither.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const most) };
    }
    #[cfg(not(target_os = "linux"))]
    if word.load(Ordering::Acquire) == seen {
        std::thread::sleep(most.min(Duration::from_micros(50)));
    }
}

/// Wakes every thread in [`sleep_while`] on `word`, in all processes.
pub fn wake(word: &AtomicU32) {
    #[cfg(target_os = "linux")]
    // SAFETY: only the word's address is used.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX)
    };
    #[cfg(not(target_os = "linux"))]
    let _ = word;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_are_read_back() {
        let memory = SharedMemory::create(256).unwrap();
        for length in [0, 1, 7, 8, 9, 100] {
            let bytes: Vec<u8> = (1..=length).collect();
            memory.put(16, &bytes);
            let mut back = vec![0; bytes.len()];
            memory.get(16, &mut back);
            assert_eq!(back, bytes);
        }
        assert_eq!(memory.word(0).load(Ordering::Relaxed), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_second_mapping_sees_the_same_words() {
        let memory = SharedMemory::create(4096).unwrap();
        let other = SharedMemory::inherited(memory.descriptor()).unwrap();
        memory.put(64, b"sixteen bytes :)");
        memory.word(8).store(7, Ordering::Release);
        assert_eq!(other.word(8).load(Ordering::Acquire), 7);
        let mut back = [0; 16];
        other.get(64, &mut back);
        assert_eq!((&back, other.len()), (b"sixteen bytes :)", 4096));
        assert!(SharedMemory::inherited(i32::MAX).is_err());
    }

    #[test]
    fn a_sleeper_wakes_when_told_and_at_its_time() {
        let memory = SharedMemory::create(64).unwrap();
        sleep_while(memory.word(0), 1, Duration::from_secs(60)); // it is 0, so this returns immediately
        sleep_while(memory.word(0), 0, Duration::from_millis(1));
        let other = memory.clone();
        let sleeper = std::thread::spawn(move || {
            while other.word(0).load(Ordering::Acquire) == 0 {
                sleep_while(other.word(0), 0, Duration::from_secs(60));
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        memory.word(0).store(1, Ordering::Release);
        wake(memory.word(0));
        sleeper.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "lie inside")]
    fn bytes_behind_the_end_are_not_written() {
        SharedMemory::create(64).unwrap().put(56, &[0; 9]);
    }
}
