//! Cache of packed weights on disk, so that the next start need not pack again. Losing it costs time but
//! never changes a result: unreadable or damaged files are rebuilt, and if a file cannot be written the
//! weights stay in memory.
//!
//! A writer fills a file under a temporary name, locks it exclusively, and renames it once it is whole.
//! Workers that start in between wait for it and share its memory. If the writer dies, its lock is released
//! and the next worker starts over. Every user of a file holds a shared lock, and locked files are never
//! deleted.

mod file;
mod room;
#[cfg(test)]
mod tests;

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use skein_kernels::cpu::Cpu;
use skein_node::clock;
use skein_sys::filling::Filling;
use skein_sys::mapped::{Bytes, MappedFile};

/// Most bytes of packed weights in a directory; `room::make_room` deletes older ones.
pub const MOST_BYTES: u64 = 20 << 30;
/// How long a worker waits for another to pack the same weights before it packs its own in memory.
const WAIT_FOR_MAKER: Duration = Duration::from_secs(300);
/// How often a waiting worker checks the lock.
const POLL: Duration = Duration::from_millis(20);

/// A directory of packed weights, or none.
#[derive(Debug, Clone)]
pub struct PackedCache {
    directory: Option<PathBuf>,
    most_bytes: u64,
    wait_for_maker: Duration,
}

/// Result of [`PackedCache::find`].
pub enum Found {
    /// The complete, verified bytes.
    Whole(Kept),
    /// Not cached; the bytes must be filled in.
    Blank(Blank),
}

/// Packed bytes, read-only.
#[derive(Debug)]
pub struct Kept {
    map: Arc<MappedFile>,
    /// Range of the bytes in the file.
    range: Range<usize>,
}

impl Kept {
    /// A range of the bytes.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn bytes(&self, range: Range<usize>) -> Bytes {
        assert!(range.end <= self.range.len(), "there are {} bytes", self.range.len());
        let at = self.range.start;
        Bytes::mapped(Arc::clone(&self.map), at + range.start..at + range.end)
    }
}

/// Bytes to be filled in.
pub struct Blank {
    /// Where the file will be; `None` = in memory only.
    place: Option<Place>,
    /// Holds the lock of `place` until it is dropped.
    filling: Filling,
    at: usize,
}

/// An unfinished file, deleted on drop.
struct Place {
    name: String,
    directory: PathBuf,
    most_bytes: u64,
}

impl Place {
    fn unfinished(&self) -> PathBuf {
        unfinished(&self.directory, &self.name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.unfinished()); // already renamed if finished
    }
}

/// The temporary name of a file.
fn unfinished(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}{}", room::UNFINISHED))
}

impl PackedCache {
    /// A cache that stores nothing.
    pub fn none() -> Self {
        Self { directory: None, most_bytes: MOST_BYTES, wait_for_maker: WAIT_FOR_MAKER }
    }

