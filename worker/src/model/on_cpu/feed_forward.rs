//! Feed-forward networks of a step: gated, plain, or a mixture of experts.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::experts::Choices;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Gated, Write, gated_matmul, matmul};
use skein_kernels::cpu::mlp::activate_into;

use super::Model;
use super::layers::{FeedForward, GatedNetwork, Norm, Projection};
use crate::model::spec::{ExpertsSpec, FeedForwardSpec, Spec};

/// Activations of networks that are not gated, and of experts.
#[derive(Default)]
pub(super) struct Inner {
    /// `[rows, inner]` of a network without a gate.
    up: Aligned<f32>,
    experts: Experts,
}

/// Activations of experts. A pair is a row and one of its experts.
#[derive(Default)]
struct Experts {
    /// `[rows, hidden]`, normalised, in `f32`: what the router reads.
    normalised: Input,
    /// `[rows, hidden]`: the same, for gathering.
    rows: Aligned<f32>,
    /// `[rows, experts]`
    logits: Aligned<f32>,
    choices: Choices,
    /// `[an expert's rows, hidden]`
    input: Input,
    /// `[pairs, hidden]`
    outputs: Aligned<f32>,
}

impl Inner {
    pub fn grow(&mut self, spec: &Spec, rows: usize) {
        let is_plain = spec.layers.iter().any(|layer| !layer.feed_forward.is_gated);
        self.up.grow(if is_plain { rows * spec.inner_size() } else { 0 });
        let (experts, per_token) = spec.experts();
        self.experts.logits.grow(rows * experts);
        self.experts.outputs.grow(rows * per_token * spec.hidden_size);
        self.experts.rows.grow(if experts > 0 { rows * spec.hidden_size } else { 0 });
    }
}

/// A layer's network, for `x` `[rows, hidden]`.
pub(super) struct Network<'a> {
    pub model: &'a Model,
    pub spec: &'a FeedForwardSpec,
    pub norm: Option<&'a Norm>,
    pub x: &'a [f32],
}

impl Network<'_> {
    /// Sets `inner` to the activations that a dense network's down projection reads, and returns that
    /// projection; `None` if `weights` are experts.
    pub fn run_dense<'w>(
        &self,
        cpu: &mut Cpu,
        weights: &'w FeedForward,
        buffers: (&mut Input, &mut Inner),
        inner: &mut Input,
    ) -> Option<&'w Projection> {
        let (input, Inner { up: values, .. }) = buffers;
        match weights {
            FeedForward::Gated(network) => {
                self.normalise(cpu, network, input);
                gate(self.model, cpu, self.spec, network, input, inner);
                Some(&network.down)
            }
            FeedForward::Plain(up, down) => {
                let (stack, rows) = ([up.linear()], self.x.len() / self.model.spec.hidden_size);
                let encoding = self.model.encoding(&stack, input);
                self.model.normalise_into(cpu, self.x, self.norm, encoding, input);
                let (width, encoding) = (self.spec.inner_size, self.model.encoding(&[down.linear()], inner));
                let values = &mut values[..rows * width];
                matmul(cpu, input, &stack, values, Write::Set);
                activate_into(cpu, self.spec.activation, values, width, encoding, inner);
                Some(down)
            }
            FeedForward::Experts(..) => None,
        }
    }

    fn normalise(&self, cpu: &mut Cpu, network: &GatedNetwork, input: &mut Input) {
        let encoding = self.model.encoding(&[network.gate.linear(), network.up.linear()], input);
        self.model.normalise_into(cpu, self.x, self.norm, encoding, input);
    }
}

/// Sets `inner` to `activation(gate(input)) * up(input)`.
fn gate(
    model: &Model,
    cpu: &mut Cpu,
    spec: &FeedForwardSpec,
    network: &GatedNetwork,
    input: &Input,
    inner: &mut Input,
) {
    let GatedNetwork { gate, up, down } = network;
    let gated = Gated { activation: spec.activation, gate: gate.linear(), up: up.linear() };
    let encoding = model.encoding(&[down.linear()], inner);
    gated_matmul(cpu, input, gated, encoding, inner);
}

/// A layer's mixture of experts.
pub(super) struct Mixture<'a> {
    pub model: &'a Model,
    pub spec: &'a FeedForwardSpec,
    pub experts: ExpertsSpec,
    pub norm: Option<&'a Norm>,
    pub router: &'a Projection,
    pub networks: &'a [GatedNetwork],
}

impl Mixture<'_> {
    /// Adds the experts' outputs to `x` `[rows, hidden]`. The weights of a chosen expert are read once, for
    /// all its rows together. The router always reads `f32`: a rounding could change the choice.
    pub fn add(&self, cpu: &mut Cpu, x: &mut [f32], inner: &mut Input, buffers: &mut Inner) {
        let Experts { normalised, rows, logits, choices, input, outputs } = &mut buffers.experts;
        let (hidden, ExpertsSpec { count, routing }) = (self.model.spec.hidden_size, self.experts);
        self.model.normalise_into(cpu, x, self.norm, Encoding::F32, normalised);
        let logits = &mut logits[..x.len() / hidden * count];
        matmul(cpu, normalised, &[self.router.linear()], logits, Write::Set);
        choices.route(cpu, logits, count, routing);
        let rows = &mut rows[..x.len()];
        normalised.copy_to(rows);
        for (expert, pairs) in choices.chosen() {
            let (network, of_expert) = (&self.networks[expert], choices.rows(pairs.clone()));
            let encoding = self.model.encoding(&[network.gate.linear(), network.up.linear()], input);
            input.fill(cpu, encoding, of_expert.len(), hidden, |i, to| {
                to.copy_from_slice(&rows[of_expert[i] as usize * hidden..][..hidden]);
            });
            gate(self.model, cpu, self.spec, network, input, inner);
            let outputs = &mut outputs[pairs.start * hidden..pairs.end * hidden];
            matmul(cpu, inner, &[network.down.linear()], outputs, Write::Set);
        }
        choices.add_outputs(cpu, &outputs[..choices.pairs() * hidden], hidden, x);
    }
}
