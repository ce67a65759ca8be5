//! The models in Anthropic's form.

use std::time::Duration;

use axum::extract::Query;
use http::Uri;
use serde::Deserialize;
use serde_json::{Value, json};
use skein_text::strftime::strftime;

use crate::app::App;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Models on a page if the client sets no limit; Anthropic's default.
const PAGE: usize = 20;
/// Most models on a page; Anthropic's limit.
const MAX_PAGE: usize = 1000;

/// Which part of the list a client asks for.
#[derive(Debug, Deserialize)]
struct Page {
    limit: Option<usize>,
    after_id: Option<String>,
    before_id: Option<String>,
}

/// The page of the list that the query of `uri` asks for.
///
/// # Errors
/// If its limit is no number in the range.
pub fn list(app: &App, tenant: &Tenant, uri: &Uri) -> Result<Value, Refusal> {
    let names: Vec<String> = app.names(tenant).into_iter().map(|(name, _)| name.to_string()).collect();
    page(&names, app.created, uri)
}

/// The page of models with these names, created at this time in seconds since 1970, that the query of `uri`
/// asks for.
///
/// # Errors
/// If its limit is no number in the range.
pub fn page(names: &[String], created: u64, uri: &Uri) -> Result<Value, Refusal> {
    let page = Query::<Page>::try_from_uri(uri).ok().map(|Query(page)| page);
    let page = page.filter(|page| page.limit.is_none_or(|limit| (1..=MAX_PAGE).contains(&limit)));
    let Some(page) = page else {
        return Err(Refusal::invalid("limit", format!("limit must be an integer in [1, {MAX_PAGE}].")));
    };
    let at = |id: &Option<String>| names.iter().position(|name| id.as_ref() == Some(name));
    let range = at(&page.after_id).map_or(0, |at| at + 1)..at(&page.before_id).unwrap_or(names.len());
    let rest = names.get(range).unwrap_or_default();
    let shown = &rest[..rest.len().min(page.limit.unwrap_or(PAGE))];
    Ok(json!({
        "data": shown.iter().map(|name| model(created, name)).collect::<Vec<_>>(),
        "first_id": shown.first(), "last_id": shown.last(), "has_more": rest.len() > shown.len(),
    }))
}

/// One model, created at this time in seconds since 1970.
pub fn model(created: u64, name: &str) -> Value {
    let created_at = strftime("%Y-%m-%dT%H:%M:%SZ", Duration::from_secs(created));
    json!({"type": "model", "id": name, "display_name": name, "created_at": created_at})
}
