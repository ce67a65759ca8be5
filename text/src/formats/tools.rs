//! Tools that a request offers to the model.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::python_literal;

/// Most functions in a request.
pub const MAX_FUNCTIONS: usize = 512;
/// Largest total size of all function definitions, in bytes of JSON.
pub const MAX_BYTES: usize = 256 * 1024;

/// Function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Name of letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// JSON schema of the arguments; its type is `object`.
    pub parameters: Value,
    /// Whether the arguments must match the schema even if calls are optional.
    pub strict: bool,
}

/// Tool choice of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The model decides whether to call.
    Auto,
    /// The model must not call.
    None,
    /// The model must call at least one function.
    Required,
    /// The model must call the function of this name.
    Named(String),
}

/// Tools of a request and how they may be used.
#[derive(Debug, Clone)]
pub struct ToolUse {
    /// Functions in the order of the request.
    pub functions: Arc<[Function]>,
    /// Whether calls are forbidden, optional or required.
    pub choice: Choice,
    /// Names of the functions that may be called; `None` = all. The prompt lists all functions regardless, so
    /// that it stays the same.
    pub allowed: Option<Arc<[String]>>,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

impl Choice {
    /// Whether the answer must contain a call.
    pub fn is_forced(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_))
    }
}

impl Default for ToolUse {
    fn default() -> Self {
        Self { functions: Arc::default(), choice: Choice::None, allowed: None, parallel: true }
    }
}

impl ToolUse {
    /// Whether answers may contain calls.
    pub fn is_on(&self) -> bool {
        !self.functions.is_empty() && self.choice != Choice::None
    }

    /// Functions that the tool choice permits, with their indices.
    pub fn callable(&self) -> impl Iterator<Item = (usize, &Function)> {
        let named = match &self.choice {
            Choice::Named(name) => Some(name),
            _ => None,
        };
        let is_allowed = |name: &String| self.allowed.as_ref().is_none_or(|allowed| allowed.contains(name));
        let all = self.functions.iter().enumerate();
        all.filter(move |(_, function)| {
            named.is_none_or(|name| *name == function.name) && is_allowed(&function.name)
        })
    }
}

/// How an argument's text is converted to JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Always a string.
    Text,
    /// A string, or `null`.
    TextOrNull,
    /// JSON if it parses, otherwise a string.
    Json,
}

impl ValueKind {
    /// Converts `text` to JSON.
    pub fn json(self, text: &str) -> String {
        let text_alone = text.trim();
        match (self, text_alone) {
            (Self::TextOrNull | Self::Json, "null" | "None") => "null".to_owned(),
            (Self::Json, "True") => "true".to_owned(),
            (Self::Json, "False") => "false".to_owned(),
            (Self::Json, json) if serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok() => {
                json.to_owned()
            }
            // A template may show lists and objects as Python prints them.
            (Self::Json, text) if text.starts_with(['[', '{', '(']) => {
                python_literal::json(text).unwrap_or_else(|| Value::from(text).to_string())
            }
            _ => Value::from(text).to_string(),
        }
    }
}

impl Function {
    /// A function whose arguments follow the schema `parameters`; without a schema it takes none.
    pub fn new(name: String, parameters: Option<Value>, strict: bool) -> Self {
        let nothing = || json!({"type": "object", "properties": {}, "additionalProperties": false});
        let mut parameters = parameters.unwrap_or_else(nothing);
        if let Value::Object(fields) = &mut parameters {
            let says_what = ["type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"];
            if !says_what.iter().any(|keyword| fields.contains_key(*keyword)) {
                fields.insert("type".to_owned(), "object".into());
            }
        }
        Self { name, parameters, strict }
    }

    /// Schemas of the arguments, in schema order.
    pub fn properties(&self) -> Option<&Map<String, Value>> {
        self.parameters["properties"].as_object()
    }

    /// Whether the argument `key` is required.
    pub fn requires(&self, key: &str) -> bool {
        let required = self.parameters["required"].as_array();
        required.into_iter().flatten().any(|required| required == key)
    }

    /// How the text of the argument `key` is converted.
    pub fn kind(&self, key: &str) -> ValueKind {
        match self.properties().and_then(|properties| properties.get(key)) {
            Some(schema) => self.kind_of(schema, 0),
            None => ValueKind::Text,
        }
    }

    fn kind_of(&self, schema: &Value, depth: usize) -> ValueKind {
        let target = |reference: &str| self.parameters.pointer(reference.strip_prefix('#')?);
        if let Some(target) = schema["$ref"].as_str().and_then(target).filter(|_| depth < 8) {
            return self.kind_of(target, depth + 1);
        }
        let branches = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array());
        if let Some(branches) = branches.filter(|_| depth < 8) {
            let is_null = |branch: &&Value| branch["type"] == "null";
            let mut kinds = branches.iter().filter(|branch| !is_null(branch));
            let all_text = kinds.all(|branch| self.kind_of(branch, depth + 1) != ValueKind::Json);
            return match (all_text, branches.iter().any(|branch| is_null(&branch))) {
                (false, _) => ValueKind::Json,
                (true, true) => ValueKind::TextOrNull,
                (true, false) => ValueKind::Text,
            };
        }
        let values = schema["enum"].as_array().map(Vec::as_slice);
        match &schema["type"] {
            Value::String(name) if name == "string" => ValueKind::Text,
            Value::Array(names) if names.iter().all(|name| name == "string" || name == "null") => {
                ValueKind::TextOrNull
            }
            Value::Null if values.is_some_and(|values| values.iter().all(Value::is_string)) => {
                ValueKind::Text
            }
            Value::Null if schema["const"].is_string() => ValueKind::Text,
            _ => ValueKind::Json,
        }
    }
}
