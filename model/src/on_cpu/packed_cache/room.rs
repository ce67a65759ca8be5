//! Limits the disk space of packed weights: deletes the least recently used files, but none in use.

use std::fs::{DirEntry, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use skein_node::clock;
use skein_sys::mapped::MappedFile;

/// Suffix of unfinished files, after their final name.
pub(super) const UNFINISHED: &str = ".new";
/// Suffix of files of packed weights.
const FINISHED: &str = ".packed";

/// Locks `map`'s file while it is mapped, and sets its time of last use. Reading works without either.
pub(super) fn note_use(map: &MappedFile) {
    if let Some(file) = map.file() {
        let _ = file.try_lock_shared();
        let _ = file.set_modified(SystemTime::UNIX_EPOCH + clock::unix_time());
    }
}

/// Deletes unused packed weights in `directory`, least recently used first, until they and `more` new bytes
/// take at most `most` bytes. Also deletes files of dead writers. Never deletes `keep`.
pub(super) fn make_room(directory: &Path, keep: &str, most: u64, more: u64) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut files: Vec<(SystemTime, u64, DirEntry)> = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(metadata) = entry.metadata() else { continue };
        if !metadata.is_file() || name.starts_with(keep) {
            continue;
        }
        if name.ends_with(&format!("{FINISHED}{UNFINISHED}")) {
            delete_if_unused(&entry);
        } else if name.ends_with(FINISHED) {
            files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), entry));
        }
    }
    files.sort_by_key(|(used, ..)| *used);
    let kept = std::fs::metadata(directory.join(keep)).map_or(0, |metadata| metadata.len());
    let mut bytes = kept + more + files.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
    for (used, size, entry) in &files {
        if bytes <= most {
            return;
        }
        if delete_if_unused(entry) {
            bytes -= size;
            let age = clock::unix_time()
                .saturating_sub(used.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO));
            let days = age.as_secs() / (24 * 3600);
            tracing::info!(path = %entry.path().display(), days, "deleted packed weights to stay under {} GiB", most >> 30);
        }
    }
}

/// Every user and every writer of a file holds a lock on it.
fn delete_if_unused(entry: &DirEntry) -> bool {
    let Ok(file) = File::open(entry.path()) else { return false };
    file.try_lock().is_ok() && std::fs::remove_file(entry.path()).is_ok()
}
