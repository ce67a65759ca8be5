//! Mixtures of experts on a device: weights, activations, and the operations of a layer.
//!
//! Each expert is whole on one rank, which stacks the weights of its experts of a layer. The router and its
//! weights are f32, on every rank. Rows are sorted by expert on the device, which alone knows the choice, so
//! launches do not depend on it.

use std::ops::Range;

use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::experts::{
    ExpertProducts, ExpertWeight, Join, MAX_EXPERTS, MAX_GROUPS, MAX_PER_TOKEN, Pairs, Route, Router, Sort,
    SortedPairs, Tile, WeighInputs,
};
use skein_kernels::cuda::ops::linear::LinearWeight;
use skein_kernels::cuda::ops::packed::Form;
use skein_kernels::cuda::{CudaError, DeviceSlice, Kernels};

use super::activations::Workspace;
use super::network::Network;
use super::place::{E4m3Scales, Place, place_in, place_of_rows};
use crate::shard::Shard;
use crate::spec::{ExpertsSpec, FeedForwardSpec, LayerSpec, NormKind, SharedSpec, Spec};
use crate::tensors::{Kind, Product, ProductShape, Tensor};

/// Most kernel launches of a mixture besides those of a dense network: router, choice, sort, weighted inputs,
/// two products, sum.
pub(super) const LAUNCHES: usize = 7;

/// Part of a model's mixtures without a kernel, as text for a message.
pub fn part_without_kernel(spec: &Spec) -> Option<&'static str> {
    let mixtures = || spec.layers.iter().filter_map(|layer| layer.feed_forward.experts);
    if mixtures().any(|experts| experts.count > MAX_EXPERTS || experts.routing.per_token > MAX_PER_TOKEN) {
        return Some("more than 512 experts in a layer, or more than 32 of them for a token");
    }
    if mixtures().any(|experts| experts.latent.is_some()) {
        return Some("experts that read a projection of rows");
    }
    if mixtures().any(|experts| experts.routing.groups.is_some_and(|groups| groups.count > MAX_GROUPS)) {
        return Some("more than 32 groups of experts");
    }
    if mixtures().any(|experts| experts.has_bias && experts.shared.is_some_and(|shared| shared.is_weighted)) {
        return Some("a router with biases and a weighted shared network");
    }
    if mixtures().any(|experts| experts.routing.floor > 0.0) {
        return Some("a least sum of the chosen experts' weights (moe_norm_min)");
    }
    if mixtures().any(|experts| experts.routing.added > 0.0) {
        return Some("a constant added to the sum of the chosen experts' weights");
    }
    let is_odd = spec.norm.kind != NormKind::Rms || !spec.norm.place.has_inputs() || spec.is_parallel;
    if is_odd && mixtures().next().is_some() {
        return Some("experts behind another norm than RMS normalisation of their input");
    }
    let has_ungated = spec.layers.iter().any(|layer| {
        let network = &layer.feed_forward;
        network.experts.is_some() && !network.is_gated
    });
    has_ungated.then_some("experts without a gate")
}

/// Widths of a model's feed-forward networks, which are inputs or outputs of products.
pub fn inner_sizes(spec: &Spec) -> impl Iterator<Item = usize> {
    spec.layers.iter().flat_map(|layer| {
        let shared = shared_of(layer).map(|shared| shared.inner_size);
        [Some(layer.feed_forward.inner_size), shared].into_iter().flatten()
    })
}

fn shared_of(layer: &LayerSpec) -> Option<SharedSpec> {
    layer.feed_forward.experts.and_then(|experts| experts.shared)
}

/// Width of the widest network that is computed for all rows: dense or shared.
pub(super) fn widest_for_all(spec: &Spec) -> usize {
    let width = |layer: &LayerSpec| match layer.feed_forward.experts {
        None => layer.feed_forward.inner_size,
        Some(experts) => experts.shared.map_or(0, |shared| shared.inner_size),
    };
    spec.layers.iter().map(width).max().unwrap_or_default()
}

/// `[n, k]` of the matrices of shared networks.
pub fn shared_shapes(spec: &Spec) -> Vec<(usize, usize)> {
    let sizes = spec.layers.iter().filter_map(shared_of).map(|shared| shared.inner_size);
    sizes.flat_map(|inner| [(2 * inner, spec.hidden_size), (spec.hidden_size, inner)]).collect()
}

