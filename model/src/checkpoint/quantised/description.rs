//! Matrices as config.json describes them, without files: codes that have a form but no values. Dummy weights
//! are made in their place.
//!
//! If there are files, they decide which matrices are quantised; here the lists of names do. Parameters that
//! no field holds are those that the format's library writes by default.

use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::{Map, Value};
use skein_kernels::cpu::blocks::BlockType;

use super::bitsandbytes;
use super::matrix::{CodedMatrix, Codes, Grid, Meaning, Scales, StoredCodes, Zeros};
use super::patterns::Pattern;
use super::scheme::{Awq, Compressed, Found, Fp8, Gptq, Scheme};
use super::{mxfp4, nvfp4};
use crate::LoadError;
use crate::fields::Fields;
use crate::tensors::{Place, Role, Tensor};

/// Fields that list modules in 16 bits.
const KEPT: [&str; 4] = ["ignore", "modules_to_not_convert", "llm_int8_skip_modules", "exclude_modules"];

/// A directory's scheme, with what its files would show.
pub struct Described {
    found: Found,
    /// Whether unquantised weights are in half precision.
    is_f16: bool,
    /// Modules that stay in 16 bits.
    kept: Vec<Pattern>,
}

/// Parameters of a matrix's codes.
struct Parameters {
    meaning: Meaning,
    /// Type of the scales.
    scales: Dtype,
    /// Inputs per scale; `None` = all.
    group: Option<usize>,
    zeros: Zeros,
    /// Whether inputs are sorted by group.
    is_sorted: bool,
    table: [f32; 16],
    /// Outputs and inputs are multiples of these.
    units: [usize; 2],
}

impl Parameters {
    fn new(meaning: Meaning, scales: Dtype, group: Option<usize>, zeros: Zeros) -> Self {
        Self { meaning, scales, group, zeros, is_sorted: false, table: [0.0; 16], units: [1, 1] }
    }

    fn of_table(table: [f32; 16], scales: Dtype, group: usize) -> Self {
        let parameters = Self::new(Meaning::Table, scales, Some(group), Zeros::All(0));
        Self { table, units: [1, group], ..parameters }
    }
}

