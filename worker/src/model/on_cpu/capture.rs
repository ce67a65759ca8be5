//! Keeps the inputs of a step's products, for the calibration of quantisers. Off by default.

use skein_kernels::cpu::input::{Encoding, Input};

use crate::model::tensors::Product;

/// Inputs of the products of the last step.
#[derive(Default)]
pub(crate) struct Capture {
    is_on: bool,
    inputs: Vec<(Product, Vec<f32>)>,
}

impl Capture {
    /// A capture that is on. Models must then have one layer, whose weights are numbers, and no experts.
    pub fn on() -> Self {
        Self { is_on: true, inputs: Vec::new() }
    }

    /// Keeps `input`, which `product` is about to read.
    pub(super) fn take(&mut self, product: Product, input: &Input) {
        if !self.is_on {
            return;
        }
        assert_eq!(input.encoding(), Encoding::F32, "activations are not rounded");
        let at = self.inputs.iter().position(|(known, _)| *known == product).unwrap_or_else(|| {
            self.inputs.push((product, Vec::new()));
            self.inputs.len() - 1
        });
        let values = &mut self.inputs[at].1;
        values.resize(input.rows() * input.width(), 0.0);
        input.copy_to(values);
    }

    /// The inputs `[rows, inputs]` of each product.
    pub fn inputs(&self) -> impl Iterator<Item = (Product, &[f32])> {
        self.inputs.iter().map(|(product, values)| (*product, &values[..]))
    }
}
