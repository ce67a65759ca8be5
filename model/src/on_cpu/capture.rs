//! Keeps the inputs of a step's products, for the calibration of quantisers. Off by default.

use std::collections::BTreeMap;
use std::ops::Range;

use skein_kernels::cpu::input::{Encoding, Input};

use crate::tensors::{Kind, Product, Role, Tensor};

/// A layer's network whose products have inputs of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Network {
    /// Attention, a single feed-forward network, or the router of experts.
    Layer,
    /// An expert, which reads the rows that chose it.
    Expert(usize),
    /// The network beside the experts.
    Shared,
}

/// What reads an input: a product of one network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reader {
    /// Network of the layer.
    pub network: Network,
    /// Its product.
    pub product: Product,
}

impl Reader {
    /// A product of [`Network::Layer`].
    pub fn of_layer(product: Product) -> Self {
        Self { network: Network::Layer, product }
    }

    /// What multiplies with a tensor; `None` if it is not a matrix of a product.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        let Kind::Matrix(product, _) = tensor.kind else { return None };
        let network = match (tensor.expert, tensor.role) {
            (Some(expert), _) => Network::Expert(expert),
            (None, Role::SharedGate | Role::SharedUp | Role::SharedDown) => Network::Shared,
            (None, _) => Network::Layer,
        };
        Some(Self { network, product })
    }
}

/// Rows that a product read.
#[derive(Default)]
struct Captured {
    width: usize,
    rows: Vec<f32>,
}

/// Inputs of the products of the last step.
#[derive(Default)]
pub struct Capture {
    is_on: bool,
    inputs: BTreeMap<Reader, Captured>,
    /// Rows of several experts.
    rows: Vec<f32>,
}

impl Capture {
    /// A capture that is on. Models must then have one layer, whose weights are numbers.
    pub fn on() -> Self {
        Self { is_on: true, ..Self::default() }
    }

    /// Forgets the inputs of the last step.
    pub fn clear(&mut self) {
        self.inputs.values_mut().for_each(|captured| captured.rows.clear());
    }

    /// Keeps `input`, which `reader` is about to read.
    pub(super) fn take(&mut self, reader: Reader, input: &Input) {
        if self.is_on {
            let to = self.inputs.entry(reader).or_default();
            to.width = input.width();
            copy(input, &mut to.rows);
        }
    }

    /// Keeps the rows of `input` that belong to each expert's `product`.
    pub(super) fn take_of_experts(
        &mut self,
        product: Product,
        input: &Input,
        experts: impl Iterator<Item = (usize, Range<usize>)>,
    ) {
        if !self.is_on {
            return;
        }
        copy(input, &mut self.rows);
        let width = input.width();
        for (expert, rows) in experts {
            let reader = Reader { network: Network::Expert(expert), product };
            let to = self.inputs.entry(reader).or_default();
            to.width = width;
            to.rows.extend_from_slice(&self.rows[rows.start * width..rows.end * width]);
        }
    }

    /// What read inputs in the last step: the reader, its rows, and their width.
    pub fn inputs(&self) -> impl Iterator<Item = (Reader, &[f32], usize)> {
        let taken = self.inputs.iter().filter(|(_, captured)| !captured.rows.is_empty());
        taken.map(|(reader, captured)| (*reader, &captured.rows[..], captured.width))
    }
}

fn copy(input: &Input, to: &mut Vec<f32>) {
    assert_eq!(input.encoding(), Encoding::F32, "activations are not rounded");
    to.resize(input.rows() * input.width(), 0.0);
    input.copy_to(to);
}
