//! The run over all layers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde_json::json;
use skein_model::fields::read_object;
use skein_model::on_cpu::Model;
use skein_model::on_cpu::capture::{Network, Reader};
use skein_model::tensors::{Product, Role};
use xxhash_rust::xxh3::Xxh3Default;

use super::encode::{self, Encoded};
use super::layer::Runner;
use super::maths::awq;
use super::maths::gptq::{self, ActOrder, Factored, Settings};
use super::maths::grid::{Quantised, ScaleType, round_to_nearest};
use super::original::{Original, Target};
use super::output::{Output, Tensor};
use super::passes;
use super::scheme::{Layout, Method, Scheme};
use super::smooth::{Scales, Search};
use super::statistics::{Examples, Statistics};
use super::{Phase, Progress, QuantizeError, Report, Request};

/// A run over all layers of a model.
pub(super) struct Job<'a> {
    source: &'a Original,
    scheme: &'a Scheme,
    windows: &'a [Vec<u32>],
    output: Output,
    /// `None` for methods without calibration.
    runner: Option<Runner>,
    /// Most bytes of Hessians in one pass.
    hessian_bytes: u64,
}

/// A layer's statistics, by what reads the inputs.
type OfReaders = HashMap<Reader, Statistics>;

/// Quantised matrices of a layer, each with the target's number.
type Matrices = Vec<Quantised>;

impl<'a> Job<'a> {
    pub fn new(request: &Request<'a>, source: &'a Original) -> Result<Self, QuantizeError> {
        let Request { out, scheme, calibration: windows, hessian_bytes, .. } = *request;
        let is_calibrated = scheme.method.is_calibrated();
        let longest = windows.iter().map(Vec::len).max().unwrap_or_default();
        if is_calibrated && longest == 0 {
            return Err(QuantizeError::Refused("the calibration text has no tokens".into()));
        }
        let vocab = source.spec.vocab_size;
        if let Some(token) = windows.iter().flatten().find(|token| **token >= vocab) {
            return Err(QuantizeError::Refused(format!(
                "the calibration text has token {token}, and the model has {vocab}"
            )));
        }
        let windows = if is_calibrated { windows } else { &[] };
        let plan = json!({
            "source": format!("{:016x}", source.fingerprint()?),
            "scheme": format!("{scheme:?}"),
            "calibration": format!("{:016x}", hash(windows)),
            "version": 1,
        });
        let output = Output::open(out, source.layers() + 1, &plan)?;
        let runner = is_calibrated.then(|| Runner::new(&source.spec, longest)).transpose()?;
        let free = skein_sys::memory_limit::of_this_process().map_or(u64::MAX, |memory| memory.available);
        let hessian_bytes = hessian_bytes.unwrap_or(free / 2);
        if scheme.method == Method::Gptq {
            warn_of_memory(source, hessian_bytes, free)?;
        }
        Ok(Self { source, scheme, windows, output, runner, hessian_bytes })
    }

    /// Quantises all layers that are not finished, and completes the directory.
    pub fn run(mut self, progress: &mut dyn FnMut(Progress)) -> Result<Report, QuantizeError> {
        let layers = self.source.layers();
        let found = (0..layers).filter(|layer| self.output.has(*layer)).count();
        for layer in 0..layers {
            if !self.output.has(layer) {
                self.layer(layer, &mut |phase, done, of| {
                    progress(Progress { layer, layers, phase, done, of })
                })?;
            }
        }
        if !self.output.has(layers) {
            self.output.write(layers, self.stored(None, &HashSet::new())?)?;
        }
        let mut config = read_object(&self.source.dir.join("config.json"))?;
        let kept = self.source.kept_modules()?;
        config.insert("quantization_config".into(), self.scheme.config(&kept));
        self.output.finish(&self.source.dir, &config.into())?;
        let before = self.source.files.file_bytes();
        Ok(Report { layers: layers - found, found, before, after: self.output.bytes() })
    }

