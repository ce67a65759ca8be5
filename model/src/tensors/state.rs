//! Lists the tensors of a layer with a state.

use super::list::{List, Part};
use super::{Kind, Product, Role, Tensor};
use crate::state_spec::{ConvolutionSpec, DeltaSpec, KeyedDeltaSpec, SpaceSpec, StateSpec, StoredState};

impl List<'_> {
    /// Tensors of a layer with a state.
    pub fn state(&mut self, state: &StateSpec) {
        let hidden = self.spec.hidden_size;
        if self.spec.norm.place.has_inputs() {
            self.norm(Role::AttentionNorm, hidden);
        }
        match state {
            StateSpec::Delta(delta) => self.delta(state, delta),
            StateSpec::KeyedDelta(delta) => self.keyed_delta(delta),
            StateSpec::Space(space) => self.space(state, space),
            StateSpec::Convolution(convolution) => self.convolution(state, convolution),
        }
        if self.spec.norm.place.has_outputs() {
            self.norm(Role::AttentionOutputNorm, hidden);
        }
    }

    fn delta(&mut self, state: &StateSpec, delta: &DeltaSpec) {
        let (keys, values) = (delta.key_width(), delta.value_width());
        let StoredState { has_grouped_inputs, has_grouped_rates, .. } = delta.stored;
        let grouped = |is_grouped: bool, part: Part| {
            if is_grouped { part.grouped(delta.key_heads) } else { part }
        };
        let first = self.tensors.len();
        let inputs = [
            Part::new(Role::StateQuery, keys),
            Part::new(Role::StateKey, keys),
            Part::new(Role::StateValue, values),
            Part::new(Role::StateGate, values),
        ];
        let inputs = inputs.map(|part| grouped(has_grouped_inputs, part));
        self.product(Product::StateInput, &inputs, self.spec.hidden_size, false);
        let rates = [Role::StateBeta, Role::StateDecay].map(|role| Part::new(role, delta.value_heads));
        let rates = rates.map(|part| grouped(has_grouped_rates, part));
        self.product(Product::StateRates, &rates, self.spec.hidden_size, false);
        self.taps(state, false);
        for role in [Role::StateDecayRate, Role::StateDecayBias] {
            self.add(Part::new(role, delta.value_heads), Kind::Values, 1, &[]);
        }
        self.add(Part::new(Role::StateNorm, delta.value_dim), Kind::Norm, 1, &[]);
        self.state_output(values, false);
        self.tensors[first..].iter_mut().for_each(|tensor| in_stored_order(delta, tensor));
    }

    fn keyed_delta(&mut self, delta: &KeyedDeltaSpec) {
        let KeyedDeltaSpec { heads, head_dim, taps, .. } = *delta;
        let (hidden, all) = (self.spec.hidden_size, heads * head_dim);
        let inputs = [Role::StateQuery, Role::StateKey, Role::StateValue].map(|role| Part::new(role, all));
        let [query, key, value] = inputs;
        let inputs = [query, key, value, Part::new(Role::StateGateDown, head_dim)];
        self.product(Product::StateInput, &inputs, hidden, false);
        let rates = [Part::new(Role::StateBeta, heads), Part::new(Role::StateDecayDown, head_dim)];
        self.product(Product::StateRates, &rates, hidden, false);
        self.product(Product::StateGate, &[Part::new(Role::StateGate, all)], head_dim, false);
        self.product(Product::StateDecay, &[Part::new(Role::StateDecay, all)], head_dim, false);
        for role in [Role::StateQueryTaps, Role::StateKeyTaps, Role::StateValueTaps] {
            self.add(Part::new(role, all * taps), Kind::Values, 1, &[]);
            self.or_of_shapes(&[vec![all, 1, taps], vec![all, taps], vec![1, all, 1, taps]]);
        }
        self.add(Part::new(Role::StateDecayRate, heads), Kind::Values, 1, &[]);
        self.or_of_shapes(&[vec![1, 1, heads, 1], vec![heads], vec![heads, 1]]);
        self.add(Part::new(Role::StateDecayBias, all), Kind::Values, 1, &[]);
        self.add(Part::new(Role::StateNorm, head_dim), Kind::Norm, 1, &[]);
        self.state_output(all, false);
    }

    fn space(&mut self, state: &StateSpec, space: &SpaceSpec) {
        let SpaceSpec { groups, heads, state_dim, has_taps_bias, .. } = *space;
        let values = state.value_width();
        let inputs = [
            (Role::StateGate, values),
            (Role::StateValue, values),
            (Role::StateKey, groups * state_dim),
            (Role::StateQuery, groups * state_dim),
            (Role::StateDecay, heads),
        ];
        // One stored tensor, whose last rows are the logits of time, a product of their own.
        let inputs = inputs.map(|(role, rows)| Part::new(role, rows));
        let mut first = 0;
        for (part, (role, rows)) in inputs.into_iter().zip(inputs.map(|part| part.size())) {
            let kind = match role {
                Role::StateDecay => Kind::Matrix(Product::StateRates, 0),
                _ => Kind::Matrix(Product::StateInput, first),
            };
            self.add(part, kind, self.spec.hidden_size, &inputs);
            first += rows;
        }
        self.taps(state, has_taps_bias);
        // GGUF files have some of these vectors as matrices.
        for role in [Role::StateDecayRate, Role::StateDecayBias, Role::StateSkip] {
            self.add(Part::new(role, heads), Kind::Values, 1, &[]);
            self.or_of_shapes(&[vec![heads], vec![heads, 1]]);
        }
        self.add(Part::new(Role::StateNorm, values), Kind::Norm, 1, &[]);
        self.or_of_shapes(&[vec![values], vec![groups, values / groups]]);
        self.state_output(values, false);
    }

    fn convolution(&mut self, state: &StateSpec, convolution: &ConvolutionSpec) {
        let ConvolutionSpec { channels, has_bias, .. } = *convolution;
        let inputs = [Role::StateInputGate, Role::StateGate, Role::StateValue];
        let inputs = inputs.map(|role| Part::new(role, channels));
        self.product(Product::StateInput, &inputs, self.spec.hidden_size, has_bias);
        self.taps(state, has_bias);
        self.state_output(channels, has_bias);
    }

    /// The convolution.
    fn taps(&mut self, state: &StateSpec, has_bias: bool) {
        let (channels, taps) = (state.channels(), state.taps());
        self.add(Part::new(Role::StateTaps, channels * taps), Kind::Values, 1, &[]);
        self.or_of_shapes(&[vec![channels, 1, taps], vec![channels, taps]]);
        if has_bias {
            self.add(Part::new(Role::StateTapsBias, channels), Kind::Values, 1, &[]);
        }
    }

    fn state_output(&mut self, inputs: usize, has_bias: bool) {
        let output = [Part::new(Role::StateOutput, self.spec.hidden_size)];
        self.product(Product::AttentionOutput, &output, inputs, has_bias);
    }
}

/// Sets where the checkpoint has the value heads of a delta network's `tensor`.
fn in_stored_order(delta: &DeltaSpec, tensor: &mut Tensor) {
    let before = 2 * delta.key_width() * delta.taps;
    match tensor.role {
        Role::StateValue | Role::StateGate => tensor.order = delta.stored_order(0, delta.value_dim),
        Role::StateTaps => tensor.order = delta.stored_order(before, delta.value_dim * delta.taps),
        Role::StateBeta | Role::StateDecay | Role::StateDecayRate | Role::StateDecayBias => {
            tensor.order = delta.stored_order(0, 1);
        }
        Role::StateOutput => tensor.input_order = delta.stored_order(0, delta.value_dim),
        _ => {}
    }
}
