//! Quantisation scheme of a checkpoint: `quantization_config` of config.json, or quantize_config.json.

use std::path::Path;

use serde_json::{Map, Value};
use skein_kernels::cpu::blocks::BlockType;

use super::auto_round::{AutoRound, Tensors};
use crate::LoadError;
use crate::fields::{Fields, read_object};
use crate::formats::{self, FormatSource};

/// Bits of codes in GPTQ checkpoints.
pub(super) const GPTQ_BITS: [usize; 4] = [2, 3, 4, 8];
/// Bits of integer codes in compressed-tensors checkpoints.
pub(super) const COMPRESSED_BITS: [usize; 2] = [4, 8];
const CONFIG: &str = "config.json";
/// Names of the object in config.json; compressed-tensors used a different one.
const OBJECTS: [&str; 2] = ["quantization_config", "compression_config"];
/// Separate files in which AutoGPTQ and AutoAWQ also store it.
const OWN_FILES: [&str; 2] = ["quantize_config.json", "quant_config.json"];
/// File in which ModelOpt stores it, and the object there.
const MODEL_OPT: (&str, &str) = ("hf_quant_config.json", "quantization");

/// Quantisation scheme, with the parameters that its tensors do not show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheme {
    /// Scheme read by [`super::gptq`].
    Gptq(Gptq),
    /// Scheme read by [`super::awq`].
    Awq(Awq),
    /// Scheme read by [`super::compressed`].
    Compressed(Compressed),
    /// Scheme read by [`super::fp8`].
    Fp8(Fp8),
    /// Scheme read by [`super::bitsandbytes`].
    BitsAndBytes,
    /// Scheme read by [`super::mxfp4`].
    Mxfp4,
    /// Scheme read by [`super::nvfp4`].
    Nvfp4,
    /// Blocks of GGUF. Only directories without weights have it, for dummy weights.
    Gguf(BlockType),
}

/// Parameters of GPTQ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gptq {
    /// Default code width, in bits.
    pub bits: usize,
    /// Whether zero points are stored unchanged. Version 1 stores them minus one.
    pub is_v2: bool,
    /// Inputs per scale; `None` = all.
    pub group: Option<usize>,
    /// Whether some modules override the parameters (`dynamic`, `extra_config`).
    pub has_overrides: bool,
}

/// Parameters of AWQ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awq {
    /// Inputs per scale; `None` = all.
    pub group: Option<usize>,
    /// Whether some modules override the parameters (`extra_config`).
    pub has_overrides: bool,
}

/// Parameters of compressed-tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compressed {
    /// Outputs and inputs per block of FP8.
    pub block: Option<[usize; 2]>,
}

/// Parameters of FP8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fp8 {
    /// Outputs and inputs per block; `None` = one scale for the matrix or for each output.
    pub block: Option<[usize; 2]>,
}

/// Supported values of `quant_method`.
const METHODS: [&str; 10] = [
    "gptq",
    "awq",
    "auto-round",
    "compressed-tensors",
    "fp8",
    "fbgemm_fp8",
    "bitsandbytes",
    "modelopt",
    "mxfp4",
    "gguf",
];

/// A scheme with the object that describes it.
pub(super) struct Found {
    pub scheme: Scheme,
    /// Name of the file.
    pub file: &'static str,
    pub object: Map<String, Value>,
}

impl Scheme {
    /// Scheme of the model in `dir`; `None` if its weights are not quantised.
    ///
    /// # Errors
    /// If the scheme is unsupported; names alternatives.
    pub fn of(dir: &Path) -> Result<Option<Self>, LoadError> {
        Ok(Self::find(dir)?.map(|found| found.scheme))
    }

