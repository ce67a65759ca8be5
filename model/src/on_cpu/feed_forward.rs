//! Feed-forward networks of a step: gated, plain, or a mixture of experts.

use std::ops::Range;

use skein_kernels::collective::Lost;
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::experts::{Choices, add_shared};
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Gated, Write, gated_matmul, grouped_gated_matmul, grouped_matmul, matmul};
use skein_kernels::cpu::mlp::{activate_into, glu};
use skein_kernels::cpu::norm::{rms_norm, rms_norm_add};
use skein_kernels::cpu::packed::Order;
use skein_kernels::cpu::rows::RowsMut;
use skein_kernels::gate::Gate;

use super::adapter::{AdapterRows, ChangedProduct, LayerProduct};
use super::capture::{Capture, Network as Reading, Reader};
use super::exchange::Exchange;
use super::layers::{self, FeedForward, MixtureNorms, NetworkWeights, Norm, Projection};
use super::model::Model;
use crate::spec::{ExpertsSpec, FeedForwardSpec, LayerSpec, Spec};
use crate::tensors::Product;

/// Activations of ungated networks and of experts.
#[derive(Default)]
pub(super) struct Inner {
    /// `[rows, inner]` of an ungated network, or `[pairs, inner]` of ungated experts.
    up: Aligned<f32>,
    /// `[rows, gate | up]`, if an adapter changes one of them or down.
    gate_up: Aligned<f32>,
    /// `[rows, inner]`: input of the down projection, if an adapter changes it.
    exact: Aligned<f32>,
    experts: Experts,
}

/// Activations of experts. A pair is a row and one of its chosen experts.
#[derive(Default)]
struct Experts {
    /// `[rows, hidden]`, normalised, in `f32`: input of the router.
    normalised: Input,
    /// `[rows, hidden]`: the same values, for gathering.
    rows: Aligned<f32>,
    /// Router logits, `[rows, experts]`.
    logits: Aligned<f32>,
    choices: Choices,
    /// Projections that the experts read, and then their sums, `[rows, latent]`, if they read no whole rows.
    latents: Aligned<f32>,
    /// Gathered inputs, `[pairs, width]`.
    input: Input,
    /// Outputs of the experts, `[pairs, width]`.
    outputs: Aligned<f32>,
    /// Sum of the parts' normalised outputs, `[rows, hidden]`, if they have norms.
    total: Aligned<f32>,
}

impl Inner {
    pub fn grow(&mut self, spec: &Spec, rows: usize) {
        let [up, logits, latents, outputs, experts_rows, total] = Self::lens(spec, rows);
        self.up.grow(up);
        self.experts.logits.grow(logits);
        self.experts.latents.grow(latents);
        self.experts.outputs.grow(outputs);
        self.experts.rows.grow(experts_rows);
        self.experts.total.grow(total);
    }

    /// Buffer lengths for steps of `rows` rows: an ungated network's, then experts' logits, latents, outputs
    /// and inputs, and the sum of normalised outputs.
    pub fn lens(spec: &Spec, rows: usize) -> [usize; 6] {
        let plain = spec.layers.iter().map(|layer| layer.feed_forward).filter(|network| !network.is_gated);
        let plain = plain.map(|network| match network.experts {
            None => network.inner_size,
            Some(ExpertsSpec { routing, shared, .. }) => {
                let shared = shared.map_or(0, |shared| shared.inner_size);
                shared.max(routing.per_token * network.inner_size)
            }
        });
        let plain = plain.max().unwrap_or_default();
        let (experts, per_token) = spec.experts();
        let inputs = if experts > 0 { spec.hidden_size } else { 0 };
        let has_own_norms = |layer: &LayerSpec| layer.feed_forward.experts.is_some_and(|it| it.has_own_norms);
        let total = if spec.layers.iter().any(has_own_norms) { spec.hidden_size } else { 0 };
        let latent = |layer: &LayerSpec| layer.feed_forward.experts.and_then(|experts| experts.latent);
        let latents = spec.layers.iter().filter_map(latent).max().unwrap_or_default();
        let outputs = per_token * spec.expert_width();
        [plain, experts, latents, outputs, inputs, total].map(|width| rows * width)
    }

