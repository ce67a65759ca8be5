//! skein.v1 over the scripted generator, through a real connection.

use std::sync::Arc;
use std::time::Duration;

use skein_proto::finish::FinishReason;
use skein_proto::v1;
use skein_proto::v1::inference_client::InferenceClient;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::app::App;
use crate::refusal::Refusal;
use crate::repository::served::Served;
use crate::testing::{self, Say, Script, delta, finish};

/// Serves `app` on a free port; ends when the sender is dropped or used.
async fn serve(app: App) -> (String, oneshot::Sender<()>, tokio::task::JoinHandle<std::io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(crate::serve::serve(listener, app, async {
        let _ = stopped.await;
    }));
    (url, stop, served)
}

pub(in crate::api) async fn connect(app: App) -> (Channel, oneshot::Sender<()>) {
    let (url, stop, _) = serve(app).await;
    (Channel::from_shared(url).unwrap().connect().await.unwrap(), stop)
}

fn request(text: &str) -> v1::GenerateRequest {
    v1::GenerateRequest {
        prompt: Some(v1::generate_request::Prompt::Text(text.to_owned())),
        request_id: "g".to_owned(),
        ..v1::GenerateRequest::default()
    }
}

async fn generate(
    script: Script,
    request: v1::GenerateRequest,
) -> Result<Vec<v1::GenerateResponse>, tonic::Status> {
    let (channel, _stop) = connect(testing::app(script)).await;
    let mut stream = InferenceClient::new(channel).generate(request).await?.into_inner();
    let mut responses = Vec::new();
    while let Some(response) = stream.message().await? {
        responses.push(response);
    }
    Ok(responses)
}

#[tokio::test]
async fn text_tokens_and_usage_come_in_order() {
    let script = Script::of([delta(0, "a"), delta(0, "bEN"), delta(0, "D"), finish(0, FinishReason::Abort)]);
    let mut request = request("xy");
    request.return_token_ids = true;
    request.sampling = Some(v1::SamplingOptions {
        stop: vec!["END".to_owned()],
        logprobs: Some(1),
        prompt_logprobs: Some(0),
        ..v1::SamplingOptions::default()
    });
    let responses = generate(script, request).await.unwrap();
    let texts: Vec<&str> = responses.iter().map(|response| response.text.as_str()).collect();
    assert_eq!(texts, ["a", "b", ""]);
    let positions: Vec<u32> = responses.iter().map(|response| response.from_position).collect();
    assert_eq!(positions, [3, 4, 7]);
    assert_eq!(responses[1].token_ids, testing::tokens("bEN"));
    assert_eq!(responses[0].logprobs[0].token, "a");
    assert_eq!((responses[0].prompt_logprobs.len(), responses[1].prompt_logprobs.len()), (2, 0));
    let finish = responses[2].finish.clone().unwrap();
    assert_eq!((finish.reason.as_str(), finish.stop_string.as_deref()), ("stop", Some("END")));
    assert_eq!(
        responses[2].usage,
        Some(v1::Usage { prompt_tokens: 3, completion_tokens: 5, cached_tokens: 1 })
    );
    assert_eq!(responses[2].request_id, "g");
}

/// Text, tokens and finishes of one sample.
type Assembled = (String, Vec<u32>, usize);

/// Two assembled samples, and how many responses had usage and how many had prompt log-probabilities.
fn assembled(responses: &[v1::GenerateResponse]) -> ([Assembled; 2], usize, usize) {
    let mut samples = <[Assembled; 2]>::default();
    for response in responses {
        let (text, tokens, finishes) = &mut samples[response.sample_index as usize];
        text.push_str(&response.text);
        tokens.extend(&response.token_ids);
        *finishes += usize::from(response.finish.is_some());
    }
    let usages = responses.iter().filter(|response| response.usage.is_some()).count();
    (samples, usages, responses.iter().map(|response| response.prompt_logprobs.len()).sum())
}

