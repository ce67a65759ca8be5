//! The file: a header, then the bytes.
//!
//! ```text
//! magic [8] | XXH3 of the name | length of the bytes | XXH3 of each slice of them … | XXH3 of all before
//! zeros up to a multiple of a page
//! the bytes
//! ```
//!
//! All numbers are 64 bits, little-endian. A slice has 4 MiB, so that all threads check a file together.

use std::sync::atomic::{AtomicU64, Ordering};

use skein_kernels::cpu::Cpu;
use skein_kernels::mapped::MappedFile;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"skeinpk1";
/// Bytes with a checksum of their own.
const SLICE: usize = 4 << 20;
const PAGE: usize = 4096;

/// Bytes of the header that say something, its own checksum left out.
fn header_bytes(bytes: usize) -> usize {
    MAGIC.len() + 8 * (2 + bytes.div_ceil(SLICE))
}

/// Where the bytes start.
pub(super) fn data_at(bytes: usize) -> usize {
    (header_bytes(bytes) + 8).next_multiple_of(PAGE)
}

/// Writes the header of what was filled in from `at` on.
pub(super) fn seal(cpu: &mut Cpu, file: &mut [u8], name: &str, at: usize) {
    let sums = sums(cpu, &file[at..], |_| {});
    let header = header(name, file.len() - at, &sums);
    file[..header.len()].copy_from_slice(&header);
}

/// Whether `file` is the whole of `name`, with `bytes` bytes; else what is wrong. Afterwards all of it is in memory.
pub(super) fn check(cpu: &mut Cpu, file: &MappedFile, name: &str, bytes: usize) -> Result<(), String> {
    let at = data_at(bytes);
    if file.len() != at + bytes {
        return Err(format!("it has {} bytes instead of {}", file.len(), at + bytes));
    }
    file.will_need();
    // Each thread has its slice mapped in one call, which costs less than a fault for every few pages of it.
    let sums = sums(cpu, &file[at..], |slice| file.populate(at + slice.start..at + slice.end));
    let expected = header(name, bytes, &sums);
    match file[..expected.len()] == expected {
        true => Ok(()),
        false => {
            Err("its checksums are not those of its content; the disk, or another program, changed it".into())
        }
    }
}

fn header(name: &str, bytes: usize, sums: &[u64]) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    let numbers = [xxh3_64(name.as_bytes()), bytes as u64];
    for number in numbers.iter().chain(sums) {
        header.extend(number.to_le_bytes());
    }
    let sum = xxh3_64(&header);
    header.extend(sum.to_le_bytes());
    header
}

/// XXH3 of each slice, with all threads; `before` is called with each slice's range first.
fn sums(cpu: &mut Cpu, bytes: &[u8], before: impl Fn(std::ops::Range<usize>) + Sync) -> Vec<u64> {
    let sums: Vec<AtomicU64> = bytes.chunks(SLICE).map(|_| AtomicU64::new(0)).collect();
    cpu.threads.run(sums.len(), |slice, _| {
        let range = slice * SLICE..bytes.len().min((slice + 1) * SLICE);
        before(range.clone());
        sums[slice].store(xxh3_64(&bytes[range]), Ordering::Relaxed);
    });
    sums.into_iter().map(AtomicU64::into_inner).collect()
}
