//! The key of a token stream, by which any router finds it.

use xxhash_rust::xxh3::xxh3_128;

/// First bytes of every encoding. A change of layout needs a new name.
const LAYOUT: &[u8] = b"skein.stream.1";
/// Room for the encoding of a short request, bytes, so that it grows only for a longer one.
const SHORT: usize = 640;

/// XXH3-128 of everything that determines a stream's tokens, and of the client's request id. Routers that
/// receive the same request with the same id compute the same key, so each finds the stream that another
/// started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey(pub u128);

impl StreamKey {
    /// From its wire form, 16 bytes, big-endian; `None` if the length is wrong.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
    }

    /// Its wire form: 16 bytes, big-endian.
    pub fn to_wire(self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }

    /// Key of a stream with the same tokens that the router ends at the first of these strings. It differs
    /// from `self`, because all readers of a stream get the same end.
    pub fn ended_by(self, stop: &[String], skip_special_tokens: bool) -> Self {
        let mut encoding = Encoding::begin();
        encoding.bytes(&self.to_wire());
        encoding.number(u64::from(skip_special_tokens));
        encoding.number(stop.len() as u64);
        stop.iter().for_each(|stop| encoding.bytes(stop.as_bytes()));
        encoding.key()
    }
}

/// The bytes that a key hashes. Numbers are little-endian and every part of variable length follows its
/// length, so different requests have different encodings.
#[derive(Debug)]
pub struct Encoding(Vec<u8>);

impl Encoding {
    /// An encoding with only the layout's name.
    pub fn begin() -> Self {
        let mut encoding = Vec::with_capacity(SHORT);
        encoding.extend_from_slice(LAYOUT);
        Self(encoding)
    }

    /// Appends a fixed-width number.
    pub fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends bytes after their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Appends numbers after their count.
    pub fn list(&mut self, numbers: impl ExactSizeIterator<Item = u32>) {
        self.number(numbers.len() as u64);
        numbers.for_each(|number| self.0.extend_from_slice(&number.to_le_bytes()));
    }

    /// Appends a number, or a marker that there is none.
    pub fn optional(&mut self, number: Option<u32>) {
        self.number(number.map_or(0, |number| u64::from(number) + 1));
    }

    /// Hashes everything appended so far.
    pub fn key(&self) -> StreamKey {
        StreamKey(xxh3_128(&self.0))
    }
}
