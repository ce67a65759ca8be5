//! A direct route answers as the router does.

use super::*;
use crate::config::RouterConfig;

/// Status, headers and body of the answer to `request`, directly and by the router.
async fn both_ways(
    config: RouterConfig,
    request: impl Fn() -> Request<Body>,
) -> [(u16, HeaderMap, String); 2] {
    let mut answers = Vec::new();
    for is_direct in [true, false] {
        let app = App::new(Arc::new(testing::model_text()), Arc::new(says("hello")), config.clone());
        let direct = is_direct.then(|| Direct::new(&app).expect("no page of another origin is allowed"));
        let (mut parts, body) = direct::answer(direct.as_ref(), &routes(app), request()).await.into_parts();
        // The router adds it; otherwise hyper does.
        parts.headers.remove("content-length");
        let is_drawn =
            parts.headers["x-request-id"].to_str().is_ok_and(|id| uuid::Uuid::parse_str(id).is_ok());
        if is_drawn {
            parts.headers.insert("x-request-id", http::HeaderValue::from_static("drawn"));
        }
        let body = body.collect().await.unwrap().to_bytes();
        let body = timeless(str::from_utf8(&body).unwrap());
        answers.push((parts.status.as_u16(), parts.headers, body));
    }
    answers.try_into().unwrap()
}

#[tokio::test]
async fn answers_are_the_same_with_and_without_the_router() {
    let locked = || RouterConfig { api_keys: vec!["sesame".to_owned()], ..testing::config() };
    let completion = r#"{"prompt": "a", "request_id": "mine"}"#;
    let chat = r#"{"messages": [{"role": "user", "content": "hi"}], "request_id": "mine", "stream": true}"#;
    let receipt = Some(("x-skein-receipt", "true"));
    let key = Some(("authorization", "Bearer sesame"));
    let cases = [
        (testing::config(), COMPLETIONS, completion, None, 200),
        (testing::config(), COMPLETIONS, completion, receipt, 200),
        (testing::config(), COMPLETIONS, completion, Some(("x-request-id", "trace")), 200),
        (testing::config(), CHAT, chat, None, 200),
        (testing::config(), CHAT, r#"{"messages": 1, "request_id": "mine"}"#, None, 400),
        (testing::config(), COMPLETIONS, "no JSON", Some(("x-request-id", "trace")), 400),
        (testing::config(), COMPLETIONS, completion, Some(("content-type", "text/plain")), 415),
        (locked(), COMPLETIONS, completion, key, 200),
        (locked(), CHAT, chat, Some(("x-request-id", "trace")), 401),
    ];
    for (config, path, body, header, status) in cases {
        let request = || {
            let request = Request::post(path);
            let (name, value) = header.unwrap_or(("accept", "*/*"));
            request.header(name, value).body(Body::from(body)).unwrap()
        };
        let [direct, routed] = both_ways(config, request).await;
        assert_eq!(direct.0, status, "{path} {body} {header:?}");
        assert_eq!(direct, routed, "{path} {body} {header:?}");
    }
}

#[tokio::test]
async fn what_is_no_direct_route_goes_to_the_router() {
    let app = testing::app(says("x"));
    for (request, status) in [
        (Request::get(COMPLETIONS), 405),
        (Request::post("/v1/completions/"), 404),
        (Request::get("/livez"), 200),
    ] {
        let request = request.body(Body::empty()).unwrap();
        let answer = direct::answer(Direct::new(&app).as_ref(), &routes(app.clone()), request).await;
        assert_eq!(answer.status().as_u16(), status);
    }
    let origins = RouterConfig { allowed_origins: vec!["*".to_owned()], ..testing::config() };
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), origins);
    assert!(Direct::new(&app).is_none());
}

/// Requests that wait, or whose answers are not streams, hold this as long as they run.
#[tokio::test]
async fn the_state_of_an_answer_is_small() {
    let app = testing::app(says("x"));
    let request = Request::post(COMPLETIONS).body(Body::empty()).unwrap();
    let answer = direct::answer(Direct::new(&app).as_ref(), &routes(app.clone()), request);
    let bytes = size_of_val(&*answer);
    assert!(bytes <= 6 * 1024, "{bytes} bytes");
}
