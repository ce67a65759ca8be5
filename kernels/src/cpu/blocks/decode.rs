//! Bit layout of each block type.

use super::{Block, BlockType, half};

/// Values of IQ4_NL's codes.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Doubled values of MXFP4's codes.
const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockType {
    /// Offsets of the numbers in half precision in a block: scales and minima. MXFP4's scale has 8 bits, all
    /// of which are powers of two here.
    pub const fn halves(self) -> &'static [usize] {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Iq4Nl => &[0],
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => &[0, 2],
            Self::Q2K => &[80, 82],
            Self::Q3K => &[108],
            Self::Q6K => &[208],
            Self::Mxfp4 => &[],
        }
    }

    /// Values of 4-bit codes, for types that look them up. A [`Block`] has 128 plus the value as code.
    pub const fn table(self) -> Option<&'static [i8; 16]> {
        match self {
            Self::Iq4Nl => Some(&IQ4_NL),
            Self::Mxfp4 => Some(&MXFP4),
            _ => None,
        }
    }

    /// Decodes a block.
    ///
    /// # Panics
    /// If `from` is not exactly one block.
    pub fn decode(self, from: &[u8], to: &mut Block) {
        assert_eq!(from.len(), self.form().bytes, "from is one block");
        match self {
            Self::Q4_0 => {
                to.scale = half(from);
                nibbles(&from[2..], to);
            }
            Self::Q4_1 => {
                (to.scale, to.minimum) = (half(from), half(&from[2..]));
                nibbles(&from[4..], to);
            }
            Self::Q5_0 => {
                to.scale = half(from);
                nibbles(&from[6..], to);
                fifth_bits(&from[2..6], to);
            }
            Self::Q5_1 => {
                (to.scale, to.minimum) = (half(from), half(&from[2..]));
                nibbles(&from[8..], to);
                fifth_bits(&from[4..8], to);
            }
            Self::Q8_0 => {
                to.scale = half(from);
                to.codes.iter_mut().zip(&from[2..]).for_each(|(code, byte)| *code = byte ^ 0x80);
            }
            Self::Iq4Nl => {
                to.scale = half(from);
                nibbles(&from[2..], to);
                look_up(&IQ4_NL, to);
            }
            Self::Mxfp4 => {
                to.scale = half_power(from[0]);
                nibbles(&from[1..], to);
                look_up(&MXFP4, to);
            }
            Self::Q2K => q2_k(from, to),
            Self::Q3K => q3_k(from, to),
            Self::Q4K => {
                k_scales(from, to);
                k_nibbles(&from[16..], to);
            }
            Self::Q5K => {
                k_scales(from, to);
                k_nibbles(&from[48..], to);
                for (i, code) in to.codes.iter_mut().enumerate() {
                    *code |= (from[16 + i % 32] >> (i / 32) & 1) << 4;
                }
            }
            Self::Q6K => q6_k(from, to),
        }
    }
}

/// 32 codes: the low halves of sixteen bytes, then their high halves.
fn nibbles(from: &[u8], to: &mut Block) {
    for (i, byte) in from.iter().take(16).enumerate() {
        (to.codes[i], to.codes[i + 16]) = (byte & 15, byte >> 4);
    }
}

/// Fifth bits of 32 codes.
fn fifth_bits(from: &[u8], to: &mut Block) {
    for (i, code) in to.codes.iter_mut().take(32).enumerate() {
        *code |= (from[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// Replaces 32 codes with 128 plus their value in `table`.
fn look_up(table: &[i8; 16], to: &mut Block) {
    for code in &mut to.codes[..32] {
        *code = table[usize::from(*code & 15)] as u8 ^ 0x80;
    }
}

/// `2^(exponent - 128)`: half the value of an E8M0 exponent.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { u32::from(exponent - 1) << 23 })
}

/// Scale, minimum, and 6-bit factors of eight groups.
fn k_scales(from: &[u8], to: &mut Block) {
    (to.scale, to.minimum) = (half(from), half(&from[2..]));
    let packed = &from[4..16];
    for group in 0..8 {
        let (factor, minimum) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let (low, high) = (packed[group + 4], [packed[group - 4] >> 6, packed[group] >> 6]);
            (low & 15 | high[0] << 4, low >> 4 | high[1] << 4)
        };
        (to.factors[group], to.minimum_factors[group]) = (factor as i8, minimum as i8);
    }
}

/// 256 codes: of each 64, the low halves of 32 bytes, then the high halves.
fn k_nibbles(from: &[u8], to: &mut Block) {
    for (codes, bytes) in to.codes.chunks_exact_mut(64).zip(from.chunks_exact(32)) {
        for (i, byte) in bytes.iter().enumerate() {
            (codes[i], codes[i + 32]) = (byte & 15, byte >> 4);
        }
    }
}

/// 256 two-bit codes: of each 128, the four bit pairs of 32 bytes in turn.
fn pairs(from: &[u8], to: &mut Block) {
    for (i, code) in to.codes.iter_mut().enumerate() {
        let (half, pair) = (i / 128, i % 128 / 32);
        *code = from[half * 32 + i % 32] >> (2 * pair) & 3;
    }
}

fn q2_k(from: &[u8], to: &mut Block) {
    (to.scale, to.minimum) = (half(&from[80..]), half(&from[82..]));
    for (group, byte) in from[..16].iter().enumerate() {
        (to.factors[group], to.minimum_factors[group]) = ((byte & 15) as i8, (byte >> 4) as i8);
    }
    pairs(&from[16..80], to);
}

fn q3_k(from: &[u8], to: &mut Block) {
    to.scale = half(&from[108..]);
    let (low, high) = (&from[96..104], &from[104..108]);
    for group in 0..16 {
        let low = if group < 8 { low[group] & 15 } else { low[group - 8] >> 4 };
        let high = high[group % 4] >> (2 * (group / 4)) & 3;
        to.factors[group] = (low | high << 4) as i8 - 32;
    }
    pairs(&from[32..96], to);
    for (i, code) in to.codes.iter_mut().enumerate() {
        *code |= (from[i % 32] >> (i / 32) & 1) << 2;
    }
}

fn q6_k(from: &[u8], to: &mut Block) {
    to.scale = half(&from[208..]);
    for (factor, byte) in to.factors.iter_mut().zip(&from[192..208]) {
        *factor = *byte as i8;
    }
    for (i, code) in to.codes.iter_mut().enumerate() {
        let (half, quarter, at) = (i / 128, i % 128 / 32, i % 32);
        let low = from[half * 64 + quarter % 2 * 32 + at] >> (quarter / 2 * 4) & 15;
        let high = from[128 + half * 32 + at] >> (2 * quarter) & 3;
        *code = low | high << 4;
    }
}
