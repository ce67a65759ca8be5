//! Reads numbers and strings from bytes with bounds checks.

use crate::Fault;

/// Reading position in a file's bytes.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    /// Number of bytes left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Takes the next `count` bytes. `what` describes them in the error.
    pub fn take(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], Fault> {
        let truncated = || Fault::Truncated { what, at: self.at, needed: count, len: self.bytes.len() };
        let count =
            usize::try_from(count).ok().filter(|count| *count <= self.left()).ok_or_else(truncated)?;
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, Fault> {
        let bytes = self.take(4, what)?;
        Ok(u32::from_le_bytes(std::array::from_fn(|i| bytes[i])))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, Fault> {
        let bytes = self.take(8, what)?;
        Ok(u64::from_le_bytes(std::array::from_fn(|i| bytes[i])))
    }

    /// Reads a length-prefixed string of at most `most` bytes.
    pub fn string(&mut self, most: u64, what: &'static str) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.string_bytes(most, what)?).map_err(|_| Fault::NotUtf8 { what })
    }

    /// Bytes of such a string, which need not be UTF-8.
    pub fn string_bytes(&mut self, most: u64, what: &'static str) -> Result<&'a [u8], Fault> {
        let count = self.u64(what)?;
        if count > most {
            return Err(Fault::TooMany { what, count, most });
        }
        self.take(count, what)
    }
}
