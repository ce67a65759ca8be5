//! Receipts over HTTP: a request asks for them with the header `x-skein-receipt: true`; the answer has them
//! in a header of the same name, and the trace as attributes.

use axum::extract::Request;
use axum::response::Response;
use futures::FutureExt;
use futures::future::Either;
use http::{HeaderMap, HeaderName, HeaderValue};
use skein_choice::receipt::Receipts;

/// Asks for receipts, and carries them.
pub const RECEIPT: HeaderName = HeaderName::from_static("x-skein-receipt");

/// Receipts, if `headers` ask for them.
pub fn asked(headers: &HeaderMap) -> Option<Receipts> {
    let is_asked = headers.get(RECEIPT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    is_asked.then(Receipts::default)
}

/// Value of the answer's header; `None` if there are no receipts.
pub fn header(receipts: &Receipts) -> Option<HeaderValue> {
    receipts.json().and_then(|json| HeaderValue::from_str(&json).ok())
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
pub fn give<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> impl Future<Output = Response> {
    let Some(receipts) = asked(request.headers()) else { return Either::Left(next(request)) };
    // `next` itself may also look for them.
    let answered = CURRENT.sync_scope(receipts.clone(), || next(request));
    Either::Right(CURRENT.scope(receipts.clone(), answered).map(move |mut response| {
        if let Some(value) = header(&receipts) {
            response.headers_mut().insert(RECEIPT, value);
        }
        response
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use skein_choice::receipt::{Considered, MAX_CANDIDATES, MAX_RECEIPTS, Receipt, Terms};

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
        assert!(header(&receipts).is_none());
        (0..100).for_each(|_| receipts.add(receipt(&"w\u{f6}rker\n".repeat(1000))));
        let header = header(&receipts).unwrap();
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
        use axum::middleware::Next;
        use tower::ServiceExt;
        let handler = || async {
            if let Some(receipts) = current() {
                receipts.add(receipt("w"));
            }
        };
        let router = axum::Router::new().route("/", axum::routing::get(handler)).layer(
            axum::middleware::from_fn(|request, next: Next| give(request, |request| next.run(request))),
        );
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
        let asks = |value: &str| asked(&HeaderMap::from_iter([(RECEIPT, value.parse().unwrap())])).is_some();
        assert!(asks("true") && asks("True") && !asks("false") && !asks("1"));
        assert!(asked(&HeaderMap::new()).is_none() && current().is_none());
    }
}
