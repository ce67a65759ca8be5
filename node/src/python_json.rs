//! JSON as Python's `json` module writes it.

/// Numbers that JSON lacks.
const NON_FINITE: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// `json` with null for each number that is infinite or none.
pub fn without_non_finite(json: &[u8]) -> Vec<u8> {
    replaced(json, |_| b"null".to_vec())
}

/// `json` with an object for each number that is infinite or none, `{"__float__": "Infinity"}`, as version 5
/// of transformers writes them.
pub fn with_named_non_finite(json: &[u8]) -> Vec<u8> {
    replaced(json, |number| [br#"{"__float__": ""#, number, br#""}"#].concat())
}

fn replaced(json: &[u8], by: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut finite = Vec::with_capacity(json.len());
    let (mut at, mut in_string) = (0, false);
    while let Some(byte) = json.get(at) {
        let number = NON_FINITE.iter().find(|word| !in_string && json[at..].starts_with(word));
        let is_escape = in_string && *byte == b'\\';
        in_string ^= *byte == b'"';
        let taken = number.map_or(1 + usize::from(is_escape), |word| word.len());
        let end = (at + taken).min(json.len());
        match number {
            Some(number) => finite.extend(by(number)),
            None => finite.extend_from_slice(&json[at..end]),
        }
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
        let named = with_named_non_finite(br#"{"a": [0.0, -Infinity], "NaN": NaN}"#);
        let expected = r#"{"a": [0.0, {"__float__": "-Infinity"}], "NaN": {"__float__": "NaN"}}"#;
        assert_eq!(String::from_utf8(named).unwrap(), expected);
    }
}
