//! What a model computes of a prompt's rows after the last norm, if it gives vectors instead of logits.

use skein_kernels::gate::Gate;

use super::pooling::PooledRows;

/// The end of a model that pools. Everything is computed in f32.
#[derive(Debug, Clone, PartialEq)]
pub struct PooledHead {
    /// Rows that the vector is made of.
    pub rows: PooledRows,
    /// Layers that change the vector, in order.
    pub layers: Vec<HeadLayer>,
}

/// `norm(activation(weights * x + bias))`
#[derive(Debug, Clone, PartialEq)]
pub struct HeadLayer {
    /// Where the matrix is.
    pub weights: HeadWeights,
    /// Values that it makes.
    pub outputs: usize,
    /// Values that it reads.
    pub inputs: usize,
    /// Name of the bias, if any.
    pub bias: Option<String>,
    /// Function of each value.
    pub activation: HeadActivation,
    /// Layer normalisation at the end.
    pub norm: Option<HeadNorm>,
}

/// Where the matrix of a layer of the head is.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadWeights {
    /// The tensor with this name, `[outputs, inputs]`.
    Matrix(String),
    /// One output from rows of the head of a language model, or of its embedding table if it is tied: the
    /// logit of a token, without that of another.
    Logits {
        /// Names that the head may have; the first that exists is used.
        names: Vec<String>,
        /// Rows of the head.
        vocab_size: usize,
        /// Token whose logit counts.
        token: u32,
        /// Token whose logit is subtracted.
        without: Option<u32>,
    },
}

/// Function of each value of a layer of the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadActivation {
    /// The value itself.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// A function that feed-forward networks have, too.
    Gate(Gate),
}

/// Names of a layer normalisation's tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadNorm {
    /// Name of the weights.
    pub weight: String,
    /// Name of the biases, if any.
    pub bias: Option<String>,
    /// Added to the variance.
    pub eps: f32,
}

impl HeadActivation {
    /// The activation that transformers calls `name`.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "identity" | "linear" => Self::Identity,
            "tanh" => Self::Tanh,
            "gelu" => Self::Gate(Gate::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Self::Gate(Gate::GeluTanh),
            "relu" => Self::Gate(Gate::Relu),
            "silu" | "swish" => Self::Gate(Gate::Silu),
            _ => return None,
        })
    }
}

impl HeadLayer {
    /// A layer of the tensors `name.weight` and, with a bias, `name.bias`.
    pub fn linear(name: &str, inputs: usize, outputs: usize, has_bias: bool) -> Self {
        Self {
            weights: HeadWeights::Matrix(format!("{name}.weight")),
            outputs,
            inputs,
            bias: has_bias.then(|| format!("{name}.bias")),
            activation: HeadActivation::Identity,
            norm: None,
        }
    }

    /// The same with an activation.
    pub fn then(self, activation: HeadActivation) -> Self {
        Self { activation, ..self }
    }
}

impl PooledHead {
    /// Values of the vector, from rows of `hidden` values.
    pub fn width(&self, hidden: usize) -> usize {
        self.layers.last().map_or(hidden, |layer| layer.outputs)
    }
}
