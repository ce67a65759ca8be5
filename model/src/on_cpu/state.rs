//! Layers with a state: one projection of each row, and the recurrence over the rows of each sequence.

use skein_kernels::cpu::matmul::{Linear, Write, matmul, matmul_rows};
use skein_kernels::cpu::recurrent::{
    ConvolutionWeights, DeltaWeights, StateSpaceWeights, gated_delta, keyed_delta, short_convolution,
    state_space,
};
use skein_kernels::cpu::rows::RowsMut;

use super::capture::Reader;
use super::layers::{Delta, Projection, Rule, Space, State};
use super::profile::Part;
use super::step::{Activations, Running};
use crate::state_spec::StateSpec;
use crate::tensors::Product;

impl Running<'_> {
    /// A state's [`Operations::attention_input`](crate::operations::Operations::attention_input).
    pub(super) fn state_input(&mut self, index: usize, weights: &State) {
        let Self { model, cpu, activations, rows, .. } = self;
        let Activations { x, input, rates: for_rates, qkv, profile, capture, .. } = &mut **activations;
        let (spec, norm) = (&model.spec, model.layers[index].attention_norm.as_ref());
        let Some(state) = &spec.state else { return };
        let width = state.width();
        let x = &x[..*rows * spec.hidden_size];
        let projected = &mut qkv[..*rows * width];
        let all: Vec<Linear<'_>> = weights.inputs.iter().map(Projection::linear).collect();
        let (inputs, rates) = all.split_at(all.len() - weights.rates);
        let encoding = model.encoding(inputs, input);
        model.normalise_into(cpu, x, norm, encoding, input);
        capture.take(Reader::of_layer(Product::StateInput), input);
        profile.mark(Part::Encode);
        let is_one_product = weights.is_one_product && weights.from_vectors.is_none();
        if rates.is_empty() || is_one_product && model.encoding_alone(rates) == encoding {
            matmul(cpu, input, &all, projected, Write::Set);
        } else if *rows > 0 {
            let of_rates = model.encoding(rates, for_rates);
            model.normalise_into(cpu, x, norm, of_rates, for_rates);
            let to_rates = state.channels() + state.value_width();
            let to = RowsMut { values: &mut *projected, stride: width };
            matmul_rows(cpu, input, inputs, to, Write::Set);
            let to = RowsMut { values: &mut projected[to_rates..], stride: width };
            matmul_rows(cpu, for_rates, rates, to, Write::Set);
        }
        if let (Some(from_vectors), StateSpec::KeyedDelta(delta), true) =
            (&weights.from_vectors, state, *rows > 0)
        {
            // Each vector lies where what is projected from it begins.
            let to_gates = state.channels();
            for (of, at) in from_vectors.iter().zip([to_gates, width - state.value_width()]) {
                let stack = [of.linear()];
                let encoding = model.encoding(&stack, input);
                input.fill(cpu, encoding, *rows, delta.head_dim, |row, to| {
                    to.copy_from_slice(&projected[row * width + at..][..delta.head_dim]);
                });
                let to = RowsMut { values: &mut projected[at..], stride: width };
                matmul_rows(cpu, input, &stack, to, Write::Set);
            }
        }
        profile.mark(Part::Products);
    }

    /// A state's [`Operations::attend`](crate::operations::Operations::attend). All rows move their
    /// sequences' states on.
    pub(super) fn run_state(&mut self, index: usize, weights: &State) {
        let Self { model, cpu, step, caches, activations, rows, .. } = self;
        let Activations { qkv, attended, recurrent, profile, .. } = &mut **activations;
        let Some(spec) = model.spec.state else { return };
        let layer = caches.place(index).layer;
        let Some(states) = caches.states() else { unreachable!("the caches of this model have states") };
        let projected = &qkv[..*rows * spec.width()];
        let out = &mut attended[..*rows * spec.value_width()];
        let State { taps, taps_bias: bias, rule, .. } = weights;
        match rule {
            Rule::Delta(Delta { decay_rate, decay_bias, norm }) => {
                let weights = DeltaWeights { taps, decay_rate, decay_bias, norm, eps: model.spec.norm.eps };
                gated_delta(cpu, states, layer, &weights, projected, step.states, out, recurrent);
            }
            Rule::KeyedDelta(Delta { decay_rate, decay_bias, norm }) => {
                let weights = DeltaWeights { taps, decay_rate, decay_bias, norm, eps: model.spec.norm.eps };
                keyed_delta(cpu, states, layer, &weights, projected, step.states, out, recurrent);
            }
            Rule::Space(of) => {
                let Space { decay_rate, time_bias, skip, norm, norm_width, time_limits, eps } = of;
                let (norm_width, time_limits, eps) = (*norm_width, *time_limits, *eps);
                let weights = StateSpaceWeights {
                    taps,
                    bias,
                    decay_rate,
                    time_bias,
                    time_limits,
                    skip,
                    norm,
                    norm_width,
                    eps,
                };
                state_space(cpu, states, layer, &weights, projected, step.states, out, recurrent);
            }
            Rule::Convolution => {
                let weights = ConvolutionWeights { taps, bias };
                short_convolution(cpu, states, layer, &weights, projected, step.states, out, recurrent);
            }
        }
        profile.mark(Part::Attention);
    }
}
