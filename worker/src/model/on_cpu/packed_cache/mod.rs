//! Packed weights on disk, so that the second start makes none. Losing them costs time, never a result: what cannot be
//! read or is damaged is made again, and what cannot be written is not kept.
//!
//! A file is filled under another name, which its maker holds locked, and renamed when the disk has all of it. Workers that
//! start meanwhile wait for it and share its memory. The lock of a maker that died is gone with it, and the next one
//! starts anew. Who uses a file holds a shared lock on it, and what is locked is not deleted to make room.

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

/// Most bytes of a directory's packed weights; see [`room::make_room`].
pub const MOST_BYTES: u64 = 20 << 30;
/// How long a worker waits for another one that makes what it needs; then it makes its own, in memory.
const WAIT_FOR_MAKER: Duration = Duration::from_secs(300);
/// How often it looks.
const POLL: Duration = Duration::from_millis(20);

/// A directory of packed weights, or none.
#[derive(Debug, Clone)]
pub struct PackedCache {
    directory: Option<PathBuf>,
    most_bytes: u64,
    wait_for_maker: Duration,
}

/// What [`PackedCache::find`] found.
pub enum Found {
    /// All the bytes, checked.
    Whole(Kept),
    /// Nothing: the bytes are to be filled in.
    Blank(Blank),
}

/// Packed bytes that are only read.
#[derive(Debug)]
pub struct Kept {
    map: Arc<MappedFile>,
    /// Where the bytes lie in the file.
    range: Range<usize>,
}

impl Kept {
    /// A part of the bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn bytes(&self, range: Range<usize>) -> Bytes {
        assert!(range.end <= self.range.len(), "there are {} bytes", self.range.len());
        let at = self.range.start;
        Bytes::mapped(Arc::clone(&self.map), at + range.start..at + range.end)
    }
}

/// Bytes to be filled.
pub struct Blank {
    /// Where they are kept; `None` = in memory only.
    place: Option<Place>,
    /// Holds the lock that `place` needs until it is dropped.
    filling: Filling,
    at: usize,
}

/// Where a file is made. Dropped, it takes the unfinished file away.
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
        let _ = std::fs::remove_file(self.unfinished()); // not there any more once it is finished
    }
}

/// The name of a file while it is made.
fn unfinished(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}{}", room::UNFINISHED))
}

impl PackedCache {
    /// Nothing is kept.
    pub fn none() -> Self {
        Self { directory: None, most_bytes: MOST_BYTES, wait_for_maker: WAIT_FOR_MAKER }
    }

    /// Packed weights are kept in `directory`, which is made when it is needed.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory: Some(directory), ..Self::none() }
    }

    /// Whether anything is kept.
    pub fn is_none(&self) -> bool {
        self.directory.is_none()
    }

    /// What is kept as `name`, or a place to make it in, for at most `bytes` bytes.
    ///
    /// # Errors
    /// When there is neither disk nor address space for it.
    pub fn find(&self, cpu: &mut Cpu, name: &str, bytes: usize) -> io::Result<Found> {
        if let Some(directory) = &self.directory {
            match read(cpu, directory, name) {
                Ok(Some(kept)) => return Ok(Found::Whole(kept)),
                Ok(None) => {}
                Err(reason) => {
                    let path = directory.join(name);
                    tracing::warn!(path = %path.display(), "packed weights are made anew: {reason}");
                }
            }
            match self.make(cpu, directory, name, bytes) {
                Ok(found) => return Ok(found),
                Err(error) => tracing::warn!(
                    directory = %directory.display(),
                    "packed weights are not kept: {error}; every start makes them anew; give --packed-cache-dir a place \
                     with {} MiB",
                    bytes >> 20
                ),
            }
        }
        Ok(Found::Blank(Blank { place: None, filling: Filling::in_memory(bytes)?, at: 0 }))
    }

    /// A file to be filled, or what another worker has made meanwhile.
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

    /// The file at `path`, locked by us alone.
    fn wait_for(&self, path: &Path) -> io::Result<File> {
        let started = clock::now();
        loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
            match file.try_lock() {
                // Its maker may have renamed it between our opening and our lock.
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

/// Whether `file` is what lies at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let of = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => of(ours) == of(there),
        _ => false,
    }
}

/// The whole file `name`, if it is there; what is wrong with it, if something is.
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
    tracing::info!(path = %path.display(), mib = range.len() >> 20, ?took, "packed weights are there");
    Ok(Some(Kept { map: Arc::new(map), range }))
}

impl Blank {
    /// What to fill, zeros at first.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.filling[self.at..]
    }

    /// Keeps the first `bytes` bytes of what was filled in. A disk that fails only means that it is made again at the next
    /// start.
    ///
    /// # Errors
    /// When the system does not let go of writing.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn keep(mut self, cpu: &mut Cpu, bytes: usize) -> io::Result<Kept> {
        let range = self.at..self.at + bytes;
        self.filling.shrink(range.end)?;
        let Some(place) = self.place.take() else {
            return Ok(Kept { map: Arc::new(self.filling.freeze()?), range });
        };
        let path = place.directory.join(&place.name);
        file::seal(cpu, &mut self.filling, &place.name, self.at);
        let mib = self.filling.len() >> 20;
        match self.filling.sync().and_then(|()| std::fs::rename(place.unfinished(), &path)) {
            Ok(()) => {
                tracing::info!(path = %path.display(), mib, "packed weights are kept for the next start");
                room::make_room(&place.directory, &place.name, place.most_bytes, 0);
            }
            Err(error) => tracing::warn!(path = %path.display(), "packed weights are not kept: {error}"),
        }
        drop(place); // while the file is locked by us alone
        let map = self.filling.freeze()?;
        room::note_use(&map);
        Ok(Kept { map: Arc::new(map), range })
    }
}
