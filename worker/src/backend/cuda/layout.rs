//! Device memory of a rank: sizes, totals and layout. Planning and loading use the same functions, so exactly
//! the planned memory is allocated.

use std::sync::Arc;

use half::{bf16, f16};
use skein_kernels::cuda::arena::{ArenaPlan, Carver, Phase};
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::activation::Activate;
use skein_kernels::cuda::ops::attention::AttentionShape;
use skein_kernels::cuda::ops::embed::Embed;
use skein_kernels::cuda::ops::inputs::GatherRows;
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::ops::linear::{Linear, LinearOptions};
use skein_kernels::cuda::ops::norm::{AddNorm, Formula};
use skein_kernels::cuda::ops::packed::{EmbedPacked, PackedProducts};
use skein_kernels::cuda::ops::rope::{HeadSquares, RopeKvWrite};
use skein_kernels::cuda::ops::softcap::Softcap;
use skein_kernels::cuda::{BlasLt, CudaError, DeviceSlice};
use skein_model::LoadError;
use skein_model::on_cuda::adapter::{DeviceAdapters, SlotLayout};
use skein_model::on_cuda::attention::Windows;
use skein_model::on_cuda::dummy::DummyCodes;
use skein_model::on_cuda::exchange::{Exchange, LargestStep};
use skein_model::on_cuda::experts::{self, ExpertOps};
use skein_model::on_cuda::latent::LatentOps;
use skein_model::on_cuda::place::E4m3Scales;
use skein_model::on_cuda::weights::{self, DeviceWeights};
use skein_model::on_cuda::{self, Activations, Ops, Workspace, cache};
use skein_model::shard::Shard;
use skein_model::spec::{AttentionSpec, NormKind, Spec};
use skein_model::weight_source::WeightSource;

use super::draw::Draw;
use super::error::CudaLoadError;
use super::load_inputs::{LoadInputs, ModelDir, stored};
use super::memory::{StepMemory, StepParts, StepSizes};
use super::options::CudaOptions;
use super::plan::{self, MemoryShare, Needs};
use super::stage::steps_in_flight;
use super::upload::{self, Dtype};
use super::{OpenDevice, graphs, rank};
use crate::backend::kv_division::{KvLimit, WindowedCache};
use crate::backend::{KvBlocks, KvTokenBytes};
use crate::draft::MOST_ROWS;

/// Memory of steps: activations, inputs, draws, and the sums of adapters.
type StepPlaces<T> = (Activations<T>, StepMemory, Draw, Option<DeviceAdapters<T>>);

/// Sizes of a rank, and its operations, which report the sizes of their workspaces.
pub(super) struct Layout<T, K> {
    /// The rank's part of the model.
    pub spec: Spec,
    pub ops: Ops<T, K>,
    pub sizes: StepSizes,
    /// Bytes per KV block in one plane.
    pub block_bytes: usize,
    capacities: Vec<usize>,
    workspace: Workspace,
}

/// Device memory of a rank, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the KV cache.
    pub kv_cache: u64,
    /// Activations, inputs and outputs of the largest step, without the logits.
    pub activations: u64,
    /// Logits of the largest step.
    pub logits: u64,
    /// Slots of adapters.
    pub adapters: u64,
    /// KV cache of a token.
    pub token: KvTokenBytes,
}

