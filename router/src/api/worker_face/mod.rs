//! Presents a router as one large worker: skein.worker.v1 over its cluster. A gateway stands in front of
//! several routers the way a router stands in front of workers.
//!
//! The stream key passes through to the worker, so after a router dies, the next router that gets the request
//! finds the stream at its worker. A router keeps no output: `Attach` always answers NOT_FOUND, and
//! `Generate` with the delivered tokens finds the stream where it runs. If a gateway disconnects without
//! releasing a stream, the router holds it for the requested linger time, as a worker does.

mod convert;
mod readers;
mod reports;
mod revoked;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use skein_choice::fleet::capacity::Capacity;
use skein_node::{clock, random, trace};
use skein_proto::adapter::{AdapterChange, AdapterId, AdapterRecord};
use skein_proto::worker::v1 as wire;
use skein_proto::worker::v1::worker_server::Worker;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status, Streaming};

use super::grpc::status::status;
use super::http::keys::{Admin, ApiKeys};
use super::http::nodes::Node;
use super::http::span;
use crate::app::App;
use crate::drain::Lease;
use crate::links::worker_client::VERSION_GONE;
use crate::refusal::Refusal;
use crate::request::TokenRequest;
use convert::Deltas;
use readers::{ReaderSignals, Readers, Reading};
use reports::Placements;

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// skein.worker.v1.Worker over an [`App`].
#[derive(Clone)]
pub struct WorkerFace {
    app: App,
    /// Random per process start.
    epoch: u64,
    readers: Readers,
    placements: Arc<Placements>,
    keys: ApiKeys,
}

impl WorkerFace {
    /// Serves `app` under a new epoch.
    pub fn new(app: App) -> Self {
        let keys = ApiKeys::of(&app.config);
        let epoch = random::seed().max(1);
        Self { app, epoch, readers: Readers::default(), placements: Arc::default(), keys }
    }

    fn capacity(&self) -> Result<Capacity, Refusal> {
        self.app.ready()?;
        self.app.fleet.capacity()
    }
}

#[tonic::async_trait]
impl Worker for WorkerFace {
    type GenerateStream = Messages<wire::GenerateDelta>;
    type AttachStream = Messages<wire::GenerateDelta>;
    type ExchangeStream = Messages<wire::WorkerFrames>;
    type WatchStream = Messages<wire::WorkerEvent>;

