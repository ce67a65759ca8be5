//! The model to be quantised: its matrices by layer, and everything else.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_model::checkpoint::{SafetensorsFiles, Weights};
use skein_model::config::ModelConfig;
use skein_model::fingerprint;
use skein_model::on_cpu::capture::Reader;
use skein_model::on_cpu::matrices;
use skein_model::on_cpu::pack::Use;
use skein_model::shard::Shard;
use skein_model::spec::Spec;
use skein_model::state_spec::Mixer;
use skein_model::tensors::{self, Kind, Place, Role, Stored, Tensor};
use skein_model::weight_source::WeightSource;

use super::QuantizeError;
use super::maths::for_each_part;
use super::maths::grid::ScaleType;
use super::scheme::{Layout, Scheme};

/// Groups that are chosen among if none is given, best first.
const GROUPS: [usize; 3] = [128, 64, 32];

/// A model with 16- or 32-bit weights in safetensors.
pub(super) struct Original {
    pub dir: PathBuf,
    pub spec: Spec,
    pub weights: Weights,
    pub files: SafetensorsFiles,
    /// Type of its unquantised weights.
    pub kind: ScaleType,
    tensors: Vec<Tensor>,
}

/// A matrix to be quantised; it may hold several matrices of the model.
pub(super) struct Target {
    /// Name under which it is written, which ends in `.weight`.
    pub name: String,
    pub rows: usize,
    pub cols: usize,
    /// What reads the same inputs.
    pub reader: Reader,
    /// Role of its first matrix of the model.
    pub role: Role,
    /// The tensor, if the files hold all experts of a layer in one.
    fused: Option<Tensor>,
}

/// Where a tensor of the model is written.
pub(super) struct Written {
    /// Name of the written tensor.
    pub name: String,
    /// First row there, of a matrix.
    pub first_row: usize,
    /// Whether it is cut from a stored tensor that holds all experts.
    pub is_cut: bool,
}

impl Target {
    /// Name of the module.
    pub fn base(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }
}

impl Original {
    pub fn open(dir: &Path) -> Result<Self, QuantizeError> {
        if !dir.is_dir() {
            let dir = dir.display();
            return Err(QuantizeError::Refused(format!(
                "{dir} is not a directory; only models in safetensors are quantised, not GGUF files"
            )));
        }
        let ModelConfig { model_type, spec, .. } = ModelConfig::from_dir(dir)?;
        let weights = Weights::open(dir)?;
        let files = SafetensorsFiles::open(dir)?;
        if let Some(scheme) = files.scheme() {
            let (dir, name) = (dir.display(), scheme.name());
            return Err(QuantizeError::Refused(format!(
                "the model in {dir} is already quantised with {name}; quantise its 16-bit weights instead"
            )));
        }
        let tensors = tensors::all(&spec);
        let kind = match tensors::embedding(&spec).find_stored(&weights)?.storage() {
            Storage::F16(_) => ScaleType::F16,
            Storage::F32(_) => ScaleType::F32,
            Storage::Bf16(_) | Storage::Blocks(..) => ScaleType::Bf16,
        };
        let source = Self { dir: dir.to_owned(), spec, weights, files, kind, tensors };
        if source.spec.attention.latent.is_some() {
            return Err(QuantizeError::Refused(format!(
                "models of {model_type} are not quantised yet: they have latent attention"
            )));
        }
        if source.spec.pooled.is_some() {
            return Err(QuantizeError::Refused(format!(
                "models of {model_type} that give vectors of prompts are not quantised yet"
            )));
        }
        if source.spec.state.is_some() {
            return Err(QuantizeError::Refused(format!(
                "models of {model_type} are not quantised yet: some of their layers have a state"
            )));
        }
        if source.spec.layers.iter().any(|layer| layer.mixer == Mixer::None || !layer.feed_forward.exists()) {
            return Err(QuantizeError::Refused(format!(
                "models of {model_type} are not quantised yet: some of their layers have only attention or a network"
            )));
        }
        if source.spec.has_layer_scales {
            return Err(QuantizeError::Refused(format!(
                "models of {model_type} are not quantised yet: their layers have factors, and perhaps heads of two sizes"
            )));
        }
        if source.names().any(|(name, _)| name.contains("language_model.")) {
            return Err(QuantizeError::Refused(
                "models that also take images are not quantised: their other parts would be lost".into(),
            ));
        }
        Ok(source)
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.spec.layers.len()
    }

