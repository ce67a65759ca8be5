//! What the gate of a feed-forward network goes through (Shazeer 2020).

/// The function of a gate, before it multiplies its up.
///
/// The order is that of `cu/gate.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`: SwiGLU.
    Silu,
    /// GELU by tanh, `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))` (Hendrycks & Gimpel 2016): GeGLU.
    GeluTanh,
}
