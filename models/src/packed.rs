//! Weights in bfloat16 without the redundancy of their exponents. `skein-7m/packed.py` describes the form,
//! and packs.

/// Count of words, checksum, and the rest.
fn head(packed: &[u8]) -> Option<(usize, u32, &[u8])> {
    let (count, rest) = packed.split_first_chunk()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    Some((u32::from_le_bytes(*count) as usize, u32::from_le_bytes(*checksum), rest))
}

/// Bytes of the unpacked file.
pub fn len(packed: &[u8]) -> Option<usize> {
    head(packed).map(|(count, ..)| 2 * count)
}

/// Whether `file` is what `packed` unpacks to.
pub fn is_of(packed: &[u8], file: &[u8]) -> bool {
    head(packed).is_some_and(|(count, checksum, _)| {
        file.len() == 2 * count && adler2::adler32_slice(file) == checksum
    })
}

/// The unpacked file; `None` if `packed` is damaged.
pub fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let (count, _, rest) = head(packed)?;
    let (signs_and_mantissas, deflated) = rest.split_at_checked(count)?;
    let exponents = miniz_oxide::inflate::decompress_to_vec_with_limit(deflated, count).ok()?;
    if exponents.len() != count {
        return None;
    }
    let mut file = vec![0; 2 * count];
    let words = file.as_chunks_mut::<2>().0;
    for ((word, rest), exponent) in words.iter_mut().zip(signs_and_mantissas).zip(exponents) {
        let rest = u16::from(*rest);
        *word = ((rest & 0x80) << 8 | u16::from(exponent) << 7 | rest & 0x7f).to_le_bytes();
    }
    is_of(packed, &file).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found() {
        let packed = super::super::PACKED;
        assert!(unpack(packed).is_some());
        for at in [0, 5, 100, packed.len() - 100] {
            let mut damaged = packed.to_vec();
            damaged[at] ^= 1;
            assert!(unpack(&damaged).is_none(), "byte {at}");
        }
        assert!(unpack(&packed[..packed.len() / 2]).is_none() && unpack(&[]).is_none());
    }
}
