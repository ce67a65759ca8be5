//! The version of a model's weights that computes a request.

use std::fmt;
use std::str::FromStr;

/// Version of a model: the fingerprint of weights, configuration and arithmetic. All tokens of a request come
/// from one version. Written as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// No version is known: a request may run on any, and a router in front of several versions announces
    /// none.
    pub const UNKNOWN: Self = Self(0);

    /// Whether it is known.
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// Whether a request of this version may run where `other` is served: they are equal, or one is unknown.
    pub fn fits(self, other: Self) -> bool {
        self == other || !self.is_known() || !other.is_known()
    }

    /// This version, or `other` if this one is unknown.
    pub fn or(self, other: Self) -> Self {
        if self.is_known() { self } else { other }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The text is not 16 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a version is 16 lower-case hexadecimal digits")]
pub struct NotAVersion;

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 16 || !text.bytes().all(is_hex) {
            return Err(NotAVersion);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| NotAVersion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_fits_every_other() {
        let [a, b, none] = [Version(1), Version(2), Version::UNKNOWN];
        assert!(a.fits(a) && a.fits(none) && none.fits(a) && !a.fits(b));
        assert_eq!([a.or(b), none.or(b), none.or(none)], [a, b, none]);
    }

    #[test]
    fn the_text_form_round_trips_and_nothing_else_is_read() {
        for version in [Version(0), Version(7), Version(u64::MAX)] {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        for wrong in
            ["", "7", "00000000000000070", "000000000000000G", "000000000000000A", "+000000000000007"]
        {
            assert_eq!(wrong.parse::<Version>(), Err(NotAVersion), "{wrong}");
        }
    }
}