    /// Tensors that are copied as they are: those of a layer, or of none, except the written names `without`.
    fn stored(
        &self,
        layer: Option<usize>,
        without: &HashSet<&str>,
    ) -> Result<BTreeMap<String, Tensor<'a>>, QuantizeError> {
        let names =
            self.source.copied(layer).into_iter().filter(|(_, name)| !without.contains(name.as_str()));
        let source = self.source;
        let tensors = names.filter_map(|(stored, name)| {
            let (dtype, shape, bytes) = source.files.slice(&stored)?;
            Some((name, (dtype, shape.to_vec(), bytes)))
        });
        Ok(tensors.collect())
    }

    fn layer(
        &mut self,
        layer: usize,
        progress: &mut dyn FnMut(Phase, usize, usize),
    ) -> Result<(), QuantizeError> {
        let targets = self.source.targets(layer)?;
        let mut encoded = Vec::new();
        match self.scheme.method {
            Method::Rtn | Method::Int8 | Method::Fp8 => {
                for (i, target) in targets.iter().enumerate() {
                    progress(Phase::Quantise, i, targets.len());
                    encoded.extend(self.without_calibration(target)?);
                    self.source.files.release();
                }
            }
            Method::Gptq => {
                let matrices = self.gptq(layer, &targets, progress)?;
                let scales = Scales::default();
                self.propagate(
                    layer,
                    &targets,
                    LayerAsQuantised { matrices: &matrices, scales: &scales },
                    progress,
                )?;
                encoded.extend(self.encode_all(&targets, matrices));
            }
            Method::Awq => {
                let statistics = self.calibrate(layer, |_| true, progress)?;
                report_experts(layer, &targets, &rows_of(&statistics));
                let (matrices, scales) = self.awq(layer, &targets, &statistics, progress)?;
                self.propagate(
                    layer,
                    &targets,
                    LayerAsQuantised { matrices: &matrices, scales: &scales },
                    progress,
                )?;
                encoded.extend(self.encode_all(&targets, matrices));
                encoded.extend(scales.replaced);
            }
        }
        self.write(layer, &targets, &encoded)?;
        if layer > 0 {
            self.output.forget_rows(layer - 1);
        }
        self.output.forget_rows(layer);
        Ok(())
    }

    fn write(&self, layer: usize, targets: &[Target], encoded: &[Encoded]) -> Result<(), QuantizeError> {
        let replaced = targets.iter().map(|target| target.name.as_str());
        let without: HashSet<&str> = replaced.chain(encoded.iter().map(|it| it.name.as_str())).collect();
        let mut tensors = self.stored(Some(layer), &without)?;
        for Encoded { name, dtype, shape, bytes } in encoded {
            tensors.insert(name.clone(), (*dtype, shape.clone(), bytes));
        }
        self.output.write(layer, tensors)
    }

    fn without_calibration(&self, target: &Target) -> Result<Vec<Encoded>, QuantizeError> {
        let (weights, kind) = (self.source.widen(target)?, self.scheme.scale_type(self.source.kind));
        if self.scheme.method == Method::Fp8 {
            return Ok(encode::fp8(target.base(), &weights, target.cols, kind));
        }
        let rule = self.scheme.rule(self.source.kind);
        Ok(self.encode(target, &round_to_nearest(&weights, target.cols, rule, self.group(target))))
    }

    fn encode_all(&self, targets: &[Target], matrices: Matrices) -> Vec<Encoded> {
        targets.iter().zip(matrices).flat_map(|(target, matrix)| self.encode(target, &matrix)).collect()
    }

    fn encode(&self, target: &Target, matrix: &Quantised) -> Vec<Encoded> {
        let (base, kind) = (target.base(), self.scheme.scale_type(self.source.kind));
        match self.scheme.layout {
            Layout::Gptq => encode::gptq(base, matrix),
            Layout::Awq => encode::awq(base, matrix),
            Layout::CompressedTensors if self.scheme.method == Method::Int8 => {
                encode::int8(base, matrix, kind)
            }
            Layout::CompressedTensors => encode::packed(base, matrix, kind),
        }
    }

    fn group(&self, target: &Target) -> usize {
        self.scheme.group.unwrap_or(target.cols)
    }

    /// Measures and quantises the matrices of `layer`, in as many passes as the memory needs.
    fn gptq(
        &mut self,
        layer: usize,
        targets: &[Target],
        progress: &mut dyn FnMut(Phase, usize, usize),
    ) -> Result<Matrices, QuantizeError> {
        let mut matrices: Vec<Option<Quantised>> = targets.iter().map(|_| None).collect();
        let passes = passes::of_layer(targets, self.hessian_bytes);
        let (count, mut rows) = (passes.len(), HashMap::new());
        for (i, pass) in passes.into_iter().enumerate() {
            let statistics = self.calibrate(layer, |reader| pass.contains(&reader), &mut |_, done, of| {
                progress(Phase::Calibrate, i * of + done, count * of);
            })?;
            rows.extend(rows_of(&statistics));
            self.gptq_of(&pass, targets, statistics, &mut matrices, progress)?;
        }
        report_experts(layer, targets, &rows);
        let all: Option<Matrices> = matrices.into_iter().collect();
        Ok(all.unwrap_or_else(|| unreachable!("every matrix has a reader, and every reader a pass")))
    }

    /// Quantises the matrices that the readers in `pass` have.
    fn gptq_of(
        &self,
        pass: &BTreeSet<Reader>,
        targets: &[Target],
        mut statistics: OfReaders,
        matrices: &mut [Option<Quantised>],
        progress: &mut dyn FnMut(Phase, usize, usize),
    ) -> Result<(), QuantizeError> {
        for reader in pass {
            let hessian = statistics.remove(reader).map(|statistics| statistics.hessian);
            let reading = targets.iter().enumerate().filter(|(_, target)| target.reader == *reader);
            let mut factored: Option<Factored> = None;
            for (i, target) in reading {
                progress(Phase::Quantise, matrices.iter().flatten().count(), targets.len());
                let settings = self.settings(target);
                let Some(hessian) = &hessian else {
                    matrices[i] = Some(self.nearest(target)?);
                    continue;
                };
                if factored.is_none() {
                    let bad = |_| {
                        QuantizeError::Refused(format!(
                            "tensor {}: its inputs on the calibration text are not finite, or have no usable Hessian",
                            target.name
                        ))
                    };
                    factored = Some(Factored::new(hessian, target.cols, &settings).map_err(bad)?);
                }
                let weights = self.source.widen(target)?;
                let by = factored.as_ref().unwrap_or_else(|| unreachable!("set above"));
                matrices[i] = Some(gptq::quantise(&weights, target.cols, by, &settings));
            }
        }
        Ok(())
    }

    /// The matrix of an expert that no row chose, rounded to the nearest.
    fn nearest(&self, target: &Target) -> Result<Quantised, QuantizeError> {
        let (rule, group) = (self.scheme.rule(self.source.kind), self.group(target));
        let mut matrix = round_to_nearest(&self.source.widen(target)?, target.cols, rule, group);
        if self.scheme.order == ActOrder::Group {
            matrix.group_of = Some((0..target.cols).map(|col| (col / group) as u32).collect());
        }
        Ok(matrix)
    }

    fn settings(&self, target: &Target) -> Settings {
        let Scheme { order, damping, .. } = *self.scheme;
        Settings { rule: self.scheme.rule(self.source.kind), group: self.group(target), order, damping }
    }

    fn awq(
        &mut self,
        layer: usize,
        targets: &[Target],
        statistics: &OfReaders,
        progress: &mut dyn FnMut(Phase, usize, usize),
    ) -> Result<(Matrices, Scales), QuantizeError> {
        let (source, rule) = (self.source, self.scheme.rule(self.source.kind));
        let group = self.scheme.group.unwrap_or(usize::MAX);
        let runner = self.runner.as_mut().unwrap_or_else(|| unreachable!("AWQ is calibrated"));
        progress(Phase::Quantise, 0, targets.len() + 1);
        let search = Search { source, layer, rule, group, targets, statistics };
        let scales = search.run(&mut runner.cpu)?;
        let mut matrices = Vec::new();
        for (i, target) in targets.iter().enumerate() {
            progress(Phase::Quantise, i + 1, targets.len() + 1);
            let mut weights = source.widen(target)?;
            scales.apply(target, &mut weights);
            let group = group.min(target.cols);
            // Clipping changes the scores of attention too much, so queries and keys keep their outliers.
            if target.reader.product != Product::Qkv
                && let Some(statistics) = statistics.get(&target.reader)
            {
                let mut examples = statistics.examples.clone();
                if let Some(factors) = scales.of_inputs(target.reader) {
                    let inverse: Vec<f32> = factors.iter().map(|factor| 1.0 / factor).collect();
                    awq::multiply_columns(&mut examples, &inverse);
                }
                awq::clip(&mut weights, &examples, target.cols, rule, group);
            }
            matrices.push(round_to_nearest(&weights, target.cols, rule, group));
        }
        Ok((matrices, scales))
    }

    /// Runs the layer as stored over the calibration text and measures the inputs of the readers that are
    /// wanted.
    fn calibrate(
        &mut self,
        layer: usize,
        is_wanted: impl Fn(Reader) -> bool,
        progress: &mut dyn FnMut(Phase, usize, usize),
    ) -> Result<OfReaders, QuantizeError> {
        if layer == 0 && !self.output.rows(0).exists() {
            self.embed()?;
        }
        let Self { source, scheme, windows, output, runner, .. } = self;
        let runner = runner.as_mut().unwrap_or_else(|| unreachable!("the method is calibrated"));
        let model = runner.stored(source, layer)?;
        let total = windows.iter().map(Vec::len).sum();
        let mut statistics = OfReaders::new();
        let of = windows.len();
        each_window(output, source, windows, layer, |i, rows| {
            progress(Phase::Calibrate, i, of);
            runner.run(&model, rows)?;
            let (cpu, inputs) = runner.inputs();
            for (reader, inputs, cols) in inputs {
                if !is_wanted(reader) {
                    continue;
                }
                let is_of_expert = matches!(reader.network, Network::Expert(_));
                let kept = if is_of_expert { Examples::OneIn(1) } else { Examples::Of(total) };
                let new = || Statistics::new(scheme.method, cols, kept);
                statistics.entry(reader).or_insert_with(new).add(cpu, inputs);
            }
            Ok(())
        })?;
        Ok(statistics)
    }

    /// Writes the rows that enter the first layer.
    fn embed(&mut self) -> Result<(), QuantizeError> {
        let Self { source, windows, output, runner, .. } = self;
        let runner = runner.as_mut().unwrap_or_else(|| unreachable!("the method is calibrated"));
        let (model, draft) = (runner.embeddings(source)?, output.draft_of_rows()?);
        for window in *windows {
            let rows = runner.embed(&model, window)?;
            put_rows(&draft, rows).map_err(|error| write_error(output, 0, error))?;
        }
        output.keep_rows(0)
    }

    /// Runs the layer as quantised, and writes the rows that enter the next one.
    fn propagate(
        &mut self,
        layer: usize,
        targets: &[Target],
        quantised: LayerAsQuantised<'_>,
        progress: &mut dyn FnMut(Phase, usize, usize),
    ) -> Result<(), QuantizeError> {
        if layer + 1 == self.source.layers() {
            return Ok(());
        }
        let Self { source, windows, output, runner, .. } = self;
        let runner = runner.as_mut().unwrap_or_else(|| unreachable!("the method is calibrated"));
        let model = replaced(runner, source, layer, targets, quantised)?;
        let draft = output.draft_of_rows()?;
        let of = windows.len();
        each_window(output, source, windows, layer, |i, rows| {
            progress(Phase::Propagate, i, of);
            runner.run(&model, rows)?;
            put_rows(&draft, rows).map_err(|error| write_error(output, layer + 1, error))
        })?;
        output.keep_rows(layer + 1)
    }
}

