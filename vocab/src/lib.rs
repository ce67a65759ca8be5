//! A model's tokenizer in one form: the content of a tokenizer.json. Directories without that file have a
//! SentencePiece model, vocab.json with merges.txt, tekken.json or a file of tiktoken, and these are
//! converted as transformers 5.24 does, so that they give the same token ids. It encodes nothing, and knows
//! no requests. All bytes are read up to a limit and trusted in nothing.

mod byte_level;
mod class;
mod declared;
mod directory;
mod error;
mod files;
#[cfg(test)]
mod malformed_tests;
mod ranks;
mod sentence_piece;
mod special;
mod tekken;
mod tiktoken;

pub use declared::{Declarations, NAMED, with_special_tokens};
pub use directory::{Converted, OTHERS, TOKENIZER, Vocabulary, identity, look_alikes, tokenizer_json};
pub use error::VocabError;
