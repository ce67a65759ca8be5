//! The protocol over the scripted generator, through a real connection.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use skein_proto::finish::FinishReason;
use skein_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use skein_proto::inference::infer_parameter::ParameterChoice;
use skein_proto::inference::model_infer_request::InferInputTensor;
use skein_proto::inference::{
    InferParameter, InferTensorContents, ModelConfigRequest, ModelInferRequest, ModelInferResponse,
    ModelMetadataRequest, ModelReadyRequest, ModelStreamInferResponse, ServerLiveRequest, ServerReadyRequest,
};
use skein_proto::pooling::{PooledKind, PooledModel};
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::api::skein::tests::connect;
use crate::refusal::Refusal;
use crate::testing::{self, Say, Script, delta, finish};

fn input(name: &str, datatype: &str, contents: InferTensorContents) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![1],
        contents: Some(contents),
        ..InferInputTensor::default()
    }
}

fn text(name: &str, text: &str) -> InferInputTensor {
    let bytes_contents = vec![Bytes::copy_from_slice(text.as_bytes())];
    input(name, "BYTES", InferTensorContents { bytes_contents, ..InferTensorContents::default() })
}

fn flag(name: &str) -> InferInputTensor {
    input(name, "BOOL", InferTensorContents { bool_contents: vec![true], ..InferTensorContents::default() })
}

fn request(id: &str, inputs: impl IntoIterator<Item = InferInputTensor>) -> ModelInferRequest {
    let inputs = [text("text_input", "xy")].into_iter().chain(inputs).collect();
    ModelInferRequest {
        model_name: "test".to_owned(),
        id: id.to_owned(),
        inputs,
        ..ModelInferRequest::default()
    }
}

/// Raw elements of the output `name`.
fn raw<'a>(response: &'a ModelInferResponse, name: &str) -> &'a [u8] {
    let at = response.outputs.iter().position(|output| output.name == name);
    at.map_or(b"", |at| &response.raw_output_contents[at])
}

