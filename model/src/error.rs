//! Why a model cannot be loaded.

use std::path::PathBuf;

use skein_kernels::collective::Lost;
use skein_kernels::cpu::packed;

use crate::shard::Indivisible;

/// Why a model directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Tokens are asked of a model that pools.
    #[error(
        "the model in {} computes vectors of prompts and no tokens, so that it has no log-probabilities; give a model \
         that generates text", dir.display()
    )]
    Pools {
        /// Directory of the model.
        dir: PathBuf,
    },
    /// A required file cannot be read.
    #[error("cannot read {}: {source}; is this the directory of a Hugging Face model or adapter, completely downloaded?", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file's content is malformed.
    #[error("{} is damaged: {reason}; download it again", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Fault in the content.
        reason: String,
    },
    /// The tokenizer's files are unreadable, malformed or unsupported.
    #[error(transparent)]
    Vocabulary(#[from] skein_vocab::VocabError),
    /// A GGUF file is unreadable, damaged or unsupported.
    #[error(transparent)]
    Gguf(#[from] skein_gguf::GgufError),
    /// A configuration field has a value that cannot be served.
    #[error("{file}: {field} is {got}; allowed: {allowed}")]
    Field {
        /// config.json or generation_config.json.
        file: &'static str,
        /// Name of the field.
        field: String,
        /// Its value as JSON, or "missing".
        got: String,
        /// The allowed values.
        allowed: String,
    },
    /// Attention of longer sequences is not served.
    #[error(
        "max_model_len is {got}, and {model_type} is served with up to {most} tokens, its index_topk: up to there its \
         sparse attention reads all positions, and what it selects beyond is not computed; lower max_model_len to \
         {most}, or leave it out"
    )]
    Sparse {
        /// The family.
        model_type: &'static str,
        /// Asked length.
        got: u32,
        /// Longest sequence.
        most: u32,
    },
    /// No family has this model type.
    #[error(
        "{file}: model_type {model_type} is not supported{}; supported: {supported}",
        near.map_or(String::new(), |near| format!(" (the nearest is {near})"))
    )]
    Architecture {
        /// Name of the configuration file.
        file: &'static str,
        /// Its `model_type`, with the architecture if given.
        model_type: String,
        /// Supported family with the most similar name.
        near: Option<&'static str>,
        /// Names of all supported families.
        supported: String,
    },
    /// No weight file has a tensor that the configuration implies.
    #[error("tensor {tensor} {expected} is in no weight file of {}; is the download complete?", dir.display())]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Shape that the configuration implies.
        expected: String,
        /// The model directory.
        dir: PathBuf,
    },
    /// A tensor does not match the configuration.
    #[error("tensor {tensor} in {} is {got}, but the configuration says {expected}", path.display())]
    WrongTensor {
        /// Name of the tensor.
        tensor: String,
        /// File that contains it.
        path: PathBuf,
        /// Type and shape in the file.
        got: String,
        /// Expected types and shape.
        expected: String,
    },
    /// A tensor of a GGUF file has a type that Skein does not compute with.
    #[error(
        "tensor {tensor} in {} is {got}, which cannot be served; supported: {supported}. Take a file of the same model in one of \
         them, for example Q4_K_M",
        path.display()
    )]
    TensorType {
        /// Name of the tensor.
        tensor: String,
        /// File that contains it.
        path: PathBuf,
        /// Its type.
        got: &'static str,
        /// The types that can be served.
        supported: String,
    },
    /// A tensor has values outside its format's range, or NaN or infinite values that would have to be
    /// quantised.
    #[error("tensor {tensor}: {source}")]
    UnpackedTensor {
        /// Name of the tensor.
        tensor: String,
        /// The packing error.
        source: packed::PackError,
    },
    /// The files have a tensor of a part that the configuration says a layer lacks.
    #[error("tensor {tensor} is in the files, but the configuration says that {what}; correct config.json")]
    DeniedTensor {
        /// Name of the tensor.
        tensor: String,
        /// What the configuration says.
        what: &'static str,
    },
    /// A layer of a GGUF file has a tensor that nothing reads, such as a bias.
    #[error(
        "tensor {tensor} is in the GGUF file, but this architecture's layers do not read it here, so the answers \
         would be those of another model; serve the model's safetensors files"
    )]
    UnreadTensor {
        /// Name of the tensor in the file.
        tensor: String,
    },
    /// A weight is NaN or infinite, so that rows which meet it have no logits.
    #[error(
        "tensor {tensor} has the value {value} in row {row}, column {col}; weights must be finite, so download or convert \
         the model again"
    )]
    NonFiniteWeight {
        /// Name of the tensor.
        tensor: String,
        /// Row of the weight; 0 for a vector.
        row: usize,
        /// Column of the weight.
        col: usize,
        /// Its value.
        value: f32,
    },
    /// A rank's part of a matrix would start inside a block.
    #[error(
        "tensor {tensor} is stored in blocks of {unit} inputs, and a rank would have inputs {start} to {end}; use fewer ranks (--tensor-parallel-size)"
    )]
    CutBlocks {
        /// Name of the tensor.
        tensor: String,
        /// Inputs per block.
        unit: usize,
        /// First input of the rank's part.
        start: usize,
        /// End of the rank's part.
        end: usize,
    },
    /// A directory that describes weights which only GGUF files store.
    #[error("{} describes weights in {form}, which only GGUF files store; serve it with --device cuda --load-format dummy, or \
             give a .gguf file", dir.display())]
    NoFiles {
        /// Directory of the model.
        dir: PathBuf,
        /// Name of the form.
        form: &'static str,
    },
    /// A tensor of a quantised matrix is unusable.
    #[error("tensor {tensor}: {reason}")]
    CodedTensor {
        /// Name of the tensor.
        tensor: String,
        /// Fault in the tensor.
        reason: String,
    },
    /// Matrices that are multiplied together have different storage.
    #[error(
        "tensors {first} ({first_form}) and {second} ({second_form}) read the same input and must be stored in the same \
         form and order; quantise both alike, or leave both in 16 bits"
    )]
    MixedProduct {
        /// Name of one tensor.
        first: String,
        /// Storage of the first tensor.
        first_form: String,
        /// Name of the other tensor.
        second: String,
        /// Storage of the other tensor.
        second_form: String,
    },
    /// Out of memory for packed weights.
    #[error(
        "cannot allocate {bytes} bytes for packed weights: {source}; free some memory, or serve a smaller model"
    )]
    Packing {
        /// Total size of the packed weights, in bytes.
        bytes: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The KV cache does not fit the address space.
    #[error("cannot allocate {bytes} bytes of KV cache: {source}; lower --kv-cache-memory-bytes")]
    KvCache {
        /// Size of the cache.
        bytes: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The weights produce NaN or infinite logits.
    #[error("{}: the model's logits are not finite; its weights are damaged, or overflow in float32", dir.display())]
    NotFinite {
        /// The model directory.
        dir: PathBuf,
    },
    /// The model cannot be divided among this number of ranks.
    #[error(transparent)]
    Indivisible(#[from] Indivisible),
    /// Another rank failed during the check at load.
    #[error("the group has failed: {0}")]
    Lost(#[from] Lost),
    /// The compute thread could not be started.
    #[error("cannot start the compute thread: {0}")]
    Thread(std::io::Error),
}

impl LoadError {
    /// The same, naming a field as the configuration does: `own_names` are of usual and own names.
    pub(super) fn naming(self, own_names: &[(&'static str, &'static str)]) -> Self {
        let Self::Field { file, field, got, allowed } = self else { return self };
        let own = own_names.iter().find(|(usual, _)| *usual == field);
        let field = own.map_or(field, |(_, own)| (*own).to_owned());
        Self::Field { file, field, got, allowed }
    }
}