#[tokio::test]
async fn a_stream_resumes_after_any_response() {
    let script = |whole: bool| {
        let length = |index| finish(index, FinishReason::Length);
        let journey = crate::request::Journey { moves: 1, ..crate::request::Journey::default() };
        let deltas = if whole {
            vec![delta(1, "éx"), length(1), delta(0, "a😀ENb"), length(0)]
        } else {
            vec![
                delta(0, "a"),
                delta(1, "é"),
                delta(0, "😀E"),
                delta(0, "Nb"),
                length(0),
                delta(1, "x"),
                length(1),
            ]
        };
        Script { journey, ..Script::of(deltas) }
    };
    let mut request = request("xy");
    request.return_token_ids = true;
    request.sampling = Some(v1::SamplingOptions {
        n: Some(2),
        stop: vec!["END".to_owned()],
        prompt_logprobs: Some(0),
        ..v1::SamplingOptions::default()
    });
    let whole = generate(script(false), request.clone()).await.unwrap();
    let expected = assembled(&whole);
    assert_eq!((expected.1, expected.2), (1, 2));
    assert_eq!(whole.last().unwrap().receipt, Some(v1::Receipt { moves: 1, resume_exact: true }));
    for at in 0..whole.len() - 1 {
        let had =
            |sample| whole[..=at].iter().rev().find(|response| response.sample_index == sample)?.received;
        request.resume_from = [0, 1].into_iter().filter_map(had).collect();
        for cut in [false, true] {
            let rest = generate(script(cut), request.clone()).await.unwrap();
            let parts: Vec<_> = whole[..=at].iter().chain(&rest).cloned().collect();
            assert_eq!(assembled(&parts), expected, "cut behind response {at}: {rest:?}");
            let positions = parts.iter().filter(|response| response.sample_index == 0);
            let mut next = 3;
            for response in positions.filter(|response| !response.token_ids.is_empty()) {
                assert_eq!(response.from_position, next);
                next += response.token_ids.len() as u32;
            }
        }
    }
}

