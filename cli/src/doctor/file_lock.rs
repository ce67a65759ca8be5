//! Whether another process has locked a file, and which.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::port_owner::Owner;

/// Who has locked a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locked {
    /// Nobody, or there is no such file.
    No,
    /// A process of this machine.
    By(Owner),
    /// A process that does not show here, as of another machine or container.
    BySomebody,
}

/// Asks for a lock of the file at `path` and lets go of it at once.
pub fn locked(path: &Path) -> Locked {
    let Ok(file) = File::open(path) else { return Locked::No };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        Ok(()) | Err(TryLockError::Error(_)) => return Locked::No,
    }
    let inode = file.metadata().map(|metadata| metadata.ino()).unwrap_or_default();
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    holder(&table, inode).and_then(Owner::of).map_or(Locked::BySomebody, Locked::By)
}

/// The process with the lock of this inode, from a table as in `/proc/locks`. Lines with `->` wait for one.
fn holder(table: &str, inode: u64) -> Option<u32> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (kind, process, file) = (fields.get(1)?, fields.get(4)?, fields.get(5)?);
        let is_it = *kind == "FLOCK" && file.rsplit(':').next()?.parse() == Ok(inode);
        process.parse().ok().filter(|_| is_it)
    };
    table.lines().find_map(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_file_is_seen_and_stays_as_it_is() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(locked(file.path()), Locked::No);
        file.as_file().try_lock().expect("nobody else has it");
        match locked(file.path()) {
            Locked::By(owner) => assert!(owner.to_string().contains(&std::process::id().to_string())),
            // Where `/proc/locks` does not show it.
            other => assert_eq!(other, Locked::BySomebody),
        }
        file.as_file().unlock().expect("it is ours");
        assert_eq!(locked(file.path()), Locked::No);
        assert_eq!(locked(Path::new("/nowhere")), Locked::No);
    }

    #[test]
    fn only_the_holder_of_the_same_file_counts() {
        let table = "1: POSIX  ADVISORY  WRITE 11 fd:01:42 0 EOF\n\
             2: FLOCK  ADVISORY  WRITE 12 fd:01:41 0 EOF\n\
             3: FLOCK  ADVISORY  WRITE 13 fd:01:42 0 EOF\n\
             3: -> FLOCK  ADVISORY  WRITE 14 fd:01:42 0 EOF\n";
        assert_eq!((holder(table, 42), holder(table, 41), holder(table, 4)), (Some(13), Some(12), None));
    }
}