    /// Hash of its content.
    pub fn fingerprint(&self) -> Result<u64, QuantizeError> {
        Ok(fingerprint::source(&self.dir, &self.weights)?)
    }

    /// Where the files have a tensor.
    pub fn stored<'a>(&self, tensor: &'a Tensor) -> Option<&'a Stored> {
        tensor.stored.iter().find(|stored| self.files.contains(&stored.name))
    }

    /// Where a tensor is written: under its stored name, or, for experts that are stored together, the name
    /// that one expert's matrix has in files with a tensor each. `None` if there is none.
    pub fn written(&self, tensor: &Tensor) -> Option<Written> {
        let stored = self.stored(tensor)?;
        let found = self.files.stored_name(&stored.name).unwrap_or(&stored.name);
        if stored.place == Place::Rows && stored.shape.len() <= 2 {
            let is_renamed = tensor.role == Role::Router && self.is_fused(tensor.layer?);
            let name = if is_renamed { in_style_of(found, &tensor.stored[0].name) } else { found };
            let name = name.to_owned();
            return Some(Written { name, first_row: stored.first_row, is_cut: false });
        }
        let is_of_one = |it: &&Stored| it.place == Place::Rows && it.shape.len() == 2;
        let alone = tensor.stored.iter().find(is_of_one)?;
        let name = in_style_of(found, &alone.name).to_owned();
        Some(Written { name, first_row: alone.first_row, is_cut: true })
    }

    /// Whether the files hold all experts of `layer` in one tensor.
    fn is_fused(&self, layer: usize) -> bool {
        let mut of_experts = self.tensors.iter().filter(|it| it.layer == Some(layer) && it.expert.is_some());
        of_experts.any(|tensor| self.stored(tensor).is_some_and(|stored| stored.shape.len() > 2))
    }

    /// The tensor of a layer or one of its experts with this role and of this kind.
    pub fn tensor(
        &self,
        layer: usize,
        role: Role,
        expert: Option<usize>,
        is_kind: impl Fn(Kind) -> bool,
    ) -> Option<&Tensor> {
        let mut all = self.tensors.iter();
        all.find(|it| (it.layer, it.role, it.expert) == (Some(layer), role, expert) && is_kind(it.kind))
    }

    /// Names in the files and as written of the tensors of `layer`, or of all outside the layers, which are
    /// copied if they are not replaced. Fused experts are not among them.
    pub fn copied(&self, layer: Option<usize>) -> Vec<(String, String)> {
        let known: HashMap<&str, &Tensor> = self
            .tensors
            .iter()
            .filter_map(|tensor| Some((self.files.stored_name(&self.stored(tensor)?.name)?, tensor)))
            .collect();
        let written = |name: &str| match known.get(name) {
            Some(tensor) => {
                let of_layer = Some(tensor).filter(|tensor| tensor.layer == layer)?;
                self.written(of_layer).filter(|written| !written.is_cut).map(|written| written.name)
            }
            None => layer.is_none().then(|| name.to_owned()),
        };
        let names = self.files.names().into_iter();
        names.filter_map(|name| Some((name.to_owned(), written(name)?))).collect()
    }

    /// Name in the files and layer of each tensor that the model uses.
    fn names(&self) -> impl Iterator<Item = (&str, Option<usize>)> {
        self.tensors.iter().filter_map(|tensor| {
            let stored = self.stored(tensor)?;
            Some((self.files.stored_name(&stored.name)?, tensor.layer))
        })
    }

    /// Matrices of `layer` to be quantised.
    pub fn targets(&self, layer: usize) -> Result<Vec<Target>, QuantizeError> {
        let shard = Shard::of_layers(&self.spec, layer..layer + 1);
        let mut targets: Vec<Target> = Vec::new();
        for matrix in matrices(&self.spec, &shard, WeightSource::without_adapter(&self.weights))? {
            let tensor = matrix.tensor;
            let stored = self.stored(&tensor).filter(|_| matrix.for_use == Use::Layer);
            let (Some(reader), Some(stored)) = (Reader::of(&tensor), stored) else { continue };
            let Some(Written { name, is_cut, .. }) = self.written(&tensor) else {
                let Stored { name, shape, .. } = stored;
                return Err(QuantizeError::Refused(format!(
                    "tensor {name} {shape:?} holds all experts of a layer in one, and this family's checkpoints \
                     have no names for the matrices of one expert"
                )));
            };
            if targets.iter().any(|target| target.name == name) {
                continue; // another part of a fused matrix
            }
            let (role, cols) = (tensor.role, tensor.cols);
            let rows = if is_cut { tensor.rows } else { stored.shape[0] };
            targets.push(Target { name, rows, cols, reader, role, fused: is_cut.then_some(tensor) });
        }
        Ok(targets)
    }

    /// Modules with matrices that are not quantised: the head, and routers of experts.
    pub fn kept_modules(&self) -> Result<Vec<String>, QuantizeError> {
        let mut quantised = HashSet::new();
        for layer in 0..self.layers() {
            quantised.extend(self.targets(layer)?.into_iter().map(|target| target.name));
        }
        let is_matrix = |tensor: &&Tensor| matches!(tensor.kind, Kind::Matrix(..));
        let written = self.tensors.iter().filter(is_matrix).filter_map(|tensor| self.written(tensor));
        let kept = written.map(|written| written.name).filter(|name| !quantised.contains(name));
        let mut kept: Vec<String> =
            kept.filter_map(|name| name.strip_suffix(".weight").map(str::to_owned)).collect();
        if !kept.iter().any(|name| name == "lm_head") {
            kept.push("lm_head".to_owned()); // other programs make the head of a tied model a module
        }
        Ok(kept)
    }

    /// Refuses matrices whose shape the scheme cannot store.
    pub fn check_shapes(&self, scheme: &Scheme) -> Result<(), QuantizeError> {
        for layer in 0..self.layers() {
            for target in self.targets(layer)? {
                if let Some(why) = misfit(&target, scheme) {
                    return Err(QuantizeError::Refused(format!("tensor {}: {why}", target.name)));
                }
            }
        }
        Ok(())
    }

    /// The best of the usual groups that divides the inputs of all matrices.
    pub fn default_group(&self) -> Result<Option<usize>, QuantizeError> {
        let mut cols = Vec::new();
        for layer in 0..self.layers() {
            cols.extend(self.targets(layer)?.iter().map(|target| target.cols));
        }
        Ok(GROUPS.into_iter().find(|group| cols.iter().all(|cols| cols.is_multiple_of(*group))))
    }

    /// Weights of `target` `[rows, cols]`.
    pub fn widen(&self, target: &Target) -> Result<Vec<f32>, QuantizeError> {
        let Target { ref name, rows, cols, .. } = *target;
        let matrix = match &target.fused {
            None => WeightMatrix::new(self.files.rows(name, &[rows, cols], 0..rows)?, rows, cols),
            Some(tensor) => tensor.find_stored(&self.weights)?,
        };
        let mut values = vec![0f32; rows * cols];
        for_each_part(&mut values, cols, |row, to| matrix.widen_row(row, to));
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(QuantizeError::Refused(format!(
                "tensor {name}: the weight of output {} and input {} is {}; only finite weights are quantised",
                at / cols,
                at % cols,
                values[at]
            ))),
        }
    }
}

/// `name` with or without the prefix `model.`, as the stored name `found` has it.
fn in_style_of<'a>(found: &str, name: &'a str) -> &'a str {
    if found.starts_with("model.") { name } else { name.strip_prefix("model.").unwrap_or(name) }
}

/// Why the scheme cannot store the matrix.
fn misfit(target: &Target, scheme: &Scheme) -> Option<String> {
    let (rows, cols, bits) = (target.rows, target.cols, scheme.bits as usize);
    if let Some(group) = scheme.group
        && !cols.is_multiple_of(group)
    {
        return Some(format!("its {cols} inputs are not a multiple of --group-size {group}"));
    }
    let has_whole_words = match scheme.layout {
        Layout::Gptq => (rows * bits).is_multiple_of(32) && (cols * bits).is_multiple_of(32),
        Layout::Awq => rows.is_multiple_of(8),
        Layout::CompressedTensors => true,
    };
    let (layout, words) = (scheme.layout.name(), "codes would not fill whole 32-bit words");
    (!has_whole_words)
        .then(|| format!("its {rows} outputs and {cols} inputs do not fit layout {layout}: {words}"))
}
