//! Runs one step on the device: uploads the message, runs the forward pass, draws, downloads the results.
//! Everything is queued on one stream, so steps take effect in launch order.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use skein_kernels::cuda::arena::Arena;
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::StepKind;
use skein_kernels::cuda::ops::block_copy::{BlockCopies, BlockCopy};
use skein_kernels::cuda::ops::inputs::{ExpandInputs, HEADER_WORDS, Message, TileList};
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::{CudaError, Device, ErrorKind, Graph, Kernels, PinnedBuffer, Stream};
use skein_model::on_cuda::adapter::StepTiles;
use skein_model::on_cuda::cache::{CachePlanes, Planes};
use skein_model::on_cuda::{Activations, LogitRows, Model, StepRows};

use super::adapters::{AdapterSlots, SlotRows, unsupported};
use super::draw::Draw;
use super::error::{failed, failed_on, stopped};
use super::gaps::StepGaps;
use super::graphs::Graphs;
use super::memory::{StepMemory, StepSizes};
use super::pack::{Drawing, Drawn, Pass, copy_waves, fill_masks, pack_pass, pack_rows, passes};
use super::slot::{LaunchedStep, Outputs, Slot};
use super::stage::{Neighbours, Onward, QueueError};
use super::threads::Launcher;
use crate::backend::{BackendError, Batch, BlockCopy as Copy};

/// A model on a device with everything needed to run steps; owned by the launching thread.
pub(super) struct CudaModel<T, K> {
    pub graphs: Graphs,
    /// Graphs of steps in which a row has an adapter.
    pub adapter_graphs: Graphs,
    /// Adapters in the slots of the model.
    pub slots: AdapterSlots,
    pub model: Model<T, K>,
    pub activations: Activations<T>,
    pub memory: StepMemory,
    pub sizes: StepSizes,
    pub draw: Draw,
    pub expand: ExpandInputs,
    pub copy: BlockCopy,
    /// The whole KV cache.
    pub planes: CachePlanes,
    /// Index of the output for each want of the previous step: of a token for a sample, of a score for a
    /// score.
    pub places: Vec<u32>,
    /// An empty message.
    pub empty: PinnedBuffer<u32>,
    pub neighbours: Neighbours,
    pub free: Receiver<Slot>,
    pub give_back: SyncSender<Slot>,
    pub step_timeout: Duration,
    /// Idle times between steps, if they are measured.
    pub gaps: Option<Arc<StepGaps>>,
    /// Steps launched so far.
    pub launched: usize,
    pub stream: Stream,
    /// Captures run beside the work on `stream`.
    pub capture_stream: Stream,
    pub arena: Arena,
    /// Everything above launches them, so they are unloaded last.
    pub _kernels: Arc<Kernels>,
    pub device: Arc<Device>,
}

/// Draws and scores of the passes before.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    samples: usize,
    scores: usize,
}

impl<T: Activation + BlasElement, K: KvElement> Launcher for CudaModel<T, K> {
    type Launched = LaunchedStep;

    fn bind(&self) -> Result<(), BackendError> {
        self.device.bind().map_err(|error| failed(&error))
    }

    fn launch(&mut self, batch: &Batch) -> Result<LaunchedStep, BackendError> {
        // There is one slot more than steps in flight, so none arrives only if the waiting thread has ended.
        let slot = self.free.recv_timeout(self.step_timeout);
        let slot = slot.map_err(|_| stopped("the waiting thread has ended"))?;
        // Only the last stage has logits to draw from.
        let passes = if self.model.ends.is_last { passes(batch, self.sizes.pass)? } else { Vec::new() };
        self.queue(batch, passes, slot).map_err(|error| error.on(&self.device))
    }

    fn use_spare_time(&mut self) -> Result<bool, BackendError> {
        self.capture_next().map_err(|error| failed_on(&self.device, &error))
    }
}

