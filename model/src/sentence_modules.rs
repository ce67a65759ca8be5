//! sentence-transformers' modules.json and the configuration of each module.

use std::path::{Component, Path};

use serde_json::{Map, Value};

use super::LoadError;
use super::fields::{Fields, read_json, read_object};
use super::pooled_head::{HeadActivation, HeadLayer};
use super::pooling::PooledRows;

const FILE: &str = "modules.json";
/// Replaces the file name in messages about a module's own configuration.
const OF_POOLING: &str = "config.json of the module Pooling";
const OF_DENSE: &str = "config.json of the module Dense";
const OF_SCORE: &str = "config.json of the module LogitScore";
/// Most modules.
const MAX_MODULES: usize = 16;
/// Widest output of a Dense module.
const MAX_WIDTH: usize = 1 << 17;
/// Old names of the ways to pool, and new ones.
const MODES: [(&str, &str); 6] = [
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ("pooling_mode_lasttoken", "lasttoken"),
];

/// The modules of a directory, in order.
pub struct Modules(Vec<Module>);

/// One of sentence-transformers' modules.
pub struct Module {
    /// Last part of its class's name.
    pub kind: String,
    /// The whole name.
    class: String,
    /// Its directory within the model's; empty for the model's own.
    pub path: String,
    /// Its configuration; empty if it has none.
    config: Map<String, Value>,
}

impl Modules {
    /// Those of the model in `dir`; `None` without modules.json.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed.
    pub fn read(dir: &Path) -> Result<Option<Self>, LoadError> {
        let file = dir.join(FILE);
        if !file.exists() {
            return Ok(None);
        }
        let damaged = |reason: String| LoadError::Damaged { path: file.clone(), reason };
        let text = read_json(&file)?;
        let listed: Vec<Value> =
            serde_json::from_slice(&text).map_err(|error| damaged(format!("not a JSON list: {error}")))?;
        if listed.len() > MAX_MODULES {
            return Err(damaged(format!("it has {} modules, more than {MAX_MODULES}", listed.len())));
        }
        let module = |entry: &Value| {
            let text = |field: &str| entry.get(field).and_then(Value::as_str).map(str::to_owned);
            let (Some(class), Some(path)) = (text("type"), text("path")) else {
                return Err(damaged(format!("{entry} has no type and path")));
            };
            let is_within = Path::new(&path).components().all(|part| matches!(part, Component::Normal(_)));
            if !is_within {
                return Err(damaged(format!("the path {path} leaves the directory")));
            }
            let kind = class.rsplit('.').next().unwrap_or_default().to_owned();
            let own = dir.join(&path).join("config.json");
            let needs_own = ["Pooling", "Dense", "LogitScore"].contains(&kind.as_str());
            let has_own = !path.is_empty() && (needs_own || own.exists());
            let config = if has_own { read_object(&own)? } else { Map::new() };
            Ok(Module { kind, class, path, config })
        };
        listed.iter().map(module).collect::<Result<_, LoadError>>().map(|modules| Some(Self(modules)))
    }

    /// All modules but the first, which is the transformer in the directory itself.
    pub fn after_transformer(&self) -> Result<impl Iterator<Item = &Module>, LoadError> {
        match self.0.first() {
            Some(first) if first.kind == "Transformer" && first.path.is_empty() => Ok(self.0[1..].iter()),
            Some(first) => Err(first.refused()),
            None => Ok(self.0.iter()),
        }
    }

    /// Those with weights of their own.
    pub fn with_weights(&self) -> impl Iterator<Item = &Module> {
        self.0.iter().filter(|module| module.kind == "Dense")
    }

    /// Everything that a vector depends on besides the model's own files.
    pub fn content(&self) -> String {
        let content = |module: &Module| format!("{} {} {:?}\n", module.class, module.path, module.config);
        self.0.iter().map(content).collect()
    }
}

impl Module {
    /// Says that it is not served, at least not in its place.
    pub fn refused(&self) -> LoadError {
        let allowed =
            "Transformer, then Pooling, any number of Dense, and Normalize; or Transformer and LogitScore";
        let got = if self.path.is_empty() {
            self.class.clone()
        } else {
            format!("{} in {}", self.class, self.path)
        };
        LoadError::Field { file: FILE, field: "type".into(), got, allowed: allowed.into() }
    }

