//! Why a model's text files cannot be used.

use std::path::PathBuf;

use skein_grammar::token_bytes::UnsupportedDecoder;

use crate::formats::UnknownParser;

/// Reported to the operator at start.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is missing, unreadable, too large, or no regular file.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The model is a GGUF file that cannot be used.
    #[error(transparent)]
    Gguf(#[from] skein_gguf::GgufError),
    /// The directory contains no tokenizer.json.
    #[error(
        "{} has no tokenizer.json; copy it there from the model's repository, or give the directory that has it \
         with --tokenizer DIR",
        directory.display()
    )]
    NoTokenizer {
        /// The directory that was searched.
        directory: PathBuf,
    },
    /// The tokenizer has more tokens than the model's vocabulary.
    #[error(
        "tokenizer.json belongs to another model: its token ids go up to {largest}, but this model has {vocab_size} \
         (vocab_size in config.json); replace the file, or give the right directory with --tokenizer DIR"
    )]
    OtherModel {
        /// Largest id in the tokenizer's own vocabulary.
        largest: u32,
        /// Size of the model's vocabulary.
        vocab_size: u32,
    },
    /// A file has unexpected contents.
    #[error("{file} is malformed: {reason}")]
    Malformed {
        /// Name of the file.
        file: &'static str,
        /// Fault in the contents.
        reason: String,
    },
    /// tokenizer.json uses a feature that is not supported.
    #[error("tokenizer.json: {0} is not supported; byte-level BPE and SentencePiece-style decoders are")]
    UnsupportedDecoder(String),
    /// Unknown parser for calls or reasoning.
    #[error("--tool-call-parser or --reasoning-parser: {0}")]
    Parser(#[from] UnknownParser),
    /// The chat template does not compile.
    #[error("the chat template does not compile: {0}")]
    Template(String),
}

impl From<UnsupportedDecoder> for TextError {
    fn from(UnsupportedDecoder(what): UnsupportedDecoder) -> Self {
        Self::UnsupportedDecoder(what)
    }
}
