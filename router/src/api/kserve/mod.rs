//! KServe v2, `inference.GRPCInferenceService` and its REST paths (`rest`): one text-generation model under
//! the tensor names of Triton's vLLM backend and TensorRT-LLM's ensemble. `tensors` reads and writes tensors,
//! `call` makes a draft of a request, `answer` makes tensors of an answer, `model` lists the names. `pooled`
//! answers for a model that pools.

mod answer;
mod call;
pub mod elements;
mod model;
mod names;
mod pooled;
pub mod rest;
mod tensors;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use skein_node::clock;
use skein_node::trace::{self, Remote};
use skein_proto::inference::grpc_inference_service_server::GrpcInferenceService;
use skein_proto::inference::repository_index_response::ModelIndex;
use skein_proto::inference::{
    ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse, ModelStreamInferResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest, RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse,
    ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};
use skein_proto::pooling::PooledModel;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use self::answer::{Answer, Named, failed, in_stream};
use self::call::{Call, check_version};
use super::grpc::status::status;
use super::http::keys::Admin;
use super::skein::convert;
use crate::app::App;
use crate::ids;
use crate::refusal::Refusal;
use crate::repository::residency::Stage;
use crate::repository::served::{Held, Served};
use crate::repository::{Entry, ModelStatus, Repository};
use crate::request::tenant::Tenant;

/// Most requests at once on one stream; the client's next ones wait in its connection.
const MAX_AT_ONCE: usize = 256;
/// Metadata of a stream whose first error is to end it with a status.
const STRICT: &str = "triton_grpc_error";
/// Path of streamed requests, each of which has a span of its own.
const STREAM_PATH: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// Extensions of the protocol that are served.
const EXTENSIONS: [&str; 5] =
    ["parameters", "model_configuration", "model_repository", "binary_tensor_data", "generate"];

/// inference.GRPCInferenceService over one model or several.
pub struct KserveService {
    served: Served,
}

impl KserveService {
    /// Serves requests with `served`.
    pub fn new(served: Served) -> Self {
        Self { served }
    }

    /// The model `name` for a request of `caller`.
    async fn held(&self, name: &str, caller: &Caller) -> Result<Held, Refusal> {
        self.served.held(Some(name), &caller.tenant, caller.timeout).await
    }

    /// Whether a request for the model would be answered without loading it.
    fn is_ready(&self, name: &str, version: &str, tenant: Tenant) -> bool {
        let app = match &self.served {
            Served::One(app) => Some(app.clone()),
            Served::Several(models) => models.in_memory(name, &tenant).ok().flatten(),
        };
        app.is_some_and(|app| {
            Service { app: &app, tenant }.model(name, version).is_ok() && app.ready().is_ok()
        })
    }
}

/// What the protocol tells a tenant of an [`App`], over either transport.
struct Service<'a> {
    app: &'a App,
    tenant: Tenant,
}

impl Service<'_> {
    /// Name under which answers show the model or adapter `asked`.
    fn model(&self, asked: &str, version: &str) -> Result<String, Refusal> {
        check_version(asked, version)?;
        let asked = Some(asked).filter(|asked| !asked.is_empty());
        self.app.check_model(asked, &self.tenant)?;
        Ok(self.app.shown_model(asked).to_string())
    }

    /// What the model's vectors are, if it pools; unknown before a worker was ready.
    fn pooled(&self) -> Option<Arc<PooledModel>> {
        self.app.fleet.pooled().ok().flatten()
    }

    /// The model's names and its adapters.
    fn index(&self, only_ready: bool) -> Vec<ModelIndex> {
        let refusal = self.app.ready().err();
        let state = if refusal.is_none() { "READY" } else { "UNAVAILABLE" };
        let reason = refusal.as_ref().map(ToString::to_string).unwrap_or_default();
        let model = |(name, _): (Arc<str>, bool)| ModelIndex {
            name: name.to_string(),
            version: model::VERSION.to_owned(),
            state: state.to_owned(),
            reason: reason.clone(),
        };
        let names = self.app.names(&self.tenant).into_iter();
        names.filter(|_| refusal.is_none() || !only_ready).map(model).collect()
    }
}

