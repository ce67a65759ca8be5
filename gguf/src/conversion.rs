//! A model in the form of a Hugging Face directory.

use serde_json::{Map, Value as Json};

use crate::model::GgufModel;
use crate::{GgufError, config, tokenizer};

impl GgufModel {
    /// Builds config.json. It includes `eos_token_id`, so no generation_config.json is needed.
    ///
    /// # Errors
    /// If the architecture or a setting is unsupported, or a value has the wrong type.
    pub fn config(&self) -> Result<Map<String, Json>, GgufError> {
        config::config(self)
    }

    /// Builds the content of tokenizer.json.
    ///
    /// # Errors
    /// If the kind of tokenizer is unsupported, or a value has the wrong type.
    pub fn tokenizer(&self) -> Result<Vec<u8>, GgufError> {
        tokenizer::tokenizer(self)
    }

    /// Digest of the metadata from which [`Self::tokenizer`] is built, far cheaper than that. `None` if the
    /// kind of tokenizer is unsupported.
    pub fn tokenizer_digest(&self) -> Option<u64> {
        tokenizer::digest(self)
    }

    /// Builds tokenizer_config.json: special tokens and the chat template.
    pub fn tokenizer_config(&self) -> Json {
        tokenizer::tokenizer_config(self)
    }
}
