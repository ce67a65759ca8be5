//! A model that pools, as tensors: texts or token ids go in, a row of values for each comes out. Texts may be
//! pairs, for a model that scores these.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use serde_json::{Map, Value};
use skein_proto::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use skein_proto::pooling::{PooledKind, PooledModel};

use super::call::{check_version, value};
use super::elements::{Elements, shown};
use super::model::VERSION;
use super::names::{INPUT_IDS, PROMPT_TOKENS, TEXT_INPUT, TEXT_PAIR, output_name};
use super::tensors::{self, Outputs, Tensor};
use crate::api::fields::object::Fields;
use crate::api::fields::pooled::{self, Caller};
use crate::api::fields::prompt_name;
use crate::api::openai::embeddings::Form;
use crate::app::App;
use crate::pooled::draft::{MAX_INPUTS, PairInput, PooledDraft, PooledInput};
use crate::pooled::values;
use crate::refusal::Refusal;
use crate::request::Prompt;
use crate::request::tenant::Tenant;

/// Who asks.
#[derive(Debug, Clone)]
pub struct Asker {
    /// Whose key it is.
    pub tenant: Tenant,
    /// Id of the call.
    pub id: Arc<str>,
    /// Until the client gives up.
    pub timeout: Option<Duration>,
}

/// The answer of `model` to `request`.
///
/// # Errors
/// If a tensor or parameter is malformed, or the call is refused.
pub async fn answer(
    app: &App,
    model: &PooledModel,
    mut request: ModelInferRequest,
    asker: Asker,
) -> Result<ModelInferResponse, Refusal> {
    check_version(&request.model_name, &request.model_version)?;
    if let Some(other) = unknown_output(&request, model) {
        return Err(invalid(format!(
            "The output `{other}` is not one of this model; ModelMetadata lists them."
        )));
    }
    let mut inputs = inputs(tensors::take(&mut request)?)?;
    let mut fields = Fields::of(parameters(std::mem::take(&mut request.parameters))?);
    let headers = HeaderMap::new();
    let caller = Caller { headers: &headers, id: &asker.id, tenant: &asker.tenant, app };
    let mut draft = pooled::draft(&mut fields, caller, TEXT_INPUT)?;
    draft.model = Some(request.model_name).filter(|name| !name.is_empty());
    draft.add_special_tokens = fields.optional_bool("add_special_tokens");
    let timeout = asker.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
    draft.timeout_ms = draft.timeout_ms.or(timeout);
    let form = Form {
        dimensions: fields.i64("dimensions"),
        normalises: pooled::use_activation(&mut fields),
        ..Form::PLAIN
    };
    let prompt = prompt_name::take(&mut fields, &app.text.pooled);
    pooled::prepare(&mut inputs, &prompt, &app.text.pooled);
    fields.finish(app.config.refuse_unknown_fields)?;
    let rows = rows(app, model, PooledDraft { inputs, ..draft }, form).await?;
    Ok(response(request.id, model, &rows))
}

/// A call's values, and what its answer says besides.
struct Rows {
    model: Arc<str>,
    values: Vec<Vec<f32>>,
    tokens: Vec<u32>,
}

async fn rows(app: &App, model: &PooledModel, draft: PooledDraft, form: Form) -> Result<Rows, Refusal> {
    let is_raw = form.normalises == Some(false);
    let embedding = match model.kind {
        PooledKind::Embedding { .. } => Some(form.of(model, app)?),
        PooledKind::Scores(_) => None,
    };
    let call = app.pool(draft).await?;
    let shaped = |vector: Vec<f32>| match (embedding, model.kind) {
        (Some(form), _) => form.applied(vector),
        (None, PooledKind::Scores(activation)) if !is_raw => values::scores(vector, activation),
        (None, _) => vector,
    };
    let values = call.vectors.into_iter().map(shaped).collect();
    Ok(Rows { model: call.model, values, tokens: call.prompt_tokens })
}

