//! The bearer token that a supervised worker and its router share, so that no other user's process can call
//! the worker.
//!
//! Each worker process has its own. It is passed through the worker's standard input, never through arguments
//! or the environment, and expires with the process: a process that takes a dead worker's port cannot use
//! what it is sent.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io::{BufRead, Read};
use std::sync::{Arc, PoisonError, RwLock};

/// Random bytes of a secret, which is written in hexadecimal.
const SECRET_BYTES: usize = 32;
/// The system's random number generator.
const RANDOM_SOURCE: &str = "/dev/urandom";

/// A bearer token of one worker process.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// A new one, from the system's generator.
    ///
    /// # Errors
    /// If the system provides no random bytes.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; SECRET_BYTES];
        std::fs::File::open(RANDOM_SOURCE)?.read_exact(&mut bytes)?;
        let mut text = String::with_capacity(2 * SECRET_BYTES);
        for byte in bytes {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text.into()))
    }

    /// Reads the secret that the supervisor has written to standard input. Call it before
    /// [`end_with_supervisor`](super::end_with_supervisor), which reads the rest of the input.
    ///
    /// # Errors
    /// If standard input does not begin with a secret: the process is not supervised.
    pub fn from_supervisor() -> std::io::Result<Self> {
        Self::read(std::io::stdin().lock())
    }

    fn read(input: impl BufRead) -> std::io::Result<Self> {
        let mut line = String::new();
        input.take(2 * SECRET_BYTES as u64 + 1).read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(text) if text.len() == 2 * SECRET_BYTES => Ok(Self(text.into())),
            _ => Err(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "no secret on standard input; only `skein serve` and `skein run` start supervised workers",
            )),
        }
    }

    /// The token itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in time that depends only on the lengths.
    pub fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let different = own.iter().zip(given).fold(0, |all, (a, b)| all | std::hint::black_box(a ^ b));
        own.len() == given.len() && different == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// The secrets of the running workers, by address. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<RwLock<BTreeMap<String, Secret>>>);

impl Secrets {
    /// The secret of the worker at `address`; `None` if no worker of this supervisor runs there.
    pub fn of(&self, address: &str) -> Option<Secret> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(address).cloned()
    }

    pub(super) fn keep(&self, address: &str, secret: Secret) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned(), secret);
    }

    pub(super) fn forget(&self, address: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_back_and_never_shown() {
        let secret = Secret::draw().expect("the system has random bytes");
        let line = format!("{}\n", secret.expose());
        assert_eq!(Secret::read(line.as_bytes()).expect("it is one"), secret);
        assert!(!format!("{secret:?}").contains(secret.expose()));
        assert_ne!(secret, Secret::draw().expect("another one"));
        for wrong in ["", "\n", "abc\n", secret.expose()] {
            assert!(Secret::read(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_the_whole_secret_fits() {
        let secret = Secret::draw().expect("the system has random bytes");
        let text = secret.expose();
        assert!(secret.is(text.as_bytes()));
        for wrong in ["", &text[1..], &format!("{text}0"), &"x".repeat(text.len())] {
            assert!(!secret.is(wrong.as_bytes()), "{wrong}");
        }
    }
}