/// Says before the start that the memory may not suffice.
fn warn_of_memory(source: &Original, hessian_bytes: u64, free: u64) -> Result<(), QuantizeError> {
    let stored = if source.kind == ScaleType::F32 { 4 } else { 2 };
    let mut most = 0;
    for layer in 0..source.layers() {
        most = most.max(passes::peak(&source.targets(layer)?, stored, hessian_bytes));
    }
    if most > free {
        tracing::warn!(
            needed_mb = most / 1_000_000,
            free_mb = free / 1_000_000,
            "a layer needs more memory than is free: the system may swap or kill; fewer --hessian-memory-bytes make it \
             less, down to five bytes a weight of the layer"
        );
    }
    Ok(())
}

/// Rows that each reader had.
fn rows_of(statistics: &OfReaders) -> HashMap<Reader, usize> {
    statistics.iter().map(|(reader, statistics)| (*reader, statistics.rows)).collect()
}

/// Says how many experts the calibration text has too few rows for.
fn report_experts(layer: usize, targets: &[Target], rows: &HashMap<Reader, usize>) {
    let of_expert = |target: &&Target| {
        matches!(target.reader.network, Network::Expert(_)) && target.role == Role::ExpertGate
    };
    let rows = targets
        .iter()
        .filter(of_expert)
        .map(|target| (rows.get(&target.reader).copied().unwrap_or_default(), target.cols));
    let rows: Vec<(usize, usize)> = rows.collect();
    let unread = rows.iter().filter(|(rows, _)| *rows == 0).count();
    let few = rows.iter().filter(|(rows, cols)| (1..*cols).contains(rows)).count();
    if unread > 0 {
        tracing::warn!(
            layer = layer + 1,
            experts = rows.len(),
            unread,
            "no row of the calibration text chose some experts: their weights are rounded to the nearest; give more text"
        );
    }
    if few > 0 {
        tracing::info!(
            layer = layer + 1,
            experts = rows.len(),
            few,
            "fewer rows than inputs chose some experts; more text would measure them better"
        );
    }
}