impl<T: Activation + BlasElement, K: KvElement> CudaModel<T, K> {
    fn queue(
        &mut self,
        batch: &Batch,
        mut passes: Vec<Pass>,
        mut slot: Slot,
    ) -> Result<LaunchedStep, QueueError> {
        let (rows, sequences) = (batch.tokens.len(), batch.sequences.len());
        assert!(
            rows <= self.sizes.rows && sequences <= self.sizes.sequences,
            "{rows} rows of {sequences} sequences are within {:?}",
            self.sizes
        );
        let is_decode = batch.has_one_row_each() && passes.len() <= 1;
        if is_decode {
            passes = passes.into_iter().map(Pass::of_all_rows).collect();
        }
        let adapters = self.adapter_rows(batch)?;
        let mut message = Message::new(&mut slot.message);
        pack_rows(&mut message, batch, &self.places);
        let tiles = adapters.tiles();
        if !tiles.is_empty() {
            message.tiles(TileList::Rows, tiles.iter().copied());
        }
        let copies = pack_copies(&mut message, &batch.copies);
        let window_copies = pack_copies(&mut message, &batch.window_copies);
        // A decode step has the logits of all its rows.
        let of_pass = |pass: &Pass| if is_decode { adapters.clone() } else { adapters.among(&pass.rows) };
        let first = passes.first().map(|pass| {
            pack_logit_tiles(&mut message, &of_pass(pass));
            pack_pass(&mut message, batch, pass, &self.places)
        });
        let words = message.len();
        self.receive(rows, &mut slot)?;
        if let Some(gaps) = &self.gaps {
            gaps.start(self.launched, &self.stream)?;
        }
        self.memory.packed.upload(&self.stream, &slot.message, 0..words)?;
        self.copy_blocks(self.planes.main, &copies)?;
        if let Some(windowed) = self.planes.windowed {
            self.copy_blocks(windowed, &window_copies)?;
        }
        if is_decode {
            self.decode(self.graphs.size_for(rows), !adapters.is_empty())?;
        } else {
            self.mixed(rows, sequences, self.step_tiles(tiles.len()))?;
        }
        let outputs = if self.model.ends.is_last {
            self.draw_passes(batch, &passes, &adapters, first, is_decode, &mut slot)?
        } else {
            Outputs::default()
        };
        let onward = self.pass_on(rows, &mut slot)?;
        if let Some(gaps) = &self.gaps {
            gaps.end(self.launched, &self.stream)?;
        }
        slot.mark_end(&self.stream)?;
        let gap = self.gaps.clone().map(|gaps| (gaps, self.launched));
        self.launched += 1;
        let step = LaunchedStep::new(slot, batch, &outputs, self.step_timeout, &self.device, &self.give_back)
            .with_gap(gap)
            .with_onward(onward);
        self.places = outputs.places;
        Ok(step)
    }

    /// The rows of `batch` by the slots of their adapters. Queues the copies of adapters that have none yet.
    fn adapter_rows(&mut self, batch: &Batch) -> Result<SlotRows, QueueError> {
        match &self.model.adapters {
            Some(device) => self.slots.place(&self.stream, device, batch),
            None if batch.sequences.iter().any(|sequence| sequence.adapter.is_some()) => Err(unsupported()),
            None => Ok(SlotRows::default()),
        }
    }

    /// Up to `tiles` tiles of the message; `None` if there are none.
    fn step_tiles(&self, tiles: usize) -> Option<StepTiles> {
        (tiles > 0).then_some(StepTiles { packed: self.memory.packed, tiles })
    }

    /// Waits for the rows of the previous stage, if there is one, and queues their upload.
    fn receive(&mut self, rows: usize, slot: &mut Slot) -> Result<(), QueueError> {
        let Some(before) = &mut self.neighbours.before else { return Ok(()) };
        let residual = self.activations.residual(rows, self.model.spec.hidden_size);
        before.receive(&mut slot.arriving[..residual.len()])?;
        Ok(residual.upload(&self.stream, &slot.arriving, 0..residual.len())?)
    }

    /// Queues the download of the rows for the next stage; returns how to send them.
    fn pass_on(&self, rows: usize, slot: &mut Slot) -> Result<Option<(Onward, usize)>, CudaError> {
        let Some(after) = &self.neighbours.after else { return Ok(None) };
        let residual = self.activations.residual(rows, self.model.spec.hidden_size);
        residual.download(&self.stream, &mut slot.leaving, 0..residual.len())?;
        Ok(Some((after.clone(), residual.len())))
    }

    /// A decode step: one row for each sequence, padded to `size`, in the last stage with the logits of all
    /// rows.
    fn decode(&mut self, size: usize, has_adapters: bool) -> Result<(), CudaError> {
        let graphs = if has_adapters { &self.adapter_graphs } else { &self.graphs };
        match graphs.captured(size) {
            Some(graph) => graph.launch(&self.stream),
            None => self.decode_eagerly(&self.stream, size, has_adapters),
        }
    }

    fn decode_eagerly(&self, stream: &Stream, size: usize, has_adapters: bool) -> Result<(), CudaError> {
        // At worst, every row has an adapter of its own.
        let tiles = self.step_tiles(if has_adapters { size } else { 0 });
        self.forward(stream, size, size, StepKind::Decode, tiles)?;
        if !self.model.ends.is_last {
            return Ok(());
        }
        let of = LogitRows { wanted: None, tiles, rows: size };
        self.model.logits(stream, of, &self.activations, self.memory.logits)
    }

