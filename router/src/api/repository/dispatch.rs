//! Passes a request to the routes of the model that it names: in its body, in its query or in its path. A
//! body is read whole here, within the limits that it has there, and handed on.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri};
use serde_json::Value;
use serde_json::value::RawValue;
use skein_node::clock::{self, Timestamp};

use crate::api::fields::object::Fields;
use crate::api::fields::sampling::{TIMEOUT_HEADER, timeout_ms};
use crate::api::http::body::{check_content_encoding, check_content_length, check_content_type, read_body};
use crate::api::http::error::Refuse;
use crate::api::http::keys::Admin;
use crate::api::http::query::UrlQuery;
use crate::api::kserve::rest::error::KserveError;
use crate::api::kserve::rest::target::{Target, Verb};
use crate::api::ollama::error::OllamaError;
use crate::api::ollama::keep_alive;
use crate::api::ollama::lines::{Kind, Lines};
use crate::api::ollama::models::untagged;
use crate::refusal::Refusal;
use crate::repository::residency::KeepAlive;
use crate::repository::{Lease, Repository};
use crate::request::tenant::Tenant;

/// A request for a model whose body was read.
struct Read {
    request: Request,
    body: Bytes,
}

impl Read {
    async fn of(request: Request, models: &Repository) -> Result<Self, Refusal> {
        let limit = models.config().limits.body_bytes;
        check_content_length(request.headers(), limit)?;
        check_content_encoding(request.headers())?;
        let (head, body) = request.into_parts();
        let body = read_body(body, limit).await?;
        Ok(Self { request: Request::from_parts(head, Body::empty()), body })
    }

    /// The members of the body, unparsed. Of a name that occurs twice the last counts.
    fn members(&self) -> Result<Members<'_>, Refusal> {
        serde_json::from_slice(&self.body).map(Members).or_else(|_| {
            // The fault in the words of the routes behind.
            Fields::parse(&self.body)?;
            Err(Refusal::InvalidJson("The body is not a JSON object.".to_owned()))
        })
    }
}

struct Members<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl Members<'_> {
    /// A member as text. Absent, null and empty are the same.
    fn text(&self, name: &'static str) -> Result<Option<String>, Refusal> {
        match self.value(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
            Some(_) => Err(Refusal::invalid(name, format!("{name} must be a string."))),
        }
    }

    fn value(&self, name: &str) -> Option<Value> {
        self.0.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok())
    }

    /// Whether a member is absent, null, or an empty text or list.
    fn is_empty(&self, name: &str) -> bool {
        self.0.get(name).is_none_or(|raw| matches!(raw.get(), "null" | "\"\"" | "[]"))
    }
}

/// Whose a request is. The key check has found it.
pub fn tenant_of(request: &Request) -> Tenant {
    request.extensions().get::<Tenant>().cloned().unwrap_or_default()
}

/// Passes on a request that names its model in its body.
pub async fn by_body(models: Repository, request: Request, refuse: Refuse) -> Response {
    let (tenant, arrived) = (tenant_of(&request), clock::now());
    let timeout = timeout_of(request.headers());
    let leased = async {
        check_content_type(request.headers())?;
        let read = Read::of(request, &models).await?;
        let named = match read.members()?.text("model")? {
            Some(named) => Some(named),
            None => in_query(read.request.uri())?,
        };
        let timeout = timeout?;
        let lease = models.named(named.as_deref(), &tenant, timeout).await?;
        Ok::<_, Refusal>((lease, timeout, read))
    };
    match leased.await {
        Ok((lease, timeout, Read { request, body })) => {
            passed(lease, timed(request, timeout, arrived), Body::from(body)).await
        }
        Err(refusal) => refused(refusal, refuse),
    }
}

