//! Why a model's vocabulary cannot be used.

use std::path::{Path, PathBuf};

/// Most characters of the file's own text in a message.
const SHOWN: usize = 80;

/// Reported to the operator at start.
#[derive(Debug, thiserror::Error)]
pub enum VocabError {
    /// A file is unreadable, too large, or no regular file.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A file has unexpected contents.
    #[error("{} is malformed: {reason}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Fault in the contents.
        reason: String,
    },
    /// A valid file that is not supported.
    #[error(
        "{} cannot be used: {what}; save the model's tokenizer with transformers \
         (AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)), which writes a tokenizer.json",
        path.display()
    )]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// Unsupported feature, and the supported ones.
        what: String,
    },
}

impl VocabError {
    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        Self::Unsupported { path: path.to_owned(), what: what.into() }
    }
}

/// The start of a text of the file.
pub(crate) fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(SHOWN).collect::<String>())
}