/// Memory that each of `shards` would need on a device like `opened`, and the number of KV blocks that fits
/// all of them.
///
/// # Errors
/// If the model is damaged or does not fit the device.
pub fn plan_ranks(
    model: ModelDir<'_>,
    opened: &OpenDevice,
    options: &CudaOptions,
    shards: &[Shard],
) -> Result<(Vec<DeviceBytes>, KvBlocks), CudaLoadError> {
    let mut all = Vec::new();
    for shard in shards {
        let ModelDir { dir, config } = model;
        let (weights, dtype) = stored(dir, config, options)?;
        let (shard, opened) = (shard.clone(), opened.clone());
        let inbox = rank::inbox_bytes(&opened, options, shard.ranks, config.spec.hidden_size);
        let loading = LoadInputs::new(model, shard, weights, opened, options, inbox)?;
        all.push(match (dtype, options.fp8.kv_cache) {
            (Dtype::F16, false) => loading.with_forms::<f16>()?.bytes::<f16, f16>()?,
            (Dtype::F16, true) => loading.with_forms::<f16>()?.bytes::<f16, E4m3>()?,
            (_, false) => loading.with_forms::<bf16>()?.bytes::<bf16, bf16>()?,
            (_, true) => loading.with_forms::<bf16>()?.bytes::<bf16, E4m3>()?,
        });
    }
    // All ranks divide their caches alike.
    let blocks = all.iter().map(|(_, blocks)| *blocks).min_by_key(|kv| kv.blocks).unwrap_or(0.into());
    let with_cache = |((needs, bytes), _): ((Needs, DeviceBytes), KvBlocks)| DeviceBytes {
        kv_cache: needs.kv_bytes(blocks),
        ..bytes
    };
    Ok((all.into_iter().map(with_cache).collect(), blocks))
}