fn texts(response: &ModelInferResponse, name: &str) -> Vec<String> {
    let (mut rest, mut texts) = (raw(response, name), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk() {
        let (text, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        texts.push(String::from_utf8(text.to_vec()).unwrap());
        rest = after;
    }
    texts
}

fn integers(response: &ModelInferResponse, name: &str) -> Vec<u32> {
    raw(response, name).as_chunks().0.iter().copied().map(u32::from_le_bytes).collect()
}

fn is_last(response: &ModelInferResponse) -> bool {
    let choice = response.parameters.get("triton_final_response").and_then(|it| it.parameter_choice.clone());
    choice == Some(ParameterChoice::BoolParam(true))
}

async fn streamed(
    channel: Channel,
    requests: Vec<ModelInferRequest>,
) -> Result<Vec<ModelStreamInferResponse>, tonic::Status> {
    let mut client = GrpcInferenceServiceClient::new(channel);
    let mut responses = client.model_stream_infer(stream::iter(requests)).await?.into_inner();
    let mut all = Vec::new();
    while let Some(response) = responses.message().await? {
        all.push(response);
    }
    Ok(all)
}

fn two_words() -> Script {
    Script::of([delta(0, "a"), delta(0, "bc"), finish(0, FinishReason::Length)])
}

#[tokio::test]
async fn a_whole_answer_has_the_requested_tensors() {
    let (channel, _stop) = connect(testing::app(two_words())).await;
    let mut client = GrpcInferenceServiceClient::new(channel);
    let plain = client.model_infer(request("7 b", [])).await.unwrap().into_inner();
    assert_eq!(
        (plain.id.as_str(), plain.model_name.as_str(), plain.model_version.as_str()),
        ("7 b", "test", "1")
    );
    assert_eq!((texts(&plain, "text_output"), plain.outputs.len()), (vec!["xyabc".to_owned()], 1));
    let flags = ["exclude_input_in_output", "return_finish_reason", "return_num_input_tokens"];
    let more = ["return_num_output_tokens", "return_logprobs", "return_cumulative_logprob"];
    let all = request("7", flags.into_iter().chain(more).map(flag));
    let all = client.model_infer(all).await.unwrap().into_inner();
    assert_eq!(texts(&all, "text_output"), ["abc"]);
    assert_eq!(texts(&all, "finish_reason"), ["length"]);
    assert_eq!((integers(&all, "num_input_tokens"), integers(&all, "num_output_tokens")), (vec![3], vec![3]));
    assert_eq!(raw(&all, "cumulative_logprob"), (-1.5_f32).to_le_bytes());
    let logprobs: serde_json::Value = serde_json::from_str(&texts(&all, "logprobs")[0]).unwrap();
    let token = testing::tokens("a")[0].to_string();
    assert_eq!(logprobs[0][token], serde_json::json!({"logprob": -0.5, "rank": 1, "decoded_token": "a"}));
    assert_eq!(logprobs.as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn samples_are_elements_of_one_tensor() {
    let length = |index| finish(index, FinishReason::Length);
    let script = || Script::of([delta(1, "c"), delta(0, "a"), length(1), delta(0, "b"), length(0)]);
    let two = || input("n", "INT32", InferTensorContents { int_contents: vec![2], ..Default::default() });
    let (channel, _stop) = connect(testing::app(script())).await;
    let mut client = GrpcInferenceServiceClient::new(channel.clone());
    let mut batched = request("", [two(), flag("exclude_input_in_output")]);
    batched.inputs[0].shape = vec![1, 1];
    let whole = client.model_infer(batched).await.unwrap().into_inner();
    assert_eq!(texts(&whole, "text_output"), ["ab", "c"]);
    assert_eq!(whole.outputs[0].shape, [1, 2], "as the prompt, with a batch dimension");
    let all = streamed(channel, vec![request("", [two(), flag("stream")])]).await.unwrap();
    let mut samples = [String::new(), String::new()];
    for response in all.iter().map(|response| response.infer_response.as_ref().unwrap()) {
        let at = integers(response, "sequence_index")[0] as usize;
        samples[at].push_str(&texts(response, "text_output").concat());
    }
    assert_eq!(samples, ["ab", "c"]);
}

#[tokio::test]
async fn a_streamed_request_ends_with_its_final_response() {
    let (channel, _stop) = connect(testing::app(two_words())).await;
    let stream = request("s", [flag("stream"), flag("return_finish_reason")]);
    let all = streamed(channel, vec![stream, request("w", [])]).await.unwrap();
    let mut by_id: HashMap<String, Vec<(String, String, bool)>> = HashMap::new();
    for response in all {
        assert_eq!(response.error_message, "");
        let response = response.infer_response.unwrap();
        let reason = texts(&response, "finish_reason").concat();
        let shown = (texts(&response, "text_output").concat(), reason, is_last(&response));
        by_id.entry(response.id).or_default().push(shown);
    }
    let shown = |text: &str, reason: &str, last| (text.to_owned(), reason.to_owned(), last);
    assert_eq!(
        by_id["s"],
        [shown("a", "None", false), shown("bc", "None", false), shown("", "length", true)]
    );
    assert_eq!(by_id["w"], [shown("xyabc", "", true)], "not streamed: one response, after the prompt");
}

#[tokio::test]
async fn an_error_ends_one_request_of_a_stream() {
    let (channel, _stop) = connect(testing::app(two_words())).await;
    let other = ModelInferRequest { model_name: "other".to_owned(), ..request("o", [flag("stream")]) };
    let hot = request("h", [flag("stream"), text("sampling_parameters", r#"{"temperature": 9}"#)]);
    let all = streamed(channel.clone(), vec![other, hot, request("s", [flag("stream")])]).await.unwrap();
    let error = |id: &str| {
        let of_id = |response: &&ModelStreamInferResponse| response.infer_response.as_ref().unwrap().id == id;
        let last = all.iter().rfind(of_id).unwrap();
        assert!(is_last(last.infer_response.as_ref().unwrap()));
        last.error_message.clone()
    };
    assert_eq!(error("o"), "The model `other` does not exist; this server has `test`.");
    assert_eq!(error("h"), "temperature must be in [0, 2], got 9.");
    assert_eq!(error("s"), "");
    let mut strict = Request::new(stream::iter([request("s", [text("image", "")])]));
    strict.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    let mut client = GrpcInferenceServiceClient::new(channel);
    let mut responses = client.model_stream_infer(strict).await.unwrap().into_inner();
    let status = responses.message().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
}

#[tokio::test]
async fn a_failure_in_the_middle_is_the_last_response() {
    let say = vec![Say::Delta(delta(0, "a")), Say::Fail(Refusal::Internal)];
    let (channel, _stop) = connect(testing::app(Script { say, ..Script::default() })).await;
    let all = streamed(channel, vec![request("s", [flag("stream")])]).await.unwrap();
    let shown: Vec<(bool, bool)> = all
        .iter()
        .map(|one| (one.error_message.is_empty(), is_last(one.infer_response.as_ref().unwrap())))
        .collect();
    assert_eq!(shown, [(true, false), (false, true)]);
}

#[tokio::test]
async fn refusals_of_whole_answers_are_statuses() {
    let (channel, _stop) = connect(testing::app(two_words())).await;
    let mut client = GrpcInferenceServiceClient::new(channel);
    let mut refused =
        async |request: ModelInferRequest| client.model_infer(request).await.map(|_| ()).unwrap_err().code();
    assert_eq!(refused(request("", [flag("stream")])).await, Code::InvalidArgument);
    assert_eq!(refused(request("", [text("image", "")])).await, Code::InvalidArgument);
    let model = |name: &str, version: &str| ModelInferRequest {
        model_name: name.to_owned(),
        model_version: version.to_owned(),
        ..request("", [])
    };
    assert_eq!(refused(model("other", "")).await, Code::NotFound);
    assert_eq!(refused(model("test", "2")).await, Code::NotFound);
    let shed = Refusal::Overloaded { reason: "full".to_owned(), retry_after: Duration::from_millis(40) };
    let (channel, _stop) = connect(testing::app(Script { refuse: Some(shed), ..Script::default() })).await;
    let status = GrpcInferenceServiceClient::new(channel).model_infer(request("", [])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("retry-after-ms").unwrap(), "40");
}

#[tokio::test]
async fn requests_of_one_stream_run_at_once_and_end_with_it() {
    let script = Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() };
    let app = testing::app(script);
    let (channel, _stop) = connect(app.clone()).await;
    let requests = ["1", "2", "3"].map(|id| request(id, [flag("stream")]));
    let mut client = GrpcInferenceServiceClient::new(channel);
    let mut responses = client.model_stream_infer(stream::iter(requests)).await.unwrap().into_inner();
    for _ in 0..3 {
        responses.message().await.unwrap().unwrap();
    }
    assert_eq!(app.drain.running(), 3);
    drop(responses);
    while app.drain.running() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn server_and_model_describe_themselves() {
    let (channel, _stop) = connect(testing::app(Script::default())).await;
    let mut client = GrpcInferenceServiceClient::new(channel);
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let mut ready = async |name: &str, version: &str| {
        let request = ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
        client.model_ready(request).await.unwrap().into_inner().ready
    };
    assert!(ready("test", "").await && ready("test", "1").await);
    assert!(!ready("other", "").await && !ready("test", "2").await);
    let (name, version) = ("test".to_owned(), String::new());
    let metadata = ModelMetadataRequest { name: name.clone(), version: version.clone() };
    let metadata = client.model_metadata(metadata).await.unwrap().into_inner();
    let config = client.model_config(ModelConfigRequest { name, version }).await.unwrap().into_inner();
    let config = config.config.unwrap();
    let input = |name: &str| metadata.inputs.iter().find(|input| input.name == name).cloned().unwrap();
    assert_eq!(
        (input("text_input").datatype, input("seed").datatype),
        ("BYTES".to_owned(), "UINT64".to_owned())
    );
    let required = config.input.iter().filter(|input| !input.optional);
    assert_eq!(required.map(|input| input.name.as_str()).collect::<Vec<_>>(), ["text_input"]);
    assert!(config.model_transaction_policy.unwrap().decoupled);
    let other = ModelMetadataRequest { name: "other".to_owned(), version: String::new() };
    assert_eq!(client.model_metadata(other).await.unwrap_err().code(), Code::NotFound);
    let refuse = Refusal::Draining;
    let (channel, _stop) =
        connect(testing::app(Script { not_ready: Some(refuse), ..Script::default() })).await;
    let mut client = GrpcInferenceServiceClient::new(channel);
    assert!(!client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
}

#[tokio::test]
async fn a_failed_request_of_a_stream_names_its_model_as_tritons_does() {
    let (channel, _stop) = connect(testing::app(two_words())).await;
    let wrong = ModelInferRequest { model_name: "other".to_owned(), ..request("9", []) };
    let all = streamed(channel, vec![wrong]).await.unwrap();
    let [ModelStreamInferResponse { error_message, infer_response: Some(response) }] = &all[..] else {
        panic!("{all:?}");
    };
    assert!(error_message.contains("other"), "{error_message}");
    assert_eq!([&response.id, &response.model_name, &response.model_version], ["9", "other", "1"]);
}

#[tokio::test]
async fn compressed_requests_are_read_within_the_limit_of_plain_ones() {
    let app = testing::app(two_words());
    let limit = app.config.limits.body_bytes;
    let (channel, _stop) = connect(app).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = GrpcInferenceServiceClient::new(channel.clone()).send_compressed(encoding);
        let answer = client.model_infer(request("7", [])).await.unwrap().into_inner();
        assert_eq!(texts(&answer, "text_output"), ["xyabc"], "{encoding:?}");
        // A few kilobytes on the wire.
        let long = request("7", [text("stop_words", &"a".repeat(limit + 1))]);
        let refused = client.model_infer(long).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    }
}

/// A model of vectors of two values: the number of tokens, and one.
fn embedder() -> Script {
    let model =
        PooledModel { width: 2, kind: PooledKind::Embedding { is_normalised: false }, labels: Vec::new() };
    Script { pooled: Some((model, |request| vec![request.prompt.len() as f32, 1.0])), ..Script::default() }
}

fn floats(response: &ModelInferResponse, name: &str) -> Vec<f32> {
    raw(response, name).as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}

#[tokio::test]
async fn a_model_that_pools_takes_texts_and_gives_rows() {
    let (channel, _stop) = connect(testing::app(embedder())).await;
    let mut client = GrpcInferenceServiceClient::new(channel.clone());
    let mut two = request("7", []);
    two.inputs[0].shape = vec![2];
    let more = two.inputs[0].contents.as_mut().unwrap();
    more.bytes_contents.push(Bytes::from_static(b"abc"));
    let rows = client.model_infer(two.clone()).await.unwrap().into_inner();
    assert_eq!((rows.id.as_str(), &rows.outputs[0].shape[..]), ("7", &[2, 2][..]));
    assert_eq!(floats(&rows, "embedding"), [3.0, 1.0, 4.0, 1.0]);
    assert_eq!(integers(&rows, "num_input_tokens"), [3, 4]);
    let cut = ParameterChoice::Int64Param(1);
    two.parameters.insert("dimensions".to_owned(), InferParameter { parameter_choice: Some(cut) });
    let all = streamed(channel, vec![two]).await.unwrap();
    let only = all[0].infer_response.as_ref().unwrap();
    assert_eq!((floats(only, "embedding"), is_last(only)), (vec![3.0, 4.0], true));
    let ids =
        input("input_ids", "INT32", InferTensorContents { int_contents: vec![5], ..Default::default() });
    let ids = ModelInferRequest { inputs: vec![ids], ..request("", []) };
    assert_eq!(floats(&client.model_infer(ids).await.unwrap().into_inner(), "embedding"), [1.0, 1.0]);
    let wrong = client.model_infer(request("", [flag("stream")])).await.unwrap_err();
    assert_eq!(
        (wrong.code(), wrong.message().contains("`stream` is not one")),
        (Code::InvalidArgument, true)
    );
}

#[tokio::test]
async fn metadata_of_a_model_that_pools_says_so() {
    let (channel, _stop) = connect(testing::app(embedder())).await;
    let mut client = GrpcInferenceServiceClient::new(channel);
    let asked = ModelMetadataRequest { name: "test".to_owned(), ..Default::default() };
    let metadata = client.model_metadata(asked).await.unwrap().into_inner();
    let names: Vec<_> = metadata.outputs.iter().map(|one| (one.name.as_str(), &one.shape[..])).collect();
    assert_eq!(names, [("embedding", &[-1, 2][..]), ("num_input_tokens", &[-1][..])]);
    let asked = ModelConfigRequest { name: "test".to_owned(), ..Default::default() };
    let config = client.model_config(asked).await.unwrap().into_inner().config.unwrap();
    assert!(!config.model_transaction_policy.unwrap().decoupled);
}
