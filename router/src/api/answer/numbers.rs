//! Vectors in answers: as JSON numbers, each in the fewest digits that read back as the same f32, or as
//! base64 of their bytes.

/// Digits of base64 (RFC 4648, section 4).
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// How a vector is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// A list of numbers.
    Floats,
    /// Base64 of f32 values, the lowest byte first.
    LittleEndian,
    /// Base64 of f32 values, the highest byte first.
    BigEndian,
}

impl Encoding {
    /// The JSON value of `vector`, appended to `json`.
    pub fn write(self, vector: &[f32], json: &mut String) {
        match self {
            Self::Floats => floats(vector, json),
            Self::LittleEndian => quoted(vector.iter().flat_map(|value| value.to_le_bytes()), json),
            Self::BigEndian => quoted(vector.iter().flat_map(|value| value.to_be_bytes()), json),
        }
    }
}

/// The JSON number of `value` in the fewest digits that read back as the same f32.
pub fn short(value: f32) -> serde_json::Value {
    serde_json::to_string(&value).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Appends a JSON list.
pub fn floats(vector: &[f32], json: &mut String) {
    // Finite numbers cannot fail.
    json.push_str(&serde_json::to_string(vector).unwrap_or_default());
}

fn quoted(bytes: impl Iterator<Item = u8>, json: &mut String) {
    json.push('"');
    let bytes: Vec<u8> = bytes.collect();
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = (at(0) << 16) | (at(1) << 8) | at(2);
        for digit in 0..4 {
            let shown = digit <= group.len();
            let value = (bits >> (18 - 6 * digit)) & 63;
            json.push(if shown { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(encoding: Encoding, vector: &[f32]) -> String {
        let mut json = String::new();
        encoding.write(vector, &mut json);
        json
    }

    #[test]
    fn numbers_are_as_short_as_they_may_be() {
        assert_eq!(written(Encoding::Floats, &[0.1, -2.0, 1e-20]), "[0.1,-2.0,1e-20]");
        assert_eq!(written(Encoding::Floats, &[]), "[]");
    }

    #[test]
    fn base64_has_the_bytes_of_f32_values() {
        // As Python's `base64.b64encode(struct.pack("<f", 1.5))`, and of two and three values.
        assert_eq!(written(Encoding::LittleEndian, &[1.5]), "\"AADAPw==\"");
        assert_eq!(written(Encoding::LittleEndian, &[1.5, -2.0]), "\"AADAPwAAAMA=\"");
        assert_eq!(written(Encoding::LittleEndian, &[1.5, -2.0, 0.1]), "\"AADAPwAAAMDNzMw9\"");
        assert_eq!(written(Encoding::BigEndian, &[1.5]), "\"P8AAAA==\"");
    }
}