impl LoadInputs<'_> {
    fn positions(&self) -> usize {
        self.options.limits.max_model_len.unwrap_or(self.config.max_position_embeddings) as usize
    }

    /// The same load with the forms of packed matrices, from the checkpoint's headers, or for dummy weights
    /// from its description.
    pub fn with_forms<T: Activation>(mut self) -> Result<Self, LoadError> {
        let (spec, shard) = (&self.config.spec, &self.shard);
        self.forms = match &self.weights {
            Some(weights) => {
                let sources = WeightSource { weights, adapter: self.adapter.as_ref() };
                weights::forms::<T>(spec, shard, sources, self.options.rounded)?
            }
            None => weights::forms_of_dummies::<T>(spec, shard, &self.dummy_codes::<T>()?)?,
        };
        Ok(self)
    }

    /// Codes of dummy weights.
    pub fn dummy_codes<T: Activation>(&self) -> Result<DummyCodes, LoadError> {
        DummyCodes::of(self.dir, T::SUFFIX == "f16", self.options.rounded)
    }

    /// How the layers' matrices are quantised.
    fn quantised(&self) -> Option<E4m3Scales> {
        self.options.fp8.weights.then(|| self.scales())
    }

    /// Computes all sizes.
    pub fn layout<T, K>(&self) -> Result<Layout<T, K>, CudaError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let (whole, shard, limits) = (&self.config.spec, &self.shard, &self.options.limits);
        let spec = shard.spec(whole);
        let drafted = if self.options.verifies() { MOST_ROWS as usize } else { 0 };
        let parts = StepParts { windows: self.window().is_some(), adapters: self.slots.is_some() };
        let sizes = StepSizes::new(limits, self.positions() as u32, drafted, parts);
        let ops = self.ops::<T, K>()?;
        let workspace = Workspace {
            attention: ops.attention.workspace_bytes(sizes.rows, sizes.sequences, self.positions()),
            linear: ops
                .linear
                .workspace_bytes(
                    sizes.rows,
                    &[weights::shapes(whole, shard), experts::shared_shapes(whole)].concat(),
                )
                .max(PackedProducts::<T>::workspace_bytes(
                    sizes.rows.max(sizes.pass.rows),
                    self.forms.ordered_inputs(false),
                )),
            exchange: Exchange::<T>::bytes(
                whole,
                shard,
                LargestStep {
                    rows: sizes.rows,
                    logit_rows: self.logit_rows(&sizes),
                    components: self.slots.as_ref().map_or(0, |slots| slots.max_rank()),
                },
            ),
            ordered_inputs: self.forms.ordered_inputs(true),
        };
        let block_bytes = cache::plane_block_bytes::<K>(&spec, limits.block_size);
        let capacities = if shard.is_last() { graphs::sizes(sizes.pass.rows) } else { Vec::new() };
        Ok(Layout { spec, ops, sizes, block_bytes, capacities, workspace })
    }

    /// Most rows with logits: none before the last stage.
    fn logit_rows(&self, sizes: &StepSizes) -> usize {
        if self.shard.is_last() { sizes.pass.rows } else { 0 }
    }

    /// Tokens that the rank may draw: none before the last stage.
    pub fn drawn_vocab(&self, spec: &Spec) -> usize {
        if self.shard.is_last() { spec.vocab_size as usize } else { 0 }
    }

    /// Allocates the weights and the angles of each rotation.
    pub fn place_always<T: Activation>(
        &self,
        memory: &mut Carver,
    ) -> (DeviceWeights<T>, Vec<DeviceSlice<f32>>) {
        let spec = &self.config.spec;
        let weights = DeviceWeights::<T>::place(spec, &self.shard, &self.forms, self.quantised(), memory);
        let mut angles = |_| memory.take::<f32>(self.positions() * 2 * spec.attention.pairs());
        (weights, spec.rotations.iter().map(&mut angles).collect())
    }

    /// Allocates the memory of steps.
    pub fn place_step<T: Activation, K>(
        &self,
        layout: &Layout<T, K>,
        memory: &mut Carver,
    ) -> Result<StepPlaces<T>, CudaError> {
        let Layout { spec, sizes, capacities, workspace, .. } = layout;
        let vocab = self.drawn_vocab(spec);
        let activations = Activations::place(spec, sizes.rows, self.logit_rows(sizes), *workspace, memory);
        let step = StepMemory::place(*sizes, vocab, memory);
        let draw = Draw::place(&self.opened.kernels, capacities, vocab, memory)?;
        let rows = sizes.rows.max(sizes.pass.rows);
        let place = |slots: &Arc<SlotLayout>| {
            DeviceAdapters::place(&self.opened.kernels, spec, Arc::clone(slots), rows, memory)
        };
        Ok((activations, step, draw, self.slots.as_ref().map(place).transpose()?))
    }

    /// Bytes of all slots of adapters.
    fn adapter_bytes(&self) -> usize {
        let count = self.options.served.map_or(0, |served| served.slots);
        self.slots.as_ref().map_or(0, |layout| count * layout.bytes())
    }

    fn needs<T: Activation, K: KvElement>(&self, layout: &Layout<T, K>) -> Result<Needs, CudaError> {
        let Layout { spec, sizes, .. } = layout;
        let CudaOptions { cuda, limits, .. } = self.options;
        let graphs = if cuda.enforce_eager { 0 } else { graphs::sizes(sizes.sequences).len() };
        let nodes = on_cuda::launches(spec, self.shard.ranks) + self.forms.ordered();
        let changes =
            self.slots.as_ref().map_or(0, |_| on_cuda::launches_of_adapters(spec, self.shard.ranks));
        Ok(Needs {
            weights: plan::count(|memory| {
                self.place_always::<T>(memory);
                Ok(())
            })?,
            step: plan::count(|memory| self.place_step(layout, memory).map(drop))?,
            adapters: self.adapter_bytes(),
            graph_nodes: graphs * (if self.slots.is_some() { 2 } else { 1 }) * nodes + graphs * changes,
            inbox: self.inbox,
            token: cache::token_bytes::<K>(spec),
            block_size: limits.block_size,
            max_model_len: limits.max_model_len,
            ranks: self.shard.ranks,
        })
    }

    /// Window of the layers that have blocks apart.
    fn window(&self) -> Option<u32> {
        let window = self.config.spec.longest_window().filter(|_| self.options.window_blocks);
        WindowedCache::worthwhile(window, self.positions() as u32)
    }

    /// Divides memory for `shared` blocks of all layers, in the same way on all stages.
    fn divide<K: KvElement>(&self, shared: u32) -> KvBlocks {
        let Some(window) = self.window() else { return shared.into() };
        let (config, longest) = (&self.options.limits, self.positions() as u32);
        let Shard { stages, .. } = self.shard;
        let rows = config.max_num_batched_tokens.saturating_mul(steps_in_flight(stages) as u32);
        let whole = &self.config.spec;
        let of_stage = |stage| {
            let shard = self.shard.clone().of_stage(whole, stage, stages).ok()?;
            Some(cache::token_bytes::<K>(&shard.spec(whole)))
        };
        let bytes: Vec<KvTokenBytes> = (0..stages).filter_map(of_stage).collect();
        let cache = WindowedCache { config, window, rows, bytes: &bytes, longest };
        cache.divide(shared, KvLimit::Blocks(shared))
    }

    /// The plan of all memory and the number of KV blocks, on which all ranks `agree`.
    pub fn plan<T: Activation, K: KvElement>(
        &self,
        layout: &Layout<T, K>,
        agree: impl FnOnce(u32) -> Result<u32, CudaLoadError>,
    ) -> Result<(ArenaPlan, KvBlocks), CudaLoadError> {
        let (device, cuda) = (&self.opened.device, &self.options.cuda);
        let share = MemoryShare {
            utilization: cuda.memory_utilization,
            sharers: cuda.sharers,
            kv_bytes: self.options.kv_cache_memory_bytes,
        };
        let mut plan = ArenaPlan::new(device)?;
        if self.quantised().is_some() && self.weights.is_some() {
            let spec = &self.config.spec;
            let of_experts = [experts::shapes(spec), experts::shared_shapes(spec)].concat();
            let bytes = upload::staging_bytes(&[weights::shapes(spec, &self.shard), of_experts].concat());
            plan.add::<u8>(plan::STAGING, bytes, Phase::Load, "do without --quantization");
        }
        let needs = self.needs(layout)?;
        let divide = |shared| self.divide::<K>(shared);
        let kv_blocks = plan::fill(&mut plan, device.memory_bytes, &needs, share, agree, divide)?;
        Ok((plan, kv_blocks))
    }

    /// Needs of the rank, its bytes without the KV cache, and the number of blocks that fit.
    fn bytes<T, K>(&self) -> Result<((Needs, DeviceBytes), KvBlocks), CudaLoadError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let layout = self.layout::<T, K>()?;
        let needs = self.needs(&layout)?;
        let (_, blocks) = self.plan(&layout, Ok)?;
        let logits = layout.sizes.pass.rows * self.drawn_vocab(&layout.spec) * size_of::<f32>();
        let bytes = DeviceBytes {
            weights: needs.weights as u64,
            kv_cache: 0,
            activations: (needs.step - logits) as u64,
            logits: logits as u64,
            adapters: needs.adapters as u64,
            token: needs.token,
        };
        Ok(((needs, bytes), blocks))
    }

    /// Which weights share a scale in e4m3. In default mode cuBLASLt multiplies, which needs one scale per
    /// output.
    fn scales(&self) -> E4m3Scales {
        if self.options.cuda.batch_invariant { E4m3Scales::Leaf } else { E4m3Scales::Output }
    }

    fn ops<T, K>(&self) -> Result<Ops<T, K>, CudaError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let OpenDevice { device, kernels } = &self.opened;
        let batch_invariant = self.options.cuda.batch_invariant;
        let spec = &self.shard.spec(&self.config.spec);
        let AttentionSpec { heads, kv_heads, head_dim, latent, scale, softcap, .. } = spec.attention;
        let shape = AttentionShape {
            heads,
            kv_heads,
            head_dim,
            latent: latent.map(|latent| latent.rank),
            scale,
            window: None,
            is_chunked: false,
            softcap,
            batch_invariant,
        };
        let formula = match spec.norm.kind {
            NormKind::Rms => Formula::Rms,
            NormKind::Layer { .. } => Formula::Layer,
        };
        let blas = BlasLt::open(device)?.map(Arc::new);
        if blas.is_none() {
            tracing::info!("cuBLASLt was not found (libcublasLt.so.13): Skein's own kernels multiply");
        }
        Ok(Ops {
            embed: Embed::new(kernels)?,
            embed_packed: EmbedPacked::new(kernels)?,
            norm: AddNorm::new(kernels, formula)?,
            squares: HeadSquares::new(kernels)?,
            rope: RopeKvWrite::new(kernels)?,
            attention: Windows::new(kernels, shape, &spec.layers)?,
            shared: Linear::new(
                kernels,
                blas.clone().filter(|_| self.shard.ranks == 1),
                LinearOptions { batch_invariant },
            )?,
            latent: latent.map(|_| LatentOps::new(kernels)).transpose()?,
            linear: Linear::new(kernels, blas, LinearOptions { batch_invariant })?,
            activate: Activate::new(kernels)?,
            experts: ExpertOps::new(kernels)?,
            gather: GatherRows::new(kernels)?,
            softcap: Softcap::new(kernels)?,
        })
    }
}