    /// The input of the down projection before it was encoded, `[rows, inner]`, if an adapter changes the
    /// network.
    pub fn exact(&self) -> &[f32] {
        &self.exact
    }

    /// Number of allocated values.
    pub fn len(&self) -> usize {
        let Experts { logits, latents, outputs, rows, total, .. } = &self.experts;
        [&self.up, logits, latents, outputs, rows, total].map(|values| values.len()).iter().sum()
    }
}

/// Memory of a dense network.
pub(super) struct DenseBuffers<'a> {
    /// Input of gate and up, encoded.
    pub input: &'a mut Input,
    /// The same values in `f32`, if an adapter changes the product.
    pub exact: &'a mut Input,
    pub values: &'a mut Inner,
}

/// A layer's feed-forward network, with its input `x` `[rows, hidden]`.
pub(super) struct Network<'a> {
    pub model: &'a Model,
    pub spec: &'a FeedForwardSpec,
    pub norm: Option<&'a Norm>,
    pub x: &'a [f32],
    pub layer: usize,
    pub adapters: &'a AdapterRows,
}

impl Network<'_> {
    /// Sets `inner` to the input of a dense network's down projection, and returns that projection; `None` if
    /// `weights` are experts, or there are none.
    pub fn run_dense<'w>(
        &self,
        cpu: &mut Cpu,
        weights: &'w FeedForward,
        buffers: DenseBuffers<'_>,
        inner: &mut Input,
    ) -> Option<&'w Projection> {
        let is_changed = self.is_changed(LayerProduct::GateUp) || self.is_changed(LayerProduct::Down);
        let DenseBuffers { input, exact, values } = buffers;
        match weights {
            FeedForward::Dense(network) => {
                let encoding = self.model.encoding(&network.inputs(), input);
                self.model.normalise_into(cpu, self.x, self.norm, encoding, input);
                match &network.gate {
                    _ if !is_changed => {
                        run_inner(
                            self.model,
                            cpu,
                            self.spec.activation,
                            network,
                            input,
                            &mut values.up,
                            inner,
                        );
                    }
                    Some(gate) => {
                        self.run_changed(cpu, gate, network, DenseBuffers { input, exact, values }, inner);
                    }
                    None => {
                        self.run_ungated_changed(cpu, network, DenseBuffers { input, exact, values }, inner);
                    }
                }
                Some(&network.down)
            }
            FeedForward::Experts(..) | FeedForward::None => None,
        }
    }

    fn is_changed(&self, product: LayerProduct) -> bool {
        self.adapters.change(ChangedProduct::OfLayer(self.layer, product))
    }

    /// Adds the changes to gate and up to `y`.
    fn change(&self, cpu: &mut Cpu, exact: &mut Input, y: RowsMut<'_>) {
        if self.is_changed(LayerProduct::GateUp) {
            self.model.normalise_into(cpu, self.x, self.norm, Encoding::F32, exact);
            let at = ChangedProduct::OfLayer(self.layer, LayerProduct::GateUp);
            self.adapters.add_to(cpu, at, exact.as_f32(), y);
        }
    }

    /// [`run_inner`] without a gate, with the changes of adapters.
    fn run_ungated_changed(
        &self,
        cpu: &mut Cpu,
        network: &NetworkWeights,
        buffers: DenseBuffers<'_>,
        inner: &mut Input,
    ) {
        let DenseBuffers { input, exact, values: Inner { up, exact: kept, .. } } = buffers;
        let (rows, width) = (self.x.len() / self.model.spec.hidden_size, self.spec.inner_size);
        let encoding = self.model.encoding(&[network.down.linear()], inner);
        let up = &mut up[..rows * width];
        matmul(cpu, input, &[network.up.linear()], up, Write::Set);
        self.change(cpu, exact, RowsMut { values: up, stride: width });
        activate_into(cpu, self.spec.activation, up, width, encoding, inner);
        if self.is_changed(LayerProduct::Down) {
            activate_into(cpu, self.spec.activation, up, width, Encoding::F32, exact);
            kept.grow(rows * width);
            exact.copy_to(&mut kept[..rows * width]);
        }
    }

    /// [`run_inner`] with a gate in steps, with the changes of adapters. Rows without one get the same bits.
    fn run_changed(
        &self,
        cpu: &mut Cpu,
        gate: &Projection,
        network: &NetworkWeights,
        buffers: DenseBuffers<'_>,
        inner: &mut Input,
    ) {
        let DenseBuffers { input, exact, values: buffers } = buffers;
        let NetworkWeights { up, down, .. } = network;
        let (rows, width) = (self.x.len() / self.model.spec.hidden_size, self.spec.inner_size);
        buffers.gate_up.grow(rows * 2 * width);
        buffers.exact.grow(rows * width);
        let gate_up = &mut buffers.gate_up[..rows * 2 * width];
        let values = &mut buffers.exact[..rows * width];
        matmul(cpu, input, &[gate.linear(), up.linear()], gate_up, Write::Set);
        self.change(cpu, exact, RowsMut { values: &mut *gate_up, stride: 2 * width });
        glu(cpu, self.spec.activation, gate_up, width, values);
        let encoding = self.model.encoding(&[down.linear()], inner);
        inner.set(cpu, encoding, values, width);
    }
}

