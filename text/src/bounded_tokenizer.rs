//! The library's tokenizer, put together from our parts.

use tokenizers::{DecoderWrapper, PostProcessorWrapper, TokenizerImpl};

use super::bounded_steps::{BoundedNormalizer, BoundedPreTokenizer};
use super::model::WordModel;

/// The library's tokenizer with limits on the growth of text.
pub(super) type BoundedTokenizer =
    TokenizerImpl<WordModel, BoundedNormalizer, BoundedPreTokenizer, PostProcessorWrapper, DecoderWrapper>;