/// `[n, k]` of the matrices of single experts.
pub fn shapes(spec: &Spec) -> Vec<(usize, usize)> {
    let mixtures = spec.layers.iter().filter(|layer| layer.feed_forward.experts.is_some());
    let sizes = mixtures.map(|layer| layer.feed_forward.inner_size);
    sizes.flat_map(|inner| [(inner, spec.hidden_size), (spec.hidden_size, inner)]).collect()
}

/// Weights of a layer's mixture.
pub struct ExpertWeights<T> {
    /// `[experts, hidden]`, and a row for the weight of the shared network if it has one.
    pub(super) router: DeviceSlice<f32>,
    /// `[experts]`, or [`DeviceSlice::NONE`].
    pub(super) router_bias: DeviceSlice<f32>,
    /// The rank's experts, which have the matrices.
    pub(super) own: Range<usize>,
    pub(super) gate_up: ExpertWeight<T>,
    pub(super) down: ExpertWeight<T>,
    pub(super) shared: Option<SharedWeights<T>>,
}

/// Weights of a shared network.
pub(super) struct SharedWeights<T> {
    pub(super) gate_up: LinearWeight<T>,
    pub(super) down: LinearWeight<T>,
}

impl<T: Activation> ExpertWeights<T> {
    /// Takes memory for a layer's mixture, if it has one.
    pub(super) fn place(
        network: &FeedForwardSpec,
        shard: &Shard,
        hidden: usize,
        form: impl Fn(Network, Product) -> Option<Form>,
        quantised: Option<E4m3Scales>,
        memory: &mut Carver,
    ) -> Option<Self> {
        let ExpertsSpec { count, has_bias, shared, .. } = network.experts?;
        let mut product = |of: Network, product, rows, cols| {
            let has_bias = has_bias && of == Network::Experts;
            // Without leaves: an expert is whole on one rank.
            place_in(form(of, product), ProductShape { rows, cols, has_bias }, 0, quantised, memory)
        };
        let own = shard.own_experts(count);
        let mut of_experts = |of, rows, cols| ExpertWeight {
            experts: own.len(),
            stacked: product(Network::Experts, of, own.len() * rows, cols),
        };
        let inner = network.inner_size;
        let gate_up = of_experts(Product::GateUp, 2 * inner, hidden);
        let down = of_experts(Product::Down, hidden, inner);
        let of_shared = shared.map(|SharedSpec { inner_size, .. }| SharedWeights {
            gate_up: product(Network::Shared, Product::GateUp, 2 * inner_size, hidden),
            down: product(Network::Shared, Product::Down, hidden, inner_size),
        });
        let outputs = count + usize::from(shared.is_some_and(|shared| shared.is_weighted));
        let router = memory.take(outputs * hidden);
        let router_bias = if has_bias { memory.take(count) } else { DeviceSlice::NONE };
        Some(Self { router, router_bias, own, gate_up, down, shared: of_shared })
    }

    /// The place of a tensor of the mixture; `None` for the layer's other tensors.
    pub(super) fn place_of(&self, tensor: &Tensor) -> Option<Place<T>> {
        let rows = |first| first..first + tensor.rows;
        let (product, first) = match tensor.kind {
            Kind::Matrix(product, first) | Kind::Bias(product, first) => (product, first),
            _ => return None,
        };
        let is_bias = matches!(tensor.kind, Kind::Bias(..));
        let weight = match (Network::of(tensor), product) {
            (Network::Layer, _) => return None,
            (Network::Router, _) if is_bias => return Some(Place::Wide(self.router_bias.slice(rows(first)))),
            (Network::Router, _) => {
                let values = first * tensor.cols..(first + tensor.rows) * tensor.cols;
                return Some(Place::Wide(self.router.slice(values)));
            }
            (network, product) => self.matrix(network, product)?,
        };
        Some(if is_bias {
            Place::Values(weight.bias.slice(rows(first)))
        } else {
            place_of_rows(weight, rows(first))
        })
    }

    /// The stacked matrices of a network's product, except for the router.
    pub fn matrix(&self, network: Network, product: Product) -> Option<&LinearWeight<T>> {
        match (network, product) {
            (Network::Experts, Product::Down) => Some(&self.down.stacked),
            (Network::Experts, _) => Some(&self.gate_up.stacked),
            (Network::Shared, Product::Down) => self.shared.as_ref().map(|shared| &shared.down),
            (Network::Shared, _) => self.shared.as_ref().map(|shared| &shared.gate_up),
            (Network::Layer | Network::Router, _) => None,
        }
    }

