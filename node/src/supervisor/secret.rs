//! Bearer token shared by a worker and its router, so that others cannot call the worker.
//!
//! The operator of a cluster gives one to all its processes. Under a supervisor each worker process has its
//! own. It is passed through the worker's standard input, never through arguments or the environment, and
//! expires with the process: a process that takes over a dead worker's port cannot use the token that it
//! receives.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io::{BufRead, Read};
use std::sync::{Arc, PoisonError, RwLock};

/// Number of random bytes in a secret, which is written in hexadecimal.
const SECRET_BYTES: usize = 32;
/// Lengths of a secret that an operator gives. Shorter ones can be guessed.
const GIVEN_LENGTHS: std::ops::RangeInclusive<usize> = 16..=4096;
/// Random number generator of the system.
const RANDOM_SOURCE: &str = "/dev/urandom";

/// Bearer token of a worker process, or of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// A new secret from the system's generator.
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

    /// The secret that an operator has given to the processes of a cluster.
    ///
    /// # Errors
    /// If it is short enough to be guessed, or cannot be sent in a header. The message does not repeat it.
    pub fn given(text: &str) -> Result<Self, String> {
        let text = text.trim_end_matches(['\r', '\n']);
        if !GIVEN_LENGTHS.contains(&text.len()) {
            return Err(format!(
                "the secret has {} characters; give {} to {}, such as 32 random bytes in hexadecimal (`openssl rand \
                 -hex 32`)",
                text.len(),
                GIVEN_LENGTHS.start(),
                GIVEN_LENGTHS.end()
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "the secret has spaces or characters outside ASCII; use letters and digits".to_owned()
            );
        }
        Ok(Self(text.into()))
    }

    /// Reads the secret that the supervisor wrote to standard input. Call it before
    /// [`end_with_supervisor`](super::end_with_supervisor), which reads the rest of the input.
    ///
    /// # Errors
    /// If standard input does not start with a secret, which means that the process is not supervised.
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

    /// Comparison whose time depends only on the lengths.
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

/// Secrets of the running workers, by address. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<RwLock<BTreeMap<String, Secret>>>);

impl Secrets {
    /// Secret of the worker at `address`; `None` if this supervisor has no worker there.
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
    fn a_given_secret_is_long_and_printable() {
        let good = "0123456789abcdef";
        assert_eq!(Secret::given(&format!("{good}\r\n")).expect("a line").expose(), good);
        for bad in ["", "short", "0123456789 abcdef", "0123456789abcdeé", &"x".repeat(5000)] {
            let message = Secret::given(bad).expect_err("refused");
            assert!(bad.is_empty() || !message.contains(bad), "{message}");
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
