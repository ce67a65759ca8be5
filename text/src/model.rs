//! The step of a tokenizer that turns words into tokens.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skein_proto::TokenId;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, ModelWrapper, Token};

use super::bpe::Bpe;

/// A model, for the library's other steps. Clones share its tables.
#[derive(Debug, Clone)]
pub enum WordModel {
    /// Our own.
    Bpe(Arc<Bpe>),
    /// The library's.
    Library(Arc<ModelWrapper>),
}

impl Model for WordModel {
    type Trainer = TrainerWrapper;

    /// Without the tokens' texts and places; only ids are read.
    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Self::Bpe(bpe) => {
                Ok(bpe.encode(word).into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect())
            }
            Self::Library(model) => model.tokenize(word),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<TokenId> {
        match self {
            Self::Bpe(bpe) => bpe.id_of(token),
            Self::Library(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: TokenId) -> Option<String> {
        match self {
            Self::Bpe(bpe) => bpe.text_of(id).map(str::to_owned),
            Self::Library(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, TokenId> {
        match self {
            Self::Bpe(bpe) => bpe.tokens().map(|(text, id)| (text.to_owned(), id)).collect(),
            Self::Library(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Bpe(bpe) => bpe.vocab_size(),
            Self::Library(model) => model.get_vocab_size(),
        }
    }

    /// Never called: tokenizers are not written.
    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a served tokenizer is not saved".into())
    }

    /// Never called: tokenizers are not trained.
    fn get_trainer(&self) -> TrainerWrapper {
        BpeTrainer::default().into()
    }
}
