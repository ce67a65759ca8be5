//! KServe v2 servers as workers: a small Triton whose model says `t0 t1 t2 …`, with the tensors of Triton's
//! vLLM backend.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures::Stream;
use serde_json::{Value, json};
use skein_front::{UpstreamConfig, Upstreams, WorkerUrl, serve};
use skein_proto::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use skein_proto::inference::infer_parameter::ParameterChoice;
use skein_proto::inference::model_infer_response::InferOutputTensor;
use skein_proto::inference::model_metadata_response::TensorMetadata;
use skein_proto::inference::repository_index_response::ModelIndex;
use skein_proto::inference::{
    InferParameter, ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse,
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ModelStreamInferResponse, RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
    RepositoryModelLoadResponse, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse,
    ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest,
    ServerReadyResponse,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status, Streaming};

use super::mock::lock;
use super::{Scene, TIMEOUT, chat, completion, config, expected};

/// What the server does with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    /// Fails the stream with this status after this many responses.
    Fail(usize, Code),
    /// Says in a message, as older servers do, that the request has failed.
    Message,
    /// Sends nothing more after this many responses.
    Stall(usize),
}

#[derive(Default)]
struct State {
    acts: Mutex<VecDeque<Act>>,
    /// Sampling parameters and other tensors of each request, as they arrived.
    calls: Mutex<Vec<Value>>,
    unready: AtomicBool,
    /// Streams whose reader has left before their end.
    left: AtomicUsize,
}

/// A server in a runtime of its own, which can be killed.
struct Triton {
    address: SocketAddr,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

impl Triton {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("the harness works");
        let state = Arc::new(State::default());
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let service = GrpcInferenceServiceServer::new(Model(state.clone()));
        runtime.spawn(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("the harness works");
            send.send(listener.local_addr().expect("it is bound")).expect("it is awaited");
            let incoming = TcpIncoming::from(listener);
            drop(
                tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await,
            );
        });
        let address = receive.recv().expect("it listens");
        Self { address, state, runtime: Some(runtime) }
    }

    fn plan(&self, acts: &[Act]) {
        lock(&self.state.acts).extend(acts);
    }

    fn kill(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Drop for Triton {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A router before these servers, without the mocks of the other tests.
async fn scene(tritons: &[Triton], mut config: UpstreamConfig) -> Scene {
    let workers = tritons.iter().map(|triton| format!("grpc://{}", triton.address));
    config.workers = workers.map(|url| WorkerUrl::parse(&url).expect("the harness works")).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the harness works");
    let address = listener.local_addr().expect("the harness works");
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(serve(listener, Upstreams::start(config), async { drop(stopped.await) }));
    let scene = Scene { workers: Vec::new(), address, stop: Some(stop), served };
    scene.wait_for_up(tritons.len()).await;
    scene
}

struct Model(Arc<State>);

type Responses = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

/// Counts a stream that is dropped before its end.
struct Reader(Arc<State>, bool);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.left.fetch_add(usize::from(!self.1), Ordering::SeqCst);
    }
}

/// The text of a BYTES tensor with one element.
fn text(raw: &[u8]) -> String {
    String::from_utf8(raw[4..].to_vec()).expect("it is text")
}

fn response(id: &str, text: &str, finish: &str, is_last: bool) -> ModelStreamInferResponse {
    let bytes = |text: &str| {
        let mut raw = BytesMut::new();
        raw.put_u32_le(text.len() as u32);
        raw.put_slice(text.as_bytes());
        raw.freeze()
    };
    let one = |name: &str, datatype: &str| InferOutputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![1],
        ..InferOutputTensor::default()
    };
    let flag = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(is_last)) };
    let infer_response = ModelInferResponse {
        model_name: "m".to_owned(),
        id: id.to_owned(),
        parameters: [("triton_final_response".to_owned(), flag)].into(),
        outputs: vec![one("text_output", "BYTES"), one("finish_reason", "BYTES")],
        raw_output_contents: vec![bytes(text), bytes(finish)],
        ..ModelInferResponse::default()
    };
    ModelStreamInferResponse { infer_response: Some(infer_response), ..ModelStreamInferResponse::default() }
}

