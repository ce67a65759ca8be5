//! Why a model's text files cannot be used.

use std::path::PathBuf;

use skein_grammar::token_bytes::UnsupportedDecoder;

use crate::deep_stack::STACK_BYTES;
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
    /// The vocabulary beside the model cannot be used.
    #[error(transparent)]
    Vocabulary(#[from] skein_vocab::VocabError),
    /// The directory contains no tokenizer that can be read.
    #[error(
        "{} has no tokenizer: none of tokenizer.json, {}{}; copy one there from the model's repository, or give the \
         directory that has it with --tokenizer DIR{}",
        directory.display(),
        skein_vocab::OTHERS.join(", "),
        listed(found),
        advice(found)
    )]
    NoTokenizer {
        /// The directory that was searched.
        directory: PathBuf,
        /// Names there that look like a vocabulary.
        found: Vec<String>,
    },
    /// The tokenizer has more tokens than the model's vocabulary.
    #[error(
        "the tokenizer belongs to another model: its token ids go up to {largest}, but this model has {vocab_size} \
         (vocab_size in config.json); replace its files, or give the right directory with --tokenizer DIR"
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
    /// The system starts no thread for the chat template.
    #[error(
        "cannot start a thread for the chat template: {0}; its stack takes {mib} MiB of address space, of which little is \
         used: raise the limits of memory (`ulimit -v`) and of processes",
        mib = STACK_BYTES / (1024 * 1024)
    )]
    NoThread(std::io::Error),
    /// The chat template does not compile.
    #[error("the chat template does not compile: {0}")]
    Template(String),
}

impl TextError {
    /// The same, with the name of the file in which the fault lies; `tokenizer.json` was built from it.
    pub(crate) fn in_file(self, file: &'static str) -> Self {
        match self {
            Self::Malformed { reason, .. } => Self::Malformed { file, reason },
            other => other,
        }
    }
}

impl From<UnsupportedDecoder> for TextError {
    fn from(UnsupportedDecoder(what): UnsupportedDecoder) -> Self {
        Self::UnsupportedDecoder(what)
    }
}

fn listed(found: &[String]) -> String {
    if found.is_empty() {
        String::new()
    } else {
        format!(" (it has {}, which cannot be read)", found.join(", "))
    }
}

fn advice(found: &[String]) -> &'static str {
    if found.is_empty() {
        return "";
    }
    ", or save the tokenizer with transformers, which writes a tokenizer.json \
     (AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"
}
