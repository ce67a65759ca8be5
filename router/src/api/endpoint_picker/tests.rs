//! The picker over a real connection, with Envoy's messages in each mode.

use std::sync::Arc;

use skein_proto::envoy::config::core::v3 as core;
use skein_proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use skein_proto::envoy::service::ext_proc::v3::body_mutation::Mutation;
use skein_proto::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use skein_proto::envoy::service::ext_proc::v3::processing_request::Request as Sent;
use skein_proto::envoy::service::ext_proc::v3::processing_response::Response as Said;
use skein_proto::envoy::service::ext_proc::v3::{
    CommonResponse, HttpBody, HttpHeaders, HttpTrailers, ImmediateResponse, ProcessingRequest,
    ProcessingResponse, ProtocolConfiguration,
};
use tokio::net::TcpListener;

use crate::app::App;
use crate::request::TokenRequest;
use crate::testing::{self, Script};

const BODY: &str = r#"{"model": "test", "prompt": "abc", "max_tokens": 5}"#;
const ENDPOINT: &str = "10.0.0.7:8000";

/// Messages of Envoy on a new stream.
#[derive(Default)]
struct Proxy {
    messages: Vec<ProcessingRequest>,
}

impl Proxy {
    /// A POST in the given mode; `None` = Envoy specifies no mode.
    fn post(mode: Option<BodySendMode>, path: &str, headers: &[(&str, &str)]) -> Self {
        let own = [(":method", "POST"), (":path", path), ("content-type", "application/json")];
        let headers = headers.iter().chain(&own).map(|(key, value)| core::HeaderValue {
            key: (*key).to_owned(),
            raw_value: value.as_bytes().to_vec().into(),
            ..core::HeaderValue::default()
        });
        let headers = Some(core::HeaderMap { headers: headers.collect() });
        let modes = |mode: BodySendMode| ProtocolConfiguration {
            request_body_mode: mode.into(),
            response_body_mode: mode.into(),
        };
        let mut proxy =
            Self::default().sends(Sent::RequestHeaders(HttpHeaders { headers, end_of_stream: false }));
        proxy.messages[0].protocol_config = mode.map(modes);
        proxy
    }

    fn sends(mut self, request: Sent) -> Self {
        self.messages.push(ProcessingRequest { request: Some(request), ..ProcessingRequest::default() });
        self
    }

    fn body(self, body: &str, end_of_stream: bool) -> Self {
        self.sends(Sent::RequestBody(HttpBody { body: body.as_bytes().to_vec().into(), end_of_stream }))
    }

    fn only(mut self, endpoints: &[&str]) -> Self {
        use prost_types::value::Kind;
        let string = |text: &&str| prost_types::Value { kind: Some(Kind::StringValue((*text).to_owned())) };
        let values = prost_types::ListValue { values: endpoints.iter().map(string).collect() };
        let listed = prost_types::Value { kind: Some(Kind::ListValue(values)) };
        let hint = [("x-gateway-destination-endpoint-subset".to_owned(), listed)];
        let hint = prost_types::Struct { fields: hint.into() };
        let filter_metadata = [("envoy.lb.subset_hint".to_owned(), hint)].into();
        self.messages[0].metadata_context = Some(core::Metadata { filter_metadata });
        self
    }

