//! Table of the number formats that each device supports, read by the command line, the worker and the
//! manual. A missing format is refused with the supported ones.

/// Kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Central processors, x86-64 or AArch64.
    Cpu,
    /// GPUs from NVIDIA.
    Cuda,
}

impl Device {
    /// Name for messages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Cpu => "the CPU",
            Self::Cuda => "CUDA",
        }
    }
}

/// What selects a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatSource {
    /// The checkpoint; its format is used unchanged.
    Checkpoint,
    /// The flag `--quantization`; converted from 16-bit weights at load.
    Quantization,
    /// The flag `--dtype`.
    Dtype,
    /// The flag `--kv-cache-dtype`.
    KvCache,
}

impl FormatSource {
    /// All sources, in the manual's order.
    pub const ALL: [Self; 4] = [Self::Checkpoint, Self::Quantization, Self::Dtype, Self::KvCache];

    /// Heading in the manual.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Checkpoint => "Weights as checkpoints store them",
            Self::Quantization => "`--quantization`",
            Self::Dtype => "`--dtype`",
            Self::KvCache => "`--kv-cache-dtype`",
        }
    }
}

/// A format and its support by device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// What selects the format.
    pub source: FormatSource,
    /// Value of the flag, or name of the checkpoint format.
    pub name: &'static str,
    /// Short description for the manual.
    pub what: &'static str,
    /// How the CPU multiplies it with activations, or how it stores it; `None` = not supported on the CPU.
    pub cpu: Option<&'static str>,
    /// The same for CUDA.
    pub cuda: Option<&'static str>,
}

impl Format {
    /// Whether `device` supports the format.
    pub fn is_on(&self, device: Device) -> bool {
        match device {
            Device::Cpu => self.cpu.is_some(),
            Device::Cuda => self.cuda.is_some(),
        }
    }
}

const fn stored(
    name: &'static str,
    what: &'static str,
    cpu: Option<&'static str>,
    cuda: Option<&'static str>,
) -> Format {
    Format { source: FormatSource::Checkpoint, name, what, cpu, cuda }
}

const fn flag(
    source: FormatSource,
    name: &'static str,
    what: &'static str,
    cpu: Option<&'static str>,
    cuda: Option<&'static str>,
) -> Format {
    Format { source, name, what, cpu, cuda }
}

/// Multiplied with activations quantised to 8 bits.
const BY_CODES: Option<&str> = Some("8-bit activations");
/// Multiplied with unquantised activations.
const BY_FLOATS: Option<&str> = Some("float32 activations");
/// Dequantised in registers and multiplied with the model's 16-bit activations.
const BY_HALVES: Option<&str> = Some("16-bit activations");
const YES: Option<&str> = Some("yes");

