//! Why a model cannot be divided.

/// Why a model cannot be divided as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Indivisible {
    /// A product has fewer leaves than there are ranks.
    #[error(
        "{ranks} ranks cannot share this model: {tensor} sums {inputs} inputs in {leaves} leaves, so it can have 1 to \
         {leaves} ranks, a power of two"
    )]
    Leaves {
        /// Number of ranks.
        ranks: usize,
        /// Product with the fewest leaves.
        tensor: String,
        /// Number of inputs of the product.
        inputs: usize,
        /// Number of leaves of the product.
        leaves: usize,
    },
    /// The units of the states are not divisible by the number of ranks.
    #[error(
        "{ranks} ranks cannot share this model: the states of its layers have {units} {what}, each of which is normalised \
         or read as a whole, so the number of ranks must be a divisor of {units}; other processes can take some of its \
         layers instead (--pipeline-parallel-size)"
    )]
    StateUnits {
        /// Number of ranks.
        ranks: usize,
        /// Units of a layer's state.
        units: usize,
        /// What these are.
        what: &'static str,
    },
    /// The checkpoint has the value heads of states in an order that cannot be divided.
    #[error(
        "{ranks} ranks cannot share this file: it has the value heads of its states in llama.cpp's order, in which those of \
         a rank are apart; divide its layers instead (--pipeline-parallel-size), or serve the model in safetensors"
    )]
    TiledStates {
        /// Number of ranks.
        ranks: usize,
    },
    /// Layers have inputs of their own, made from the embeddings.
    #[error(
        "{stages} stages cannot share this model: its layers have inputs besides the residual stream, which only the first \
         stage could make"
    )]
    LayerInputs {
        /// Number of stages.
        stages: usize,
    },
    /// A layer reads the keys and values of a layer in another stage.
    #[error(
        "{stages} stages cannot share this model: layer {layer} reads the keys and values of layer {of}, which would be in \
         another stage"
    )]
    SharedCache {
        /// Number of stages.
        stages: usize,
        /// The layer that reads.
        layer: usize,
        /// The layer that it reads from.
        of: usize,
    },
    /// The model has fewer layers than there are stages.
    #[error("{stages} stages cannot share this model: it has {layers} layers, and a stage has at least one")]
    Layers {
        /// Number of stages.
        stages: usize,
        /// Number of layers of the model.
        layers: usize,
    },
}