    fn fields(&self, file: &'static str) -> Fields<'_> {
        Fields { file, object: &self.config }
    }

    /// Rows that a Pooling module takes.
    pub fn rows(&self) -> Result<PooledRows, LoadError> {
        let fields = self.fields(OF_POOLING);
        if !fields.flag("include_prompt", true)? {
            return Err(fields.wrong("include_prompt", "true".into()));
        }
        let (field, modes) = match fields.get("pooling_mode") {
            Some(Value::String(mode)) => ("pooling_mode", vec![mode.as_str()]),
            Some(Value::Array(modes)) => ("pooling_mode", modes.iter().filter_map(Value::as_str).collect()),
            Some(_) => ("pooling_mode", Vec::new()),
            None => {
                let is_set = |field: &str| fields.get(field) == Some(&Value::Bool(true));
                let set = MODES.iter().filter(|(field, _)| is_set(field));
                let (names, modes): (Vec<&str>, Vec<&str>) = set.copied().unzip();
                let modes = if modes.is_empty() { vec!["mean"] } else { modes };
                (names.last().copied().unwrap_or("pooling_mode"), modes)
            }
        };
        match modes[..] {
            ["cls"] => Ok(PooledRows::First),
            ["mean"] => Ok(PooledRows::Mean),
            ["lasttoken"] => Ok(PooledRows::Last),
            _ => Err(fields.wrong(field, "one way to pool, of cls, mean and lasttoken".into())),
        }
    }

    /// The layer of a Dense module, for vectors of `inputs` values.
    pub fn dense(&self, inputs: usize) -> Result<HeadLayer, LoadError> {
        let fields = self.fields(OF_DENSE);
        if fields.flag("use_residual", false)? {
            return Err(fields.wrong("use_residual", "false".into()));
        }
        for field in ["module_input_name", "module_output_name"] {
            fields.one_of(field, &["sentence_embedding"], Some("sentence_embedding"))?;
        }
        if fields.size("in_features", MAX_WIDTH, None)? != inputs {
            return Err(fields.wrong("in_features", format!("{inputs}, the values that it is given")));
        }
        let outputs = fields.size("out_features", MAX_WIDTH, None)?;
        let name = format!("{}/linear", self.path);
        let layer = HeadLayer::linear(&name, inputs, outputs, fields.flag("bias", true)?);
        Ok(layer.then(self.activation(&fields)?))
    }

    /// Activation of a Dense module: a class of PyTorch.
    fn activation(&self, fields: &Fields<'_>) -> Result<HeadActivation, LoadError> {
        let Some(class) = fields.get("activation_function") else { return Ok(HeadActivation::Tanh) };
        let name = class
            .as_str()
            .filter(|class| class.starts_with("torch."))
            .and_then(|class| class.rsplit('.').next());
        let activation = match name {
            Some("Identity") => HeadActivation::named("identity"),
            Some("Tanh") => HeadActivation::named("tanh"),
            Some("GELU") => HeadActivation::named("gelu"),
            Some("ReLU") => HeadActivation::named("relu"),
            Some("SiLU") => HeadActivation::named("silu"),
            _ => None,
        };
        activation.ok_or_else(|| {
            let allowed = "a class of torch.nn.modules: Identity, Tanh, GELU, ReLU or SiLU";
            fields.wrong("activation_function", allowed.into())
        })
    }

    /// Tokens of a LogitScore module: the one whose logit counts, and the one whose logit is subtracted.
    pub fn score_tokens(&self, vocab_size: u32) -> Result<[Option<u32>; 2], LoadError> {
        let fields = self.fields(OF_SCORE);
        fields.one_of("module_input_name", &["causal_logits"], Some("causal_logits"))?;
        let token = |field| {
            if fields.is_absent(field) {
                return Ok(None);
            }
            fields.count(field, vocab_size as usize - 1, 0).map(|token| Some(token as u32))
        };
        Ok([token("true_token_id")?, token("false_token_id")?])
    }
}