    async fn info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::InfoResponse>, Status> {
        let capacity = self.capacity().map_err(|refusal| status(&refusal))?;
        Ok(Response::new(convert::info(&capacity, self.epoch, self.app.text.name().to_string()).into()))
    }

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let span = span_of(request.metadata());
        let request = request.into_inner();
        let Some((entered, signals)) = self.readers.enter(&request.request_id) else {
            return Err(Status::already_exists("that request_id already has a reader"));
        };
        let linger = Duration::from_millis(request.linger_ms);
        self.placements.note(request.placement.unwrap_or_default().into());
        let lease = self.app.drain.enter().map_err(|refusal| status(&refusal))?;
        let checked = convert::token_request(request, self.app.text.name(), clock::now());
        let checked = TokenRequest { trace: span, ..checked.map_err(|refusal| status(&refusal))? };
        let source = self.app.generator.submit(checked).await.map_err(|refusal| gateway_status(&refusal))?;
        let reading = entered.reads(source, linger);
        Ok(Response::new(Box::pin(deltas(reading, signals, lease, Deltas::new(self.epoch)))))
    }

    async fn attach(&self, _: Request<wire::AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::not_found(
            "a router keeps no streams; Generate with the delivered tokens finds it at its worker",
        ))
    }

    async fn exchange(
        &self,
        request: Request<Streaming<wire::RouterFrames>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let (drain, is_node) = (self.app.drain.clone(), request.extensions().get::<Node>().is_some());
        let (metadata, _, frames) = request.into_parts();
        let revoked = revoked::revoked(self.keys.clone(), metadata.into_headers());
        let over = async move {
            tokio::select! {
                () = drain.over() => {}
                () = revoked, if !is_node => {}
            }
        };
        let answers = skein_exchange::server::serve(Arc::new(self.clone()), frames, over);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn release(
        &self,
        request: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseResponse>, Status> {
        let found = self.readers.release(&request.into_inner().request_id);
        Ok(Response::new(wire::ReleaseResponse { found }))
    }

    async fn abort(
        &self,
        request: Request<wire::AbortRequest>,
    ) -> Result<Response<wire::AbortResponse>, Status> {
        let wire::AbortRequest { request_id, sample_index } = request.into_inner();
        Ok(Response::new(wire::AbortResponse { found: self.readers.abort(&request_id, sample_index) }))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let router_id = request.into_inner().router_id;
        let (placements, readers) = (self.placements.clone(), self.readers.clone());
        let reports = reports::follow(self.app.clone(), self.epoch, router_id, placements, readers);
        Ok(Response::new(Box::pin(reports.map(Ok))))
    }

    async fn load_adapter(
        &self,
        request: Request<wire::LoadAdapterRequest>,
    ) -> Result<Response<wire::LoadAdapterResponse>, Status> {
        Admin::require(request.extensions()).map_err(|refusal| status(&refusal))?;
        let wire::LoadAdapterRequest { name, path, id, stamp, only_check } = request.into_inner();
        let adapters = &self.app.adapters;
        let loaded = match AdapterId::from_wire(id) {
            _ if only_check => adapters.check(&name, &path).await,
            Some(id) if stamp > 0 || name.is_empty() => {
                let record = AdapterRecord { name, change: AdapterChange::Loaded { path, id, stamp } };
                adapters.change(record, true).await.map(|_| id)
            }
            _ => adapters.load(&name, &path).await,
        };
        let id = loaded.map_err(|refusal| status(&refusal))?;
        Ok(Response::new(wire::LoadAdapterResponse { id: id.0 }))
    }

    async fn drain(&self, _: Request<wire::DrainRequest>) -> Result<Response<wire::DrainResponse>, Status> {
        Err(Status::unimplemented("a router is drained by its own signal, and its workers through it"))
    }

    async fn unload_adapter(
        &self,
        request: Request<wire::UnloadAdapterRequest>,
    ) -> Result<Response<wire::UnloadAdapterResponse>, Status> {
        Admin::require(request.extensions()).map_err(|refusal| status(&refusal))?;
        let wire::UnloadAdapterRequest { name, stamp, is_repeated } = request.into_inner();
        let unloaded = if stamp > 0 {
            let record = AdapterRecord { name, change: AdapterChange::Unloaded { stamp } };
            self.app.adapters.change(record, is_repeated).await
        } else {
            self.app.adapters.unload(&name).await.map(|()| true)
        };
        match unloaded {
            Ok(found) => Ok(Response::new(wire::UnloadAdapterResponse { found })),
            Err(Refusal::NotFound(_)) => Ok(Response::new(wire::UnloadAdapterResponse { found: false })),
            Err(refusal) => Err(status(&refusal)),
        }
    }
}

/// The server span of a call. A call of its own has one already; one within an exchange brings its caller's
/// context as metadata.
fn span_of(metadata: &MetadataMap) -> trace::Request {
    let current = trace::current();
    if current.is_on() { current } else { span::begin(span::WORKER_GENERATE, metadata.as_ref()) }
}

/// Sends a stream to its reader until it ends, is released, or this router shuts down.
fn deltas(
    mut reading: Reading,
    mut signals: ReaderSignals,
    lease: Lease,
    mut deltas: Deltas,
) -> impl Stream<Item = Result<wire::GenerateDelta, Status>> + Send {
    async_stream::stream! {
        while let Some(source) = &mut reading.source {
            tokio::select! {
                biased;
                () = signals.released.cancelled() => reading.source = None,
                () = lease.ended() => {
                    // The process exits but the worker continues; another router resumes the stream there.
                    yield Ok(deltas.hand_back());
                    reading.source = None;
                }
                Some(sample_index) = signals.aborts.recv() => source.abort_sample(sample_index),
                item = source.next() => match item {
                    Some(Ok(delta)) => {
                        let version = source.journey().version;
                        yield Ok(deltas.next(delta, version));
                    }
                    Some(Err(refusal)) => {
                        reading.source = None;
                        yield Err(gateway_status(&refusal));
                    }
                    None => reading.source = None,
                }
            }
        }
    }
}

/// A refusal as a status for a gateway. Without a ready worker the router reports exhaustion, not a fault, so
/// that the gateway tries another router.
fn gateway_status(refusal: &Refusal) -> Status {
    let status = status(refusal);
    match refusal {
        Refusal::VersionGone => {
            let mut metadata = status.metadata().clone();
            metadata.insert(VERSION_GONE, MetadataValue::from_static("true"));
            Status::with_metadata(status.code(), status.message().to_owned(), metadata)
        }
        Refusal::NoReadyWorker { .. } => Status::with_metadata(
            tonic::Code::ResourceExhausted,
            status.message().to_owned(),
            status.metadata().clone(),
        ),
        _ => status,
    }
}