    /// All matrices except for the router.
    pub fn matrices(&self) -> impl Iterator<Item = &LinearWeight<T>> {
        let shared = self.shared.iter().flat_map(|shared| [&shared.gate_up, &shared.down]);
        [&self.gate_up.stacked, &self.down.stacked].into_iter().chain(shared)
    }

    /// Weights and biases of the router.
    pub fn router(&self) -> (DeviceSlice<f32>, DeviceSlice<f32>) {
        (self.router, self.router_bias)
    }
}

/// Activations of the mixtures for steps of up to a number of rows; empty in models without experts.
#[derive(Debug, Clone, Copy)]
pub struct ExpertActivations<T> {
    /// `[rows, experts]`, and the shared network's logit.
    pub(super) logits: DeviceSlice<f32>,
    /// `[pairs]`: chosen experts of each row.
    pub(super) chosen: DeviceSlice<u32>,
    /// `[pairs]`: their weights.
    pub(super) weights: DeviceSlice<f32>,
    /// `[pairs]`: pairs by expert.
    pub(super) sorted: DeviceSlice<u32>,
    /// Tiles of each expert's pairs.
    pub(super) tiles: DeviceSlice<u32>,
    /// `[pairs, hidden]`: weighted inputs; empty if outputs are weighted.
    pub(super) inputs: DeviceSlice<T>,
    /// `[pairs, inputs]`: inputs in the order of the experts' columns; empty if that is the inputs' order.
    pub(super) ordered: DeviceSlice<T>,
    /// `[pairs, inner]`: gated activations.
    pub(super) inner: DeviceSlice<T>,
    /// `[pairs, hidden]`: outputs of the experts; empty with several ranks.
    pub(super) outputs: DeviceSlice<T>,
    /// `[rows, hidden]`: output of the shared network.
    pub(super) shared: DeviceSlice<T>,
}

impl<T: Activation> ExpertActivations<T> {
    /// Takes memory for steps of up to `rows` rows.
    pub(super) fn place(spec: &Spec, rows: usize, workspace: &Workspace, memory: &mut Carver) -> Self {
        let hidden = spec.hidden_size;
        let most = |size: &dyn Fn(&FeedForwardSpec, Pairs) -> usize| {
            let of = |layer: &LayerSpec| {
                let network = &layer.feed_forward;
                network.experts.map_or(0, |experts| size(network, pairs_of(experts, rows)))
            };
            spec.layers.iter().map(of).max().unwrap_or_default()
        };
        let pairs = most(&|_, pairs| pairs.count());
        let weighs_inputs =
            |network: &FeedForwardSpec| network.experts.is_some_and(|experts| experts.routing.weighs_inputs);
        Self {
            logits: memory.take(most(&|_, pairs| rows * (pairs.experts + 1))),
            chosen: memory.take(pairs),
            weights: memory.take(pairs),
            sorted: memory.take(pairs),
            tiles: memory.take(most(&|_, pairs| SortedPairs::tile_words(pairs, Tile::FEWEST_ROWS))),
            inputs: memory.take(most(&|network, pairs| {
                if weighs_inputs(network) { pairs.count() * hidden } else { 0 }
            })),
            ordered: memory.take(pairs * workspace.ordered_inputs),
            inner: memory.take(most(&|network, pairs| pairs.count() * network.inner_size)),
            outputs: memory.take(if workspace.exchange == 0 { pairs * hidden } else { 0 }),
            shared: memory.take(if spec.layers.iter().any(|layer| shared_of(layer).is_some()) {
                rows * hidden
            } else {
                0
            }),
        }
    }
}

pub(super) fn pairs_of(experts: ExpertsSpec, rows: usize) -> Pairs {
    Pairs { rows, per_token: experts.routing.per_token, experts: experts.count }
}

/// Kernels of mixtures.
pub struct ExpertOps<T> {
    pub(super) router: Router,
    pub(super) route: Route,
    pub(super) sort: Sort,
    pub(super) weigh: WeighInputs<T>,
    pub(super) products: ExpertProducts<T>,
    pub(super) join: Join<T>,
}

impl<T: Activation> ExpertOps<T> {
    /// Looks the kernels up.
    ///
    /// # Errors
    /// If a kernel is missing.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self {
            router: Router::new(kernels)?,
            route: Route::new(kernels)?,
            sort: Sort::new(kernels)?,
            weigh: WeighInputs::new(kernels)?,
            products: ExpertProducts::new(kernels)?,
            join: Join::new(kernels)?,
        })
    }
}
