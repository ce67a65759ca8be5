//! What is asked of the quantiser, and the `quantization_config` that says so.

use serde_json::{Value, json};

use super::maths::gptq::ActOrder;
use super::maths::grid::{Rule, ScaleType};

/// Method of quantisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Integers, each weight rounded to the nearest.
    Rtn,
    /// Integers by GPTQ.
    Gptq,
    /// 4-bit integers by AWQ.
    Awq,
    /// 8-bit integers with a scale for each output.
    Int8,
    /// FP8 (E4M3) with a scale for each output.
    Fp8,
}

impl Method {
    /// Whether it measures activations.
    pub fn is_calibrated(self) -> bool {
        matches!(self, Self::Gptq | Self::Awq)
    }

    /// Name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtn => "rtn",
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
        }
    }
}

/// Layout of the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// GPTQ, version 1.
    Gptq,
    /// AWQ's layout `gemm`.
    Awq,
    /// Formats of the compressed-tensors library.
    CompressedTensors,
}

impl Layout {
    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::CompressedTensors => "compressed-tensors",
        }
    }
}

/// A complete scheme, free of contradictions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scheme {
    /// Method of quantisation.
    pub method: Method,
    /// Layout of the tensors.
    pub layout: Layout,
    /// Bits of a code.
    pub bits: u32,
    /// Inputs that share a scale; `None` = all.
    pub group: Option<usize>,
    /// Whether all zero points are the middle code.
    pub is_symmetric: bool,
    /// Order in which GPTQ rounds inputs.
    pub order: ActOrder,
    /// GPTQ's damping, as a share of the Hessian's mean diagonal.
    pub damping: f32,
}

impl Scheme {
    /// The scheme of `method` with its defaults and groups of `group` inputs.
    pub fn of(method: Method, group: Option<usize>) -> Self {
        let (layout, bits, group) = match method {
            Method::Rtn | Method::Gptq => (Layout::Gptq, 4, group),
            Method::Awq => (Layout::Awq, 4, group),
            Method::Int8 | Method::Fp8 => (Layout::CompressedTensors, 8, None),
        };
        let is_symmetric = layout != Layout::Awq;
        Self { method, layout, bits, group, is_symmetric, order: ActOrder::Static, damping: 0.01 }
    }

    /// Reason why these choices exclude each other, if they do.
    pub fn contradiction(&self) -> Option<String> {
        let Self { method, layout, bits, group, is_symmetric, order, damping } = *self;
        let layouts: &[Layout] = match method {
            Method::Rtn => &[Layout::Gptq, Layout::Awq, Layout::CompressedTensors],
            Method::Gptq => &[Layout::Gptq, Layout::CompressedTensors],
            Method::Awq => &[Layout::Awq],
            Method::Int8 | Method::Fp8 => &[Layout::CompressedTensors],
        };
        let widths: &[u32] = match (method, layout) {
            (Method::Int8 | Method::Fp8, _) => &[8],
            (_, Layout::Gptq) => &[2, 3, 4, 8],
            (_, Layout::CompressedTensors) => &[4, 8],
            (_, Layout::Awq) => &[4],
        };
        if !layouts.contains(&layout) {
            let names: Vec<_> = layouts.iter().map(|it| it.name()).collect();
            return Some(format!(
                "method {} cannot be stored as {}; its layouts: {}",
                method.name(),
                layout.name(),
                names.join(", ")
            ));
        }
        if !widths.contains(&bits) {
            let (name, layout) = (method.name(), layout.name());
            return Some(format!("method {name} in layout {layout} has {widths:?} bits, not {bits}"));
        }
        if !is_symmetric && layout == Layout::CompressedTensors {
            return Some("layout compressed-tensors is written with symmetric codes only".to_owned());
        }
        if is_symmetric && layout == Layout::Awq {
            return Some("layout awq stores a zero point for each group; it is asymmetric".to_owned());
        }
        if order == ActOrder::Group && group.is_none() {
            return Some("act-order group needs groups of inputs (--group-size)".to_owned());
        }
        let is_damping = damping.is_finite() && (0.0..=1.0).contains(&damping);
        (!is_damping).then(|| format!("damping is {damping}; it is a share from 0 to 1"))
    }

    /// Rule of the grids; `stored` is the type of the unquantised weights.
    pub(super) fn rule(&self, stored: ScaleType) -> Rule {
        Rule {
            bits: self.bits,
            is_symmetric: self.is_symmetric,
            least_zero: u8::from(self.layout == Layout::Gptq),
            scales: self.scale_type(stored),
        }
    }

    pub(super) fn scale_type(&self, stored: ScaleType) -> ScaleType {
        if self.layout == Layout::CompressedTensors { stored } else { ScaleType::F16 }
    }

    /// `quantization_config` of config.json. `kept` names the modules that stay as they are.
    pub(super) fn config(&self, kept: &[String]) -> Value {
        let group = self.group.map_or(-1, |group| group as i64);
        match self.layout {
            Layout::Gptq => {
                let dynamic = |name: &String| (format!("-:^{}$", name.replace('.', "\\.")), json!({}));
                let in_layers: Vec<_> = kept.iter().filter(|name| name.contains(".layers.")).collect();
                let mut config = json!({
                    "quant_method": "gptq", "checkpoint_format": "gptq", "bits": self.bits,
                    "group_size": group, "sym": self.is_symmetric, "lm_head": false,
                    "desc_act": self.order == ActOrder::Group, "pack_dtype": "int32",
                    "meta": {"quantizer": [quantizer()], "method": self.method.name(),
                        "damp_percent": self.damping, "static_groups": self.order == ActOrder::Static},
                });
                if !in_layers.is_empty() {
                    config["dynamic"] =
                        in_layers.into_iter().map(dynamic).collect::<serde_json::Map<_, _>>().into();
                }
                config
            }
            Layout::Awq => json!({
                "quant_method": "awq", "version": "gemm", "bits": self.bits, "group_size": group,
                "zero_point": true, "modules_to_not_convert": kept, "quantizer": quantizer(),
            }),
            Layout::CompressedTensors => self.compressed(kept),
        }
    }

    fn compressed(&self, kept: &[String]) -> Value {
        let args = |kind: &str, strategy: &str, group: Option<usize>, is_dynamic: bool| {
            json!({
                "num_bits": self.bits, "type": kind, "symmetric": true, "strategy": strategy,
                "group_size": group, "dynamic": is_dynamic, "block_structure": null, "actorder": null,
            })
        };
        let (format, mut weights, inputs) = match self.method {
            Method::Int8 => {
                ("int-quantized", args("int", "channel", None, false), args("int", "token", None, true))
            }
            Method::Fp8 => {
                ("float-quantized", args("float", "channel", None, false), args("float", "token", None, true))
            }
            _ => {
                let strategy = if self.group.is_some() { "group" } else { "channel" };
                ("pack-quantized", args("int", strategy, self.group, false), Value::Null)
            }
        };
        if self.order == ActOrder::Group {
            weights["actorder"] = "group".into();
        }
        json!({
            "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "ignore": kept, "kv_cache_scheme": null,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                "input_activations": inputs, "output_activations": null}},
        })
    }
}

fn quantizer() -> String {
    format!("skein:{}", env!("CARGO_PKG_VERSION"))
}
