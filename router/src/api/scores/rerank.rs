//! `POST /v1/rerank`, `/rerank` and `/v2/rerank`: documents sorted by their relevance to a query, in the
//! shapes of Cohere and Jina. Like theirs, and unlike vLLM's, these paths cut documents that are too long.

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use serde_json::{Value, json};

use super::pairs::{Pairs, Scored};
use super::texts;
use crate::api::answer::numbers;
use crate::api::answer::response_id::response_id;
use crate::api::answer::shapes::finish_response;
use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::api::fields::pooled::{self, Caller, take_unserved};
use crate::api::http::request_id::RequestId;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::pooled::draft::{PooledDraft, PooledTruncation};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// `POST /v1/rerank` and `/rerank`
pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    answer(&app, &tenant, request, &id, Version { number: "1", returns_documents: true })
        .await
        .map_err(OpenAiError::from)
}

/// `POST /v2/rerank`
pub async fn create_v2(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    answer(&app, &tenant, request, &id, Version { number: "2", returns_documents: false })
        .await
        .map_err(OpenAiError::from)
}

/// What differs between Cohere's versions.
#[derive(Debug, Clone, Copy)]
struct Version {
    number: &'static str,
    /// Whether documents are returned if the request does not say.
    returns_documents: bool,
}

/// A parsed request.
pub struct Asked {
    draft: PooledDraft,
    pairs: Pairs,
    top_n: Option<usize>,
    returns_documents: Option<bool>,
    ignored: Option<HeaderValue>,
}

/// Reads a body.
///
/// # Errors
/// All faults in one refusal.
pub fn parse(mut fields: Fields, caller: Caller<'_>) -> Result<Asked, Refusal> {
    let app = caller.app;
    let mut draft = pooled::draft(&mut fields, caller, "documents")?;
    draft.truncation.get_or_insert(PooledTruncation::TO_FIT);
    let first = texts::take(&mut fields, "query");
    if first.len() > 1 {
        fields.note(Refusal::invalid("query", format!("query must be one text, got {}.", first.len())));
    }
    let second = texts::take(&mut fields, "documents");
    let top_n = count(&mut fields, "top_n", 0).filter(|count| *count > 0);
    let returns_documents = fields.optional_bool("return_documents");
    let most_of_second = count(&mut fields, "max_tokens_per_doc", 1);
    let instruction = fields.string("instruction").map(Into::into);
    let is_activated = pooled::use_activation(&mut fields);
    take_unserved_of_cohere(&mut fields);
    take_unserved(&mut fields);
    let pairs = Pairs { first, second, instruction, most_of_second, is_activated };
    let ignored = fields.finish(app.config.refuse_unknown_fields)?;
    Ok(Asked { draft, pairs, top_n, returns_documents, ignored })
}

/// Takes a number of at least `least`.
fn count(fields: &mut Fields, name: &'static str, least: i64) -> Option<usize> {
    let count = fields.i64(name)?;
    if count < least {
        fields.note(Refusal::invalid(name, format!("{name} must be at least {least}, got {count}.")));
    }
    usize::try_from(count).ok()
}

/// Fields of Cohere's first version. A document is one chunk here: its beginning, as much as fits.
fn take_unserved_of_cohere(fields: &mut Fields) {
    if let Some(chunks) = fields.take("max_chunks_per_doc", Kind::WithoutEffect).filter(|chunks| *chunks != 1)
    {
        tracing::debug!(%chunks, "max_chunks_per_doc has no effect");
        fields.leave("max_chunks_per_doc".to_owned());
    }
    if fields.take_strange("rank_fields").is_some_and(|names| names != json!(["text"]) && names != json!([]))
    {
        let message = "rank_fields must be [\"text\"]: other fields of documents are not read; send their text as `text`.";
        fields.note(Refusal::invalid("rank_fields", message));
    }
}

async fn answer(
    app: &App,
    tenant: &Tenant,
    request: Request,
    id: &str,
    version: Version,
) -> Result<Response, Refusal> {
    let Asked { draft, pairs, top_n, returns_documents, ignored } =
        pooled::read(request, (id, tenant, app), parse).await?;
    let documents = pairs.second.clone();
    let scored = pairs.scored(app, draft).await?;
    let shows = returns_documents.unwrap_or(version.returns_documents);
    let result = |(index, score): (usize, f32)| {
        let mut result = json!({"index": index, "relevance_score": numbers::short(score)});
        if shows {
            result["document"] = json!({"text": &*documents[index]});
        }
        result
    };
    let results: Vec<Value> = sorted(&scored.scores, top_n).into_iter().map(result).collect();
    let Scored { id, model, tokens, .. } = scored;
    let object = json!({
        "id": response_id("rerank-", &id), "model": &*model, "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": version.number}, "tokens": {"input_tokens": tokens, "output_tokens": 0}},
    });
    Ok(finish_response(Json(object).into_response(), &id, ignored))
}

/// The best `top_n` scores with their positions, the best first. Of equal ones the earlier is first.
fn sorted(scores: &[f32], top_n: Option<usize>) -> Vec<(usize, f32)> {
    let mut sorted: Vec<(usize, f32)> = scores.iter().copied().enumerate().collect();
    sorted.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    sorted.truncate(top_n.unwrap_or(usize::MAX));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equal_ones_stay_in_order() {
        assert_eq!(sorted(&[0.1, 0.9, 0.1, -3.0], None), [(1, 0.9), (0, 0.1), (2, 0.1), (3, -3.0)]);
        assert_eq!(sorted(&[0.1, 0.9], Some(1)), [(1, 0.9)]);
        assert_eq!(sorted(&[0.1], Some(7)), [(0, 0.1)]);
    }
}