/// Answers as the model does: `max_tokens` words after those that the prompt has.
fn answer(state: Arc<State>, request: &ModelInferRequest) -> Responses {
    let raw = |name: &str| {
        let at = request.inputs.iter().position(|input| input.name == name);
        at.map(|at| request.raw_input_contents[at].clone())
    };
    let prompt = text(&raw("text_input").expect("it is required"));
    let sampling: Value =
        serde_json::from_str(&text(&raw("sampling_parameters").expect("it is sent"))).expect("it is JSON");
    let streams = raw("stream").is_some_and(|raw| raw[..] == [1]);
    assert!(raw("exclude_input_in_output").is_some_and(|raw| raw[..] == [1]));
    lock(&state.calls).push(json!({"prompt": prompt, "sampling": sampling, "stream": streams}));
    let act = lock(&state.acts).pop_front();
    let from = prompt.split_once('|').map_or(0, |(_, said)| said.split_whitespace().count());
    let count = sampling["max_tokens"].as_u64().expect("it is sent") as usize;
    let id = request.id.clone();
    Box::pin(async_stream::stream! {
        let mut reader = Reader(state, false);
        let words: Vec<String> = (from..from + count).map(|token| format!("t{token} ")).collect();
        let words = if streams { words } else { vec![words.concat()] };
        let all = words.len();
        for (at, word) in words.into_iter().enumerate() {
            match act {
                Some(Act::Fail(after, code)) if at == after => {
                    reader.1 = true;
                    yield Err(Status::new(code, "scripted"));
                    return;
                }
                Some(Act::Message) => {
                    reader.1 = true;
                    let error_message = "scripted".to_owned();
                    yield Ok(ModelStreamInferResponse { error_message, ..response(&id, "", "", true) });
                    return;
                }
                Some(Act::Stall(after)) if at == after => std::future::pending::<()>().await,
                _ => {}
            }
            let is_last = at + 1 == all;
            reader.1 = is_last;
            yield Ok(response(&id, &word, if is_last { "length" } else { "None" }, is_last));
        }
    })
}