    fn mixed(&self, rows: usize, sequences: usize, tiles: Option<StepTiles>) -> Result<(), CudaError> {
        self.forward(&self.stream, rows, sequences, StepKind::Mixed, tiles)
    }

    fn forward(
        &self,
        stream: &Stream,
        rows: usize,
        sequences: usize,
        kind: StepKind,
        adapters: Option<StepTiles>,
    ) -> Result<(), CudaError> {
        let inputs = self.memory.inputs(rows, sequences);
        self.expand.launch(stream, inputs)?;
        let step = StepRows {
            tokens: inputs.tokens,
            positions: inputs.positions,
            slots: inputs.slots,
            sequences: inputs.sequences,
            windows: inputs.windows,
            kind,
            adapters,
        };
        self.model.forward(stream, &step, &self.activations)
    }

    /// Queues logits, tokens and scores, pass by pass.
    fn draw_passes(
        &self,
        batch: &Batch,
        passes: &[Pass],
        adapters: &SlotRows,
        mut first: Option<Drawing>,
        has_logits: bool,
        slot: &mut Slot,
    ) -> Result<Outputs, CudaError> {
        let mut places = vec![0; batch.wants.len()];
        let (mut closed, mut done) = (Vec::new(), Done::default());
        for pass in passes {
            let drawing = match first.take() {
                Some(drawing) => drawing,
                None => self.next_message(batch, pass, &adapters.among(&pass.rows), slot)?,
            };
            if !has_logits {
                let rows = pass.rows.len();
                let wanted = self.memory.inputs(0, 0).logit_rows;
                let tiles = self.step_tiles(adapters.among(&pass.rows).tiles().len());
                let of = LogitRows { wanted: Some(wanted), tiles, rows };
                self.model.logits(&self.stream, of, &self.activations, self.memory.logits)?;
            }
            // Grammars compute their masks while the device runs the queued forward pass.
            closed.extend(self.send_masks(batch, pass, slot)?);
            self.draw.launch(&self.stream, &self.memory, &drawing, done.samples, done.scores)?;
            self.download(&drawing, done, slot)?;
            // The other draws of a draft follow its first one.
            for (place, drawn) in (done.samples..).zip(&pass.samples).filter(|(_, drawn)| drawn.nth == 0) {
                places[drawn.want] = place as u32;
            }
            for (place, &(_, index)) in (done.scores..).zip(&pass.scores) {
                places[index] = place as u32;
            }
            done = Done { samples: done.samples + drawing.samples, scores: done.scores + drawing.scores };
        }
        Ok(Outputs { places, closed })
    }

    /// Sends a pass's masks. Returns the draws whose grammar allows no token.
    fn send_masks(&self, batch: &Batch, pass: &Pass, slot: &mut Slot) -> Result<Vec<Drawn>, CudaError> {
        let (filled, closed) = fill_masks(batch, pass, self.draw.vocab(), &mut slot.masks);
        if filled > 0 {
            self.memory.masks.upload(&self.stream, &slot.masks, 0..filled)?;
        }
        Ok(closed)
    }

    /// Sends a pass after the first one. Waits until the device has read the slot's previous message.
    fn next_message(
        &self,
        batch: &Batch,
        pass: &Pass,
        adapters: &SlotRows,
        slot: &mut Slot,
    ) -> Result<Drawing, CudaError> {
        self.stream.synchronize()?;
        let mut message = Message::new(&mut slot.message);
        pack_logit_tiles(&mut message, adapters);
        let drawing = pack_pass(&mut message, batch, pass, &self.places);
        let words = message.len();
        self.memory.packed.upload(&self.stream, &slot.message, 0..words)?;
        self.expand.launch(&self.stream, self.memory.inputs(0, 0))?;
        Ok(drawing)
    }

    fn download(&self, drawing: &Drawing, done: Done, slot: &mut Slot) -> Result<(), CudaError> {
        let (stream, memory) = (&self.stream, &self.memory);
        let samples = done.samples..done.samples + drawing.samples;
        if drawing.samples > 0 {
            memory.sampled.slice(samples.clone()).download(stream, &mut slot.tokens, samples.clone())?;
            memory.status.slice(samples.clone()).download(stream, &mut slot.status, samples.clone())?;
        }
        if drawing.has_logprobs {
            memory.drawn_scores.slice(samples.clone()).download(stream, &mut slot.drawn_scores, samples)?;
        }
        if drawing.scores > 0 {
            let scores = done.scores..done.scores + drawing.scores;
            memory.scores.slice(scores.clone()).download(stream, &mut slot.scores, scores)?;
        }
        Ok(())
    }

