//! Activation functions of feed-forward networks, gated (Shazeer 2020) and ungated.

/// The function applied to the gate before it is multiplied by the up projection, or to that without a gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`: SwiGLU.
    Silu,
    /// GELU by tanh, `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))` (Hendrycks & Gimpel 2016),
    /// for GeGLU.
    GeluTanh,
    /// GELU, `0.5 * x * (1 + erf(x / sqrt(2)))` (Hendrycks & Gimpel 2016). Not on CUDA.
    Gelu,
    /// `max(x, 0)`. Not on CUDA.
    Relu,
    /// `x / (1 + exp(-alpha * x))` of a gate of at most `limit`, times one more than the up projection, which
    /// is clamped to `-limit..=limit`; the unit of GPT-OSS (OpenAI 2025). On CUDA only experts have it.
    Clamped {
        /// Factor of the gate within the exponential.
        alpha: f32,
        /// Largest gate, and largest magnitude of the up projection.
        limit: f32,
    },
    /// `max(x, 0)^2` (So et al. 2021, arXiv 2109.08668). Not on CUDA.
    SquaredRelu,
}

impl Gate {
    /// Number of the function in `cu/gate.cuh`, for networks that are not experts.
    ///
    /// # Panics
    /// If there is no kernel for it; models that need it are refused at start.
    pub fn on_cuda(self) -> u32 {
        match self {
            Self::Silu => 0,
            Self::GeluTanh => 1,
            Self::Clamped { .. } | Self::SquaredRelu | Self::Gelu | Self::Relu => {
                unreachable!("models with activations without a kernel are refused on CUDA")
            }
        }
    }
}
