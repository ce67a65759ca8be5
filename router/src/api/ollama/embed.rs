//! `/api/embed`: vectors of texts; `/api/embeddings`, its older form for one text.

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use http::HeaderValue;
use serde_json::{Value, json};
use skein_node::clock;

use super::error::OllamaError;
use super::models::untagged;
use crate::api::answer::numbers;
use crate::api::answer::shapes::{finish_response, json_response};
use crate::api::fields::listing::Kind as Take;
use crate::api::fields::object::Fields;
use crate::api::fields::{pooled, prompt_name};
use crate::api::http::request_id::RequestId;
use crate::api::openai::embeddings::Form;
use crate::app::App;
use crate::pooled::draft::{MAX_INPUTS, PooledDraft, PooledInput, PooledTruncation};
use crate::pooled::run::PooledCall;
use crate::refusal::Refusal;
use crate::request::Prompt;
use crate::request::tenant::Tenant;

/// Which of the two paths a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// `/api/embed`
    Embed,
    /// `/api/embeddings`
    Embeddings,
}

/// `POST /api/embed`
pub async fn embed(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OllamaError> {
    answer(&app, &tenant, request, &id, Path::Embed).await.map_err(OllamaError::from)
}

/// `POST /api/embeddings`
pub async fn embeddings(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OllamaError> {
    answer(&app, &tenant, request, &id, Path::Embeddings).await.map_err(OllamaError::from)
}

/// A parsed request.
pub struct Asked {
    draft: PooledDraft,
    form: Form,
    shown_model: String,
    ignored: Option<HeaderValue>,
}

/// Reads a body.
///
/// # Errors
/// All faults in one refusal.
pub fn parse(mut fields: Fields, path: Path, app: &App, tenant: &Tenant, id: &str) -> Result<Asked, Refusal> {
    let named = fields.string("model");
    fields.take("keep_alive", Take::Shaped("KeepAlive"));
    // Settings of Ollama's engine; none of them changes a vector here.
    fields.take("options", Take::WithoutEffect);
    let (inputs, dimensions, cuts) = match path {
        Path::Embed => {
            let texts = fields.strings("input");
            (texts, fields.i64("dimensions"), fields.optional_bool("truncate").unwrap_or(true))
        }
        // It cuts long texts, too.
        Path::Embeddings => (fields.string("prompt").into_iter().collect(), None, true),
    };
    if inputs.len() > MAX_INPUTS {
        let message =
            format!("input takes at most {MAX_INPUTS} texts, got {}; send several requests.", inputs.len());
        fields.note(Refusal::invalid("input", message));
    }
    // Ollama loads the model for a request without texts.
    let inputs = inputs.into_iter().filter(|text| !text.is_empty() || path == Path::Embed);
    let mut inputs: Vec<PooledInput> = inputs.map(|text| PooledInput::One(Prompt::Text(text))).collect();
    let text = &app.text.pooled;
    pooled::prepare(&mut inputs, &prompt_name::take(&mut fields, text), text);
    let draft = PooledDraft {
        model: named.as_deref().map(untagged).filter(|name| !name.is_empty()).map(str::to_owned),
        request_id: Some(id.into()),
        inputs,
        param: if path == Path::Embed { "input" } else { "prompt" },
        truncation: cuts.then_some(PooledTruncation::TO_FIT),
        tenant: tenant.clone(),
        ..PooledDraft::default()
    };
    let shown_model = named.unwrap_or_else(|| app.text.name().to_string());
    let ignored = fields.finish(app.config.refuse_unknown_fields)?;
    Ok(Asked { draft, form: Form { dimensions, ..Form::PLAIN }, shown_model, ignored })
}

async fn answer(
    app: &App,
    tenant: &Tenant,
    request: Request,
    id: &str,
    path: Path,
) -> Result<Response, Refusal> {
    let received_at = clock::now();
    let fields = Fields::read_of_any_type(request, app).await.inspect_err(|refusal| refusal.log(id))?;
    let asked = parse(fields, path, app, tenant, id).inspect_err(|refusal| refusal.log(id))?;
    let Asked { draft, form, shown_model, ignored } = asked;
    let model = app.pooled_model()?;
    let form = form.of(&model, app)?;
    let (vectors, tokens) = if draft.inputs.is_empty() {
        app.check_model(draft.model.as_deref(), tenant)?;
        (Vec::new(), 0)
    } else {
        let call = app.pool(draft).await?;
        let tokens = call.tokens();
        let PooledCall { vectors, .. } = call;
        (vectors, tokens)
    };
    let vectors = vectors.into_iter().map(|vector| form.applied(vector));
    let json = match path {
        Path::Embed => {
            let took = clock::now().since(received_at).as_nanos();
            let rest = json!({"total_duration": u64::try_from(took).unwrap_or(u64::MAX), "load_duration": 0,
                "prompt_eval_count": tokens});
            embedded(&shown_model, vectors, &rest)
        }
        Path::Embeddings => {
            let mut json = "{\"embedding\":".to_owned();
            numbers::floats(&vectors.flatten().collect::<Vec<_>>(), &mut json);
            json + "}"
        }
    };
    Ok(finish_response(json_response(json), id, ignored))
}

/// The answer of `/api/embed`; `rest` are its other members.
fn embedded(model: &str, vectors: impl Iterator<Item = Vec<f32>>, rest: &Value) -> String {
    let mut json = format!("{{\"model\":{},\"embeddings\":[", Value::from(model));
    for (at, vector) in vectors.enumerate() {
        if at > 0 {
            json.push(',');
        }
        numbers::floats(&vector, &mut json);
    }
    json.push_str("],");
    json.push_str(rest.to_string().trim_start_matches('{'));
    json
}
