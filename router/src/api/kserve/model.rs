//! The model as tensors: what it takes and returns, under the names of Triton's vLLM backend and of
//! TensorRT-LLM's ensemble. One table gives metadata, configuration and what requests may contain.

use serde_json::{Value, json};
use skein_proto::inference::model_metadata_response::TensorMetadata;
use skein_proto::inference::{
    DataType, ModelConfig, ModelInput, ModelMetadataResponse, ModelOutput, ModelTransactionPolicy,
};
use skein_proto::pooling::PooledModel;

use super::names::{self, INPUT_IDS, TEXT_INPUT};

/// The one version of every model.
pub const VERSION: &str = "1";
/// What computes the model.
const PLATFORM: &str = "skein";

/// An input tensor, or a request parameter of the same name.
#[derive(Debug, Clone, Copy)]
pub struct Input {
    /// Name of the tensor, and of the field in the OpenAI API if it has one.
    pub name: &'static str,
    /// Its elements.
    pub datatype: DataType,
    /// Elements: exactly one, or any number.
    pub is_list: bool,
}

const fn one(name: &'static str, datatype: DataType) -> Input {
    Input { name, datatype, is_list: false }
}

const fn list(name: &'static str, datatype: DataType) -> Input {
    Input { name, datatype, is_list: true }
}

impl Input {
    /// Whether it is the prompt, which is a tensor in every form of request.
    pub fn is_prompt(&self) -> bool {
        [TEXT_INPUT, INPUT_IDS].contains(&self.name)
    }
}

/// Sampling parameters as a JSON object.
pub const SAMPLING_PARAMETERS: &str = "sampling_parameters";

/// All inputs.
pub static INPUTS: [Input; 34] = {
    use DataType::{TypeBool as BOOL, TypeFp32 as FP32, TypeInt32 as INT32, TypeString as BYTES};
    [
        one(TEXT_INPUT, BYTES),
        list(INPUT_IDS, INT32),
        one("stream", BOOL),
        one("exclude_input_in_output", BOOL),
        one("return_finish_reason", BOOL),
        one("return_cumulative_logprob", BOOL),
        one("return_logprobs", BOOL),
        one("return_num_input_tokens", BOOL),
        one("return_num_output_tokens", BOOL),
        one(SAMPLING_PARAMETERS, BYTES),
        one("max_tokens", INT32),
        one("min_tokens", INT32),
        one("n", INT32),
        one("temperature", FP32),
        one("top_p", FP32),
        one("top_k", INT32),
        one("min_p", FP32),
        one("repetition_penalty", FP32),
        one("presence_penalty", FP32),
        one("frequency_penalty", FP32),
        one("seed", DataType::TypeUint64),
        one("ignore_eos", BOOL),
        list("stop", BYTES),
        list("stop_token_ids", INT32),
        list("bad_words", BYTES),
        list("allowed_token_ids", INT32),
        one("logprobs", INT32),
        one("skip_special_tokens", BOOL),
        one("include_stop_str_in_output", BOOL),
        one("add_special_tokens", BOOL),
        one("truncate_prompt_tokens", INT32),
        one("priority", INT32),
        one("cache_salt", BYTES),
        one("lora_name", BYTES),
    ]
};

/// Other names of inputs: those of TensorRT-LLM's ensemble, and Dynamo's `streaming`.
pub const ALIASES: [(&str, &str); 6] = [
    ("streaming", "stream"),
    ("stop_words", "stop"),
    ("random_seed", "seed"),
    ("min_length", "min_tokens"),
    ("request_output_len", "max_tokens"),
    ("num_return_sequences", "n"),
];

/// An output tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Text of each sample, or the next part of one.
    Text,
    /// Why each sample ended.
    FinishReason,
    /// Sum of the log-probabilities of each sample so far.
    CumulativeLogprob,
    /// Log-probabilities of the new tokens of each sample, as JSON.
    Logprobs,
    /// How many tokens the prompt has.
    PromptTokens,
    /// New tokens of each sample.
    NewTokens,
    /// The new tokens, sample after sample.
    NewIds,
    /// Index of each sample.
    SequenceIndex,
}

impl Output {
    /// All outputs, in the order of a response.
    pub const ALL: [Self; 8] = [
        Self::Text,
        Self::FinishReason,
        Self::CumulativeLogprob,
        Self::Logprobs,
        Self::PromptTokens,
        Self::NewTokens,
        Self::NewIds,
        Self::SequenceIndex,
    ];

    /// Name of the tensor.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text_output",
            Self::FinishReason => "finish_reason",
            Self::CumulativeLogprob => "cumulative_logprob",
            Self::Logprobs => "logprobs",
            Self::PromptTokens => "num_input_tokens",
            Self::NewTokens => "num_output_tokens",
            Self::NewIds => "output_ids",
            Self::SequenceIndex => "sequence_index",
        }
    }

    /// Input by which a request asks for it without a list of outputs.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Self::FinishReason => Some("return_finish_reason"),
            Self::CumulativeLogprob => Some("return_cumulative_logprob"),
            Self::Logprobs => Some("return_logprobs"),
            Self::PromptTokens => Some("return_num_input_tokens"),
            Self::NewTokens => Some("return_num_output_tokens"),
            Self::Text | Self::NewIds | Self::SequenceIndex => None,
        }
    }

    fn datatype(self) -> DataType {
        match self {
            Self::Text | Self::FinishReason | Self::Logprobs => DataType::TypeString,
            Self::CumulativeLogprob => DataType::TypeFp32,
            Self::PromptTokens | Self::NewTokens | Self::NewIds | Self::SequenceIndex => DataType::TypeUint32,
        }
    }
}

