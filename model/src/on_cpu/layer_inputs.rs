//! The inputs that layers have besides the residual stream: a looked-up row for each token and layer, and a
//! projection of the token's embedding. All are made at the start of a step. Every rank makes them whole.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::embed::embed;
use skein_kernels::cpu::input::Input;
use skein_kernels::cpu::layer_inputs::{add_looked_up, scale_rows};
use skein_kernels::cpu::matmul::{Write, matmul};
use skein_kernels::cpu::mlp::glu_into;
use skein_kernels::cpu::norm::{rms_norm_add, rms_norm_heads};
use skein_kernels::cpu::rows::Rows;

use super::layers::{Layer, LayerInputTable};
use super::model::Model;
use crate::spec::{LayerInputSpec, Spec};

/// The inputs of a step.
#[derive(Default)]
pub(super) struct LayerInputs {
    /// `[rows, layers * width]`
    values: Aligned<f32>,
    /// What was looked up, likewise.
    looked_up: Aligned<f32>,
    /// `[rows, width]`
    gates: Aligned<f32>,
    /// The same after the gate, encoded.
    gated: Input,
}

impl LayerInputs {
    pub fn grow(&mut self, spec: &Spec, rows: usize) {
        let [values, looked_up, gates] = Self::widths(spec).map(|width| rows * width);
        self.values.grow(values);
        self.looked_up.grow(looked_up);
        self.gates.grow(gates);
    }

    /// Values per row of the buffers.
    pub fn widths(spec: &Spec) -> [usize; 3] {
        let of = |it: LayerInputSpec| [spec.layers.len() * it.width, spec.layers.len() * it.width, it.width];
        spec.layer_inputs.map_or([0; 3], of)
    }

    /// Number of allocated values.
    pub fn len(&self) -> usize {
        [&self.values, &self.looked_up, &self.gates].map(|values| values.len()).iter().sum()
    }

    /// Makes the inputs for `tokens`, whose embeddings are `x`. `input` is memory for these, encoded.
    pub fn make(&mut self, model: &Model, cpu: &mut Cpu, tokens: &[u32], x: &[f32], input: &mut Input) {
        let (Some(LayerInputSpec { width, .. }), Some(weights)) =
            (model.spec.layer_inputs, &model.layer_inputs)
        else {
            return;
        };
        let LayerInputTable { table, projection, norm } = weights;
        let (count, hidden) = (tokens.len() * table.cols(), model.spec.hidden_size);
        let (values, looked_up) = (&mut self.values[..count], &mut self.looked_up[..count]);
        embed(cpu, table, tokens, (width as f32).sqrt(), looked_up);
        let stack = [projection.linear()];
        let encoding = model.encoding(&stack, input);
        input.set(cpu, encoding, x, hidden);
        matmul(cpu, input, &stack, values, Write::Set);
        // The projection has the factor hidden^-0.5 before the norm, which only weighs eps.
        let eps = model.spec.norm.eps * hidden as f32;
        rms_norm_heads(cpu, values, table.cols(), 0..table.cols() / width, norm, eps);
        add_looked_up(cpu, looked_up, table.cols(), std::f32::consts::FRAC_1_SQRT_2, values);
    }

    /// Continues with the rows of `wanted` only, moved to the front by `keep`.
    pub fn keep(&mut self, spec: &Spec, wanted: &[u32], keep: impl Fn(&mut [f32], &[u32], usize)) {
        let [width, ..] = Self::widths(spec);
        if width > 0 {
            keep(&mut self.values, wanted, width);
        }
    }

    /// Ends a layer: adds what it makes of its own input to `x`, and multiplies `x` by its factor. `input`
    /// and `added` are memory for the encoded `x` and for the output, `[rows, hidden]`.
    pub fn end_layer(
        &mut self,
        model: &Model,
        cpu: &mut Cpu,
        layer: usize,
        x: &mut [f32],
        (input, added): (&mut Input, &mut Aligned<f32>),
    ) {
        let Layer { input: weights, scale, .. } = &model.layers[layer];
        let (hidden, eps) = (model.spec.hidden_size, model.spec.norm.eps);
        if let (Some(LayerInputSpec { width, .. }), Some(weights)) = (model.spec.layer_inputs, weights) {
            let (rows, stride) = (x.len() / hidden, model.spec.layers.len() * width);
            let Self { values, gates, gated, .. } = self;
            let (stack, output) = ([weights.gate.linear()], [weights.output.linear()]);
            let encoding = model.encoding(&stack, input);
            input.set(cpu, encoding, x, hidden);
            let gates = &mut gates[..rows * width];
            matmul(cpu, input, &stack, gates, Write::Set);
            let encoding = model.encoding(&output, gated);
            let own = Rows { values: values.get(layer * width..rows * stride).unwrap_or_default(), stride };
            let activation = model.spec.layers[layer].feed_forward.activation;
            glu_into(cpu, activation, (gates, own), width, encoding, gated);
            let added = &mut added[..x.len()];
            matmul(cpu, gated, &output, added, Write::Set);
            rms_norm_add(cpu, added, &weights.norm, eps, x);
        }
        if let Some(scale) = scale {
            scale_rows(cpu, x, hidden, *scale);
        }
    }
}
