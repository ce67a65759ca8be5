//! Maps the number types that an operator chose to those that a device computes in. Pure.

use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::matrix::Storage;
use skein_kernels::cpu::packed::{self, Format};
use skein_kernels::leaves::MAX_LEAVES;
use skein_model::formats::{self, Device, FormatSource};

use crate::backend::cpu::NumberTypes;
use crate::backend::cuda::Fp8;
use crate::config::{Dtype, KvCacheDtype, Precision, Quantization};
use crate::error::WorkerError;

/// Raise it whenever a change alters the bits of a logit: workers of different versions must not continue
/// each other's requests.
const CPU_ARITHMETIC: u32 = 7;

/// Number types on the CPU for a model whose embedding is stored like `weights`. `quantised` names the scheme
/// or the blocks of its other weights, if they are codes. A model that pools rounds nothing unless it is
/// asked to: vectors are compared with those of other programs, which compute in 32 bits.
///
/// # Errors
/// For types that need a GPU, bfloat16 for a model without it, and weights that would be quantised twice.
pub(crate) fn on_cpu(
    asked: Precision,
    weights: &Storage,
    quantised: Option<&str>,
    pools: bool,
) -> Result<NumberTypes, WorkerError> {
    check_quantization(asked, quantised)?;
    let is_exact = pools && asked.dtype == Dtype::Auto && asked.quantization.is_none();
    let asked = if is_exact { Precision { dtype: Dtype::Float32, ..asked } } else { asked };
    let packed = match asked.quantization {
        // Codes are multiplied by activations in 8 bits, numbers by activations in 32.
        None if asked.dtype == Dtype::Float32 && quantised.is_some() => Some(Format::F32),
        None => None,
        Some(Quantization::Int8 | Quantization::Int4) if asked.dtype == Dtype::Float32 => {
            return Err(unsuitable(
                "--dtype float32 rounds nothing, and --quantization int8 and int4 round weights and activations; leave \
                 one of them out (--kv-cache-dtype float32 keeps keys and values in 32 bits)",
            ));
        }
        Some(Quantization::Int8) => Some(Format::INT8_GROUP),
        Some(Quantization::Int4) => Some(Format::INT4),
        Some(Quantization::Fp8) => {
            return Err(lacks(Device::Cpu, "--quantization fp8", "needs a GPU", FormatSource::Quantization));
        }
    };
    let bf16 = match (asked.dtype, weights) {
        (Dtype::Auto | Dtype::Bfloat16, Storage::Bf16(_)) => true,
        // Packed weights are multiplied by integers, whatever the type of the activations in between.
        (Dtype::Bfloat16, _) if packed.is_none() => {
            return Err(unsuitable(
                "--dtype bfloat16 needs weights in bfloat16, and this model's are not; leave it out",
            ));
        }
        _ => false,
    };
    let is_wide = asked.dtype == Dtype::Float32 || matches!(weights, Storage::F32(_));
    let kv = match asked.kv_cache_dtype {
        KvCacheDtype::Auto if is_wide => KvType::F32,
        KvCacheDtype::Auto | KvCacheDtype::Bfloat16 => KvType::Bf16,
        KvCacheDtype::Float32 => KvType::F32,
        KvCacheDtype::Float16 => KvType::F16,
        KvCacheDtype::Int8 => KvType::Int8,
        KvCacheDtype::Fp8 => KvType::Fp8,
    };
    Ok(NumberTypes { bf16: bf16 && packed.is_none(), kv, weights: packed })
}

/// Format of codes that a GPU quantises the layers' weights to, if any. The head keeps its type.
pub(super) fn rounded_on_cuda(asked: Precision) -> Option<Format> {
    match asked.quantization? {
        Quantization::Int8 => Some(Format::INT8),
        Quantization::Int4 => Some(Format::INT4_ZERO),
        Quantization::Fp8 => None,
    }
}