/// Name of a datatype in requests and metadata.
pub fn word(datatype: DataType) -> &'static str {
    match datatype {
        DataType::TypeString => "BYTES",
        other => other.as_str_name().trim_start_matches("TYPE_"),
    }
}

fn dim(is_list: bool) -> Vec<i64> {
    vec![if is_list { -1 } else { 1 }]
}

/// Metadata of the model or adapter `name`, which may pool.
pub fn metadata(name: &str, pooled: Option<&PooledModel>) -> ModelMetadataResponse {
    match pooled {
        Some(pooled) => pooled_metadata(name, pooled),
        None => generating_metadata(name),
    }
}

/// Metadata of a model that pools.
fn pooled_metadata(name: &str, pooled: &PooledModel) -> ModelMetadataResponse {
    let tensor = |name: &str, datatype, shape| TensorMetadata {
        name: name.to_owned(),
        datatype: word(datatype).to_owned(),
        shape,
    };
    let values = tensor(names::output_name(pooled), DataType::TypeFp32, vec![-1, pooled.width.into()]);
    let counts = tensor(names::PROMPT_TOKENS, DataType::TypeUint32, vec![-1]);
    ModelMetadataResponse {
        name: name.to_owned(),
        versions: vec![VERSION.to_owned()],
        platform: PLATFORM.to_owned(),
        inputs: names::POOLED_INPUTS
            .iter()
            .map(|(name, datatype)| tensor(name, *datatype, vec![-1]))
            .collect(),
        outputs: vec![values, counts],
    }
}

fn generating_metadata(name: &str) -> ModelMetadataResponse {
    let tensor = |name: &str, datatype, shape| TensorMetadata {
        name: name.to_owned(),
        datatype: word(datatype).to_owned(),
        shape,
    };
    let input = |input: &Input| tensor(input.name, input.datatype, dim(input.is_list));
    ModelMetadataResponse {
        name: name.to_owned(),
        versions: vec![VERSION.to_owned()],
        platform: PLATFORM.to_owned(),
        inputs: INPUTS.iter().map(input).collect(),
        outputs: Output::ALL.map(|output| tensor(output.name(), output.datatype(), dim(true))).to_vec(),
    }
}

/// Configuration of the model or adapter `name`, which may pool.
pub fn config(name: &str, pooled: Option<&PooledModel>) -> ModelConfig {
    match pooled {
        Some(pooled) => pooled_config(name, pooled),
        None => generating_config(name),
    }
}

/// Configuration of a model that pools.
fn pooled_config(name: &str, pooled: &PooledModel) -> ModelConfig {
    let input = |(name, datatype): &(&str, DataType)| ModelInput {
        name: (*name).to_owned(),
        data_type: (*datatype).into(),
        dims: vec![-1],
        optional: true,
    };
    let output = |name: &str, datatype: DataType, dims| ModelOutput {
        name: name.to_owned(),
        data_type: datatype.into(),
        dims,
    };
    ModelConfig {
        input: names::POOLED_INPUTS.iter().map(input).collect(),
        output: vec![
            output(names::output_name(pooled), DataType::TypeFp32, vec![-1, pooled.width.into()]),
            output(names::PROMPT_TOKENS, DataType::TypeUint32, vec![-1]),
        ],
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: false }),
        ..generating_config(name)
    }
}

fn generating_config(name: &str) -> ModelConfig {
    let input = |input: &Input| ModelInput {
        name: input.name.to_owned(),
        data_type: input.datatype.into(),
        dims: dim(input.is_list),
        optional: input.name != TEXT_INPUT,
    };
    let output = |output: Output| ModelOutput {
        name: output.name().to_owned(),
        data_type: output.datatype().into(),
        dims: dim(true),
    };
    ModelConfig {
        name: name.to_owned(),
        platform: PLATFORM.to_owned(),
        max_batch_size: 0,
        input: INPUTS.iter().map(input).collect(),
        output: Output::ALL.map(output).to_vec(),
        backend: PLATFORM.to_owned(),
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
    }
}

/// [`metadata`] in the JSON of the REST paths.
pub fn metadata_json(name: &str, pooled: Option<&PooledModel>) -> Value {
    let ModelMetadataResponse { name, versions, platform, inputs, outputs } = metadata(name, pooled);
    let tensor = |tensor: TensorMetadata| json!({"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape});
    let tensors = |all: Vec<TensorMetadata>| all.into_iter().map(tensor).collect::<Value>();
    json!({
        "name": name, "versions": versions, "platform": platform, "inputs": tensors(inputs),
        "outputs": tensors(outputs),
    })
}

/// [`config`] in the JSON of Triton's path.
pub fn config_json(name: &str, pooled: Option<&PooledModel>) -> Value {
    let config = config(name, pooled);
    let input = |input: &ModelInput| {
        let datatype = input.data_type().as_str_name();
        json!({"name": input.name, "data_type": datatype, "dims": input.dims, "optional": input.optional})
    };
    let output = |output: &ModelOutput| json!({"name": output.name, "data_type": output.data_type().as_str_name(), "dims": output.dims});
    let decoupled = config.model_transaction_policy.is_some_and(|policy| policy.decoupled);
    json!({
        "name": config.name, "platform": config.platform, "backend": config.backend,
        "max_batch_size": config.max_batch_size, "input": config.input.iter().map(input).collect::<Value>(),
        "output": config.output.iter().map(output).collect::<Value>(),
        "model_transaction_policy": {"decoupled": decoupled},
    })
}
