//! The library's tokenizer, put together from our parts, and how it encodes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use skein_proto::TokenId;
use tokenizers::{DecoderWrapper, PostProcessorWrapper, TokenizerImpl};

use super::bounded_steps::{BoundedNormalizer, BoundedPreTokenizer};
use super::growth::{self, TooMuchGrowth};
use super::model::WordModel;
use crate::refused::TextRefused;

/// The library's tokenizer with limits on the growth of text.
pub(super) type BoundedTokenizer =
    TokenizerImpl<WordModel, BoundedNormalizer, BoundedPreTokenizer, PostProcessorWrapper, DecoderWrapper>;

/// Token ids of `text`, which the library may refuse.
pub(super) fn encode(
    tokenizer: &BoundedTokenizer,
    text: &str,
    add_special: bool,
) -> Result<Vec<TokenId>, TextRefused> {
    // Some malformed files make the library panic when they meet certain characters.
    let work = || catch_unwind(AssertUnwindSafe(|| tokenizer.encode_fast(text, add_special)));
    match growth::limited(text.len(), work).map_err(too_much_growth)? {
        Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the tokenizer failed on a prompt");
            Err(TextRefused::Internal)
        }
        Err(_) => {
            tracing::warn!("the tokenizer panicked on a prompt; is its tokenizer.json damaged?");
            Err(TextRefused::Internal)
        }
    }
}

pub(super) fn too_much_growth(error: TooMuchGrowth) -> TextRefused {
    TextRefused::invalid("prompt", format!("This text cannot be tokenized: {error}."))
}
