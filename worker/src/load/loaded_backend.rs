//! A loaded backend.

use std::sync::Arc;

use skein_grammar::Grammars;
use skein_model::cost::StepCost;
use skein_model::pooling::PoolingSpec;

use crate::TokenId;
use crate::adapters::Adapters;
use crate::backend::Backend;
use crate::backend::cuda::StepGaps;
use crate::config::DeviceKind;
use crate::draft_model::DraftModel;

/// A loaded backend, and what the rest of the worker must know of its model.
pub struct LoadedBackend {
    /// Computes the steps.
    pub backend: Box<dyn Backend>,
    /// Size of the vocabulary; token ids are below it.
    pub vocab_size: u32,
    /// Longest sequence that the model was trained for.
    pub model_len: u32,
    /// Tokens that end a sample unless the request ignores them.
    pub eos_token_ids: Vec<TokenId>,
    /// Device that computes.
    pub device: DeviceKind,
    /// Whether a resumed request continues bit for bit.
    pub resume_exact: bool,
    /// How the model makes a vector of a prompt, if it does that instead of generating tokens.
    pub pooling: Option<PoolingSpec>,
    /// Hash that tells apart models of the same name.
    pub fingerprint: u64,
    /// Least cost of a step.
    pub cost: StepCost,
    /// Compiles grammars; `None` if answers cannot be constrained.
    pub grammars: Option<Arc<Grammars>>,
    /// Idle times of the device between steps, if they are measured.
    pub gaps: Option<Arc<StepGaps>>,
    /// Adapters served beside the model; `None` = not enabled.
    pub adapters: Option<Adapters>,
    /// Smaller model that drafts tokens.
    pub draft_model: Option<DraftModel>,
}

impl LoadedBackend {
    /// Wraps a fake backend, whose tokens depend on no weights.
    pub fn fake(backend: impl Backend + 'static, vocab_size: u32, model_len: u32) -> Self {
        Self {
            backend: Box::new(backend),
            vocab_size,
            model_len,
            eos_token_ids: Vec::new(),
            device: DeviceKind::Fake,
            resume_exact: true,
            pooling: None,
            fingerprint: 0,
            cost: StepCost::default(),
            grammars: None,
            gaps: None,
            adapters: None,
            draft_model: None,
        }
    }
}
