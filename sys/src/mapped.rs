//! Read-only bytes used in place: mapped files, and memory that is allocated lazily.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::{Advice, Mmap, MmapMut, UncheckedAdvice};

/// A file, mapped read-only.
///
/// The file must not change while it is mapped: reading past the end of a truncated file kills the process
/// (SIGBUS), and a rewrite in place changes the bytes under the reader. Replacing the file by a rename is
/// harmless.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    /// Kept open so that its locks last as long as the mapping. `None`: anonymous memory.
    file: Option<File>,
}

impl MappedFile {
    /// Maps the whole of `path`, which must be a regular file. Nothing is read yet.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = crate::regular_file::open(path)?;
        // SAFETY: never written through; the documented condition is that no one truncates or rewrites the
        // file.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map, file: Some(file) })
    }

    /// Wraps bytes that [`Filling`](crate::filling::Filling) has written.
    pub(crate) fn filled(map: Mmap, file: Option<File>) -> Self {
        Self { map, file }
    }

    /// The mapped file, for locking; `None` for anonymous memory.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Asks the system to read and map the file in huge pages. Only a hint: ext4 (since Linux 6.16), XFS and
    /// others have them, unless the file is already cached in small pages.
    pub fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(Advice::HugePage);
    }

    /// Asks the system to read the whole file ahead. Returns at once; a failure costs only speed.
    pub fn will_need(&self) {
        let _ = self.map.advise(Advice::WillNeed);
    }

    /// Releases the memory of the mapped pages. The next access reads them from the file again.
    pub fn release(&self) {
        if self.file.is_none() || self.map.is_empty() {
            return; // anonymous memory would lose its content
        }
        // SAFETY: the mapping is shared and never written through, so its pages come back from the file with
        // the same bytes. Readers notice at most a page fault.
        let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Asks the system for huge pages, of memory or of a file's cache. Only a hint; they save TLB misses.
pub(crate) fn prefer_huge_pages(map: &MmapMut) {
    #[cfg(target_os = "linux")]
    let _ = map.advise(Advice::HugePage);
    let _ = map;
}

/// A range of a mapped file or of memory. Clones share the bytes.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn Deref<Target = [u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Bytes {
    /// The bytes `range` of `file`.
    ///
    /// # Panics
    /// If the range reaches past the end of the file.
    pub fn mapped(file: Arc<MappedFile>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= file.len(), "the range lies inside the file");
        Self { owner: file, range }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(bytes), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.owner[self.range.clone()]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}

/// Page-aligned bytes, initially zero; a page takes memory once it is written.
#[derive(Debug)]
pub struct ZeroedBytes {
    map: MmapMut,
    len: usize,
}

impl ZeroedBytes {
    /// Allocates `len` bytes of zero.
    pub fn new(len: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(len.max(1))?;
        prefer_huge_pages(&map);
        Ok(Self { map, len })
    }
}

impl Deref for ZeroedBytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl DerefMut for ZeroedBytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_reads_as_its_bytes() {
        let path = std::env::temp_dir().join(format!("skein-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = Arc::new(MappedFile::open(&path).unwrap());
        file.prefer_huge_pages();
        file.will_need();
        assert_eq!(&file[..], &bytes[..]);
        file.release();
        assert_eq!(&file[..], &bytes[..], "read again");
        assert!(file.file().is_some());
        assert_eq!(&Bytes::mapped(file, 5..9)[..], &bytes[5..9]);
        std::fs::remove_file(&path).unwrap();
        assert!(MappedFile::open(&path).is_err());
        assert!(MappedFile::open(&std::env::temp_dir()).is_err());
    }

    #[test]
    fn zeroed_memory_is_zero_and_writable() {
        let mut zeros = ZeroedBytes::new(100_000).unwrap();
        assert!(zeros.iter().all(|value| *value == 0));
        zeros[99_999] = 1;
        assert_eq!((zeros.len(), zeros[99_999]), (100_000, 1));
        assert!(ZeroedBytes::new(usize::MAX).is_err());
    }
}