/// The models of a server of several, and their states.
pub fn index_of(models: &Repository, tenant: &Tenant, only_ready: bool) -> Vec<ModelIndex> {
    let of = |app: Option<&App>, entry: &Entry, status: &ModelStatus| {
        if let Some(app) = app {
            return Service { app, tenant: tenant.clone() }.index(only_ready);
        }
        let (state, reason) = match status.stage {
            Stage::Loading => ("LOADING", String::new()),
            Stage::Ending => ("UNLOADING", String::new()),
            _ => ("UNAVAILABLE", status.failed.clone().unwrap_or_else(|| "unloaded".to_owned())),
        };
        let names = entry.names.iter().filter(|name| !only_ready && tenant.may_use(name.as_ref()));
        let model = |name: &Arc<str>| ModelIndex {
            name: name.to_string(),
            version: model::VERSION.to_owned(),
            state: state.to_owned(),
            reason: reason.clone(),
        };
        names.map(model).collect()
    };
    models.listed(of)
}

fn server() -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: "skein".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.map(str::to_owned).to_vec(),
    }
}

/// The tenant that the key check found.
fn tenant_of<T>(request: &Request<T>) -> Tenant {
    request.extensions().get::<Tenant>().cloned().unwrap_or_default()
}

/// What the requests of one call have in common.
#[derive(Clone)]
struct Caller {
    tenant: Tenant,
    /// Until the client gives up.
    timeout: Option<Duration>,
    remote: Remote,
    is_strict: bool,
}

