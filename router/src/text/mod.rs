//! Text processing in the router: chat template and tokenizer for prompts, incremental detokenizer and stop
//! strings for output. It depends on no transport and no worker. All it reads comes from the model's
//! directory and is data, never code; a chat template runs with limits.

mod bounded_filters;
mod bounded_read;
mod bounded_steps;
mod bounded_tokenizer;
mod bpe;
pub mod chat_template;
pub mod control;
mod deep_stack;
pub mod detokenizer;
mod error;
mod fast_bpe;
pub mod files;
mod generation_defaults;
#[cfg(test)]
mod gguf_tests;
mod growth;
mod known_steps;
mod model;
pub mod model_text;
pub mod probe;
pub mod remainder;
pub mod render_process;
pub mod sources;
pub mod stop;
pub(crate) mod strftime;
mod template_env;
pub mod text_stream;
pub mod tokenizer;
mod tokenizer_file;
mod too_long;
pub(crate) mod work;

pub use error::TextError;
pub use skein_grammar::token_bytes;
