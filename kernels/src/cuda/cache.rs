//! Files that save work at the next start: compiled kernels and chosen algorithms. Losing them costs time but
//! never changes a result, so nothing here returns an error: damaged or unreadable files are created again,
//! and failed writes are ignored.

use std::path::{Path, PathBuf};

/// Environment variable that overrides the directory of the files.
pub const KERNEL_CACHE_VARIABLE: &str = "SKEIN_KERNEL_CACHE";
/// Largest file that is read back, in bytes.
const MAX_BYTES: u64 = 256 << 20;
const MAGIC: &[u8; 8] = b"skeincu1";

/// A directory of files with checksums.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    directory: Option<PathBuf>,
}

impl Cache {
    /// The directory `SKEIN_KERNEL_CACHE`, else `skein/cuda` in the user's cache directory (XDG Base
    /// Directory Specification), else none.
    pub(crate) fn of_user() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let directory = variable(KERNEL_CACHE_VARIABLE).or_else(|| {
            let home = || variable("HOME").map(|home| home.join(".cache"));
            Some(variable("XDG_CACHE_HOME").or_else(home)?.join("skein").join("cuda"))
        });
        Self { directory }
    }

    #[cfg(test)]
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory: Some(directory) }
    }

    /// The content stored as `name`, if the file is intact.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.directory.as_ref()?.join(name);
        let mut bytes = skein_sys::regular_file::read(&path, MAX_BYTES).ok()?;
        let (magic, sum) = (bytes.get(..8)?, bytes.get(8..16)?);
        let sum = u64::from_le_bytes(sum.try_into().ok()?);
        if magic != MAGIC || sum != hash(&[&bytes[16..]]) {
            return None;
        }
        bytes.drain(..16);
        Some(bytes)
    }

    /// Stores `content` as `name`, in a temporary file that is then renamed, so that other processes see all
    /// of it or nothing.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> bool {
        let Some(directory) = &self.directory else {
            return false;
        };
        let temporary = directory.join(format!("{name}.{}.new", std::process::id()));
        let written = std::fs::create_dir_all(directory)
            .and_then(|()| {
                let sum = hash(&[content]).to_le_bytes();
                std::fs::write(&temporary, [MAGIC.as_slice(), &sum, content].concat())
            })
            .and_then(|()| std::fs::rename(&temporary, directory.join(name)));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written.is_ok()
    }

    /// Removes the oldest files whose names start with `prefix` until `keep` are left.
    pub(crate) fn prune(&self, prefix: &str, keep: usize) {
        let Some(entries) = self.directory.as_ref().and_then(|directory| std::fs::read_dir(directory).ok())
        else {
            return;
        };
        let mut files: Vec<_> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        files.sort_unstable();
        for (_, path) in &files[..files.len().saturating_sub(keep)] {
            let _ = std::fs::remove_file(path);
        }
    }

    /// The directory, for logs.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}

/// 64-bit FNV-1a over the parts and their lengths. Distinguishes versions; not meant to resist attacks.
pub(crate) fn hash(parts: &[&[u8]]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        let length = (part.len() as u64).to_le_bytes();
        part.iter().fold(length.iter().fold(hash, add), add)
    })
}

/// Makes `text` usable as part of a file name.
pub(crate) fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("skein-cache-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn stored_content_is_read_back_and_damage_is_detected() {
        let directory = scratch("damage");
        let cache = Cache::at(directory.clone());
        assert_eq!(cache.read("a"), None);
        assert!(cache.write("a", b"content"));
        assert_eq!(cache.read("a").as_deref(), Some(b"content".as_slice()));
        let whole = std::fs::read(directory.join("a")).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            std::fs::write(directory.join("a"), &damaged).unwrap();
            assert_eq!(cache.read("a"), None, "byte {at} damaged");
            std::fs::write(directory.join("a"), &whole[..at]).unwrap();
            assert_eq!(cache.read("a"), None, "cut at {at}");
        }
        assert!(cache.write("a", b""));
        assert_eq!(cache.read("a").as_deref(), Some(b"".as_slice()));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no temporary file stays");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_no_error() {
        let file = scratch("file");
        std::fs::write(&file, b"in the way").unwrap();
        let cache = Cache::at(file.join("below"));
        assert!(!cache.write("a", b"content"));
        assert_eq!(cache.read("a"), None);
        std::fs::remove_file(file).unwrap();
    }
}
