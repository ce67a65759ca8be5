//! Networks of a layer.

use crate::tensors::{Role, Tensor};

/// Networks of a layer, whose matrices are stacked separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Network {
    /// Attention, and a network without experts.
    Layer,
    /// Router, and the weight of the shared network.
    Router,
    /// All experts.
    Experts,
    /// Network that all tokens use, beside the experts.
    Shared,
}

impl Network {
    /// The network of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        match tensor.role {
            _ if tensor.expert.is_some() => Self::Experts,
            Role::Router | Role::SharedRouter => Self::Router,
            Role::SharedGate | Role::SharedUp | Role::SharedDown => Self::Shared,
            _ => Self::Layer,
        }
    }
}
