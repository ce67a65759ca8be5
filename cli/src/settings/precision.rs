//! `--dtype`, `--quantization`, `--kv-cache-dtype`: number types, and which device supports them.

use skein_model::formats::{self, Device, FormatSource};
use skein_node::config::{Settings, one_of};
use skein_worker::config::{BackendKind, Dtype, KvCacheDtype, Precision, Quantization};

use super::device_choice::DeviceChoice;

const DTYPES: [(&str, Dtype); 3] =
    [("auto", Dtype::Auto), ("float32", Dtype::Float32), ("bfloat16", Dtype::Bfloat16)];
const QUANTIZATIONS: [(&str, Quantization); 3] =
    [("fp8", Quantization::Fp8), ("int8", Quantization::Int8), ("int4", Quantization::Int4)];
const KV_TYPES: [(&str, KvCacheDtype); 6] = [
    ("auto", KvCacheDtype::Auto),
    ("float32", KvCacheDtype::Float32),
    ("bfloat16", KvCacheDtype::Bfloat16),
    ("float16", KvCacheDtype::Float16),
    ("int8", KvCacheDtype::Int8),
    ("fp8", KvCacheDtype::Fp8),
];

/// Reads the number types. One that the chosen device lacks is recorded as a problem; with `--device auto`
/// the worker reports it once it knows its device.
pub fn precision(settings: &mut Settings, device: DeviceChoice) -> Precision {
    let precision = Precision {
        dtype: settings.value("dtype", one_of(&DTYPES)).unwrap_or_default(),
        quantization: settings.value("quantization", quantization),
        kv_cache_dtype: settings.value("kv-cache-dtype", one_of(&KV_TYPES)).unwrap_or_default(),
    };
    for (name, value) in flags(&precision) {
        let source = match name {
            "dtype" => FormatSource::Dtype,
            "quantization" => FormatSource::Quantization,
            _ => FormatSource::KvCache,
        };
        let has = |device| formats::of_flag(source, value).is_some_and(|format| format.is_on(device));
        let (missing, kind) = match device.kind {
            BackendKind::Cpu | BackendKind::Fake if !has(Device::Cpu) => ("needs a GPU", Device::Cpu),
            BackendKind::Cuda if !has(Device::Cuda) => ("is supported only on the CPU so far", Device::Cuda),
            _ => continue,
        };
        let near = match formats::supported(kind, source) {
            names if names.is_empty() => String::new(),
            names => format!(", or choose one that {} has: {names}", kind.text()),
        };
        let device = device.text();
        settings.problem(format!(
            "{name} = {value} {missing}, but device is {device}; leave one of them out{near}"
        ));
    }
    precision
}

/// Checkpoint formats that vLLM's `--quantization` also accepts.
const STORED: [&str; 5] = ["gptq", "awq", "compressed-tensors", "bitsandbytes", "modelopt"];

fn quantization(given: &str) -> Result<Quantization, String> {
    if STORED.contains(&given) {
        return Err(format!(
            "`{given}` is a checkpoint format, which config.json specifies; leave the flag out"
        ));
    }
    one_of(&QUANTIZATIONS)(given)
}

/// The explicitly chosen types: flag and value.
fn flags(precision: &Precision) -> Vec<(&'static str, &'static str)> {
    let named = |name, value: Option<&'static str>| value.map(|value| (name, value));
    let flags = [
        named("dtype", name_of(&DTYPES, precision.dtype).filter(|name| *name != "auto")),
        named("quantization", precision.quantization.and_then(|it| name_of(&QUANTIZATIONS, it))),
        named("kv-cache-dtype", name_of(&KV_TYPES, precision.kv_cache_dtype).filter(|name| *name != "auto")),
    ];
    flags.into_iter().flatten().collect()
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: T) -> Option<&'static str> {
    names.iter().find(|(_, named)| *named == value).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::settings::engine::device;
    use crate::settings::table::WORKER;
    use crate::settings::{load, with_flags};

    fn read(line: &str) -> (Precision, Vec<String>) {
        let command = with_flags(Command::new("test").no_binary_name(true), WORKER);
        let matches = command.try_get_matches_from(line.split_whitespace()).expect("the flags parse");
        let mut settings = load(WORKER, &matches).expect("nothing to read");
        let (_, precision, _) = device(&mut settings);
        (precision, settings.finish().map_or_else(|problems| problems.0, |()| Vec::new()))
    }

    #[test]
    fn every_type_is_read_and_passed_on() {
        for (_, quantization) in
            QUANTIZATIONS.map(|(name, it)| (name, Some(it))).into_iter().chain([("", None)])
        {
            for (_, kv_cache_dtype) in KV_TYPES {
                for (_, dtype) in DTYPES {
                    let precision = Precision { dtype, quantization, kv_cache_dtype };
                    let line: Vec<_> =
                        flags(&precision).iter().map(|(name, value)| format!("--{name}={value}")).collect();
                    assert_eq!(read(&line.join(" ")), (precision, Vec::new()));
                }
            }
        }
    }

    #[test]
    fn a_device_that_lacks_a_type_is_a_problem_for_each() {
        let check = |line: &str, expected: &[&str]| {
            let (_, problems) = read(line);
            assert_eq!(problems.len(), expected.len(), "{line}: {problems:?}");
            problems
                .iter()
                .zip(expected)
                .for_each(|(got, expected)| assert!(got.contains(expected), "{got}"));
        };
        check("--device cpu --quantization int4 --kv-cache-dtype int8 --dtype float32", &[]);
        check(
            "--device cpu --quantization fp8 --kv-cache-dtype fp8",
            &["quantization = fp8 needs a GPU, but device is cpu"],
        );
        check("--device cuda:1 --quantization fp8 --kv-cache-dtype fp8", &[]);
        check("--device cuda:1 --kv-cache-dtype float16", &["kv-cache-dtype = float16 is supported only on"]);
        check(
            "--device cuda:1 --quantization int8 --dtype bfloat16 --kv-cache-dtype int8",
            &[
                "dtype = bfloat16 is supported only on the CPU",
                "kv-cache-dtype = int8 is supported only on the CPU so far, but device is cuda:1",
            ],
        );
        check("--quantization int5", &["int5"]);
        check("--quantization awq", &["which config.json specifies; leave the flag out"]);
    }
}
