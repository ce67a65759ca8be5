//! Bytes as the parts that a target reads: files of a directory, pieces of a stream.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Between two parts of an input. A parser that stumbles over it has stumbled over bytes like any others.
const SEPARATOR: &[u8] = b"\n\0--\0\n";

/// An input of these parts.
pub fn join<T: AsRef<[u8]>>(parts: &[T]) -> Vec<u8> {
    parts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(SEPARATOR)
}

/// The parts of an input; there is at least one.
pub fn parts(data: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (Vec::new(), data);
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR) {
        parts.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    parts.push(rest);
    parts
}

/// The first byte, and the rest.
pub fn choice(data: &[u8]) -> Option<(usize, &[u8])> {
    data.split_first().map(|(first, rest)| (usize::from(*first), rest))
}

/// A directory in memory, if the system has one.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a temporary directory")
}

/// Writes `parts` under `names`; a part that is missing or empty gives no file.
pub fn write(directory: &TempDir, names: &[&str], parts: &[&[u8]]) -> PathBuf {
    for (name, part) in names.iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
        std::fs::write(directory.path().join(name), part).expect("room for the file");
    }
    directory.path().to_owned()
}

/// Cuts `length` bytes into pieces of 1 to 8 in the way `pattern`; `may_end` says where a cut may be.
pub fn cuts(length: usize, pattern: u64, may_end: impl Fn(usize) -> bool) -> Vec<std::ops::Range<usize>> {
    let (mut pieces, mut start, mut bits) =
        (Vec::new(), 0, (pattern | 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    while start < length {
        let mut end = (start + 1 + (bits & 7) as usize).min(length);
        while !may_end(end) {
            end += 1;
        }
        pieces.push(start..end);
        (start, bits) = (end, bits.rotate_right(3));
    }
    pieces
}