#[tokio::test]
async fn inconsistent_resume_points_are_refused() {
    let refused = async |id: &str, resume_from: &[v1::Received]| {
        let script = Script::of([delta(0, "ab"), finish(0, FinishReason::Length)]);
        let resume_from = resume_from.to_vec();
        generate(script, v1::GenerateRequest { request_id: id.to_owned(), resume_from, ..request("a") }).await
    };
    let received = |sample_index, tokens| v1::Received {
        sample_index,
        tokens,
        text_bytes: 1,
        ..v1::Received::default()
    };
    assert_eq!(refused("", &[received(0, 1)]).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(refused("g", &[received(1, 1)]).await.unwrap_err().code(), Code::InvalidArgument);
    let twice = [received(0, 1), received(0, 1)];
    assert_eq!(refused("g", &twice).await.unwrap_err().code(), Code::InvalidArgument);
    let of = |index, model_version| v1::Received { model_version, ..received(index, 1) };
    assert_eq!(refused("g", &[of(0, 7), of(1, 8)]).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(refused("g", &[received(0, 9)]).await.unwrap_err().code(), Code::FailedPrecondition);
    let all = v1::Received { finished: true, ..received(0, 2) };
    assert_eq!(refused("g", &[all]).await.unwrap(), []);
}

#[tokio::test]
async fn refusals_are_statuses_with_retry_metadata() {
    let mut hot = request("a");
    hot.sampling =
        Some(v1::SamplingOptions { temperature: Some(f64::NAN), ..v1::SamplingOptions::default() });
    let status = generate(Script::default(), hot).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "temperature must be in [0, 2], got NaN.")
    );

    let shed = Refusal::Overloaded { reason: "tokens".to_owned(), retry_after: Duration::from_millis(40) };
    let status =
        generate(Script { refuse: Some(shed), ..Script::default() }, request("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("retry-after-ms").unwrap(), "40");

    let mut other = request("a");
    other.model = "other".to_owned();
    assert_eq!(generate(Script::default(), other).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn the_clients_deadline_becomes_the_requests() {
    let script = Arc::new(Script::of([finish(0, FinishReason::Length)]));
    let app = App::new(Arc::new(testing::model_text()), script.clone(), testing::config());
    let (channel, _stop) = connect(app).await;
    let mut call = tonic::Request::new(request("a"));
    call.set_timeout(Duration::from_secs(9));
    let before = skein_node::clock::now();
    InferenceClient::new(channel).generate(call).await.unwrap();
    let deadline = script.requests.lock().unwrap()[0].deadline.unwrap();
    assert!(deadline.since(before) < Duration::from_secs(20), "{deadline:?}");
}

#[tokio::test]
async fn dropping_the_call_cancels_the_request() {
    let script = Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() };
    let app = testing::app(script);
    let (channel, _stop) = connect(app.clone()).await;
    let mut stream = InferenceClient::new(channel).generate(request("a")).await.unwrap().into_inner();
    stream.message().await.unwrap();
    assert_eq!(app.drain.running(), 1);
    drop(stream);
    while app.drain.running() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn tokens_models_and_health_are_served() {
    let (channel, _stop) = connect(testing::app(Script::default())).await;
    let mut client = InferenceClient::new(channel.clone());
    let tokens = client
        .tokenize(v1::TokenizeRequest {
            input: Some(v1::tokenize_request::Input::Text("hé".to_owned())),
            ..v1::TokenizeRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!((tokens.token_ids.len(), tokens.max_model_len), (4, testing::MAX_MODEL_LEN));
    let text = client
        .detokenize(v1::DetokenizeRequest {
            token_ids: tokens.token_ids[1..].to_vec(),
            ..v1::DetokenizeRequest::default()
        })
        .await
        .unwrap();
    assert_eq!(text.into_inner().text, "hé");
    let models = client.list_models(v1::ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!(models[0].id, "test");
    let health =
        HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await.unwrap();
    assert_eq!(health.into_inner().status, 1);
}

#[tokio::test]
async fn without_a_key_grpc_answers_with_a_status() {
    let mut config = testing::config();
    config.api_keys = vec!["sesame".to_owned()];
    let app = App::new(
        Arc::new(testing::model_text()),
        Arc::new(Script::of([finish(0, FinishReason::Length)])),
        config,
    );
    let (channel, _stop) = connect(app).await;
    let mut client = InferenceClient::new(channel.clone());
    assert_eq!(client.generate(request("a")).await.unwrap_err().code(), Code::Unauthenticated);
    let mut call = tonic::Request::new(request("a"));
    call.metadata_mut().insert("authorization", "Bearer sesame".parse().unwrap());
    assert!(client.generate(call).await.is_ok());
    assert!(HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await.is_ok());
}

#[tokio::test]
async fn a_drain_lets_running_streams_end_and_refuses_new_ones() {
    let script = Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() };
    let mut config = testing::config();
    config.shutdown_timeout = Duration::from_millis(300);
    let app = App::new(Arc::new(testing::model_text()), Arc::new(script), config);
    let (url, stop, served) = serve(app.clone()).await;
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = InferenceClient::new(channel);
    let mut stream = client.generate(request("a")).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().text, "a");
    stop.send(()).unwrap();
    while !app.drain.is_draining() {
        tokio::task::yield_now().await;
    }
    let refused = client.generate(request("a")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.metadata().contains_key("retry-after-ms")),
        (Code::Unavailable, true)
    );
    assert_eq!(stream.message().await.unwrap_err().code(), Code::Unavailable);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn malformed_messages_are_the_clients_fault() {
    let frame =
        |flag: u8, length: u32, message: &[u8]| [&[flag][..], &length.to_be_bytes(), message].concat();
    let cases = [
        ("no protobuf", frame(0, 2, &[0xff, 0xff])),
        ("longer than allowed", frame(0, u32::MAX, b"garbage")),
        ("no such compression", frame(9, 1, b"x")),
        ("no message", Vec::new()),
        ("not compressed as it says", frame(1, 2, b"xx")),
    ];
    // Health checks answered INTERNAL.
    let health =
        ("/grpc.health.v1.Health/Check", "no protobuf of the health check", frame(0, 2, &[0xff, 0xff]));
    let cases = cases.map(|(case, body)| ("/skein.v1.Inference/Generate", case, body));
    for (path, case, body) in cases.into_iter().chain([health]) {
        let call = http::Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-encoding", if body.first() == Some(&1) { "gzip" } else { "identity" })
            .body(axum::body::Body::from(body))
            .unwrap();
        let app = testing::app(Script::default());
        let served = Served::One(app.clone());
        let services = crate::api::grpc::guarded(&served).unwrap().merge(crate::api::grpc::open(&served));
        let response = tower::ServiceExt::oneshot(services, call).await.unwrap();
        let header = |name: &str| response.headers().get(name).map_or("", |value| value.to_str().unwrap());
        let (status, message) = (header("grpc-status"), header("grpc-message"));
        assert_eq!(status, "3", "{case}: {message}");
    }
}