#[tonic::async_trait]
impl GrpcInferenceService for Model {
    type ModelStreamInferStream = Responses;

    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: !self.0.unready.load(Ordering::SeqCst) }))
    }

    async fn model_ready(
        &self,
        _: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        Ok(Response::new(ModelReadyResponse { ready: true }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse::default()))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let name = request.into_inner().name;
        if name != "m" {
            return Err(Status::not_found(format!("Request for unknown model: '{name}' is not found")));
        }
        let input = |(name, datatype): (&str, &str)| TensorMetadata {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![1],
        };
        let inputs = [
            ("text_input", "BYTES"),
            ("stream", "BOOL"),
            ("sampling_parameters", "BYTES"),
            ("exclude_input_in_output", "BOOL"),
            ("return_finish_reason", "BOOL"),
        ];
        let inputs = inputs.map(input).to_vec();
        Ok(Response::new(ModelMetadataResponse { name, inputs, ..ModelMetadataResponse::default() }))
    }

    async fn model_infer(
        &self,
        _: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        Err(Status::unimplemented("ModelInfer RPC doesn't support models with decoupled transaction policy"))
    }

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let request = request.into_inner().message().await?;
        let request = request.ok_or_else(|| Status::invalid_argument("no request"))?;
        Ok(Response::new(answer(self.0.clone(), &request)))
    }

    async fn model_config(
        &self,
        _: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn repository_index(
        &self,
        _: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let model = |name: &str| ModelIndex { name: name.to_owned(), ..ModelIndex::default() };
        Ok(Response::new(RepositoryIndexResponse { models: vec![model("m"), model("m")] }))
    }

    async fn repository_model_load(
        &self,
        _: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn repository_model_unload(
        &self,
        _: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

#[tokio::test]
async fn completions_are_answered_by_tensors() {
    let tritons = [Triton::start()];
    let scene = scene(&tritons, config()).await;
    let list = scene.get("/v1/models").await.json();
    assert_eq!((list["data"].as_array().map(Vec::len), &list["data"][0]["id"]), (Some(1), &json!("m")));
    let mut body = completion(false, 5);
    body["temperature"] = json!(0.5);
    let whole = scene.post("/v1/completions", &body).await;
    assert_eq!((whole.status, whole.tokens().as_str()), (200, ""), "{}", whole.text);
    let choice = &whole.json()["choices"][0];
    assert_eq!(
        (choice["text"].as_str(), choice["finish_reason"].as_str()),
        (Some(&*expected(5)), Some("length"))
    );
    let stream = scene.post("/v1/completions", &completion(true, 5)).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert!(stream.is_done() && stream.tokens() == expected(5), "{}", stream.text);
    let calls = lock(&tritons[0].state.calls).clone();
    let sampling = json!({"max_tokens": 5, "temperature": 0.5});
    assert_eq!(calls[0], json!({"prompt": "hi|", "sampling": sampling, "stream": false}));
    assert_eq!((calls.len(), &calls[1]["stream"]), (2, &json!(true)));
    scene.wait_for_idle().await;
}

#[tokio::test]
async fn what_tensors_cannot_answer_is_refused_and_is_no_fault() {
    let tritons = [Triton::start()];
    let scene = scene(&tritons, config()).await;
    for _ in 0..5 {
        let answer = scene.post("/v1/chat/completions", &chat(true, 3)).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert!(answer.text.contains("no chat template"), "{}", answer.text);
        let embeddings = scene.post("/v1/embeddings", &json!({"model": "m", "input": "a"})).await;
        assert_eq!(embeddings.status, 404);
        let unknown = scene.post("/v1/completions", &json!({"model": "x", "prompt": "a"})).await;
        assert_eq!(unknown.status, 404, "{}", unknown.text);
        assert!(unknown.json()["error"]["message"].as_str().unwrap().contains("unknown model"));
    }
    for act in [Act::Fail(0, Code::InvalidArgument), Act::Message] {
        tritons[0].plan(&[act; 5]);
        for _ in 0..5 {
            let answer = scene.post("/v1/completions", &completion(true, 3)).await;
            assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (400, Some("scripted")));
        }
    }
    assert_eq!(scene.post("/v1/completions", &completion(true, 3)).await.tokens(), expected(3));
    let metrics = scene.get("/metrics").await.text;
    let open = metrics.lines().filter(|line| line.starts_with("skein_worker_breaker_open{"));
    assert!(open.clone().count() == 1 && open.clone().all(|line| line.ends_with(" 0")), "{metrics}");
}

#[tokio::test]
async fn another_server_answers_for_one_that_is_full_or_fails() {
    for code in [Code::ResourceExhausted, Code::Unavailable, Code::Internal] {
        let tritons = [Triton::start(), Triton::start()];
        let scene = scene(&tritons, config()).await;
        tritons[0].plan(&[Act::Fail(0, code)]);
        tritons[1].plan(&[]);
        for _ in 0..2 {
            let answer = scene.post("/v1/completions", &completion(true, 4)).await;
            assert!(answer.is_done() && answer.tokens() == expected(4), "{code}: {}", answer.text);
        }
        scene.wait_for_idle().await;
    }
}

#[tokio::test]
async fn a_cut_stream_continues_on_another_server_if_the_client_asks() {
    let tritons = [Triton::start(), Triton::start()];
    let scene = scene(&tritons, config()).await;
    tritons.iter().for_each(|triton| triton.plan(&[Act::Fail(3, Code::Unavailable)]));
    let body = completion(true, 8).to_string();
    let answer = scene.ask("POST", "/v1/completions", &[("x-skein-resume", "text")], body).await;
    assert!(answer.is_done() && answer.tokens() == expected(8), "{}", answer.text);
    assert_eq!(answer.text.matches(": skein-resumed by=text exact=false\n\n").count(), 2);
    tritons.iter().for_each(|triton| triton.plan(&[Act::Fail(3, Code::Unavailable)]));
    let answer = scene.post("/v1/completions", &completion(true, 8)).await;
    assert!(answer.tokens() == expected(3) && answer.text.contains("\"error\""), "{}", answer.text);
    scene.wait_for_idle().await;
}

#[tokio::test]
async fn a_killed_or_unready_server_gets_no_requests() {
    let mut tritons = [Triton::start(), Triton::start()];
    let scene = scene(&tritons, config()).await;
    tritons[0].plan(&[Act::Stall(2)]);
    tritons[1].plan(&[Act::Stall(2)]);
    let body = completion(true, 4).to_string();
    let held = async { scene.ask("POST", "/v1/completions", &[("x-skein-resume", "text")], body).await };
    let kill = async {
        let victim = async {
            loop {
                let busy = tritons.iter().position(|triton| !lock(&triton.state.calls).is_empty());
                if let Some(victim) = busy {
                    return victim;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let victim = victim.await;
        lock(&tritons[1 - victim].state.acts).clear();
        tokio::time::sleep(Duration::from_millis(200)).await;
        tritons[victim].kill();
        victim
    };
    let (answer, victim) = tokio::join!(held, kill);
    assert!(answer.is_done() && answer.tokens() == expected(4), "{}", answer.text);
    scene.wait_for_up(1).await;
    for _ in 0..4 {
        assert_eq!(scene.post("/v1/completions", &completion(false, 2)).await.status, 200);
    }
    tritons[1 - victim].state.unready.store(true, Ordering::SeqCst);
    scene.wait_for_up(0).await;
    assert_eq!(scene.get("/readyz").await.status, 503);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request_at_the_server() {
    let tritons = [Triton::start()];
    let scene = scene(&tritons, config()).await;
    for streams in [true, false] {
        tritons[0].plan(&[Act::Stall(usize::from(streams))]);
        let before = tritons[0].state.left.load(Ordering::SeqCst);
        let body = completion(streams, 4).to_string();
        let asked = scene.ask("POST", "/v1/completions", &[], body);
        // The client goes away while the server is silent.
        assert!(tokio::time::timeout(Duration::from_millis(300), asked).await.is_err());
        let left = async {
            while tritons[0].state.left.load(Ordering::SeqCst) == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, left).await.expect("the server notices");
        scene.wait_for_idle().await;
    }
}
