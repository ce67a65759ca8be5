//! Text on the router's side: chat template and tokenizer on the way in, incremental detokenizer and stop
//! strings on the way out. It knows no transport and no worker; what it reads comes from the model's directory
//! and is data, never code (a chat template runs under limits).

mod bounded_filters;
pub mod chat_template;
pub mod control;
mod deep_stack;
pub mod detokenizer;
mod generation_defaults;
pub mod model_text;
pub mod probe;
pub mod received;
pub mod sources;
pub mod stop;
mod strftime;
mod template_env;
pub mod text_stream;
pub mod token_bytes;
pub mod tokenizer;

use std::path::PathBuf;

/// Why a model's text files cannot be used. Seen at start, by the operator.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is missing or unreadable.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// There is no tokenizer.json.
    #[error(
        "{} has no tokenizer.json; copy it there from the model's repository, or name the directory that has it: \
         --tokenizer DIR",
        directory.display()
    )]
    NoTokenizer {
        /// Where it was looked for.
        directory: PathBuf,
    },
    /// The tokenizer has tokens that the model does not know.
    #[error(
        "tokenizer.json is another model's: its token ids go up to {largest}, and this model has {vocab_size} \
         (vocab_size in config.json); put the right file there, or name its directory: --tokenizer DIR"
    )]
    OtherModel {
        /// Largest id of its own vocabulary.
        largest: u32,
        /// Tokens of the model.
        vocab_size: u32,
    },
    /// A file is larger than anything real.
    #[error("{} has {bytes} bytes, at most {limit} are read; is it the right file?", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
    /// A file does not hold what its name says.
    #[error("{file} is malformed: {reason}")]
    Malformed {
        /// Its name.
        file: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer works in a way that this release does not know.
    #[error("tokenizer.json: {0} is not supported; byte-level BPE and SentencePiece-style decoders are")]
    UnsupportedDecoder(String),
    /// The chat template does not compile.
    #[error("the chat template does not compile: {0}")]
    Template(String),
}
