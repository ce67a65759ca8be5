//! Files that serving would make: whether it could. A trial file in their directory is removed at once.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use skein_router::batch::jobs::Store;
use skein_router::stored::{check_file, lock_file};

use super::file_lock::{Locked, locked};
use super::report::Report;
use crate::settings::{FrontSettings, ResponseStore};

/// Checks the usage log and the directories of batches and responses, if they are set.
pub fn check(report: &mut Report, front: &FrontSettings) {
    if let Some(path) = &front.usage_log {
        match may_append(path) {
            Ok(()) => report.ok("usage log", path.display().to_string()),
            Err(error) => report.fail(
                "usage log",
                format!("{} cannot be written: {error}", path.display()),
                "--usage-log names a file to append to; its directory must exist, and this user must be allowed to write there",
            ),
        }
    }
    if let Some(path) = &front.router.batch_dir {
        let parts = [path.clone(), path.join("files"), path.join("work")];
        check_directory(report, "batch directory", "--batch-dir", (path, &Store::lock_file(path)), &parts);
    }
    if let ResponseStore::Directory(path) = &front.response_store {
        let parts = std::slice::from_ref(path);
        match check_file(path) {
            Ok(()) => {
                let of = (path.as_path(), &*lock_file(path));
                check_directory(report, "stored responses", "--response-store", of, parts);
            }
            Err(error) => report.fail(
                "stored responses",
                error.to_string(),
                "restore the database from a backup, or give --response-store another directory",
            ),
        }
    }
}

/// Checks a directory of `flag` that one process may use, which locks a file there, and makes `parts`.
fn check_directory(
    report: &mut Report,
    what: &'static str,
    flag: &str,
    (path, lock): (&Path, &Path),
    parts: &[PathBuf],
) {
    let another = format!("give each router a {flag} of its own, or end the other process");
    match locked(lock) {
        Locked::No => {}
        Locked::By(owner) if owner.is_skein() => {
            let found = format!("a Skein already uses {}: {owner}", path.display());
            return report.warn(what, found, another);
        }
        Locked::By(owner) => {
            let found = format!("{} is in use by {owner}", path.display());
            return report.fail(what, found, another);
        }
        Locked::BySomebody => {
            let found = format!("{} is in use by a process that this one cannot see", path.display());
            return report.fail(what, found, another);
        }
    }
    match parts.iter().try_for_each(|part| may_make(part)) {
        Ok(()) => report.ok(what, path.display().to_string()),
        Err(error) => report.fail(
            what,
            format!("{} cannot be used: {error}", path.display()),
            format!(
                "{flag} names a directory, which is made if need be; this user must be allowed to write there"
            ),
        ),
    }
}

/// Whether the file at `path` can be appended to, or made.
fn may_append(path: &Path) -> io::Result<()> {
    match OpenOptions::new().append(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            is_directory(parent)?;
            may_write(parent)
        }
        Err(error) => Err(error),
    }
}

/// Whether `path` is a directory to write to, or can be made with the directories above it.
fn may_make(path: &Path) -> io::Result<()> {
    let existing = path.ancestors().find(|above| above.symlink_metadata().is_ok());
    let existing = existing.unwrap_or(Path::new("."));
    is_directory(existing)?;
    may_write(existing)
}

/// Whether files can be made in `directory`.
fn may_write(directory: &Path) -> io::Result<()> {
    let trial = directory.join(format!(".doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&trial)?;
    fs::remove_file(trial)
}

fn is_directory(path: &Path) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let kind = fs::metadata(path).map_err(named)?.file_type();
    if kind.is_dir() { Ok(()) } else { Err(named(ErrorKind::NotADirectory.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_are_tried_and_not_made() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "one\n").expect("written");
        let why = |outcome: io::Result<()>| outcome.err().map_or_else(String::new, |error| error.to_string());
        assert_eq!(why(may_append(&at("new"))), "");
        assert_eq!(why(may_append(&at("file"))), "");
        assert_eq!(why(may_append(Path::new("new-in-the-working-directory"))), "");
        assert!(why(may_append(directory.path())).contains("directory"));
        assert!(why(may_append(&at("missing/new"))).contains("missing: "));
        assert_eq!(why(may_make(&at("a/b/c"))), "");
        assert_eq!(why(may_make(directory.path())), "");
        assert!(why(may_make(&at("file"))).contains("file: not a directory"));
        assert!(why(may_make(&at("file/below"))).contains("file: not a directory"));
        assert!(!why(may_make(Path::new("/proc/self/below"))).is_empty());
        let left: Vec<_> = fs::read_dir(directory.path()).expect("it is there").collect();
        assert_eq!(left.len(), 1, "nothing was made");
        assert_eq!(fs::read(at("file")).expect("it is there"), b"one\n");
    }
}
