//! JSON as Python's `json` module writes it.

/// Numbers that JSON lacks.
const NON_FINITE: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// `json` with null for each number that is infinite or none.
pub fn without_non_finite(json: &[u8]) -> Vec<u8> {
    let mut finite = Vec::with_capacity(json.len());
    let (mut at, mut in_string) = (0, false);
    while let Some(byte) = json.get(at) {
        let number = NON_FINITE.iter().find(|word| !in_string && json[at..].starts_with(word));
        let is_escape = in_string && *byte == b'\\';
        in_string ^= *byte == b'"';
        let taken = number.map_or(1 + usize::from(is_escape), |word| word.len());
        let end = (at + taken).min(json.len());
        finite.extend_from_slice(if number.is_some() { b"null" } else { &json[at..end] });
        at = end;
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_outside_of_strings_are_replaced() {
        for (json, expected) in [
            (r#"{"a": [0.0, Infinity], "b": -Infinity}"#, r#"{"a": [0.0, null], "b": null}"#),
            (r#"{"NaN": "Infinity \" NaN", "x": NaN}"#, r#"{"NaN": "Infinity \" NaN", "x": null}"#),
            (r#"{"\\": Infinity, "open": "\"#, r#"{"\\": null, "open": "\"#),
        ] {
            assert_eq!(String::from_utf8(without_non_finite(json.as_bytes())).unwrap(), expected);
        }
    }
}