fn response(id: String, model: &PooledModel, rows: &Rows) -> ModelInferResponse {
    let response = ModelInferResponse {
        model_name: rows.model.to_string(),
        model_version: VERSION.to_owned(),
        id,
        ..ModelInferResponse::default()
    };
    let mut outputs = Outputs::of(response, false);
    outputs.rows(output_name(model), &rows.values);
    outputs.integers(PROMPT_TOKENS, rows.tokens.iter().copied());
    outputs.finish()
}

fn unknown_output(request: &ModelInferRequest, model: &PooledModel) -> Option<String> {
    let known = [output_name(model), PROMPT_TOKENS];
    let unknown = request.outputs.iter().find(|output| !known.contains(&output.name.as_str()));
    unknown.map(|output| shown(&output.name))
}

fn inputs(given: Vec<Tensor>) -> Result<Vec<PooledInput>, Refusal> {
    let (mut first, mut second, mut ids) = (None, None, None);
    for tensor in given {
        match tensor.name.as_str() {
            TEXT_INPUT => first = Some(texts(&tensor)?),
            TEXT_PAIR => second = Some(texts(&tensor)?),
            INPUT_IDS => ids = Some(token_ids(&tensor)?),
            other => {
                let message = format!(
                    "The input `{}` is not one of this model; ModelMetadata lists them.",
                    shown(other)
                );
                return Err(invalid(message));
            }
        }
    }
    match (first, second, ids) {
        (Some(first), None, None) => {
            Ok(first.into_iter().map(|text| PooledInput::One(Prompt::Text(text))).collect())
        }
        (Some(first), Some(second), None) if first.len() == second.len() => {
            let pair = |(first, second): (String, String)| {
                PooledInput::Pair(PairInput { first: first.into(), second: second.into(), instruction: None })
            };
            Ok(first.into_iter().zip(second).map(pair).collect())
        }
        (Some(first), Some(second), None) => Err(invalid(format!(
            "text_input and text_pair must have as many elements, got {} and {}.",
            first.len(),
            second.len()
        ))),
        (None, None, Some(ids)) => Ok(vec![PooledInput::One(Prompt::Tokens(ids))]),
        _ => Err(invalid(
            "Send text_input, with text_pair for pairs, or input_ids for the tokens of one text.".to_owned(),
        )),
    }
}

fn texts(tensor: &Tensor) -> Result<Vec<String>, Refusal> {
    let Elements::Texts(texts) = &tensor.elements else {
        return Err(invalid(format!(
            "The input `{}` takes BYTES, got {}.",
            tensor.name,
            tensor.elements.kind()
        )));
    };
    if texts.len() > MAX_INPUTS {
        let message =
            format!("The input `{}` takes at most {MAX_INPUTS} texts, got {}.", tensor.name, texts.len());
        return Err(invalid(message));
    }
    let text = |bytes: &bytes::Bytes| {
        String::from_utf8(bytes.to_vec())
            .map_err(|_| invalid(format!("The input `{}` has an element that is not UTF-8.", tensor.name)))
    };
    texts.iter().map(text).collect()
}

fn token_ids(tensor: &Tensor) -> Result<Vec<i64>, Refusal> {
    match &tensor.elements {
        Elements::Signed(ids) => Ok(ids.clone()),
        Elements::Unsigned(ids) => Ok(ids.iter().map(|id| i64::try_from(*id).unwrap_or(i64::MAX)).collect()),
        other => Err(invalid(format!("The input `{}` takes integers, got {}.", tensor.name, other.kind()))),
    }
}

fn parameters(given: HashMap<String, InferParameter>) -> Result<Map<String, Value>, Refusal> {
    let one = |(name, parameter): (String, InferParameter)| {
        let value = parameter.parameter_choice.map_or(Ok(Value::Null), |choice| value(&name, choice))?;
        Ok((name, value))
    };
    given.into_iter().map(one).collect()
}

fn invalid(message: String) -> Refusal {
    Refusal::Invalid { param: None, message }
}
