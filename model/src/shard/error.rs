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
    /// The model has fewer layers than there are stages.
    #[error("{stages} stages cannot share this model: it has {layers} layers, and a stage has at least one")]
    Layers {
        /// Number of stages.
        stages: usize,
        /// Number of layers of the model.
        layers: usize,
    },
}