impl Caller {
    fn of<T>(request: &Request<T>) -> Self {
        let metadata: &MetadataMap = request.metadata();
        let header = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok());
        Self {
            tenant: tenant_of(request),
            timeout: header("grpc-timeout").and_then(convert::timeout),
            remote: Remote::read(header),
            is_strict: header(STRICT).is_some_and(|strict| strict.eq_ignore_ascii_case("true")),
        }
    }

    /// Who asks a model that pools.
    fn asker(&self) -> pooled::Asker {
        let id = ids::drawn().to_string().into();
        pooled::Asker { tenant: self.tenant.clone(), id, timeout: self.timeout }
    }

    fn parse(&self, app: &App, request: ModelInferRequest) -> Result<Call, Refusal> {
        let refuse_unknown = app.config.refuse_unknown_fields;
        let call = Call::parse(request, Vec::new(), self.tenant.clone(), self.timeout, refuse_unknown);
        call.inspect_err(|refusal| refusal.log(""))
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

#[tonic::async_trait]
impl GrpcInferenceService for KserveService {
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
        Ok(Response::new(ServerReadyResponse { ready: self.served.ready().is_ok() }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let tenant = tenant_of(&request);
        let ModelReadyRequest { name, version } = request.into_inner();
        Ok(Response::new(ModelReadyResponse { ready: self.is_ready(&name, &version, tenant) }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(server()))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let caller = Caller::of(&request);
        let ModelMetadataRequest { name, version } = request.into_inner();
        let app = self.held(&name, &caller).await.map_err(|refusal| status(&refusal))?;
        let service = Service { app: &app, tenant: caller.tenant };
        let name = service.model(&name, &version).map_err(|refusal| status(&refusal))?;
        Ok(Response::new(model::metadata(&name, service.pooled().as_deref())))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let caller = Caller::of(&request);
        let ModelConfigRequest { name, version } = request.into_inner();
        let app = self.held(&name, &caller).await.map_err(|refusal| status(&refusal))?;
        let service = Service { app: &app, tenant: caller.tenant };
        let name = service.model(&name, &version).map_err(|refusal| status(&refusal))?;
        Ok(Response::new(ModelConfigResponse {
            config: Some(model::config(&name, service.pooled().as_deref())),
        }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let (tenant, only_ready) = (tenant_of(&request), request.get_ref().ready);
        let models = match &self.served {
            Served::One(app) => Service { app, tenant }.index(only_ready),
            Served::Several(models) => index_of(models, &tenant, only_ready),
        };
        Ok(Response::new(RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let (tenant, name) = (tenant_of(&request), request.get_ref().model_name.clone());
        let asked = Admin::require(request.extensions());
        self.served.load(asked, &name, &tenant).await.map_err(|refusal| status(&refusal))?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let (tenant, name) = (tenant_of(&request), request.get_ref().model_name.clone());
        let asked = Admin::require(request.extensions());
        self.served.unload(asked, &name, &tenant).await.map_err(|refusal| status(&refusal))?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let mut caller = Caller::of(&request);
        let whole = async {
            let app = self.held(&request.get_ref().model_name, &caller).await?;
            caller.timeout = app.time_left;
            if let Some(pooled) = app.fleet.pooled()? {
                return pooled::answer(&app, &pooled, request.into_inner(), caller.asker()).await;
            }
            let Call { draft, form } = caller.parse(&app, request.into_inner())?;
            if form.streams {
                let message = "stream must be false in ModelInfer; call ModelStreamInfer.";
                return Err(Refusal::invalid("stream", message));
            }
            Answer::new(&app, app.start(draft).await?, form).whole().await
        };
        whole.await.map(Response::new).map_err(|refusal| status(&refusal))
    }

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let (served, caller) = (self.served.clone(), Caller::of(&request));
        let began = clock::now();
        let responses = request.into_inner().map(move |request| match request {
            Ok(request) => {
                let left = caller.timeout.map(|timeout| timeout.saturating_sub(clock::now().since(began)));
                responses(served.clone(), Caller { timeout: left, ..caller.clone() }, request).boxed()
            }
            Err(status) => futures::stream::iter([Err(status)]).boxed(),
        });
        // Requests run at once, as many as the limit: the streams are read in turn.
        Ok(Response::new(responses.flatten_unordered(MAX_AT_ONCE).boxed()))
    }
}

/// Responses to one request of a stream. Dropping them cancels it.
fn responses(
    served: Served,
    mut caller: Caller,
    request: ModelInferRequest,
) -> impl Stream<Item = Result<ModelStreamInferResponse, Status>> + Send {
    async_stream::stream! {
        let named = Named { id: request.id.clone(), model: request.model_name.clone() };
        let held = served.held(Some(&request.model_name), &caller.tenant, caller.timeout).await;
        let app = match held {
            Ok(app) => app,
            Err(refusal) => {
                yield ended(&caller, named, &refusal);
                return;
            }
        };
        caller.timeout = app.time_left;
        if let Ok(Some(pooled)) = app.fleet.pooled() {
            yield match pooled::answer(&app, &pooled, request, caller.asker()).await {
                Ok(response) => Ok(in_stream(response, true)),
                Err(refusal) => ended(&caller, named, &refusal),
            };
            return;
        }
        let mut answer = match started(&app, &caller, request).await {
            Ok(answer) => answer,
            Err(refusal) => {
                yield ended(&caller, named, &refusal);
                return;
            }
        };
        if !answer.streams() {
            yield match answer.whole().await {
                Ok(response) => Ok(in_stream(response, true)),
                Err(refusal) => ended(&caller, named, &refusal),
            };
            return;
        }
        while let Some(response) = answer.next().await {
            match response {
                Ok(response) => yield Ok(response),
                Err(refusal) => yield ended(&caller, named.clone(), &refusal),
            }
        }
    }
}

/// Starts a request of a stream, in a span of its own.
async fn started(app: &App, caller: &Caller, request: ModelInferRequest) -> Result<Answer, Refusal> {
    let span = trace::Request::begin(caller.remote.clone());
    span.name("POST", STREAM_PATH);
    span.set_all(|| [("http.request.method", "POST".into()), ("url.path", STREAM_PATH.into())]);
    let Call { draft, form } = caller.parse(app, request)?;
    let started = trace::within(span, app.start(draft)).await?;
    Ok(Answer::new(app, started, form))
}

/// The failure of a request, in the form that the client of the stream chose.
fn ended(caller: &Caller, request: Named, refusal: &Refusal) -> Result<ModelStreamInferResponse, Status> {
    if caller.is_strict { Err(status(refusal)) } else { Ok(failed(request, refusal)) }
}
