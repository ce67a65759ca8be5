//! Text and tokens: chat template and tokenizer for prompts, incremental detokenizer and stop strings for
//! output, and the formats in which families write reasoning and tool calls. It knows no requests, transport
//! or workers. All it reads comes from the model's directory and is data, never code; a chat template runs
//! with limits.

mod bounded_read;
mod bounded_steps;
mod bounded_tokenizer;
mod bpe;
pub mod chat_template;
mod continued;
pub mod control;
mod deep_stack;
pub mod detokenizer;
mod error;
mod fast_bpe;
pub mod files;
pub mod formats;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod generation_defaults;
#[cfg(test)]
mod gguf_tests;
mod growth;
mod jinja;
pub mod kept_ids;
mod known_steps;
mod literal;
mod lost_messages;
mod messages;
mod model;
pub mod model_text;
mod named_templates;
mod pair_form;
pub mod pairs;
pub mod pooled_ids;
pub mod pooled_text;
pub mod probe;
mod refused;
pub mod render_process;
mod rendering;
mod sent_messages;
mod shown_calls;
pub mod sources;
pub mod stop;
pub mod strftime;
mod template_env;
pub mod tokenizer;
mod tokenizer_file;
mod too_long;
mod top_k;
#[cfg(test)]
mod vocabulary_tests;

pub use error::TextError;
pub use refused::{PromptTooLong, TextRefused};
pub use skein_grammar::token_bytes;
pub use top_k::top_k;
