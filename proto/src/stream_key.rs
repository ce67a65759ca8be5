//! The name of a stream of tokens, under which any router finds it.

use xxhash_rust::xxh3::xxh3_128;

/// Begins every encoding; another layout gets another name.
const LAYOUT: &[u8] = b"skein.stream.1";

/// XXH3-128 of all that a stream's tokens are a function of, and of the client's request id. Routers that were given the
/// same request under the same id agree on it, so one finds what another has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey(pub u128);

impl StreamKey {
    /// From the wire: 16 bytes, big-endian; `None` = it is no key.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
    }

    /// For the wire.
    pub fn to_wire(self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }

    /// The same tokens, ended by the router at the first of these strings: a stream of its own, because its end is one
    /// for all who read it.
    pub fn ended_by(self, stop: &[String], skip_special_tokens: bool) -> Self {
        let mut encoding = Encoding::begin();
        encoding.bytes(&self.to_wire());
        encoding.number(u64::from(skip_special_tokens));
        encoding.number(stop.len() as u64);
        stop.iter().for_each(|stop| encoding.bytes(stop.as_bytes()));
        encoding.key()
    }
}

/// What a key is a hash of. Little-endian, every part of variable length behind its length: no two requests have one
/// encoding.
#[derive(Debug)]
pub struct Encoding(Vec<u8>);

impl Encoding {
    /// Of nothing yet.
    pub fn begin() -> Self {
        Self(LAYOUT.to_vec())
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Adds numbers.
    pub fn list(&mut self, numbers: impl ExactSizeIterator<Item = u32>) {
        self.number(numbers.len() as u64);
        numbers.for_each(|number| self.0.extend_from_slice(&number.to_le_bytes()));
    }

    /// Adds a number, or that there is none.
    pub fn optional(&mut self, number: Option<u32>) {
        self.number(number.map_or(0, |number| u64::from(number) + 1));
    }

    /// The hash.
    pub fn key(&self) -> StreamKey {
        StreamKey(xxh3_128(&self.0))
    }
}