/// Passes on a request of Ollama's API, which also says how long its model stays in memory. Only an
/// administrator's counts: the model is everybody's.
pub async fn by_ollama(models: Repository, request: Request) -> Response {
    let (tenant, received_at) = (tenant_of(&request), clock::now());
    let is_admin = Admin::require(request.extensions()).is_ok();
    let timeout = timeout_of(request.headers());
    let done = async {
        let read = Read::of(request, &models).await?;
        let members = read.members()?;
        let given = members.text("model")?;
        let model = given.as_deref().map(untagged);
        let asked = members.value("keep_alive").filter(|asked| !asked.is_null());
        let keep_alive = asked.as_ref().map(|asked| keep_alive::read(asked).ok_or_else(|| malformed(asked)));
        let keep_alive = keep_alive.transpose()?;
        let path = read.request.uri().path();
        let kind = if path.ends_with("/chat") { Kind::Chat } else { Kind::Generate };
        let prompt = if kind == Kind::Chat { "messages" } else { "prompt" };
        let generates = path.ends_with("/chat") || path.ends_with("/generate");
        if generates && members.is_empty(prompt) && keep_alive == Some(KeepAlive::For(Duration::ZERO)) {
            let number = models.find(model.unwrap_or_default(), &tenant)?;
            if is_admin && !models.is_pinned(number) {
                models.unload(number).await?;
            }
            let lines = Lines::new(kind, given.clone().unwrap_or_default(), received_at);
            return Ok(Json(lines.without_prompt("unload")).into_response());
        }
        let timeout = timeout?;
        let lease = models.named(model, &tenant, timeout).await?;
        let number = lease.number();
        drop(members);
        let Read { request, body } = read;
        let response = passed(lease, timed(request, timeout, received_at), Body::from(body)).await;
        if let Some(keep_alive) = keep_alive.filter(|_| is_admin && response.status().is_success()) {
            models.set_keep_alive(number, keep_alive);
        }
        Ok::<_, Refusal>(response)
    };
    match done.await {
        Ok(response) => response,
        Err(refusal) => refused(refusal, OllamaError::refuse),
    }
}

fn malformed(asked: &Value) -> Refusal {
    let shown: String = asked.to_string().chars().take(80).collect();
    let message = format!(
        "keep_alive must be seconds or a duration such as \"5m\"; 0 unloads the model after the answer, a negative one \
         keeps it. Got {shown}."
    );
    Refusal::invalid("keep_alive", message)
}

/// Passes on a request that names its model in its query.
pub async fn by_query(models: Repository, request: Request, refuse: Refuse) -> Response {
    let (tenant, named) = (tenant_of(&request), in_query(request.uri()));
    let leased = async {
        let Some(named) = named? else {
            let message =
                "model is required: this server has several; name one in the query, as ?model=NAME.";
            return Err(Refusal::invalid("model", message));
        };
        models.named(Some(&named), &tenant, None).await
    };
    match leased.await {
        Ok(lease) => {
            let (head, body) = request.into_parts();
            passed(lease, Request::from_parts(head, Body::empty()), body).await
        }
        Err(refusal) => refused(refusal, refuse),
    }
}

/// Passes on a request to a path of KServe; `rest` is what follows `/v2/models/`. Whether a model is ready is
/// said without loading it.
pub async fn by_path(models: Repository, rest: &str, request: Request) -> Response {
    let (tenant, arrived) = (tenant_of(&request), clock::now());
    let target = Target::read(rest);
    let (timeout, checked) = (timeout_of(request.headers()), target.check(request.method()));
    let leased = async {
        checked?;
        if target.verb == Verb::Ready && models.in_memory(&target.model, &tenant)?.is_none() {
            let reason = format!("`{}` is not in memory", target.model);
            return Err(Refusal::NoReadyWorker { reason, retry_after: Duration::from_secs(1) });
        }
        let timeout = timeout?;
        Ok((models.named(Some(&target.model), &tenant, timeout).await?, timeout))
    };
    match leased.await {
        Ok((lease, timeout)) => {
            let (head, body) = request.into_parts();
            let request = Request::from_parts(head, Body::empty());
            passed(lease, timed(request, timeout, arrived), body).await
        }
        Err(refusal) => refused(refusal, KserveError::refuse),
    }
}

/// How long a request may wait for its model, by its header.
fn timeout_of(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    Ok(timeout_ms(headers)?.map(Duration::from_millis))
}

/// The request with what is left of its time since it arrived, of which it waited a part here.
fn timed(mut request: Request, timeout: Option<Duration>, arrived: Timestamp) -> Request {
    if let Some(timeout) = timeout {
        let left = timeout.saturating_sub(clock::now().since(arrived)).as_millis().max(1);
        let left = HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX));
        request.headers_mut().insert(TIMEOUT_HEADER, left);
    }
    request
}

fn in_query(uri: &Uri) -> Result<Option<String>, Refusal> {
    Ok(UrlQuery::parse(uri)?.take("model").filter(|name| !name.is_empty()))
}

/// Has the model's own routes answer. They find the caller by their own check of its key.
async fn passed(lease: Lease, request: Request, body: Body) -> Response {
    let (head, _) = request.into_parts();
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    *request.version_mut() = head.version;
    *request.headers_mut() = head.headers;
    lease.answer(request).await
}

fn refused(refusal: Refusal, refuse: Refuse) -> Response {
    refusal.log("");
    refuse(&Request::new(Body::empty()), refusal)
}
