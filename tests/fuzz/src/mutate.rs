//! Changed inputs from a seed, for tests without a fuzzer.

/// Splitmix64.
pub struct Mutator(u64);

/// Tokens that mean something to several parsers.
const WORDS: [&[u8]; 24] = [
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"18446744073709551615",
    b"\\u0000",
    b"\\ud800",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"\x80",
    "é".as_bytes(),
    "\u{10FFFF}".as_bytes(),
    b"<think>",
    b"</tool_call>",
    b"\n\n",
    b"data:",
    b"$ref",
    b"(",
    b"*",
];

impl Mutator {
    /// The changes number `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }

    /// `seed` with one to four changes; some take a part of `other`.
    pub fn change(&mut self, seed: &[u8], other: &[u8]) -> Vec<u8> {
        let mut data = seed.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(data.len() + 1);
            let end = (at + self.below(16)).min(data.len());
            match self.below(8) {
                0 => drop(data.drain(at..end)),
                1 => drop(data.splice(at..end, WORDS[self.below(WORDS.len())].iter().copied())),
                2 => drop(data.splice(at..at, WORDS[self.below(WORDS.len())].iter().copied())),
                3 => {
                    let part = data[at..end].to_vec();
                    drop(data.splice(at..at, part));
                }
                4 => {
                    let from = self.below(other.len() + 1);
                    let to = (from + self.below(64)).min(other.len());
                    drop(data.splice(at..end, other[from..to].iter().copied()));
                }
                5 => data.truncate(at),
                _ => {
                    if let Some(byte) = data.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
        data
    }
}
