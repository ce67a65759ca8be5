//! Decision receipts: why a request is at its worker. Only for requests that ask, with the header
//! `x-skein-receipt: true`; the answer has them in a header of the same name, and the trace as attributes.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::fleet::Terms;

/// Asks for receipts, and carries them.
pub const RECEIPT: HeaderName = HeaderName::from_static("x-skein-receipt");
/// Most candidates of a receipt: those with the shortest prediction, and the chosen one.
pub const MAX_CANDIDATES: usize = 8;
/// Most receipts of an answer: the first choices of a call with several prompts, or that moved.
const MAX_RECEIPTS: usize = 2;
/// Longest name of a worker in a receipt, in characters.
const MAX_NAME: usize = 64;

/// One choice of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// Name of the policy.
    pub policy: &'static str,
    /// Number of workers that could be chosen.
    pub candidates: u32,
    /// Estimated or exact tokens of the prompt.
    pub prompt_tokens: u32,
    /// The best candidates by prediction, at most [`MAX_CANDIDATES`].
    pub best: Vec<Considered>,
}

/// A worker that could have been chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Considered {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Tokens of the prompt that it is expected to cache.
    pub overlap_tokens: u32,
    /// Components of its predicted time to the first token.
    pub terms: Terms,
}

impl Receipt {
    fn json(&self) -> Value {
        let best = self.best.iter().map(Considered::json).collect::<Vec<_>>();
        json!({
            "policy": self.policy, "candidates": self.candidates, "prompt_tokens": self.prompt_tokens, "best": best,
        })
    }

    /// The chosen worker.
    pub fn chosen(&self) -> Option<&Considered> {
        self.best.iter().find(|considered| considered.chosen)
    }
}

impl Considered {
    fn json(&self) -> Value {
        // Escaped, because a header has only printable ASCII.
        let name: String = self.worker.escape_default().take(MAX_NAME).collect();
        let mut object = json!({
            "worker": name, "chosen": self.chosen, "overlap_tokens": self.overlap_tokens,
            "seconds": rounded(self.terms.sum()),
        });
        for (term, seconds) in self.terms.named() {
            object[term] = rounded(seconds);
        }
        object
    }
}

/// Seconds with microseconds: more digits would only be noise.
fn rounded(seconds: f64) -> Value {
    json!((seconds * 1e6).round() / 1e6)
}

/// Collects the receipts of one call.
#[derive(Debug, Clone, Default)]
pub struct Receipts(Arc<Mutex<Vec<Receipt>>>);

impl Receipts {
    /// Receipts, if `headers` ask for them.
    pub fn asked(headers: &HeaderMap) -> Option<Self> {
        let is_asked =
            headers.get(RECEIPT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
        is_asked.then(Self::default)
    }

    /// Adds a receipt, up to the bound.
    pub fn add(&self, receipt: Receipt) {
        let mut receipts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if receipts.len() < MAX_RECEIPTS {
            receipts.push(receipt);
        }
    }

    /// Value of the answer's header.
    pub fn header(&self) -> Option<HeaderValue> {
        let receipts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<Value> = receipts.iter().map(Receipt::json).collect();
        (!all.is_empty()).then(|| HeaderValue::from_str(&Value::from(all).to_string()).ok()).flatten()
    }
}

tokio::task_local! {
    static CURRENT: Receipts;
}

/// Receipts of the call that this task serves, if it asked for them.
pub fn current() -> Option<Receipts> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Collects receipts for a call that asks, and adds them to its answer. Choices after the answer's head, of a
/// stream that moves, are only in the trace.
pub async fn give(request: Request, next: Next) -> Response {
    let Some(receipts) = Receipts::asked(request.headers()) else { return next.run(request).await };
    let mut response = CURRENT.scope(receipts.clone(), next.run(request)).await;
    if let Some(value) = receipts.header() {
        response.headers_mut().insert(RECEIPT, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(worker: &str) -> Receipt {
        let terms = Terms { queue: 0.25, prefill: 0.123_456_789, ..Terms::default() };
        let considered = |chosen| Considered { worker: worker.into(), chosen, overlap_tokens: 32, terms };
        let best = (0..MAX_CANDIDATES).map(|nth| considered(nth == 0)).collect();
        Receipt { policy: "first_token", candidates: 1000, prompt_tokens: 50, best }
    }

    #[test]
    fn a_receipt_is_ascii_bounded_and_says_each_term() {
        let receipts = Receipts::default();
        assert!(receipts.header().is_none());
        (0..100).for_each(|_| receipts.add(receipt(&"w\u{f6}rker\n".repeat(1000))));
        let header = receipts.header().unwrap();
        assert!(header.len() < 6 * 1024, "{} bytes", header.len());
        let value: Value = serde_json::from_slice(header.as_bytes()).unwrap();
        assert_eq!(value.as_array().unwrap().len(), MAX_RECEIPTS);
        let best = &value[0]["best"][0];
        assert_eq!(
            (&best["queue"], &best["prefill"], &best["seconds"]),
            (&json!(0.25), &json!(0.123_457), &json!(0.373_457))
        );
        assert_eq!((&best["overlap_tokens"], &best["chosen"]), (&json!(32), &json!(true)));
    }

    #[tokio::test]
    async fn an_answer_carries_the_receipts_of_its_call() {
        use tower::ServiceExt;
        let handler = || async {
            if let Some(receipts) = current() {
                receipts.add(receipt("w"));
            }
        };
        let router = axum::Router::new()
            .route("/", axum::routing::get(handler))
            .layer(axum::middleware::from_fn(give));
        let ask = |value: &'static str| {
            let request = Request::builder().uri("/").header(RECEIPT, value).body(axum::body::Body::empty());
            router.clone().oneshot(request.unwrap())
        };
        assert!(
            ask("true").await.unwrap().headers()[RECEIPT].to_str().unwrap().contains("\"overlap_tokens\":32")
        );
        assert!(!ask("no").await.unwrap().headers().contains_key(RECEIPT));
    }

    #[test]
    fn only_who_asks_gets_receipts() {
        let asked = |value: &str| {
            Receipts::asked(&HeaderMap::from_iter([(RECEIPT, value.parse().unwrap())])).is_some()
        };
        assert!(asked("true") && asked("True") && !asked("false") && !asked("1"));
        assert!(Receipts::asked(&HeaderMap::new()).is_none() && current().is_none());
    }
}