/// The matrices of a layer as quantised, and the scales in them.
#[derive(Clone, Copy)]
struct LayerAsQuantised<'a> {
    matrices: &'a Matrices,
    scales: &'a Scales,
}

/// The layer with its quantised matrices. Scales are taken out of them again, because the norms are as
/// stored.
fn replaced(
    runner: &mut Runner,
    source: &Original,
    layer: usize,
    targets: &[Target],
    quantised: LayerAsQuantised<'_>,
) -> Result<Model, QuantizeError> {
    let LayerAsQuantised { matrices, scales } = quantised;
    let mut replaced: HashMap<String, Box<dyn Fn() -> Vec<f32> + '_>> = HashMap::new();
    for (target, matrix) in targets.iter().zip(matrices) {
        let values = move || {
            let mut values = matrix.widen();
            scales.undo(target, &mut values);
            values
        };
        replaced.insert(target.name.clone(), Box::new(values));
    }
    Ok(runner.replaced(source, layer, &replaced)?)
}

/// Calls `work` with each window's rows that enter `layer`, one after another.
fn each_window(
    output: &Output,
    source: &Original,
    windows: &[Vec<u32>],
    layer: usize,
    mut work: impl FnMut(usize, &mut [f32]) -> Result<(), QuantizeError>,
) -> Result<(), QuantizeError> {
    let failed = |error| write_error(output, layer, error);
    let file = File::open(output.rows(layer)).map_err(failed)?;
    let (hidden, mut offset) = (source.spec.hidden_size, 0);
    for (i, window) in windows.iter().enumerate() {
        let mut bytes = vec![0; window.len() * hidden * size_of::<f32>()];
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        offset += bytes.len() as u64;
        let mut rows: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
        work(i, &mut rows)?;
    }
    Ok(())
}

fn put_rows(mut file: &File, rows: &[f32]) -> io::Result<()> {
    let bytes: Vec<u8> = rows.iter().flat_map(|value| value.to_le_bytes()).collect();
    io::Write::write_all(&mut file, &bytes)
}

fn write_error(output: &Output, layer: usize, source: io::Error) -> QuantizeError {
    QuantizeError::Write { path: output.rows(layer), source }
}

fn hash(windows: &[Vec<u32>]) -> u64 {
    let mut hash = Xxh3Default::new();
    for window in windows {
        hash.update(&(window.len() as u64).to_le_bytes());
        window.iter().for_each(|token| hash.update(&token.to_le_bytes()));
    }
    hash.digest()
}

#[cfg(test)]
mod tests;
