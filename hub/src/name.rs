//! Names of models and revisions. Both become parts of paths and URLs, so anything that could escape a
//! directory is refused.

use std::fmt;

use crate::error::HubError;

/// Longest name or revision, in bytes.
const MAX_BYTES: usize = 200;

/// Name of a model at the hub: `organisation/model`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName(String);

impl ModelName {
    /// Whether `text` is a valid name.
    pub fn is_name(text: &str) -> bool {
        Self::parse(text).is_ok()
    }

    /// Parses `organisation/model`.
    ///
    /// # Errors
    /// If `text` has any other form.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let is_pair = text.split_once('/').is_some_and(|(organisation, model)| {
            [organisation, model].iter().all(|part| is_part(part) && !part.contains("--"))
        });
        if is_pair && text.len() <= MAX_BYTES {
            Ok(Self(text.to_owned()))
        } else {
            Err(HubError::BadName(text.to_owned()))
        }
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Directory name in the cache.
    pub(crate) fn directory(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// Inverse of [`Self::directory`].
    pub(crate) fn of_directory(directory: &str) -> Option<Self> {
        Self::parse(&directory.strip_prefix("models--")?.replacen("--", "/", 1)).ok()
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Branch, tag or commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(String);

impl Revision {
    /// The default branch, `main`.
    pub fn main() -> Self {
        Self("main".to_owned())
    }

    /// Parses a branch, a tag, a commit or `refs/pr/N`.
    ///
    /// # Errors
    /// If it cannot be part of a path.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let is_path = text.split('/').all(is_part) && text.len() <= MAX_BYTES;
        if is_path { Ok(Self(text.to_owned())) } else { Err(HubError::BadRevision(text.to_owned())) }
    }

    /// The revision as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a full commit hash, which always names the same commit.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.0)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `text` is a commit hash: 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether `text` is a safe path component: no separator, no hidden or parent directory.
pub(crate) fn is_part(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_two_plain_parts() {
        let check = |text: &str, is_name: bool| assert_eq!(ModelName::is_name(text), is_name, "{text}");
        check("Qwen/Qwen3-0.6B", true);
        check("a/b_c.d-1", true);
        for bad in ["gpt2", "a/b/c", "/a/b", "../b", "a/..", "a/b c", "a/", "", "a/x--y", "a\\b/c", "~/x"] {
            check(bad, false);
        }
        check(&format!("a/{}", "b".repeat(MAX_BYTES)), false);
    }

    #[test]
    fn directories_and_names_are_one_to_one() {
        let name = ModelName::parse("Qwen/Qwen3-0.6B").unwrap();
        assert_eq!(name.directory(), "models--Qwen--Qwen3-0.6B");
        assert_eq!(ModelName::of_directory(&name.directory()), Some(name));
        assert_eq!(ModelName::of_directory("datasets--a--b"), None);
    }

    #[test]
    fn revisions_stay_within_their_directory() {
        for good in ["main", "v1.0", "refs/pr/3", "0123456789012345678901234567890123456789"] {
            assert!(Revision::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "..", "a/../b", "/main", "a//b", "a b", "a?b"] {
            assert!(Revision::parse(bad).is_err(), "{bad}");
        }
    }
}
