//! Loads a model directory into a backend: plans and allocates memory, uploads the weights, runs a first
//! step.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use half::{bf16, f16};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::rope::{Rotation, angles};
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::block_copy::BlockCopy;
use skein_kernels::cuda::ops::inputs::{ExpandInputs, HEADER_WORDS};
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::ops::quantize::Quantize;
use skein_kernels::cuda::{CudaError, DeviceSlice, PinnedBuffer, Stream};
use skein_kernels::leaves::MAX_LEAVES;
use skein_model::LoadError;
use skein_model::checkpoint::Weights;
use skein_model::checkpoint::quantised::KvScales;
use skein_model::config::ModelConfig;
use skein_model::on_cuda::Model;
use skein_model::on_cuda::adapter::{SlotForm, SlotLayout};
use skein_model::on_cuda::cache::CachePlanes;
use skein_model::on_cuda::exchange::Exchange;
use skein_model::on_cuda::place::Place;
use skein_model::on_cuda::stage::StageEnds;
use skein_model::on_cuda::weights::TensorCopy;
use skein_model::shard::Shard;
use skein_model::weight_source::WeightSource;
use skein_node::trace::PROCESS;
use skein_proto::sampling::SamplingParams;

use super::OpenDevice;
use super::adapters::AdapterSlots;
use super::dummy;
use super::error::CudaLoadError;
use super::gaps::StepGaps;
use super::graphs::Graphs;
use super::layout::Layout;
use super::load_inputs::{LoadInputs, ModelDir, stored};
use super::memory::most_rows;
use super::options::{CudaOptions, ServedAdapters};
use super::plan;
use super::rank::{Connected, RankLink, StepShape, inbox_bytes};
use super::slot::Slot;
use super::stage::steps_in_flight;
use super::step::CudaModel;
use super::threads::{CudaBackend, InFlight, Launcher};
use super::upload::{CopiedRows, Dtype, Quantiser, Upload};
use super::upload_packed;
use crate::backend::{BackendError, Batch, KvBlocks, SampleRow, Want};

/// Form of adapters on this device for `shard`; `None` unless adapters are served.
///
/// # Errors
/// If the model is damaged.
pub fn slot_form(
    model: ModelDir<'_>,
    shard: &Shard,
    opened: &OpenDevice,
    options: &CudaOptions,
) -> Result<Option<SlotForm>, LoadError> {
    let Some(ServedAdapters { max_rank, .. }) = options.served else { return Ok(None) };
    let ModelDir { dir, config } = model;
    let (_, dtype) = stored(dir, config, options)?;
    let (spec, shard) = (&config.spec, shard.clone());
    let layout = Arc::new(SlotLayout::new(spec, &shard, max_rank));
    Ok(Some(SlotForm { layout, shard, is_f16: dtype == Dtype::F16, device: Arc::clone(&opened.device) }))
}

/// A loaded model whose first step has not run. All ranks of a group run that step together.
pub struct LoadedRank<'a> {
    /// Describes everything except the weights that affects the bits of logits.
    pub arithmetic: String,
    start: Box<dyn FnOnce() -> Result<CudaBackend, CudaLoadError> + 'a>,
}

impl LoadedRank<'_> {
    /// Runs a first step and starts the backend.
    ///
    /// # Errors
    /// If the model is damaged or the device fails.
    pub fn start(self) -> Result<CudaBackend, CudaLoadError> {
        (self.start)()
    }
}