impl Described {
    /// The scheme of the model in `dir`; `None` if its weights are not quantised. `is_f16`: whether the
    /// others are in half precision.
    ///
    /// # Errors
    /// If the scheme is unsupported, or has parameters that only files show.
    pub fn of(dir: &Path, is_f16: bool) -> Result<Option<Self>, LoadError> {
        let Some(found) = Scheme::find(dir)? else { return Ok(None) };
        let fields = Fields { file: found.file, object: &found.object };
        let mut kept = Vec::new();
        for field in KEPT {
            let names = fields.get(field).and_then(Value::as_array).into_iter().flatten();
            for name in names.filter_map(Value::as_str) {
                kept.push(pattern(&fields, field, name)?);
            }
        }
        for module in fields.get("dynamic").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            let Some(expression) = module.strip_prefix("-:") else {
                let allowed = "absent, or a list of modules in 16 bits (-:NAME): other bits are only known from files, \
                               which --load-format dummy does not read";
                return Err(fields.wrong("dynamic", allowed.into()));
            };
            kept.push(pattern(&fields, "dynamic", &format!("re:{expression}"))?);
        }
        for (module, parameters) in
            fields.get("extra_config").and_then(Value::as_object).into_iter().flatten()
        {
            if parameters.get("bits").and_then(Value::as_u64).is_none_or(|bits| bits < 16) {
                let allowed = "absent, or modules of 16 bits: other parameters are only known from files, which \
                               --load-format dummy does not read";
                return Err(fields.wrong("extra_config", allowed.into()));
            }
            kept.push(pattern(&fields, "extra_config", module)?);
        }
        Ok(Some(Self { found, is_f16, kept }))
    }

    /// Blocks of GGUF in which all matrices are.
    pub fn blocks(&self) -> Option<BlockType> {
        match self.found.scheme {
            Scheme::Gguf(kind) => Some(kind),
            _ => None,
        }
    }

    /// Values of the codes of those matrices whose codes are looked up: a directory has one such format.
    pub fn table(&self) -> Option<[f32; 16]> {
        match self.found.scheme {
            Scheme::BitsAndBytes => self.bits_and_bytes().ok(),
            Scheme::Compressed(_) | Scheme::Mxfp4 | Scheme::Nvfp4 => Some(mxfp4::table()),
            Scheme::Gptq(_) | Scheme::Awq(_) | Scheme::Fp8(_) | Scheme::Gguf(_) => None,
        }
    }

    /// Values of bitsandbytes's codes.
    fn bits_and_bytes(&self) -> Result<[f32; 16], LoadError> {
        let kind = self.fields().one_of("bnb_4bit_quant_type", &["nf4", "fp4"], Some("nf4"))?;
        Ok(if kind == "nf4" { bitsandbytes::NF4 } else { bitsandbytes::FP4 })
    }

    /// Codes in the place of a matrix; `None` if it has 16 bits.
    ///
    /// # Errors
    /// If the format cannot hold a matrix of this shape.
    pub(crate) fn codes(&self, tensor: &Tensor) -> Result<Option<CodedMatrix>, LoadError> {
        let is_kept = |name: &str| self.kept.iter().any(|kept| kept.is_of(module(name)));
        if tensor.stored.iter().any(|stored| is_kept(&stored.name)) {
            return Ok(None);
        }
        let of_head = tensor.role == Role::Head && self.fields().flag("lm_head", false)?;
        if tensor.layer.is_none() && !of_head {
            return Ok(None);
        }
        let refused = |reason: String| {
            Err(LoadError::CodedTensor {
                tensor: tensor.name.clone(),
                reason: format!("{reason} ({})", self.name()),
            })
        };
        let Some(parameters) = self.parameters(tensor)? else { return Ok(None) };
        if matches!(tensor.stored[0].place, Place::Columns { .. }) && tensor.expert.is_none() {
            return refused("it is stored with inputs as rows, and CUDA does not read such codes".into());
        }
        let Parameters { meaning, scales, group, zeros, is_sorted, table, units } = parameters;
        let (rows, cols) = (tensor.rows, tensor.cols);
        let sizes = [("outputs", rows, units[0]), ("inputs", cols, units[1])];
        if let Some((what, size, unit)) = sizes.into_iter().find(|(_, size, unit)| size % unit != 0) {
            return refused(format!("it has {size} {what}, and this format takes multiples of {unit}"));
        }
        let group = group.unwrap_or(cols).min(cols);
        let grid = Grid { values: Vec::new().into(), dtype: scales, rows_each: 1, row: 0, group: 0 };
        let codes = StoredCodes {
            rows,
            cols,
            meaning,
            codes: Codes::Bytes { bytes: Vec::new().into(), flip: 0 },
            scales: if scales == Dtype::F8_E4M3 { Scales::Divided(grid, 1.0) } else { Scales::Grid(grid) },
            zeros,
            group,
            // One group needs no order.
            order: (is_sorted && group < cols).then(|| (0..cols as u32).rev().collect()),
            table,
        };
        Ok(Some(CodedMatrix::whole(codes, &tensor.name)))
    }

    fn name(&self) -> &'static str {
        self.found.scheme.name()
    }

    fn fields(&self) -> Fields<'_> {
        Fields { file: self.found.file, object: &self.found.object }
    }

    /// Parameters of the codes of a matrix; `None` if it has 16 bits.
    fn parameters(&self, tensor: &Tensor) -> Result<Option<Parameters>, LoadError> {
        let words = |bits| Zeros::AlongOutputs { words: Vec::new().into(), bits, is_less_one: false };
        Ok(Some(match &self.found.scheme {
            Scheme::Gptq(Gptq { bits, group, .. }) => {
                let meaning = if *bits == 8 { Meaning::Int8 } else { Meaning::Int4 };
                let is_sorted = self.fields().flag("desc_act", false)?;
                // Codes fill words along the inputs, zero points along the outputs.
                let units = [32 / gcd(*bits, 32); 2];
                Parameters { is_sorted, units, ..Parameters::new(meaning, Dtype::F16, *group, words(*bits)) }
            }
            Scheme::Awq(Awq { group, .. }) => {
                let zeros = Zeros::Awq { words: Vec::new().into() };
                Parameters { units: [8, 1], ..Parameters::new(Meaning::Int4, Dtype::F16, *group, zeros) }
            }
            Scheme::Compressed(Compressed { .. }) => return self.compressed(tensor),
            Scheme::Fp8(Fp8 { block }) => {
                Parameters::new(Meaning::Fp8, Dtype::F32, block.map(|[_, inputs]| inputs), Zeros::All(0))
            }
            Scheme::BitsAndBytes => {
                Parameters::of_table(self.bits_and_bytes()?, Dtype::F32, bitsandbytes::BLOCK)
            }
            // Only the experts of GPT-OSS.
            Scheme::Mxfp4 if tensor.expert.is_none() => return Ok(None),
            Scheme::Mxfp4 => Parameters::of_table(mxfp4::table(), Dtype::U8, mxfp4::GROUP),
            Scheme::Nvfp4 => Parameters::of_table(mxfp4::table(), Dtype::F8_E4M3, nvfp4::GROUP),
            Scheme::Gguf(_) => return Ok(None),
        }))
    }

    /// The same for compressed-tensors: those of the first group whose targets are names of the matrix, or
    /// else its class.
    fn compressed(&self, tensor: &Tensor) -> Result<Option<Parameters>, LoadError> {
        let fields = self.fields();
        let groups = fields.get("config_groups").and_then(Value::as_object);
        let module = module(&tensor.name);
        let mut of_class = None;
        for group in groups.into_iter().flat_map(Map::values).filter_map(Value::as_object) {
            for target in group.get("targets").and_then(Value::as_array).into_iter().flatten() {
                match target.as_str() {
                    Some("Linear") => of_class = of_class.or(Some(group)),
                    Some(name) if pattern(&fields, "config_groups", name)?.is_of(module) => {
                        return self.group(group).map(Some);
                    }
                    _ => {}
                }
            }
        }
        of_class.map(|group| self.group(group)).transpose()
    }

    /// Parameters of a group of `config_groups`.
    fn group(&self, group: &Map<String, Value>) -> Result<Parameters, LoadError> {
        let none = Map::new();
        let weights = group.get("weights").and_then(Value::as_object).unwrap_or(&none);
        let fields = Fields { file: self.found.file, object: weights };
        let format = group.get("format").or_else(|| self.found.object.get("format")).and_then(Value::as_str);
        let scales = if self.is_f16 { Dtype::F16 } else { Dtype::BF16 };
        let of_inputs = match fields.one_of(
            "strategy",
            &["tensor", "channel", "group", "block", "tensor_group"],
            Some("tensor"),
        )? {
            strategy if strategy == "group" => Some(fields.size("group_size", 1 << 20, None)?),
            _ => None,
        };
        let bits = fields.size("num_bits", 32, Some(8))?;
        if fields.one_of("type", &["int", "float"], Some("int"))? == "float" {
            let group = fields.get("group_size").and_then(Value::as_u64);
            let block = match &self.found.scheme {
                Scheme::Compressed(Compressed { block }) if fields.get("block_structure").is_some() => *block,
                _ => None,
            };
            return Ok(match (bits, group) {
                (4, Some(16)) => Parameters::of_table(mxfp4::table(), Dtype::F8_E4M3, nvfp4::GROUP),
                (4, _) => Parameters::of_table(mxfp4::table(), Dtype::U8, mxfp4::GROUP),
                _ => Parameters::new(Meaning::Fp8, scales, block.map(|[_, inputs]| inputs), Zeros::All(0)),
            });
        }
        let is_symmetric = fields.flag("symmetric", true)?;
        let order = fields.get("actorder");
        let is_sorted = order.is_some_and(|order| order == "group" || *order == Value::Bool(true));
        // One code is a byte there, whatever its bits.
        let is_bytes = format == Some("int-quantized");
        let meaning = if is_bytes || bits == 8 { Meaning::Int8 } else { Meaning::Int4 };
        let zeros = match (is_symmetric, is_bytes) {
            (true, true) => Zeros::All(128),
            (true, false) => Zeros::All(1 << (bits - 1)),
            (false, true) => Zeros::Bytes(Vec::new().into()),
            (false, false) => Zeros::DownOutputs { words: Vec::new().into(), bits },
        };
        let units = [1, of_inputs.unwrap_or(1)];
        Ok(Parameters { is_sorted, units, ..Parameters::new(meaning, scales, of_inputs, zeros) })
    }
}

/// Name of a tensor's module.
fn module(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}

fn pattern(fields: &Fields<'_>, field: &str, name: &str) -> Result<Pattern, LoadError> {
    Pattern::parse(name).ok_or_else(|| {
        let allowed = format!(
            "names of modules, with * or .* for any text; without files, {name} cannot be compared with names"
        );
        fields.wrong(field, allowed)
    })
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