    /// Scheme of the model in `dir`, and what describes it.
    ///
    /// # Errors
    /// As for [`Scheme::of`].
    pub(super) fn find(dir: &Path) -> Result<Option<Found>, LoadError> {
        let config = dir.join(CONFIG);
        if config.exists()
            && let Some(found) = Self::find_in_config(&read_object(&config)?)?
        {
            return Ok(Some(found));
        }
        for file in OWN_FILES {
            let path = dir.join(file);
            if path.exists() {
                let mut object = read_object(&path)?;
                let method = if object.contains_key("zero_point") { "awq" } else { "gptq" };
                object.entry("quant_method").or_insert_with(|| method.into());
                let scheme = Self::parse(&Fields { file, object: &object })?;
                return Ok(Some(Found { scheme, file, object }));
            }
        }
        let (file, name) = MODEL_OPT;
        let path = dir.join(file);
        if path.exists() {
            let outer = read_object(&path)?;
            let object = outer.get(name).and_then(Value::as_object);
            let object =
                object.ok_or_else(|| Fields { file, object: &outer }.wrong(name, "an object".into()))?;
            let scheme = model_opt(&Fields { file, object })?;
            return Ok(Some(Found { scheme, file, object: object.clone() }));
        }
        Ok(None)
    }

    /// Scheme in `config`, the content of config.json.
    ///
    /// # Errors
    /// As for [`Scheme::of`].
    pub fn in_config(config: &Map<String, Value>) -> Result<Option<Self>, LoadError> {
        Ok(Self::find_in_config(config)?.map(|found| found.scheme))
    }

    fn find_in_config(config: &Map<String, Value>) -> Result<Option<Found>, LoadError> {
        let text = config.get("text_config").and_then(Value::as_object);
        let mut objects = OBJECTS.iter().flat_map(|name| {
            [Some(config), text].into_iter().flatten().filter_map(move |of| Some((of, *name, of.get(*name)?)))
        });
        let Some((of, name, value)) = objects.find(|(_, _, value)| !value.is_null()) else {
            return Ok(None);
        };
        let outer = Fields { file: CONFIG, object: of };
        let object = value.as_object().ok_or_else(|| outer.wrong(name, "an object".into()))?;
        let scheme = Self::parse(&Fields { file: CONFIG, object })?;
        Ok(Some(Found { scheme, file: CONFIG, object: object.clone() }))
    }

    fn parse(fields: &Fields<'_>) -> Result<Self, LoadError> {
        match fields.one_of("quant_method", &METHODS, None).map_err(|_| unknown_method(fields))?.as_str() {
            "gptq" => gptq(fields).map(Self::Gptq),
            "awq" => awq(fields).map(Self::Awq),
            "auto-round" => auto_round(fields),
            "compressed-tensors" => compressed_tensors(fields).map(Self::Compressed),
            "mxfp4" => Ok(Self::Mxfp4),
            "bitsandbytes" => bits_and_bytes(fields).map(|()| Self::BitsAndBytes),
            "modelopt" => model_opt(fields),
            "gguf" => gguf(fields).map(Self::Gguf),
            _ => Ok(Self::Fp8(Fp8 { block: block(fields, "weight_block_size")? })),
        }
    }

    /// Whether the CPU multiplies its matrices as integers; for mixed schemes, most of them.
    pub fn is_of_integers(&self) -> bool {
        !matches!(
            self,
            Self::Fp8(_)
                | Self::BitsAndBytes
                | Self::Mxfp4
                | Self::Nvfp4
                | Self::Compressed(Compressed { block: Some(_) })
        )
    }

    /// Name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gptq(_) => "GPTQ",
            Self::Awq(_) => "AWQ",
            Self::Compressed(_) => "compressed-tensors",
            Self::Fp8(_) => "FP8",
            Self::BitsAndBytes => "bitsandbytes",
            Self::Mxfp4 => "MXFP4",
            Self::Nvfp4 => "NVFP4",
            Self::Gguf(kind) => kind.name(),
        }
    }
}