    /// All answers of a picker over `script`, and the requests for which it picked.
    async fn ask(self, script: Script, api_keys: &[&str]) -> (Vec<ProcessingResponse>, Vec<TokenRequest>) {
        let script = Arc::new(script);
        let api_keys = api_keys.iter().map(|key| (*key).to_owned()).collect();
        let config = crate::config::RouterConfig { endpoint_port: Some(8000), api_keys, ..testing::config() };
        let app = App::new(Arc::new(testing::model_text()), script.clone(), config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(crate::serve::serve(listener, app, std::future::pending()));
        let mut client = ExternalProcessorClient::connect(url).await.unwrap();
        let mut stream = client.process(futures::stream::iter(self.messages)).await.unwrap().into_inner();
        let mut said = Vec::new();
        while let Some(message) = stream.message().await.unwrap() {
            said.push(message);
        }
        let requests = script.requests.lock().unwrap().clone();
        (said, requests)
    }
}

/// Endpoint in an answer's header, which must equal the one in its metadata.
fn destination(common: &CommonResponse, said: &ProcessingResponse) -> String {
    use prost_types::value::Kind;
    let set = &common.header_mutation.as_ref().unwrap().set_headers;
    let value = |name: &str| {
        let header = set.iter().filter_map(|option| option.header.as_ref()).find(|header| header.key == name);
        String::from_utf8(header.unwrap().raw_value.to_vec()).unwrap()
    };
    let Some(Kind::StructValue(space)) = &said.dynamic_metadata.as_ref().unwrap().fields["envoy.lb"].kind
    else {
        panic!("{said:?}")
    };
    let in_metadata = space.fields["x-gateway-destination-endpoint"].kind.clone();
    assert_eq!(in_metadata, Some(Kind::StringValue(value("x-gateway-destination-endpoint"))));
    assert_eq!(value("x-skein-worker"), "10.0.0.7:9000");
    value("x-gateway-destination-endpoint")
}

fn refused(said: &[ProcessingResponse]) -> (i32, serde_json::Value, ImmediateResponse) {
    let Some(Said::ImmediateResponse(refused)) = said.last().and_then(|said| said.response.clone()) else {
        panic!("{said:?}")
    };
    let error: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    (refused.status.unwrap().code, error["error"].clone(), refused)
}

#[tokio::test]
async fn a_streamed_body_is_read_whole_and_sent_on_unchanged() {
    let (one, other) = BODY.split_at(9);
    for mode in [None, Some(BodySendMode::FullDuplexStreamed)] {
        let proxy = Proxy::post(mode, "/v1/completions", &[]).body(one, false).body(other, true);
        let (said, requests) = proxy.ask(Script::default(), &[]).await;
        let Some(Said::RequestHeaders(headers)) = &said[0].response else { panic!("{said:?}") };
        assert_eq!(destination(headers.response.as_ref().unwrap(), &said[0]), ENDPOINT);
        let Some(Said::RequestBody(body)) = &said[1].response else { panic!("{said:?}") };
        let Some(Mutation::StreamedResponse(chunk)) =
            body.response.clone().and_then(|body| body.body_mutation).and_then(|body| body.mutation)
        else {
            panic!("{said:?}")
        };
        assert_eq!((&chunk.body[..], chunk.end_of_stream, said.len()), (BODY.as_bytes(), true, 2));
        // BOS and three bytes: the request was tokenised as by this router.
        assert_eq!((requests[0].prompt.len(), requests[0].sampling.max_tokens), (4, 5));
    }
}

#[tokio::test]
async fn a_large_body_is_forwarded_in_small_messages_before_its_trailers() {
    let body = format!(r#"{{"prompt": "a", "x": "{}"}}"#, "y".repeat(150_000));
    let proxy =
        Proxy::post(Some(BodySendMode::FullDuplexStreamed), "/v1/completions", &[]).body(&body, false);
    let (said, _) =
        proxy.sends(Sent::RequestTrailers(HttpTrailers::default())).ask(Script::default(), &[]).await;
    let mut sent = Vec::new();
    for said in &said[1..said.len() - 1] {
        let Some(Said::RequestBody(part)) = said.response.clone() else { panic!() };
        let Some(Mutation::StreamedResponse(chunk)) = part.response.unwrap().body_mutation.unwrap().mutation
        else {
            panic!()
        };
        assert!(chunk.body.len() <= 62_000 && !chunk.end_of_stream, "the trailers end it");
        sent.extend_from_slice(&chunk.body);
    }
    assert!(sent == body.as_bytes());
    assert!(matches!(said.last().unwrap().response, Some(Said::RequestTrailers(_))));
}

#[tokio::test]
async fn a_buffered_body_is_answered_with_the_endpoint() {
    let proxy = Proxy::post(Some(BodySendMode::Buffered), "/v1/chat/completions?a=b", &[]);
    let body = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    let (said, requests) = proxy.body(body, true).ask(Script::default(), &[]).await;
    assert!(matches!(&said[0].response, Some(Said::RequestHeaders(headers)) if headers.response.is_none()));
    let Some(Said::RequestBody(body)) = &said[1].response else { panic!("{said:?}") };
    let common = body.response.as_ref().unwrap();
    assert_eq!(destination(common, &said[1]), ENDPOINT);
    assert!(common.body_mutation.is_none() && requests[0].prompt.len() > 2);
}

#[tokio::test]
async fn without_a_body_the_pick_is_by_load() {
    for mode in [BodySendMode::None, BodySendMode::Streamed, BodySendMode::BufferedPartial] {
        let proxy = Proxy::post(Some(mode), "/v1/completions", &[]);
        let (said, requests) = proxy.ask(Script::default(), &[]).await;
        let Some(Said::RequestHeaders(headers)) = &said[0].response else { panic!("{said:?}") };
        assert_eq!(destination(headers.response.as_ref().unwrap(), &said[0]), ENDPOINT);
        assert_eq!(requests[0].prompt.len(), 1);
    }
    // The body of other routes is not parsed either.
    let proxy = Proxy::post(None, "/v1/audio", &[]).body("no JSON", true);
    let (said, requests) = proxy.ask(Script::default(), &[]).await;
    assert!(matches!(said[0].response, Some(Said::RequestHeaders(_))) && requests[0].prompt.len() == 1);
}

#[tokio::test]
async fn an_answer_passes_unchanged() {
    let headers = HttpHeaders { headers: None, end_of_stream: false };
    let body = HttpBody { body: "data: x".into(), end_of_stream: true };
    let tell = |mode| {
        Proxy::post(Some(mode), "/v1/completions", &[])
            .body(BODY, true)
            .sends(Sent::ResponseHeaders(headers.clone()))
            .sends(Sent::ResponseBody(body.clone()))
            .sends(Sent::ResponseTrailers(HttpTrailers::default()))
            .ask(Script::default(), &[])
    };
    let (said, _) = tell(BodySendMode::FullDuplexStreamed).await;
    let Some(Said::ResponseBody(echo)) = &said[3].response else { panic!("{said:?}") };
    let Some(Mutation::StreamedResponse(chunk)) =
        &echo.response.as_ref().unwrap().body_mutation.as_ref().unwrap().mutation
    else {
        panic!("{said:?}")
    };
    assert_eq!((&chunk.body[..], chunk.end_of_stream), (&b"data: x"[..], true));
    let (said, _) = tell(BodySendMode::Buffered).await;
    assert!(matches!(&said[3].response, Some(Said::ResponseBody(body)) if body.response.is_none()));
    assert!(matches!(said[4].response, Some(Said::ResponseTrailers(_))));
}

#[tokio::test]
async fn refusals_are_those_of_the_http_api() {
    let post = |headers: &[(&str, &str)]| Proxy::post(None, "/v1/completions", headers);
    let (said, _) =
        post(&[]).body(r#"{"prompt": "a", "temperature": 9}"#, true).ask(Script::default(), &[]).await;
    let (status, error, refusal) = refused(&said);
    assert_eq!((status, error["param"].as_str()), (400, Some("temperature")));
    let sets = |name: &str| {
        let set = &refusal.headers.as_ref().unwrap().set_headers;
        set.iter().any(|option| option.header.as_ref().unwrap().key == name)
    };
    assert!(sets("content-type") && sets("x-should-retry"));

    let none = crate::refusal::Refusal::NoReadyWorker {
        reason: "none has joined".to_owned(),
        retry_after: std::time::Duration::from_secs(1),
    };
    let script = Script { refuse: Some(none), ..Script::default() };
    assert_eq!(refused(&post(&[]).body(BODY, true).ask(script, &[]).await.0).0, 503);

    let large = format!(r#"{{"prompt": "{}"}}"#, "a".repeat(9 * 1024 * 1024));
    let said = large
        .as_bytes()
        .chunks(1 << 20)
        .fold(post(&[]), |proxy, chunk| proxy.body(std::str::from_utf8(chunk).unwrap(), false));
    assert_eq!(refused(&said.ask(Script::default(), &[]).await.0).0, 413);
    let at_once = post(&[]).body(&large, true);
    assert_eq!(refused(&at_once.ask(Script::default(), &[]).await.0).0, 413);
}

#[tokio::test]
async fn the_key_of_the_request_is_checked() {
    let post = |headers: &[(&str, &str)]| Proxy::post(None, "/v1/completions", headers).body(BODY, true);
    assert_eq!(refused(&post(&[]).ask(Script::default(), &["sesame"]).await.0).0, 401);
    let bearer = post(&[("authorization", "Bearer sesame")]);
    let (said, requests) = bearer.ask(Script::default(), &["sesame"]).await;
    assert!(matches!(said[0].response, Some(Said::RequestHeaders(_))));
    assert_eq!(
        requests[0].tenant,
        crate::request::tenant::Tenant::of_key("sesame"),
        "its cache is the tenant's"
    );
}

#[tokio::test]
async fn only_endpoints_that_the_proxy_allows_are_picked() {
    let post = || Proxy::post(None, "/v1/completions", &[]).body(BODY, true);
    let (said, _) = post().only(&["10.0.0.8:8000", ENDPOINT]).ask(Script::default(), &[]).await;
    assert!(matches!(said[0].response, Some(Said::RequestHeaders(_))));
    let host = ENDPOINT.rsplit_once(':').unwrap().0;
    for only in [&[host][..], &[&format!("10.0.0.8:8000,{ENDPOINT}")]] {
        let (said, _) = post().only(only).ask(Script::default(), &[]).await;
        assert!(matches!(said[0].response, Some(Said::RequestHeaders(_))), "{only:?}");
    }
    for only in [&["10.0.0.8:8000"][..], &[]] {
        let (said, _) = post().only(only).ask(Script::default(), &[]).await;
        assert_eq!(refused(&said).0, 503);
    }
}