    /// Copies blocks in these planes. Each wave is (offset of its count in the message, number of pairs).
    fn copy_blocks(&self, of: Planes, waves: &[(usize, usize)]) -> Result<(), CudaError> {
        // Without planes there are blocks of no bytes.
        for &(at, pairs) in waves.iter().filter(|_| of.count > 0) {
            let copies = BlockCopies {
                from: of.planes,
                to: of.planes,
                planes: of.count,
                block_bytes: self.planes.block_bytes,
                pairs: self.memory.packed.slice(at + 1..at + 1 + 2 * pairs),
                count: self.memory.packed.slice(at..at + 1),
            };
            self.copy.launch(&self.stream, copies)?;
        }
        Ok(())
    }

    /// Captures the graph of the next size; false if none is left.
    fn capture_next(&mut self) -> Result<bool, CudaError> {
        // Steps without an adapter come first.
        let of_plain = self.graphs.next_size().map(|size| (size, false));
        let next = of_plain.or_else(|| self.adapter_graphs.next_size().map(|size| (size, true)));
        let Some((size, has_adapters)) = next else { return Ok(false) };
        let graph = match self.capture(size, has_adapters) {
            Ok(graph) => graph,
            Err(error) => return self.after_refused_capture(error),
        };
        let graphs = if has_adapters { &mut self.adapter_graphs } else { &mut self.graphs };
        graphs.put(size, graph);
        if graphs.next_size().is_none() {
            // Synchronise once, so that a device that fails here is detected now and not by the next request.
            self.stream.synchronize()?;
            let usage = self.arena.usage()?;
            tracing::info!(largest = size, %usage, "decode graphs captured");
        }
        Ok(true)
    }

    /// Captures one graph. Before, the same work runs eagerly over zero rows, to do what a capture must not
    /// contain (loading code, choosing algorithms).
    fn capture(&self, size: usize, has_adapters: bool) -> Result<Graph, CudaError> {
        self.memory.packed.upload(&self.stream, &self.empty, 0..HEADER_WORDS)?;
        self.decode_eagerly(&self.stream, size, has_adapters)?;
        let graph = Graph::capture(&self.capture_stream, || {
            self.decode_eagerly(&self.capture_stream, size, has_adapters)
        })?;
        // On the stream that launches it, because nothing else orders an upload before a launch.
        graph.upload(&self.stream)?;
        if self.graphs.is_empty() {
            // Some drivers capture what they then refuse to launch. Rows are still zero.
            graph.launch(&self.stream)?;
        }
        Ok(graph)
    }

    /// Goes on after a capture that failed on a device that still works: first without overlapping launches,
    /// which not every driver captures, then without graphs. Returns whether there is more to capture.
    fn after_refused_capture(&mut self, error: CudaError) -> Result<bool, CudaError> {
        let is_memory = error.kind() == ErrorKind::OutOfMemory;
        if !is_memory && error.kind() != ErrorKind::Invalid {
            return Err(error);
        }
        if self.model.exchange.is_some() {
            // The other ranks have captured, and a group's exchanges are in graphs on all ranks or on none.
            return Err(CudaError::invalid(format!(
                "capturing decode graphs failed: {error}; --enforce-eager serves without them"
            )));
        }
        self.graphs.progress().refuse(error.to_string());
        if !is_memory && self.capture_stream.overlaps() {
            self.capture_stream.forbid_overlaps();
            tracing::warn!(%error, "a decode graph was refused; trying without overlapping launches");
            return Ok(true);
        }
        self.graphs.give_up();
        self.adapter_graphs.give_up();
        tracing::warn!(%error, "decode graphs are refused; decode steps run kernel by kernel, which is slower");
        Ok(false)
    }
}

/// Adds the rows of the logits that have an adapter.
fn pack_logit_tiles(message: &mut Message<'_>, adapters: &SlotRows) {
    let tiles = adapters.tiles();
    if !tiles.is_empty() {
        message.tiles(TileList::Logits, tiles.into_iter());
    }
}

/// Adds the copies to the message. Returns, for each wave, the offset of its count, which its pairs follow,
/// and the number of pairs.
fn pack_copies(message: &mut Message<'_>, copies: &[Copy]) -> Vec<(usize, usize)> {
    let pack = |wave: &[Copy]| {
        let at = message.list(&[wave.len() as u32]) as usize;
        message.list_of(wave.iter().flat_map(|copy| [copy.from.0, copy.to.0]));
        (at, wave.len())
    };
    copy_waves(copies).into_iter().map(pack).collect()
}