/// Table of all formats.
pub const FORMATS: &[Format] = &[
    stored("bf16", "safetensors in bfloat16", Some("bfloat16 or float32 activations"), YES),
    stored("f16", "safetensors in IEEE half", BY_FLOATS, YES),
    stored("f32", "safetensors in IEEE single", BY_FLOATS, Some("rounded to bfloat16")),
    stored(
        "GPTQ",
        "2, 3, 4 and 8 bits, groups of 32 and more, act-order, versions 1 and 2; also AutoRound's",
        BY_CODES,
        BY_HALVES,
    ),
    stored("AWQ", "4 bits, layout gemm; also AutoRound's", BY_CODES, BY_HALVES),
    stored(
        "compressed-tensors W4A16 and W8A16",
        "pack-quantized, symmetric or not, act-order",
        BY_CODES,
        BY_HALVES,
    ),
    stored("compressed-tensors W8A8", "int-quantized", BY_CODES, BY_HALVES),
    stored(
        "compressed-tensors FP8",
        "float-quantized: a scale for a tensor, a channel or a block",
        BY_FLOATS,
        BY_HALVES,
    ),
    stored(
        "FP8",
        "DeepSeek's and Qwen's blocks (weight_scale_inv, also in e8m0), ModelOpt's FP8",
        BY_FLOATS,
        BY_HALVES,
    ),
    stored("bitsandbytes NF4 and FP4", "4 bits, nested scales or not", BY_FLOATS, BY_HALVES),
    stored(
        "compressed-tensors MXFP4",
        "mxfp4-pack-quantized: 4-bit floats in groups of 32",
        BY_FLOATS,
        BY_HALVES,
    ),
    stored(
        "compressed-tensors NVFP4",
        "nvfp4-pack-quantized: 4-bit floats in groups of 16",
        BY_FLOATS,
        BY_HALVES,
    ),
    stored("GGUF F32 and F16", "as in safetensors", BY_FLOATS, Some("as in safetensors")),
    stored("GGUF BF16", "as in safetensors", Some("bfloat16 or float32 activations"), YES),
    stored("GGUF Q2_K to Q6_K", "K-quants, in blocks of 256", BY_CODES, BY_HALVES),
    stored("GGUF Q4_0 to Q5_1 and Q8_0", "blocks of 32", BY_CODES, BY_HALVES),
    stored(
        "GGUF IQ4_NL and MXFP4",
        "blocks of 32, codes looked up; 8 bits in memory on the CPU",
        BY_CODES,
        BY_HALVES,
    ),
    stored("NVFP4 of ModelOpt", "4-bit floats in groups of 16", BY_FLOATS, BY_HALVES),
    stored("MXFP4 of gpt-oss", "4-bit floats in groups of 32, experts in one tensor", BY_FLOATS, BY_HALVES),
    stored("bitsandbytes LLM.int8", "8 bits with outliers", None, None),
    flag(
        FormatSource::Quantization,
        "int8",
        "8 bits, a scale for each 32 inputs (CPU) or for each output (CUDA)",
        BY_CODES,
        BY_HALVES,
    ),
    flag(
        FormatSource::Quantization,
        "int4",
        "4 bits; for each 32 inputs a zero point, and a multiplier (CPU) or a scale (CUDA)",
        BY_CODES,
        BY_HALVES,
    ),
    flag(FormatSource::Quantization, "fp8", "FP8, a scale for each output", None, YES),
    flag(FormatSource::Dtype, "float32", "activations are not rounded", YES, None),
    flag(FormatSource::Dtype, "bfloat16", "activations are rounded before products", YES, None),
    flag(FormatSource::KvCache, "float32", "32 bits", YES, None),
    flag(FormatSource::KvCache, "bfloat16", "16 bits", YES, None),
    flag(FormatSource::KvCache, "float16", "16 bits", YES, None),
    flag(FormatSource::KvCache, "int8", "8 bits, a scale for each head and token", YES, None),
    flag(
        FormatSource::KvCache,
        "fp8",
        "8 bits",
        Some("yes, with a scale for each head and token"),
        Some("yes, with the checkpoint's scale for each layer; latents with a scale for each 128 values"),
    ),
];

/// Names of the formats that `device` supports, for messages.
pub fn supported(device: Device, source: FormatSource) -> String {
    let names = FORMATS.iter().filter(|format| format.source == source && format.is_on(device));
    names.map(|format| format.name).collect::<Vec<_>>().join(", ")
}

/// Format selected by a flag's value.
pub fn of_flag(source: FormatSource, name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.source == source && format.name == name)
}

/// Tables for the manual, in Markdown.
pub fn tables() -> String {
    let cell = |has: Option<&'static str>| has.unwrap_or("no");
    let row = |format: &Format| {
        format!("| {} | {} | {} | {} |\n", format.name, format.what, cell(format.cpu), cell(format.cuda))
    };
    let table = |source: FormatSource| {
        let rows: String = FORMATS.iter().filter(|format| format.source == source).map(row).collect();
        format!("## {}\n\n| format | what | CPU | CUDA |\n|---|---|---|---|\n{rows}\n", source.heading())
    };
    FormatSource::ALL.map(table).concat()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares the manual with the table; paste the tables into it after a change.
    #[test]
    fn the_manual_has_the_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/formats.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page.contains(&tables()), "docs/src/formats.md must contain:\n\n{}", tables());
    }

    #[test]
    fn every_format_is_named_once_and_what_a_device_has_is_listed() {
        for (i, format) in FORMATS.iter().enumerate() {
            let again = FORMATS[i + 1..]
                .iter()
                .any(|other| (other.source, other.name) == (format.source, format.name));
            assert!(!again, "{format:?}");
            for device in [Device::Cpu, Device::Cuda] {
                let is_listed = supported(device, format.source).split(", ").any(|name| name == format.name);
                assert!(is_listed || !format.is_on(device), "{format:?}");
            }
        }
        assert_eq!(supported(Device::Cpu, FormatSource::Quantization), "int8, int4");
        assert_eq!(supported(Device::Cuda, FormatSource::Quantization), "int8, int4, fp8");
    }
}
