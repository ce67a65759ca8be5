//! Activation functions of gated feed-forward networks (Shazeer 2020).

/// The function applied to the gate before it is multiplied by the up projection.
///
/// The variants have the order of `cu/gate.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`: SwiGLU.
    Silu,
    /// GELU by tanh, `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))` (Hendrycks & Gimpel 2016),
    /// for GeGLU.
    GeluTanh,
}
