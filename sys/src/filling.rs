//! Bytes that are written once and then shared read-only: in a new file, which other processes can map
//! without a second copy, or in anonymous memory.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use crate::mapped::{MappedFile, prefer_huge_pages};

/// Writable bytes, initially zero.
#[derive(Debug)]
pub struct Filling {
    map: MmapMut,
    file: Option<File>,
}

impl Filling {
    /// Truncates `file` to `bytes` zero bytes and maps them. Reserves the disk space now: a full disk is an
    /// error here instead of a SIGBUS at some later store.
    ///
    /// The file must be open for reading and writing, and no one else may write to it.
    pub fn in_file(file: File, bytes: usize) -> io::Result<Self> {
        file.set_len(0)?;
        reserve(&file, bytes)?;
        // SAFETY: no one else writes or truncates the file, as documented; readers open it only after a
        // rename.
        let map = unsafe { MmapMut::map_mut(&file)? };
        // Pages of a file stay as large as they were when first cached. Stores in arbitrary order would make
        // them small.
        prefer_huge_pages(&map);
        Ok(Self { map, file: Some(file) })
    }

    /// `bytes` bytes of anonymous memory; a page takes memory once it is written.
    pub fn in_memory(bytes: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1))?;
        prefer_huge_pages(&map);
        Ok(Self { map, file: None })
    }

    /// Keeps the first `bytes` bytes and releases the rest.
    ///
    /// # Panics
    /// If there are fewer than `bytes`.
    pub fn shrink(&mut self, bytes: usize) -> io::Result<()> {
        assert!(bytes <= self.map.len(), "cannot shrink {} bytes to {bytes}", self.map.len());
        if let Some(file) = &self.file {
            file.set_len(bytes as u64)?;
        }
        self.unmap_behind(bytes.max(1))
    }

    #[cfg(target_os = "linux")]
    fn unmap_behind(&mut self, bytes: usize) -> io::Result<()> {
        // SAFETY: `&mut self` proves that no reference into the mapping is alive, and the mapping only gets
        // shorter.
        unsafe { self.map.remap(bytes, memmap2::RemapOptions::new()) }
    }

    /// Maps a shortened file again. Anonymous memory is not shortened: pages that were never written take no
    /// memory.
    #[cfg(not(target_os = "linux"))]
    fn unmap_behind(&mut self, _: usize) -> io::Result<()> {
        if let Some(file) = &self.file {
            // SAFETY: as in `in_file`.
            self.map = unsafe { MmapMut::map_mut(file)? };
        }
        Ok(())
    }

    /// Makes the bytes read-only.
    pub fn freeze(self) -> io::Result<MappedFile> {
        Ok(MappedFile::filled(self.map.make_read_only()?, self.file))
    }
}

impl Deref for Filling {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl DerefMut for Filling {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

/// Extends `file` to `bytes` bytes with disk blocks allocated for all of them.
#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let len = libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    // SAFETY: the descriptor is open while `file` is borrowed, and the call touches no memory of ours.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Extends `file` by writing zeros, on systems without `posix_fallocate`.
#[cfg(not(target_os = "linux"))]
fn reserve(mut file: &File, bytes: usize) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), bytes as u64), &mut file).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_bytes_are_read_back_and_are_in_the_file() {
        let path = std::env::temp_dir().join(format!("skein-filling-{}", std::process::id()));
        std::fs::write(&path, b"what was there before").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let mut filling = Filling::in_file(open(), 10_000).unwrap();
        assert!(filling.iter().all(|byte| *byte == 0));
        filling[9_998] = 7;
        filling.shrink(9_999).unwrap();
        let map = filling.freeze().unwrap();
        assert_eq!((map.len(), map[0], map[9_998]), (9_999, 0, 7));
        assert_eq!(&std::fs::read(&path).unwrap()[..], &map[..]);
        map.release();
        assert_eq!(map[9_998], 7, "from the file");
        // No disk has this much: it must be an error now, not a signal later.
        assert!(Filling::in_file(open(), 1 << 60).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn memory_keeps_its_content_when_pages_are_released() {
        let mut filling = Filling::in_memory(5_000).unwrap();
        filling[4_000] = 9;
        filling.shrink(4_001).unwrap();
        let map = filling.freeze().unwrap();
        map.release();
        assert_eq!((map[4_000], map.file().is_none()), (9, true));
        assert!(map.len() == 4_001 || cfg!(not(target_os = "linux")));
    }
}