/// Sets `inner` to `activation(gate(input)) * up(input)`, or to `activation(up(input))` without a gate, for
/// which `values` is memory.
fn run_inner(
    model: &Model,
    cpu: &mut Cpu,
    activation: Gate,
    network: &NetworkWeights,
    input: &Input,
    values: &mut [f32],
    inner: &mut Input,
) {
    let (up, encoding) = (network.up.linear(), model.encoding(&[network.down.linear()], inner));
    if let Some(gate) = &network.gate {
        return gated_matmul(cpu, input, Gated { activation, gate: gate.linear(), up }, encoding, inner);
    }
    let width = up.weights.rows();
    let values = &mut values[..input.rows() * width];
    matmul(cpu, input, &[up], values, Write::Set);
    activate_into(cpu, activation, values, width, encoding, inner);
}

/// Mixture of experts of one layer.
pub(super) struct Mixture<'a> {
    pub model: &'a Model,
    pub spec: &'a FeedForwardSpec,
    pub experts: ExpertsSpec,
    pub norm: Option<&'a Norm>,
    /// Norm of the output of a mixture whose parts have norms, too.
    pub output_norm: Option<&'a [f32]>,
    pub weights: &'a layers::Mixture,
}

impl Mixture<'_> {
    /// Adds the experts' outputs to `x` `[rows, hidden]`. The weights of a chosen expert are read once for
    /// all its rows. The router always reads `f32`, because rounding could change the choice. Every rank
    /// makes the choice, computes its own experts, and adds the outputs of all.
    ///
    /// # Errors
    /// If another rank is lost.
    pub fn add(
        &self,
        cpu: &mut Cpu,
        x: &mut [f32],
        inner: &mut Input,
        buffers: &mut Inner,
        capture: &mut Capture,
        exchange: Exchange<'_>,
    ) -> Result<(), Lost> {
        if let Some(norms) = &self.weights.own_norms {
            self.route(cpu, x, Some(&norms.router), buffers, capture);
            let Experts { normalised, choices, .. } = &mut buffers.experts;
            choices.scale(&norms.expert_scales);
            self.model.normalise_into(cpu, x, Some(&norms.expert_inputs), Encoding::F32, normalised);
            self.run_experts(cpu, x.len(), inner, buffers, capture, exchange)?;
            self.add_normalised(cpu, x, norms, inner, buffers);
            return Ok(());
        }
        self.route(cpu, x, self.norm, buffers, capture);
        self.run_experts(cpu, x.len(), inner, buffers, capture, exchange)?;
        self.add_outputs(cpu, x, &mut buffers.experts);
        self.add_shared(cpu, x, inner, buffers, capture);
        Ok(())
    }

    /// Chooses the experts of each row of `x`, and leaves the router's input in `normalised`.
    fn route(
        &self,
        cpu: &mut Cpu,
        x: &[f32],
        norm: Option<&Norm>,
        buffers: &mut Inner,
        capture: &mut Capture,
    ) {
        let Experts { normalised, logits, choices, .. } = &mut buffers.experts;
        let (hidden, ExpertsSpec { count, routing, .. }) = (self.model.spec.hidden_size, self.experts);
        let layers::Mixture { router, correction, .. } = self.weights;
        self.model.normalise_into(cpu, x, norm, Encoding::F32, normalised);
        capture.take(Reader::of_layer(Product::Router), normalised);
        let logits = &mut logits[..x.len() / hidden * count];
        matmul(cpu, normalised, &[router.linear()], logits, Write::Set);
        choices.route(cpu, logits, count, routing, correction.as_deref());
    }

    /// Width of what an expert reads and writes.
    fn width(&self) -> usize {
        self.experts.latent.unwrap_or(self.model.spec.hidden_size)
    }

    /// Adds the sum of the experts' outputs to `x`, projected if they read projections.
    fn add_outputs(&self, cpu: &mut Cpu, x: &mut [f32], buffers: &mut Experts) {
        let Experts { latents, choices, input, outputs, .. } = buffers;
        let width = self.width();
        let outputs = &outputs[..choices.pairs() * width];
        let Some((_, output)) = &self.weights.latent else {
            return choices.add_outputs(cpu, outputs, width, x);
        };
        let sum = &mut latents[..x.len() / self.model.spec.hidden_size * width];
        sum.fill(0.0);
        choices.add_outputs(cpu, outputs, width, sum);
        let encoding = self.model.encoding(&[output.linear()], input);
        input.set(cpu, encoding, sum, width);
        matmul(cpu, input, &[output.linear()], x, Write::Add);
    }

    /// Sets `outputs` to what all ranks' experts make of `normalised`, `values` values, and `rows` to that.
    fn run_experts(
        &self,
        cpu: &mut Cpu,
        values: usize,
        inner: &mut Input,
        buffers: &mut Inner,
        capture: &mut Capture,
        exchange: Exchange<'_>,
    ) -> Result<(), Lost> {
        let Inner { up, experts, .. } = buffers;
        let Experts { normalised, rows, latents, choices, input, outputs, .. } = experts;
        let (hidden, networks, width) = (self.model.spec.hidden_size, &self.weights.networks, self.width());
        let rows = &mut rows[..values];
        normalised.copy_to(rows);
        let read: &[f32] = match &self.weights.latent {
            None => rows,
            Some((latent, _)) => {
                let encoding = self.model.encoding(&[latent.linear()], input);
                input.set(cpu, encoding, rows, hidden);
                let latents = &mut latents[..values / hidden * width];
                matmul(cpu, input, &[latent.linear()], latents, Write::Set);
                latents
            }
        };
        let outputs = &mut outputs[..choices.pairs() * width];
        let own = choices.chosen().filter(|(expert, _)| networks[*expert].is_some());
        let chosen: Vec<(usize, Range<usize>)> = own.collect();
        // A single run, unless other ranks' experts lie between, or the checkpoint stores experts in several
        // types or input orders.
        let joins = |(a, of_a): &(usize, Range<usize>), (b, of_b): &(usize, Range<usize>)| {
            of_a.end == of_b.start && self.reads(*a) == self.reads(*b)
        };
        for run in chosen.chunk_by(joins) {
            let (start, end) = (run[0].1.start, run[run.len() - 1].1.end);
            let (of_run, first) = (choices.rows(start..end), self.network(run[0].0));
            let encoding = self.model.encoding(&first.inputs(), input);
            let of_inner = self.model.encoding(&[first.down.linear()], inner);
            input.fill(cpu, encoding, of_run.len(), width, |i, to| {
                to.copy_from_slice(&read[of_run[i] as usize * width..][..width]);
                let factor = choices.factor(start + i);
                if factor != 1.0 {
                    to.iter_mut().for_each(|to| *to *= factor);
                }
            });
            let place = |pairs: &Range<usize>| pairs.start - start..pairs.end - start;
            let places = || run.iter().map(move |(expert, pairs)| (*expert, place(pairs)));
            capture.take_of_experts(Product::GateUp, input, places());
            if self.spec.is_gated {
                let gated = places().map(|(expert, place)| (place, self.gated(expert)));
                grouped_gated_matmul(cpu, input, &gated.collect::<Vec<_>>(), of_inner, inner);
            } else {
                let ups = places().map(|(expert, place)| (place, self.network(expert).up.linear()));
                let up = &mut up[..(end - start) * self.spec.inner_size];
                grouped_matmul(cpu, input, &ups.collect::<Vec<_>>(), up);
                activate_into(cpu, self.spec.activation, up, self.spec.inner_size, of_inner, inner);
            }
            capture.take_of_experts(Product::Down, inner, places());
            let down = places().map(|(expert, place)| (place, self.network(expert).down.linear()));
            let outputs = &mut outputs[start * width..end * width];
            grouped_matmul(cpu, inner, &down.collect::<Vec<_>>(), outputs);
        }
        let Exchange { shared, ranks } = exchange;
        if ranks.count() > 1 {
            shared.expert_outputs(ranks, &self.model.shard.experts, choices, outputs, width)?;
        }
        Ok(())
    }

    /// Adds the outputs of experts and shared network, each and then their sum normalised, to `x`.
    fn add_normalised(
        &self,
        cpu: &mut Cpu,
        x: &mut [f32],
        norms: &MixtureNorms,
        inner: &mut Input,
        buffers: &mut Inner,
    ) {
        let (Some((network, _)), Some(output_norm)) = (&self.weights.shared, self.output_norm) else {
            return;
        };
        let Inner { up, experts: Experts { rows, choices, input, outputs, total, .. }, .. } = buffers;
        let (hidden, eps) = (self.model.spec.hidden_size, self.model.spec.norm.eps);
        let (sum, total) = (&mut rows[..x.len()], &mut total[..x.len()]);
        sum.fill(0.0);
        choices.add_outputs(cpu, &outputs[..choices.pairs() * hidden], hidden, sum);
        rms_norm(cpu, sum, &norms.expert_outputs, eps, total);
        let encoding = self.model.encoding(&network.inputs(), input);
        self.model.normalise_into(cpu, x, self.norm, encoding, input);
        run_inner(self.model, cpu, self.spec.activation, network, input, up, inner);
        matmul(cpu, inner, &[network.down.linear()], sum, Write::Set);
        rms_norm_add(cpu, sum, &norms.shared_outputs, eps, total);
        rms_norm_add(cpu, total, output_norm, eps, x);
    }

    /// Adds the output of the shared network, if there is one.
    fn add_shared(
        &self,
        cpu: &mut Cpu,
        x: &mut [f32],
        inner: &mut Input,
        buffers: &mut Inner,
        capture: &mut Capture,
    ) {
        let Some((network, router)) = &self.weights.shared else { return };
        let Inner { up, experts: Experts { normalised, rows, logits, input, outputs, .. }, .. } = buffers;
        let (hidden, down) = (self.model.spec.hidden_size, network.down.linear());
        let encoding = self.model.encoding(&network.inputs(), input);
        input.set(cpu, encoding, &rows[..x.len()], hidden);
        run_inner(self.model, cpu, self.spec.activation, network, input, up, inner);
        capture.take(Reader { network: Reading::Shared, product: Product::GateUp }, input);
        capture.take(Reader { network: Reading::Shared, product: Product::Down }, inner);
        let Some(router) = router else { return matmul(cpu, inner, &[down], x, Write::Add) };
        let (logits, outputs) = (&mut logits[..x.len() / hidden], &mut outputs[..x.len()]);
        matmul(cpu, normalised, &[router.linear()], logits, Write::Set);
        matmul(cpu, inner, &[down], outputs, Write::Set);
        add_shared(cpu, outputs, logits, hidden, x);
    }

    /// Network of an expert on this rank.
    fn network(&self, expert: usize) -> &NetworkWeights {
        self.weights.networks[expert].as_ref().expect("only the rank's own experts are computed")
    }

    fn gated(&self, expert: usize) -> Gated<'_> {
        let [gate, up] = self.network(expert).inputs();
        Gated { activation: self.spec.activation, gate, up }
    }

    /// Encoding and order of the inputs of an expert's products: gate and up, then down.
    fn reads(&self, expert: usize) -> [(Encoding, Option<&Order>); 2] {
        let network = self.network(expert);
        let ([gate, up], down) = (network.inputs(), network.down.linear());
        [
            (self.model.encoding_alone(&[gate, up]), gate.weights.order()),
            (self.model.encoding_alone(&[down]), down.weights.order()),
        ]
    }
}
