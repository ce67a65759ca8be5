//! `skein keys` as seen from a shell whose output is full or closed.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

fn new_key(words: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    command.args(["keys", "new"]).args(words).current_dir(directory);
    command
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("Linux has it")
}

#[test]
fn a_key_that_nobody_saw_has_no_entry() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let words = ["--tenant", "acme", "--file", "keys.toml"];
    let failed = new_key(&words, at).stdout(full()).output().expect("the binary starts");
    let errors = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cannot write to standard output"), "{errors}");
    let unread = new_key(&words, at).stdout(closed()).status().expect("the binary starts");
    assert_eq!(unread.code(), Some(141));
    assert_eq!(at.read_dir().expect("a directory").count(), 0, "neither an entry nor a draft");
    let made = new_key(&words, at).output().expect("the binary starts");
    assert!(made.status.success() && made.stdout.starts_with(b"sk-skein-"));
    assert!(std::fs::read_to_string(at.join("keys.toml")).expect("a file").contains("[[keys]]"));
}

#[test]
fn standard_error_may_be_closed_or_full() {
    let directory = tempfile::tempdir().expect("a directory");
    for standard_error in [closed, || full().into()] {
        let made = new_key(&["--tenant", "acme"], directory.path()).stderr(standard_error()).output();
        let made = made.expect("the binary starts");
        assert!(made.status.success() && made.stdout.starts_with(b"sk-skein-"), "{}", made.status);
        let refused = new_key(&["--tenant", "a b"], directory.path()).stderr(standard_error()).output();
        assert_eq!(refused.expect("the binary starts").status.code(), Some(2));
    }
}