/// Loads the model in `dir` onto `opened`. Also returns a description of everything except the weights that
/// affects the bits of logits. `progress` gets (bytes done, total bytes).
///
/// # Errors
/// If the model is damaged or does not fit the device.
pub fn load(
    dir: &Path,
    config: &ModelConfig,
    opened: OpenDevice,
    options: &CudaOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(CudaBackend, String), CudaLoadError> {
    let mut loaded = load_rank(ModelDir { dir, config }, opened, options, None, progress)?;
    let arithmetic = std::mem::take(&mut loaded.arithmetic);
    Ok((loaded.start()?, arithmetic))
}

/// Loads this process's part of the model in a directory onto `opened`: the whole model, or the shard of a
/// rank, which is then connected to the other ranks.
///
/// # Errors
/// As for [`load`], and if a rank is lost.
pub fn load_rank<'a>(
    model: ModelDir<'a>,
    opened: OpenDevice,
    options: &'a CudaOptions,
    link: Option<RankLink<'_>>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LoadedRank<'a>, CudaLoadError> {
    let ModelDir { dir, config } = model;
    let (weights, dtype) = stored(dir, config, options)?;
    opened.device.limit_waits(options.cuda.step_timeout);
    let shard = link.as_ref().map_or_else(|| Shard::whole(&config.spec), |link| link.shard.clone());
    let shape = StepShape { rows: most_rows(&options.limits) as usize, hidden: config.spec.hidden_size };
    let connected = link.map(|link| link.connect(&opened, &options.cuda, shape)).transpose()?;
    let allocated = connected.as_ref().and_then(|connected| connected.peers.as_ref());
    let inbox = inbox_bytes(&opened, options, shard.ranks, config.spec.hidden_size)
        .saturating_sub(allocated.map_or(0, |peers| peers.bytes()));
    let loading = LoadInputs::new(model, shard, weights, opened, options, inbox)?;
    match (dtype, options.fp8.kv_cache) {
        (Dtype::F16, false) => loading.with_forms::<f16>()?.load::<f16, f16>(connected, progress),
        (Dtype::F16, true) => loading.with_forms::<f16>()?.load::<f16, E4m3>(connected, progress),
        (_, false) => loading.with_forms::<bf16>()?.load::<bf16, bf16>(connected, progress),
        (_, true) => loading.with_forms::<bf16>()?.load::<bf16, E4m3>(connected, progress),
    }
}

impl<'a> LoadInputs<'a> {
    fn load<T, K>(
        self,
        mut connected: Option<Connected<'_>>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<LoadedRank<'a>, CudaLoadError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let arithmetic = self.arithmetic::<T, K>();
        let (mut model, kv_blocks) = self.place::<T, K>(connected.as_mut())?;
        self.noting_faults(|| self.fill(&mut model, progress))?;
        let of_log = arithmetic.clone();
        let start = move || {
            self.noting_faults(|| self.begin(&mut model))?;
            self.report(&model, &of_log, kv_blocks)?;
            let (graphs, gaps) = (model.graphs.progress(), model.gaps.clone());
            let (stages, timeout) = (self.shard.stages, self.options.cuda.step_timeout);
            let backend = CudaBackend::start(model, kv_blocks, stages, timeout, graphs);
            Ok(backend.map_err(LoadError::Thread)?.with_gaps(gaps).verifying(self.options.verifies()))
        };
        Ok(LoadedRank { arithmetic, start: Box::new(start) })
    }

    /// Runs `work`. If its error shows that the device is lost, abandons the device before a model is
    /// dropped, because the drop would wait for a stuck device.
    fn noting_faults(&self, work: impl FnOnce() -> Result<(), CudaLoadError>) -> Result<(), CudaLoadError> {
        work().inspect_err(|error| {
            if let CudaLoadError::Cuda(error) = error {
                self.opened.device.note(error);
            }
        })
    }

    /// Fills the memory of `model`.
    fn fill<T, K>(
        &self,
        model: &mut CudaModel<T, K>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), CudaLoadError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let _loading = tracing::info_span!(target: PROCESS, "load weights").entered();
        match &self.weights {
            Some(weights) => self.upload(model, weights, progress)?,
            None => self.make_up(model, progress)?,
        }
        for (rotation, to) in self.config.spec.rotations.iter().zip(&model.model.angles) {
            upload_angles(rotation, *to, &model.stream)?;
        }
        let expert_ranks = model.model.weights.expert_ranks;
        if !expert_ranks.is_empty() {
            let ranks: Vec<u32> = self.shard.experts.iter().map(|rank| *rank as u32).collect();
            expert_ranks.write(&model.stream, &ranks)?;
        }
        model.draw.clear(&model.stream)?;
        if !model.model.ends.is_first {
            // Padding rows read what no stage has sent.
            let (rows, hidden) = (model.sizes.rows, model.model.spec.hidden_size);
            model.activations.residual(rows, hidden).fill_bytes(&model.stream, 0)?;
        }
        Ok(model.stream.synchronize()?)
    }

    /// Runs a first step. With several ranks, also captures the graphs, because all ranks must do so
    /// together.
    fn begin<T, K>(&self, model: &mut CudaModel<T, K>) -> Result<(), CudaLoadError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let _first = tracing::info_span!(target: PROCESS, "first step").entered();
        let (rows, pass_rows) = (model.sizes.rows, model.sizes.pass.rows);
        model.model.warm_up(&model.stream, rows, pass_rows, &model.activations, model.memory.logits)?;
        self.check(model)?;
        while self.shard.ranks > 1 && model.use_spare_time()? {}
        Ok(())
    }

    /// Logs device, libraries and memory in one line.
    fn report<T, K>(
        &self,
        model: &CudaModel<T, K>,
        arithmetic: &str,
        kv_blocks: KvBlocks,
    ) -> Result<(), CudaError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let (device, ops) = (&model.device, &model.model.ops);
        let (driver, (major, minor)) = (device.driver, device.capability);
        let blas = ops.linear.blas().map_or_else(|| "none".to_owned(), |blas| blas.version().to_string());
        let usage = model.arena.usage()?;
        tracing::info!(
            device = device.name,
            capability = %format_args!("{major}.{minor}"),
            driver = %format_args!("{}.{}", driver / 1000, driver % 1000 / 10),
            kernels = %self.opened.kernels.kernel_source(),
            cublaslt = blas,
            prefill_attention = ops.attention.prefill_name(),
            arithmetic,
            kv_blocks = kv_blocks.blocks,
            window_blocks = kv_blocks.window.map(|window| window.blocks),
            %usage,
            "the model is on the device"
        );
        for error in ops.linear.blas().map(|blas| blas.refusals()).unwrap_or_default() {
            tracing::warn!(%error, "our own kernels compute this product");
        }
        Ok(())
    }

    /// Describes what affects the bits of logits. If they may depend on the batch anyway, the device's
    /// generation is left out: two generations then differ no more than two runs on one device.
    fn arithmetic<T: Activation, K: KvElement>(&self) -> String {
        let cuda = &self.options.cuda;
        let weights = match self.options.rounded {
            Some(format) => format.name(),
            None if self.options.fp8.weights => "e4m3",
            None => T::SUFFIX,
        };
        let (activations, cache) = (<T as Activation>::SUFFIX, <K as KvElement>::SUFFIX);
        let mut arithmetic = format!("cuda {activations} weights {weights} kv {cache}");
        if cuda.batch_invariant {
            let (major, minor) = self.opened.device.capability;
            arithmetic += &format!(" leaves {MAX_LEAVES} invariant sm_{major}{minor}");
        } else if self.options.fp8.weights && self.shard.ranks > 1 {
            // Each rank has its own scales.
            arithmetic += &format!(" ranks {}", self.shard.ranks);
        }
        arithmetic
    }

    /// Scales of each layer's cache: those of the checkpoint for a cache in FP8, except for latents.
    fn kv_scales(&self) -> Result<Vec<KvScales>, LoadError> {
        let layers = self.shard.layers.clone();
        match &self.weights {
            Some(weights) if self.options.fp8.kv_cache && self.config.spec.attention.latent.is_none() => {
                weights.kv_scales(layers)
            }
            _ => Ok(vec![KvScales::NONE; layers.len()]),
        }
    }

    /// Plans and allocates all memory.
    fn place<T, K>(
        &self,
        mut connected: Option<&mut Connected<'_>>,
    ) -> Result<(CudaModel<T, K>, KvBlocks), CudaLoadError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let OpenDevice { device, kernels } = &self.opened;
        let (cuda, limits) = (&self.options.cuda, &self.options.limits);
        let agree = |blocks| match &mut connected {
            None => Ok(blocks),
            Some(connected) => connected.agree(blocks),
        };
        let layout = self.layout::<T, K>()?;
        let (plan, kv_blocks) = self.plan(&layout, agree)?;
        tracing::info!("memory of the device:\n{plan}");
        let arena = plan.allocate()?;

        let (weights, angles) = self.place_always(&mut Carver::new(arena.slice(plan::WEIGHTS)));
        let (activations, mut memory, draw, adapters) =
            self.place_step(&layout, &mut Carver::new(arena.slice(plan::STEP)))?;
        let adapters = adapters.map(|adapters| adapters.with_slots(arena.slice(plan::ADAPTERS)));
        let slots = self.options.served.map_or(0, |served| served.slots);
        let Layout { spec, mut ops, sizes, block_bytes, .. } = layout;
        memory.windows = memory.windows.filter(|_| kv_blocks.window.is_some());
        let planes = CachePlanes::new(&spec, arena.slice(plan::KV), block_bytes, kv_blocks);
        let cache = planes.layers::<K>(&spec, limits.block_size, &self.kv_scales()?)?;
        ops.attention.set_cache(&cache)?;
        let communicator = connected.as_ref().and_then(|connected| connected.communicator.clone());
        let peers = connected.as_ref().and_then(|connected| connected.peers.clone());
        let exchange = communicator
            .map(|communicator| Exchange::new(kernels, communicator, peers, &self.config.spec, &self.shard));
        let (ends, exchange) = (StageEnds::of(&self.shard), exchange.transpose()?);
        let model = Model { spec, weights, cache, angles, ops, exchange, ends, adapters };
        let (stages, vocab) = (self.shard.stages, self.drawn_vocab(&model.spec));
        let at_end = |is_outer: bool| if is_outer { 0 } else { sizes.rows * model.spec.hidden_size };
        let residual = [at_end(ends.is_first), at_end(ends.is_last)];
        let most = steps_in_flight(stages);
        let (give_back, free) = sync_channel(most + 1);
        for _ in 0..=most {
            // The channel has room for all of them.
            let _ = give_back.send(Slot::new(device, &sizes, vocab, residual)?);
        }
        let model = CudaModel {
            graphs: Graphs::new(sizes.sequences, cuda.enforce_eager),
            adapter_graphs: Graphs::new(sizes.sequences, cuda.enforce_eager || slots == 0),
            slots: AdapterSlots::new(slots),
            model,
            activations,
            memory,
            sizes,
            draw,
            expand: ExpandInputs::new(kernels)?,
            copy: BlockCopy::new(kernels)?,
            planes,
            places: Vec::new(),
            empty: PinnedBuffer::new(device, HEADER_WORDS)?,
            neighbours: connected
                .map(|connected| std::mem::take(&mut connected.neighbours))
                .unwrap_or_default(),
            free,
            give_back,
            step_timeout: cuda.step_timeout,
            gaps: if cuda.times_gaps { Some(Arc::new(StepGaps::new(device)?)) } else { None },
            launched: 0,
            stream: Stream::new(device)?,
            capture_stream: Stream::new(device)?,
            arena,
            _kernels: Arc::clone(kernels),
            device: Arc::clone(device),
        };
        Ok((model, kv_blocks))
    }

    /// Fills the weights with random values on the device.
    fn make_up<T, K>(
        &self,
        model: &CudaModel<T, K>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), CudaLoadError>
    where
        T: Activation,
        K: KvElement,
    {
        let is_tied = self.config.spec.is_tied;
        let table = self.dummy_codes::<T>()?.table();
        dummy::fill(&model.model.weights, is_tied, table, &self.opened.kernels, &model.stream)?;
        model.stream.synchronize()?;
        let bytes = model.arena.slice::<u8>(plan::WEIGHTS).len() as u64;
        progress(bytes, bytes);
        Ok(())
    }

    /// Copies the weights to the device.
    fn upload<T, K>(
        &self,
        model: &CudaModel<T, K>,
        weights: &Weights,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), CudaLoadError>
    where
        T: Activation,
        K: KvElement,
    {
        let dtype = if T::SUFFIX == "f16" { Dtype::F16 } else { Dtype::Bf16 };
        let mut upload = Upload::default();
        let sources = WeightSource { weights, adapter: self.adapter.as_ref() };
        for TensorCopy { from, change, to } in
            model.model.weights.sources(&self.config.spec, &self.shard, sources)?
        {
            let from = CopiedRows { from: &from, change: change.as_ref() };
            match to {
                Place::Values(to) => upload.add(from, to.cast(), dtype),
                Place::Wide(to) => upload.add(from, to.cast(), Dtype::F32),
                Place::Quantised { values, scales } => upload.add_quantised(from, values, scales, dtype),
            }
        }
        let threads = match self.options.readers {
            0 => std::thread::available_parallelism().map_or(1, |count| count.get()),
            threads => threads,
        };
        let packed = model.model.weights.packed_sources(
            &self.config.spec,
            &self.shard,
            sources,
            self.options.rounded,
        )?;
        let (mut done, total) = (0, upload.bytes() + upload_packed::bytes(&packed));
        let quantiser = if self.options.fp8.weights {
            let staging = model.arena.slice(plan::STAGING);
            Some(Quantiser { kernel: Quantize::<T>::new(&self.opened.kernels)?, staging })
        } else {
            None
        };
        let mut more = |more| {
            done += more;
            progress(done, total);
        };
        upload.run(&self.opened.device, threads, quantiser, &mut more)?;
        upload_packed::run(&packed, &self.opened.device, threads, &mut more)
    }

    /// Runs one step over token 0. If its logits are not finite, no request's would be.
    fn check<T, K>(&self, model: &mut CudaModel<T, K>) -> Result<(), CudaLoadError>
    where
        T: Activation + BlasElement,
        K: KvElement,
    {
        let sample = SampleRow {
            row: 0,
            params: Arc::new(SamplingParams::default()),
            sample_index: 0,
            position: 1,
            forbid_stop: false,
            history: 0..0,
            prompt_len: 1,
            mask: None,
        };
        let mut batch = Batch::of_one_row(vec![Want::Sample(sample)]);
        if model.memory.windows.is_some() {
            (batch.window_slots, batch.window_tables) = (batch.slots.clone(), batch.block_tables.clone());
        }
        match model.launch(&batch)?.finish() {
            Ok(_) => Ok(()),
            Err(BackendError::NotFinite { .. }) => {
                Err(LoadError::NotFinite { dir: self.dir.to_owned() }.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes `[positions, cos | sin]`, bit-equal to the CPU backend's.
fn upload_angles(rotation: &Rotation, to: DeviceSlice<f32>, stream: &Stream) -> Result<(), CudaError> {
    let half = rotation.frequencies.len();
    let positions: Vec<u32> = (0..(to.len() / (2 * half)) as u32).collect();
    let (mut cos, mut sin) = (vec![0.0; positions.len() * half], vec![0.0; positions.len() * half]);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    angles(&mut Cpu::new(threads), rotation, &positions, &mut cos, &mut sin);
    let rows = cos.chunks_exact(half).zip(sin.chunks_exact(half));
    let table: Vec<f32> = rows.flat_map(|(cos, sin)| cos.iter().chain(sin).copied()).collect();
    to.write(stream, &table)
}
