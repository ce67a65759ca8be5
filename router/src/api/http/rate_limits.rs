//! What is left of a key's limits, in the headers of answers to POST: by OpenAI's names, and on Anthropic's
//! paths by those of its API. A limit that a key does not have is left out.

use std::time::Duration;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use skein_node::clock;
use skein_text::strftime::strftime;

use crate::request::tenant::Tenant;
use crate::tenants::{Quota, Quotas};

/// Names of the headers of one limit: its value, what is left, when all of it is there again.
type Names = [HeaderName; 3];

const OPENAI: [Names; 2] = [
    [
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
    ],
    [
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ],
];

const ANTHROPIC: [Names; 2] = [
    [
        HeaderName::from_static("anthropic-ratelimit-requests-limit"),
        HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
        HeaderName::from_static("anthropic-ratelimit-requests-reset"),
    ],
    [
        HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
        HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
        HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
    ],
];

/// Names of all these headers.
pub fn names() -> impl Iterator<Item = HeaderName> {
    [OPENAI, ANTHROPIC].into_iter().flatten().flatten()
}

/// Adds the headers to the answer. A stream's are those of its beginning.
pub async fn show(request: Request, next: Next) -> Response {
    let is_anthropics = request.uri().path().contains("/v1/messages");
    let tenant = request.extensions().get::<Tenant>().cloned();
    let Some(tenant) = tenant.filter(|_| request.method() == Method::POST) else {
        return next.run(request).await;
    };
    let mut response = next.run(request).await;
    add_of(&mut response, &tenant, is_anthropics);
    response
}

/// Adds the headers of the limits of `tenant`'s key to an answer to POST.
pub fn add_of(response: &mut Response, tenant: &Tenant, is_anthropics: bool) {
    if let Some(key) = tenant.key() {
        add(response.headers_mut(), &key.quotas(clock::now()), is_anthropics);
    }
}

/// Adds the headers of `quotas`, by Anthropic's names or OpenAI's.
pub fn add(headers: &mut HeaderMap, quotas: &Quotas, is_anthropics: bool) {
    let names = if is_anthropics { ANTHROPIC } else { OPENAI };
    for (names, quota) in names.into_iter().zip([quotas.requests, quotas.tokens]) {
        let Some(Quota { limit, remaining, reset }) = quota else { continue };
        let reset = if is_anthropics { at(clock::unix_time() + reset) } else { within(reset) };
        let values = [HeaderValue::from(limit), HeaderValue::from(remaining)];
        let values = values.into_iter().chain(HeaderValue::from_str(&reset));
        for (name, value) in names.into_iter().zip(values) {
            // In place of another server's, behind which this process stands.
            headers.insert(name, value);
        }
    }
}

/// A duration as OpenAI writes it: `6m0s`, `1.5s`, `20ms`.
fn within(time: Duration) -> String {
    let ms = time.as_millis();
    let (minutes, rest) = (ms / 60_000, ms % 60_000);
    match (minutes, rest) {
        (0, ms) if ms < 1000 => format!("{ms}ms"),
        (0, ms) => format!("{}s", ms as f64 / 1000.0),
        (minutes, ms) => format!("{minutes}m{}s", ms as f64 / 1000.0),
    }
}

/// A time as Anthropic writes it, rounded up to seconds.
fn at(since_1970: Duration) -> String {
    strftime("%Y-%m-%dT%H:%M:%SZ", since_1970 + Duration::from_millis(999))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_reads_the_form_of_its_api() {
        let ms = Duration::from_millis;
        let forms = [ms(0), ms(20), ms(1500), ms(59_000), ms(360_000), ms(60_001)].map(within);
        assert_eq!(forms, ["0ms", "20ms", "1.5s", "59s", "6m0s", "1m0.001s"]);
        assert_eq!(at(ms(1_795_957_199_001)), "2026-11-29T13:00:00Z");
        let quota = Quota { limit: 60, remaining: 59, reset: ms(1000) };
        let quotas = Quotas { requests: Some(quota), tokens: None };
        let names = |is_anthropics| {
            let mut headers = HeaderMap::new();
            (0..2).for_each(|_| add(&mut headers, &quotas, is_anthropics));
            assert_eq!(headers.len(), 3, "each has one value");
            let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
            names.sort();
            (names, headers)
        };
        let (openai, headers) = names(false);
        assert_eq!(
            openai,
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"]
        );
        assert_eq!(headers["x-ratelimit-remaining-requests"], "59");
        assert_eq!(headers["x-ratelimit-reset-requests"], "1s");
        let (anthropic, headers) = names(true);
        assert!(anthropic.iter().all(|name| name.starts_with("anthropic-ratelimit-requests-")));
        assert!(headers["anthropic-ratelimit-requests-reset"].to_str().unwrap().ends_with('Z'));
    }
}