/// Refuses to quantise weights that `quantised` names the form of.
///
/// # Errors
/// If `asked` quantises them again.
pub(crate) fn check_quantization(asked: Precision, quantised: Option<&str>) -> Result<(), WorkerError> {
    match (quantised, asked.quantization) {
        (Some(name), Some(_)) => Err(unsuitable(&format!(
            "--quantization needs 16- or 32-bit weights, but this model's are already quantised with {name}; leave \
             it out"
        ))),
        _ => Ok(()),
    }
}

/// The parts that a GPU keeps in FP8; the rest has the model's 16-bit type, or codes.
///
/// # Errors
/// Types that only the CPU has.
pub(super) fn on_cuda(asked: Precision) -> Result<Fp8, WorkerError> {
    let only_cpu = |what: &str| {
        Err(unsuitable(&format!(
            "{what} is for the CPU, and this worker has a GPU; add --device cpu, or leave it out and the GPU computes in \
             the model's 16-bit type (it also has fp8)"
        )))
    };
    match asked {
        Precision { dtype: Dtype::Float32, .. } => only_cpu("--dtype float32"),
        Precision { dtype: Dtype::Bfloat16, .. } => only_cpu("--dtype bfloat16"),
        Precision { kv_cache_dtype: KvCacheDtype::Auto | KvCacheDtype::Fp8, .. } => Ok(Fp8 {
            weights: asked.quantization == Some(Quantization::Fp8),
            kv_cache: asked.kv_cache_dtype == KvCacheDtype::Fp8,
        }),
        _ => only_cpu("--kv-cache-dtype, other than auto and fp8,"),
    }
}

/// Everything but the model that affects the bits of logits, for
/// [`skein_model::fingerprint::computed_with`]. Instruction sets are left out because they change no bit.
pub(super) fn cpu_arithmetic(numbers: &NumberTypes) -> String {
    let NumberTypes { bf16, kv, weights } = numbers;
    let (version, packing) = (CPU_ARITHMETIC, packed::VERSION);
    format!("cpu {version} bf16 {bf16} kv {kv:?} weights {weights:?} packing {packing} leaves {MAX_LEAVES}")
}

/// Error for a `flag` value that `device` does not support; lists the supported values.
fn lacks(device: Device, flag: &str, why: &str, source: FormatSource) -> WorkerError {
    unsuitable(&format!("{flag} {why}; {} has {}", device.text(), formats::supported(device, source)))
}