fn gguf(fields: &Fields<'_>) -> Result<BlockType, LoadError> {
    let names = BlockType::ALL.map(BlockType::name);
    let name = fields.one_of("type", &names, None)?;
    let found = BlockType::ALL.into_iter().find(|kind| kind.name() == name);
    Ok(found.unwrap_or_else(|| unreachable!("{name} is one of {names:?}")))
}

fn model_opt(fields: &Fields<'_>) -> Result<Scheme, LoadError> {
    // The last differs in the activations.
    let known = ["FP8", "NVFP4", "W4A16_NVFP4"];
    let algorithm = fields.one_of("quant_algo", &known, None).map_err(|_| unlisted(fields, "quant_algo"))?;
    Ok(if algorithm == "FP8" { Scheme::Fp8(Fp8 { block: None }) } else { Scheme::Nvfp4 })
}

fn unknown_method(fields: &Fields<'_>) -> LoadError {
    unlisted(fields, "quant_method")
}

/// Error for a field whose value is not in the table of formats.
fn unlisted(fields: &Fields<'_>, field: &str) -> LoadError {
    let supported = formats::supported(formats::Device::Cpu, FormatSource::Checkpoint);
    fields.wrong(field, format!("absent for weights in bf16, f16 or f32; or {supported}"))
}

/// Reads `group_size`; -1 means all inputs.
fn group(fields: &Fields<'_>) -> Result<Option<usize>, LoadError> {
    match fields.get("group_size").and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        _ => fields.size("group_size", 1 << 20, None).map(Some),
    }
}

fn gptq(fields: &Fields<'_>) -> Result<Gptq, LoadError> {
    let bits = fields.size("bits", 32, None)?;
    if !GPTQ_BITS.contains(&bits) {
        return Err(fields.wrong("bits", "2, 3, 4 or 8".into()));
    }
    let format = if fields.is_absent("checkpoint_format") { "format" } else { "checkpoint_format" };
    let format = fields.one_of(format, &["gptq", "gptq_v2"], Some("gptq"))?;
    if fields.flag("is_marlin_format", false)? {
        return Err(fields
            .wrong("is_marlin_format", "false: only GPTQ's own layout is supported, not Marlin's".into()));
    }
    let has_overrides = !fields.is_absent("dynamic");
    Ok(Gptq { bits, is_v2: format == "gptq_v2", group: group(fields)?, has_overrides })
}

fn awq(fields: &Fields<'_>) -> Result<Awq, LoadError> {
    // AutoAWQ's own file uses different names.
    let bits = if fields.is_absent("bits") { "w_bit" } else { "bits" };
    if fields.size(bits, 32, None)? != 4 {
        return Err(fields.wrong(bits, "4".into()));
    }
    let version = fields.get("version").and_then(Value::as_str).unwrap_or("gemm").to_lowercase();
    if version != "gemm" {
        return Err(fields.wrong("version", "gemm; convert the checkpoint with AutoAWQ".into()));
    }
    if fields.is_absent("group_size") && !fields.is_absent("q_group_size") {
        let group = Some(fields.size("q_group_size", 1 << 20, None)?);
        return Ok(Awq { group, has_overrides: false });
    }
    Ok(Awq { group: group(fields)?, has_overrides: false })
}

fn auto_round(fields: &Fields<'_>) -> Result<Scheme, LoadError> {
    let AutoRound { tensors, has_overrides } = AutoRound::read(fields)?;
    Ok(match tensors {
        Tensors::Awq => Scheme::Awq(Awq { has_overrides, ..awq(fields)? }),
        Tensors::Gptq | Tensors::GptqV2 => {
            Scheme::Gptq(Gptq { is_v2: tensors == Tensors::GptqV2, has_overrides, ..gptq(fields)? })
        }
    })
}

fn bits_and_bytes(fields: &Fields<'_>) -> Result<(), LoadError> {
    if !fields.flag("load_in_4bit", false)? {
        return Err(
            fields.wrong("load_in_4bit", "true: only NF4 and FP4 of bitsandbytes are supported".into())
        );
    }
    fields.one_of("bnb_4bit_quant_type", &["nf4", "fp4"], Some("nf4")).map(|_| ())
}

