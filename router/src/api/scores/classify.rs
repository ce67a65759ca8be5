//! `POST /classify`, vLLM's: probabilities of each text's classes.

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use serde_json::{Value, json};
use skein_node::clock;
use skein_proto::pooling::{Activation, PooledKind, PooledModel};

use crate::api::answer::numbers;
use crate::api::answer::response_id::response_id;
use crate::api::answer::shapes::finish_response;
use crate::api::fields::object::Fields;
use crate::api::fields::pooled::{self, Caller, take_unserved};
use crate::api::http::request_id::RequestId;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::pooled::draft::PooledDraft;
use crate::pooled::{refused, values};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let Asked { draft, is_activated, ignored } = pooled::read(request, (&id, &tenant, &app), parse).await?;
    let model = app.pooled_model()?;
    let PooledKind::Scores(activation) = model.kind else {
        return Err(refused::embeds(&app.text.name()).into());
    };
    let activation = if is_activated == Some(false) { Activation::Identity } else { activation };
    let call = app.pool(draft).await?;
    let (id, tokens) = (call.id.clone(), call.tokens());
    let logits = call.vectors.into_iter().enumerate();
    let data: Vec<Value> =
        logits.map(|(index, logits)| class(index, &values::scores(logits, activation), &model)).collect();
    let object = json!({
        "id": response_id("classify-", &id), "object": "list", "created": clock::unix_time().as_secs(),
        "model": &*call.model, "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    Ok(finish_response(Json(object).into_response(), &id, ignored))
}

/// The entry of one text: its likeliest class, and the values of all.
fn class(index: usize, probabilities: &[f32], model: &PooledModel) -> Value {
    let best = (0..probabilities.len())
        .rev()
        .max_by(|one, other| probabilities[*one].total_cmp(&probabilities[*other]));
    let label = best.and_then(|best| model.labels.get(best));
    let shown: Vec<Value> = probabilities.iter().map(|value| numbers::short(*value)).collect();
    json!({"index": index, "label": label, "probs": shown, "num_classes": probabilities.len()})
}

/// A parsed request.
pub struct Asked {
    draft: PooledDraft,
    is_activated: Option<bool>,
    ignored: Option<HeaderValue>,
}

/// Reads a body.
///
/// # Errors
/// All faults in one refusal.
pub fn parse(mut fields: Fields, caller: Caller<'_>) -> Result<Asked, Refusal> {
    let app = caller.app;
    let mut draft = pooled::draft(&mut fields, caller, "input")?;
    draft.add_special_tokens = fields.optional_bool("add_special_tokens");
    draft.inputs = pooled::input(&mut fields, "input");
    pooled::prepare(&mut draft.inputs, "", &app.text.pooled);
    let is_activated = pooled::use_activation(&mut fields);
    take_unserved(&mut fields);
    Ok(Asked { draft, is_activated, ignored: fields.finish(app.config.refuse_unknown_fields)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_that_of_the_greatest_value_if_it_has_a_name() {
        let model = |labels: &[&str]| PooledModel {
            width: 2,
            kind: PooledKind::Scores(Activation::Softmax),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        };
        let named = class(3, &[0.25, 0.75], &model(&["no", "yes"]));
        assert_eq!(named, json!({"index": 3, "label": "yes", "probs": [0.25, 0.75], "num_classes": 2}));
        assert_eq!(class(0, &[0.5, 0.5], &model(&["no", "yes"]))["label"], "no", "the first of equals");
        assert_eq!(class(0, &[0.1, 0.9], &model(&[]))["label"], Value::Null);
    }
}
