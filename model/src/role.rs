//! What a tensor is for in a model.

/// Role of a tensor in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named as in the papers
pub enum Role {
    Embedding,
    Positions,
    TokenTypes,
    EmbeddingNorm,
    LayerEmbedding,
    LayerInput,
    LayerInputNorm,
    AttentionNorm,
    Query,
    QueryGate,
    QueryDown,
    QueryUp,
    Latent,
    LatentNorm,
    HeadKey,
    HeadValue,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    Sinks,
    AttentionOutput,
    AttentionOutputNorm,
    StateInputGate,
    StateQuery,
    StateKey,
    StateValue,
    StateGateDown,
    StateGate,
    StateBeta,
    StateDecayDown,
    StateDecay,
    StateTaps,
    StateQueryTaps,
    StateKeyTaps,
    StateValueTaps,
    StateTapsBias,
    StateDecayRate,
    StateDecayBias,
    StateSkip,
    StateNorm,
    StateOutput,
    FeedForwardNorm,
    RouterScale,
    Router,
    Gate,
    Up,
    Down,
    ExpertLatent,
    ExpertLatentOutput,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    RouterCorrection,
    ExpertScales,
    ExpertNorm,
    ExpertOutputNorm,
    SharedGate,
    SharedUp,
    SharedDown,
    SharedRouter,
    SharedOutputNorm,
    FeedForwardOutputNorm,
    LayerInputGate,
    LayerInputOutput,
    LayerInputOutputNorm,
    LayerScale,
    LastNorm,
    Head,
}

impl Role {
    /// Number of roles.
    pub const COUNT: usize = Self::Head as usize + 1;
}

/// Groups of matrices that read the same input. A device may stack them and multiply once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Product {
    /// Query, key, value, and gate of the output; with latent attention the latent, and the query or the
    /// vector it is projected from.
    Qkv,
    /// Output projection of attention or of a state.
    AttentionOutput,
    /// Gate and up projections.
    GateUp,
    /// Down projection of the feed-forward network.
    Down,
    /// Queries from the vector of latent attention.
    QueryUp,
    /// A head's queries in terms of the latent.
    HeadKey,
    /// A head's output from what it attended to.
    HeadValue,
    /// Query, key, value and gate of the output of a layer with a state, or the vector from which the gate is
    /// projected; of a short convolution both gates and the value.
    StateInput,
    /// How much each head of a state corrects and forgets, or the vector from which the decays are projected.
    StateRates,
    /// Gate of a state's output from its vector.
    StateGate,
    /// Decays of a state from their vector.
    StateDecay,
    /// Head, which computes logits.
    Logits,
    /// Choice of experts.
    Router,
    /// What experts read instead of whole rows.
    ExpertLatent,
    /// What the sum of such experts adds to a row.
    ExpertLatentOutput,
    /// Inputs of all layers besides the residual stream, from the embeddings.
    LayerInput,
    /// Gate of a layer's own input.
    LayerInputGate,
    /// What a layer adds for its own input.
    LayerInputOutput,
}

impl Product {
    /// Products of every layer, in the order of a step. Their numbers are their indices here.
    pub const OF_A_LAYER: [Self; 4] = [Self::Qkv, Self::AttentionOutput, Self::GateUp, Self::Down];
    /// The same and then those of latent attention.
    pub const WITH_LATENT: [Self; 7] = [
        Self::Qkv,
        Self::AttentionOutput,
        Self::GateUp,
        Self::Down,
        Self::QueryUp,
        Self::HeadKey,
        Self::HeadValue,
    ];

    /// Whether each head has a matrix of its own.
    pub fn is_of_heads(self) -> bool {
        matches!(self, Self::HeadKey | Self::HeadValue)
    }
}