fn unsuitable(why: &str) -> WorkerError {
    WorkerError::Unsuitable(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(kind: &str) -> Storage {
        let none = Vec::new().into();
        match kind {
            "bf16" => Storage::Bf16(none),
            "f16" => Storage::F16(none),
            _ => Storage::F32(none),
        }
    }

    #[test]
    fn the_cpu_follows_the_weights_unless_told_otherwise() {
        let check = |weights, dtype, quantization, kv_cache_dtype, bf16, kv, packed| {
            let asked = Precision { dtype, quantization, kv_cache_dtype };
            let numbers = on_cpu(asked, &stored(weights), None, false).unwrap();
            assert_eq!(numbers, NumberTypes { bf16, kv, weights: packed }, "{weights} {asked:?}");
        };
        use Quantization::{Int4, Int8};
        check("bf16", Dtype::Auto, None, KvCacheDtype::Auto, true, KvType::Bf16, None);
        check("bf16", Dtype::Bfloat16, None, KvCacheDtype::Float32, true, KvType::F32, None);
        check("bf16", Dtype::Float32, None, KvCacheDtype::Auto, false, KvType::F32, None);
        check("f16", Dtype::Auto, None, KvCacheDtype::Auto, false, KvType::Bf16, None);
        check("f32", Dtype::Auto, None, KvCacheDtype::Auto, false, KvType::F32, None);
        check("f32", Dtype::Auto, None, KvCacheDtype::Float16, false, KvType::F16, None);
        check(
            "bf16",
            Dtype::Auto,
            Some(Int8),
            KvCacheDtype::Int8,
            false,
            KvType::Int8,
            Some(Format::INT8_GROUP),
        );
        check("bf16", Dtype::Auto, None, KvCacheDtype::Fp8, true, KvType::Fp8, None);
        check("f32", Dtype::Bfloat16, Some(Int4), KvCacheDtype::Auto, false, KvType::F32, Some(Format::INT4));
    }

    #[test]
    fn float32_decodes_codes() {
        let wide = Precision { dtype: Dtype::Float32, ..Precision::default() };
        let of = |asked, quantised| on_cpu(asked, &stored("f16"), quantised, false).unwrap().weights;
        assert_eq!(of(wide, Some("Q8_0")), Some(Format::F32));
        assert_eq!(of(wide, None), None, "there are no codes");
        assert_eq!(of(Precision::default(), Some("Q8_0")), None);
    }

    #[test]
    fn unsupported_types_are_refused_with_the_flag_and_a_way_out() {
        let fp8 = Precision { quantization: Some(Quantization::Fp8), ..Precision::default() };
        let fp8_cache = Precision { kv_cache_dtype: KvCacheDtype::Fp8, ..Precision::default() };
        let half = Precision { dtype: Dtype::Bfloat16, ..Precision::default() };
        let wide = Precision {
            dtype: Dtype::Float32,
            quantization: Some(Quantization::Int8),
            ..Precision::default()
        };
        for (asked, weights, expected) in [
            (fp8, "bf16", "--quantization fp8 needs a GPU"),
            (wide, "bf16", "--dtype float32 rounds nothing"),
            (half, "f16", "--dtype bfloat16 needs weights in bfloat16"),
        ] {
            let said = on_cpu(asked, &stored(weights), None, false).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
        let int8 = Precision { quantization: Some(Quantization::Int8), ..Precision::default() };
        let said = on_cpu(int8, &stored("bf16"), Some("bitsandbytes"), false).unwrap_err().to_string();
        assert!(said.contains("already quantised with bitsandbytes"), "{said}");
        assert_eq!(on_cuda(fp8).unwrap(), Fp8 { weights: true, kv_cache: false });
        assert_eq!(on_cuda(fp8_cache).unwrap(), Fp8 { weights: false, kv_cache: true });
        let int4 = Precision { quantization: Some(Quantization::Int4), ..Precision::default() };
        let int8_cache = Precision { kv_cache_dtype: KvCacheDtype::Int8, ..Precision::default() };
        assert_eq!(on_cuda(int4).unwrap(), Fp8::default());
        let rounded = [int4, int8, fp8, Precision::default()].map(rounded_on_cuda);
        assert_eq!(rounded, [Some(Format::INT4_ZERO), Some(Format::INT8), None, None]);
        for (asked, expected) in [(int8_cache, "--kv-cache-dtype"), (half, "--dtype bfloat16")] {
            let said = on_cuda(asked).unwrap_err().to_string();
            assert!(said.contains(expected) && said.contains("--device cpu"), "{said}");
        }
    }

    #[test]
    fn everything_that_changes_bits_changes_the_arithmetic() {
        let mut texts: Vec<String> = [
            NumberTypes::STORED,
            NumberTypes { bf16: true, ..NumberTypes::STORED },
            NumberTypes { kv: KvType::Bf16, ..NumberTypes::STORED },
            NumberTypes { kv: KvType::Int8, ..NumberTypes::STORED },
            NumberTypes { kv: KvType::Fp8, ..NumberTypes::STORED },
            NumberTypes { weights: Some(Format::INT8), ..NumberTypes::STORED },
            NumberTypes { weights: Some(Format::INT4), ..NumberTypes::STORED },
        ]
        .iter()
        .map(cpu_arithmetic)
        .collect();
        let all = texts.len();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), all);
    }
}