/// Reads a list of two sizes.
fn block(fields: &Fields<'_>, field: &str) -> Result<Option<[usize; 2]>, LoadError> {
    let Some(value) = fields.get(field).filter(|value| !value.is_null()) else { return Ok(None) };
    let sizes: Option<Vec<usize>> = value.as_array().map(|list| {
        list.iter().filter_map(Value::as_u64).map(|size| usize::try_from(size).unwrap_or_default()).collect()
    });
    match sizes.as_deref() {
        Some([rows @ 1..=0xf_ffff, cols @ 1..=0xf_ffff]) => Ok(Some([*rows, *cols])),
        _ => Err(fields.wrong(field, "a list of two whole numbers, outputs and inputs of a block".into())),
    }
}

/// Names of compressed-tensors' formats.
const COMPRESSED: [&str; 7] = [
    "dense",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
];

fn compressed_tensors(fields: &Fields<'_>) -> Result<Compressed, LoadError> {
    if !fields.is_absent("format") && fields.get("format").and_then(Value::as_str) != Some("mixed-precision")
    {
        fields.one_of("format", &COMPRESSED, None)?;
    }
    // Rotated weights would also need rotated inputs.
    let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    if !fields.get("transform_config").is_none_or(is_empty) {
        return Err(fields.wrong("transform_config", "absent".into()));
    }
    if let Some(format) = fields.get("sparsity_config").and_then(|it| it.get("format"))
        && format != "dense"
    {
        return Err(fields.wrong("sparsity_config", "absent, or of format dense".into()));
    }
    let groups = fields.get("config_groups").and_then(Value::as_object);
    let groups = groups.ok_or_else(|| fields.wrong("config_groups", "an object".into()))?;
    let mut found = Compressed { block: None };
    for group in groups.values() {
        let none = Map::new();
        let outer = Fields { file: fields.file, object: group.as_object().unwrap_or(&none) };
        if !outer.is_absent("format") {
            outer.one_of("format", &COMPRESSED, None)?;
        }
        let Some(weights) = outer.get("weights").and_then(Value::as_object) else { continue };
        let weights = Fields { file: fields.file, object: weights };
        if let Some(block) = group_of_weights(&weights)? {
            found.block = Some(block);
        }
    }
    Ok(found)
}

/// Validates the weights of a group of `config_groups`; returns its FP8 block size.
fn group_of_weights(fields: &Fields<'_>) -> Result<Option<[usize; 2]>, LoadError> {
    let kind = fields.one_of("type", &["int", "float"], Some("int"))?;
    let bits = fields.size("num_bits", 32, Some(8))?;
    let is_mx = kind == "float" && bits == 4 && fields.get("group_size").and_then(Value::as_u64) == Some(32);
    let is_nv = kind == "float" && bits == 4 && fields.get("group_size").and_then(Value::as_u64) == Some(16);
    let is_read = if kind == "int" { COMPRESSED_BITS.contains(&bits) } else { bits == 8 || is_mx || is_nv };
    if !is_read {
        return Err(unlisted(fields, "num_bits"));
    }
    let strategies = ["tensor", "channel", "group", "block", "tensor_group"];
    match fields.one_of("strategy", &strategies, Some("tensor"))?.as_str() {
        "block" if kind == "float" => {
            let block = block(fields, "block_structure")?;
            block.map(Some).ok_or_else(|| fields.wrong("block_structure", "a list of two numbers".into()))
        }
        "block" => Err(fields.wrong("strategy", "tensor, channel or group for integers".into())),
        "group" if kind == "float" && !(is_mx || is_nv) => {
            Err(fields.wrong("strategy", "tensor, channel or block for floats".into()))
        }
        _ => Ok(None),
    }
}
