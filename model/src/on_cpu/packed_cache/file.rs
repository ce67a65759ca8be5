//! The file format: a header, then the bytes.
//!
//! ```text
//! magic [8] | XXH3 of the name | data offset | data length | XXH3 of each slice … | XXH3 of all before
//! zeros up to the offset, a multiple of a page
//! the data
//! ```
//!
//! All numbers are 64 bits, little-endian. A slice has 4 MiB, so that all threads can check a file together.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use skein_kernels::cpu::Cpu;
use skein_sys::mapped::MappedFile;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"skeinpk2";
/// Bytes covered by one checksum.
const SLICE: usize = 4 << 20;
const PAGE: usize = 4096;

/// Size of the header without its own checksum, in bytes.
fn header_bytes(bytes: usize) -> usize {
    MAGIC.len() + 8 * (3 + bytes.div_ceil(SLICE))
}

/// Offset of up to `bytes` bytes of data.
pub(super) fn data_at(bytes: usize) -> usize {
    (header_bytes(bytes) + 8).next_multiple_of(PAGE)
}

/// Writes the header for the data that starts at `at`.
pub(super) fn seal(cpu: &mut Cpu, file: &mut [u8], name: &str, at: usize) {
    let sums = sums(cpu, &file[at..]);
    let header = header(name, at..file.len(), &sums);
    file[..header.len()].copy_from_slice(&header);
}

/// Range of `name`'s data in `file` if complete and undamaged, otherwise the fault. Reads all of it into
/// memory.
pub(super) fn check(cpu: &mut Cpu, file: &MappedFile, name: &str) -> Result<Range<usize>, String> {
    let number = |index: usize| {
        let bytes = file.get(MAGIC.len() + 8 * index..)?.first_chunk()?;
        usize::try_from(u64::from_le_bytes(*bytes)).ok()
    };
    let ends = |at: usize, bytes: usize| Some(at..at.checked_add(bytes)?);
    let range = number(1).zip(number(2)).and_then(|(at, bytes)| ends(at, bytes));
    let Some(range) =
        range.filter(|range| range.end == file.len() && header_bytes(range.len()) + 8 <= range.start)
    else {
        return Err(format!("its {} bytes are not what its header says, or it has none", file.len()));
    };
    file.prefer_huge_pages(); // products read all of it in every step
    file.will_need();
    let sums = sums(cpu, &file[range.clone()]);
    let expected = header(name, range.clone(), &sums);
    if file[..expected.len()] == expected {
        return Ok(range);
    }
    Err("its checksums do not match its content; the disk, or another program, changed it".into())
}

fn header(name: &str, range: Range<usize>, sums: &[u64]) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    let numbers = [xxh3_64(name.as_bytes()), range.start as u64, range.len() as u64];
    for number in numbers.iter().chain(sums) {
        header.extend(number.to_le_bytes());
    }
    let sum = xxh3_64(&header);
    header.extend(sum.to_le_bytes());
    header
}

/// XXH3 of each slice, on all threads.
fn sums(cpu: &mut Cpu, bytes: &[u8]) -> Vec<u64> {
    let sums: Vec<AtomicU64> = bytes.chunks(SLICE).map(|_| AtomicU64::new(0)).collect();
    cpu.threads.run(sums.len(), |slice, _| {
        let range = slice * SLICE..bytes.len().min((slice + 1) * SLICE);
        sums[slice].store(xxh3_64(&bytes[range]), Ordering::Relaxed);
    });
    sums.into_iter().map(AtomicU64::into_inner).collect()
}
