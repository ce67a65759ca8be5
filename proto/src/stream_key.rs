//! The name of a stream of tokens, under which any router finds it.

/// Names what is generated, whoever asks: equal for equal (request, model, prompt, sampling, salt).
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
}
