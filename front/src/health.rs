//! Health checks: a task for each worker asks `/health`, or `/v1/models` where there is no such path, and
//! reads the models now and then.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::Value;

use super::link::Link;
use super::servers::Check;
use super::shared::Shared;

/// Checks between two readings of the models.
const MODELS_EVERY: u32 = 10;
/// Longest list of models.
const MAX_LIST_BYTES: usize = 1 << 20;
/// Most models of a worker.
const MAX_MODELS: usize = 1000;
/// Pause between two looks at a place without an address.
const LOOK_EVERY: Duration = Duration::from_secs(5);

const HEALTH: &str = "/health";
const MODELS: &str = "/v1/models";

/// Starts the checks. They end with `shared`.
pub fn start(shared: &Arc<Shared>) {
    for at in 0..shared.links.len() {
        let weak = Arc::downgrade(shared);
        let interval = shared.config.check_interval();
        tokio::spawn(async move {
            let mut checks = Checks::default();
            while let Some(shared) = weak.upgrade() {
                let link = &shared.links[at];
                link.pool.prune();
                let address = link.address();
                if link.url.is_name() && address.is_none() {
                    checks = Checks::default();
                    let appeared = link.appeared.clone();
                    drop(shared);
                    // Looks again now and then, so that the task ends with `shared`.
                    drop(tokio::time::timeout(LOOK_EVERY, appeared.notified()).await);
                    continue;
                }
                let check = checks.next(link, shared.config.authorization.as_ref(), interval * 2).await;
                if link.address() == address
                    && let Some(health) = shared.servers(|servers| servers.checked(at as u32, check))
                {
                    shared.health_changed(at as u32, health, &checks.reason);
                }
                drop(shared);
                tokio::time::sleep(interval).await;
            }
        });
    }
}

/// Progress of one worker's checks.
struct Checks {
    has_health: bool,
    since_models: u32,
    /// Why there was no answer, for the log.
    reason: String,
}

impl Default for Checks {
    fn default() -> Self {
        Self { has_health: true, since_models: MODELS_EVERY, reason: String::new() }
    }
}

impl Checks {
    async fn next(&mut self, link: &Link, authorization: Option<&HeaderValue>, limit: Duration) -> Check {
        self.reason = "no answer in time".to_owned();
        let checked = tokio::time::timeout(limit, self.ask(link, authorization)).await;
        let check = checked.unwrap_or(Check::Missed);
        if !matches!(check, Check::Up(_)) {
            self.since_models = MODELS_EVERY; // it may return with others
        }
        check
    }

    fn refuses(&mut self, path: &str, status: StatusCode) -> Check {
        self.reason = format!("{path} has the status {}", status.as_u16());
        Check::Refuses
    }

    fn lost(&mut self, NoAnswer(check, reason): NoAnswer) -> Check {
        self.reason = reason;
        check
    }

    async fn ask(&mut self, link: &Link, authorization: Option<&HeaderValue>) -> Check {
        if self.has_health {
            match get(link, HEALTH, authorization).await {
                Err(lost) => return self.lost(lost),
                Ok((
                    StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED,
                    _,
                )) => {
                    self.has_health = false;
                }
                Ok((status, _)) if !status.is_success() => return self.refuses(HEALTH, status),
                Ok(_) => {}
            }
        }
        self.since_models += 1;
        if self.has_health && self.since_models < MODELS_EVERY {
            return Check::Up(None);
        }
        match get(link, MODELS, authorization).await {
            Err(lost) => self.lost(lost),
            Ok((status, list)) if status.is_success() => {
                self.since_models = 0;
                Check::Up(Some(models(&list)))
            }
            // Without a list its models are not known, but if it is healthy it may serve any.
            Ok(_) if self.has_health => Check::Up(None),
            Ok((status, _)) => self.refuses(MODELS, status),
        }
    }
}

/// A check without an answer: what it means for the worker's health, and why.
struct NoAnswer(Check, String);

impl NoAnswer {
    fn refused(reason: String) -> Self {
        Self(Check::Refused, reason)
    }

    fn missed(reason: impl ToString) -> Self {
        Self(Check::Missed, reason.to_string())
    }
}

/// `GET path` at the worker.
async fn get(
    link: &Link,
    path: &str,
    authorization: Option<&HeaderValue>,
) -> Result<(StatusCode, Bytes), NoAnswer> {
    let idle = link.pool.idle_one().await;
    let is_kept = idle.is_some();
    let mut connection = match idle {
        Some(connection) => connection,
        None => link.pool.connect().await.map_err(NoAnswer::refused)?,
    };
    let request = || {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = link.url.path(path).parse().ok()?;
        request.headers_mut().insert(HOST, HeaderValue::from_str(&link.url.authority()).ok()?);
        if let Some(authorization) = authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Some(request)
    };
    let no_request = || NoAnswer(Check::Refuses, "its URL makes no request".to_owned());
    let sent = match connection.send(request().ok_or_else(no_request)?).await {
        Err(_) if is_kept => {
            connection = link.pool.connect().await.map_err(NoAnswer::refused)?;
            connection.send(request().ok_or_else(no_request)?).await
        }
        sent => sent,
    };
    let response = sent.map_err(|error| NoAnswer::missed(error.error()))?;
    let status = response.status();
    let body = connection.drive(Limited::new(response.into_body(), MAX_LIST_BYTES).collect()).await;
    link.pool.keep(connection);
    Ok((status, body.map_err(NoAnswer::missed)?.to_bytes()))
}

/// The models of a list; a worker with another format has none that are known.
fn models(list: &[u8]) -> Vec<Value> {
    let list = serde_json::from_slice::<Value>(list).unwrap_or_default();
    let data = list.get("data").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    data.iter().filter(|model| model["id"].is_string()).take(MAX_MODELS).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_models_with_a_name_are_listed() {
        let ids = |list: &str| {
            models(list.as_bytes()).iter().map(|model| model["id"].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            ids(r#"{"data":[{"id":"a","max_model_len":8},{"id":3},{},{"id":"b"}]}"#),
            [r#""a""#, r#""b""#]
        );
        for list in ["", "no", "[]", r#"{"data":{}}"#] {
            assert!(ids(list).is_empty(), "{list}");
        }
    }
}
