//! A partly downloaded file and its running checksum.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::api::Blob;
use crate::checksum::Sum;

/// Bytes read at a time from an earlier download.
const READ_BYTES: usize = 1 << 20;

/// Start of a file. All received bytes are written to disk immediately, so a kill loses nothing.
pub struct Partial {
    path: PathBuf,
    file: File,
    blob: Blob,
    length: u64,
    sum: Sum,
}

impl Partial {
    /// Opens the file at `path` and continues an earlier download.
    pub fn open(path: &Path, blob: &Blob) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
        let sum = blob.checksum().begin(blob.size);
        let mut partial = Self { path: path.to_owned(), file, blob: blob.clone(), length: 0, sum };
        if partial.file.metadata()?.len() > blob.size {
            partial.restart()?
        } else {
            partial.read_back()?
        }
        Ok(partial)
    }

    fn read_back(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let read = self.file.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            self.sum.update(&buffer[..read]);
            self.length += read as u64;
        }
    }

    /// Number of bytes received.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether all bytes are received.
    pub fn is_whole(&self) -> bool {
        self.length == self.blob.size
    }

    /// Whether the content is complete and matches its checksum.
    pub fn is_right(&self) -> bool {
        self.is_whole() && self.sum.is(&self.blob.etag)
    }

    /// Appends `bytes`; false if the file would exceed its expected size.
    ///
    /// Writes without buffering, so that the next process continues from the last byte received.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.length + bytes.len() as u64 > self.blob.size {
            return Ok(false);
        }
        self.file.write_all(bytes)?;
        self.sum.update(bytes);
        self.length += bytes.len() as u64;
        Ok(true)
    }

    /// Discards all received bytes.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.length, self.sum) = (0, self.blob.checksum().begin(self.blob.size));
        Ok(())
    }

    /// Syncs the file to disk, then renames it to `to`.
    pub fn finish(self, to: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_continues_where_it_was_interrupted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.incomplete");
        let blob = Blob { etag: "ce013625030ba8dba906f756967f9e9ca394464a".to_owned(), size: 6 };
        let mut partial = Partial::open(&path, &blob).unwrap();
        assert!(partial.append(b"hel").unwrap());
        drop(partial);
        let mut partial = Partial::open(&path, &blob).unwrap();
        assert_eq!((partial.length(), partial.is_whole()), (3, false));
        assert!(!partial.append(b"lo\n!").unwrap(), "longer than at the hub");
        assert!(partial.append(b"lo\n").unwrap());
        assert!(partial.is_right());
        partial.finish(&directory.path().join("x")).unwrap();
        assert_eq!(std::fs::read(directory.path().join("x")).unwrap(), b"hello\n");
        std::fs::write(&path, b"hello world").unwrap();
        assert_eq!(Partial::open(&path, &blob).unwrap().length(), 0, "of another file");
        std::fs::write(&path, b"jello\n").unwrap();
        assert!(!Partial::open(&path, &blob).unwrap().is_right());
    }
}