    /// Stores packed weights in `directory`, which is created on demand.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory: Some(directory), ..Self::none() }
    }

    /// Whether the cache stores nothing.
    pub fn is_none(&self) -> bool {
        self.directory.is_none()
    }

    /// Bytes cached as `name`, or a buffer for up to `bytes` bytes to fill.
    ///
    /// # Errors
    /// If neither disk nor memory has room for it.
    pub fn find(&self, cpu: &mut Cpu, name: &str, bytes: usize) -> io::Result<Found> {
        if let Some(directory) = &self.directory {
            match read(cpu, directory, name) {
                Ok(Some(kept)) => return Ok(Found::Whole(kept)),
                Ok(None) => {}
                Err(reason) => {
                    let path = directory.join(name);
                    tracing::warn!(path = %path.display(), "rebuilding packed weights: {reason}");
                }
            }
            match self.make(cpu, directory, name, bytes) {
                Ok(found) => return Ok(found),
                Err(error) => tracing::warn!(
                    directory = %directory.display(),
                    "packed weights are not kept: {error}; every start rebuilds them; point --packed-cache-dir to a place \
                     with {} MiB",
                    bytes >> 20
                ),
            }
        }
        Ok(Found::Blank(Blank { place: None, filling: Filling::in_memory(bytes)?, at: 0 }))
    }

    /// A file to fill, or the bytes if another worker has finished them in the meantime.
    fn make(&self, cpu: &mut Cpu, directory: &Path, name: &str, bytes: usize) -> io::Result<Found> {
        std::fs::create_dir_all(directory)?;
        let path = unfinished(directory, name);
        let file = self.wait_for(&path)?;
        if let Ok(Some(kept)) = read(cpu, directory, name) {
            let _ = std::fs::remove_file(&path); // ours, and empty
            return Ok(Found::Whole(kept));
        }
        let at = file::data_at(bytes);
        room::make_room(directory, name, self.most_bytes, (at + bytes) as u64);
        let place =
            Place { name: name.to_owned(), directory: directory.to_owned(), most_bytes: self.most_bytes };
        let filling = Filling::in_file(file, at + bytes)?;
        Ok(Found::Blank(Blank { place: Some(place), filling, at }))
    }

    /// Opens the file at `path` and locks it exclusively.
    fn wait_for(&self, path: &Path) -> io::Result<File> {
        let started = clock::now();
        loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
            match file.try_lock() {
                // Its writer may have renamed it between our open and our lock.
                Ok(()) if is_at(&file, path) => return Ok(file),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if clock::now().since(started) > self.wait_for_maker {
                let seconds = self.wait_for_maker.as_secs();
                let reason = format!("another process has been making {} for {seconds} s", path.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Whether `file` is the file at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let of = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => of(ours) == of(there),
        _ => false,
    }
}

/// The complete file `name`; `None` if it does not exist. Fails if it is damaged.
fn read(cpu: &mut Cpu, directory: &Path, name: &str) -> Result<Option<Kept>, String> {
    let path = directory.join(name);
    if !path.try_exists().unwrap_or(false) {
        return Ok(None);
    }
    let started = clock::now();
    let map = MappedFile::open(&path).map_err(|error| error.to_string())?;
    room::note_use(&map);
    let range = file::check(cpu, &map, name)?;
    let took = clock::now().since(started);
    tracing::info!(path = %path.display(), mib = range.len() >> 20, ?took, "packed weights loaded");
    Ok(Some(Kept { map: Arc::new(map), range }))
}

impl Blank {
    /// Buffer to fill, initially zero.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.filling[self.at..]
    }

    /// Keeps the first `bytes` bytes. Does not wait for the disk: after a crash of the machine, the checksums
    /// tell whether it has them.
    ///
    /// # Errors
    /// If the memory cannot be made read-only.
    ///
    /// # Panics
    /// If `bytes` exceeds the buffer.
    pub fn keep(mut self, cpu: &mut Cpu, bytes: usize) -> io::Result<Kept> {
        let range = self.at..self.at + bytes;
        self.filling.shrink(range.end)?;
        let Some(place) = self.place.take() else {
            return Ok(Kept { map: Arc::new(self.filling.freeze()?), range });
        };
        let path = place.directory.join(&place.name);
        file::seal(cpu, &mut self.filling, &place.name, self.at);
        let mib = self.filling.len() >> 20;
        match std::fs::rename(place.unfinished(), &path) {
            Ok(()) => {
                tracing::info!(path = %path.display(), mib, "packed weights are kept for the next start");
                room::make_room(&place.directory, &place.name, place.most_bytes, 0);
            }
            Err(error) => tracing::warn!(path = %path.display(), "packed weights are not kept: {error}"),
        }
        drop(place); // while we still hold the exclusive lock
        let map = self.filling.freeze()?;
        map.release(); // small pages were mapped when they were written; huge ones come back
        room::note_use(&map);
        Ok(Kept { map: Arc::new(map), range })
    }
}
