//! Checksums with which the hub names files: SHA-256 for large files, git's SHA-1 for small ones.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// Kind of checksum in a content's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256 of the content.
    Sha256,
    /// SHA-1 of `blob SIZE\0` and the content.
    GitBlob,
    /// A name without a checksum, as some mirrors use; only the size can be checked.
    Unknown,
}

impl Checksum {
    /// Kind of `etag`, by its length.
    pub fn of(etag: &str) -> Self {
        let is_hex = etag.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        match etag.len() {
            64 if is_hex => Self::Sha256,
            40 if is_hex => Self::GitBlob,
            _ => Self::Unknown,
        }
    }

    /// Starts the checksum of a file of `size` bytes.
    pub fn begin(self, size: u64) -> Sum {
        Sum(match self {
            Self::Sha256 => Some(Context::new(&SHA256)),
            Self::GitBlob => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Some(context)
            }
            Self::Unknown => None,
        })
    }
}

/// Running checksum of a content.
#[derive(Clone)]
pub struct Sum(Option<Context>);

impl Sum {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(context) = &mut self.0 {
            context.update(bytes);
        }
    }

    /// Whether the content matches `expected`; true if `expected` is no checksum.
    pub fn is(&self, expected: &str) -> bool {
        self.0.as_ref().is_none_or(|context| hex(context.clone().finish().as_ref()) == expected)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_sha256sum_and_git_hash_object() {
        let check = |content: &str, name: &str| {
            let mut sum = Checksum::of(name).begin(content.len() as u64);
            content.as_bytes().chunks(3).for_each(|part| sum.update(part));
            assert!(sum.is(name), "{content:?}");
            sum.update(b"x");
            assert!(!sum.is(name), "{content:?}");
        };
        check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check("hello\n", "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
        check("hello\n", "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(Checksum::of("abc-1"), Checksum::Unknown);
    }
}
