//! New keys, and the hashes by which the file knows them.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Begins every key, so that people and scanners of secrets recognise one.
const PREFIX: &str = "sk-skein-";
/// Random bytes of a key.
const BYTES: usize = 32;
/// Shortest key that can be in a file. The hash is fast, so a short key could be guessed from it.
pub const SHORTEST: usize = 40;
/// Begins a hash in the file.
const HASH: &str = "sha256:";

/// SHA-256 of a key.
pub type Digest = [u8; 32];

/// A new key. It is shown once and stored nowhere.
pub struct Secret(String);

impl Secret {
    /// Draws a key of 256 bits.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn draw() -> Result<Self, &'static str> {
        let mut bytes = [0; BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| "the system has no random numbers")?;
        Ok(Self(format!("{PREFIX}{}", hex(&bytes))))
    }

    /// The key.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Hash of a key.
pub fn hash(key: &[u8]) -> Digest {
    let mut hash = Digest::default();
    hash.copy_from_slice(digest(&SHA256, key).as_ref());
    hash
}

/// Hash of a key, as the file has it.
pub fn hash_text(key: &str) -> String {
    format!("{HASH}{}", hex(&hash(key.as_bytes())))
}

/// Reads a hash of the file.
///
/// # Errors
/// What is wrong. The text is not repeated: it may be a key.
pub fn read_hash(text: &str) -> Result<Digest, String> {
    let digits = text.strip_prefix(HASH).filter(|digits| digits.len() == 64 && digits.is_ascii());
    let digits = digits.ok_or_else(|| {
        format!(
            "hash must be `{HASH}` and 64 hexadecimal digits, got {} bytes of something else; `skein keys new` prints a \
             key with its hash, and the key itself does not belong into the file",
            text.len()
        )
    })?;
    let mut hash = Digest::default();
    for (at, byte) in hash.iter_mut().enumerate() {
        let pair = &digits[2 * at..2 * at + 2];
        *byte = u8::from_str_radix(pair, 16)
            .map_err(|_| format!("hash has a character after `{HASH}` that is no hexadecimal digit"))?;
    }
    Ok(hash)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_their_hashes_are_read_back() {
        let (one, other) = (Secret::draw().unwrap(), Secret::draw().unwrap());
        assert_ne!(one.expose(), other.expose());
        assert!(one.expose().len() >= SHORTEST && one.expose().starts_with(PREFIX));
        assert_eq!(read_hash(&hash_text(one.expose())), Ok(hash(one.expose().as_bytes())));
        // FIPS 180-2, "abc".
        let known = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash_text("abc"), known);
    }

    #[test]
    fn a_key_in_place_of_its_hash_is_refused_and_not_repeated() {
        let key = Secret::draw().unwrap();
        let short = format!("{HASH}abc");
        let letters = format!("{HASH}{}", "x".repeat(64));
        for given in [key.expose(), "", "hunter2", &short, &letters] {
            let why = read_hash(given).unwrap_err();
            assert!(why.starts_with("hash ") && (given.len() < 3 || !why.contains(given)), "{why}");
        }
    }
}
