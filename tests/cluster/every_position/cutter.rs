//! A transport to workers that cuts a stream at an exact position, counted in tokens, prompt
//! log-probabilities and ends of samples.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use skein_proto::worker::v1 as wire;
use skein_router::links::transport::{Call, Connector, Grpc, Messages, Transport};
use tonic::{Request, Status};

/// The fault at the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The worker dies with everything it kept.
    Kill,
    /// The connection breaks; the worker keeps running.
    Break,
    /// The worker drains and hands back the rest.
    HandBack,
}

/// Cuts the first stream opened through it.
#[derive(Debug, Clone)]
pub struct CuttingConnector {
    plan: Arc<Mutex<Option<(Cut, usize)>>>,
    /// Addresses of workers that died.
    dead: Arc<Mutex<HashSet<String>>>,
    /// Address of the worker that the last request went to.
    asked: Arc<Mutex<Option<String>>>,
    /// Whether the router that uses this connector is dead, so that nothing it sends arrives.
    is_severed: Arc<AtomicBool>,
}

impl CuttingConnector {
    /// Cuts after `units`; without a plan it never cuts.
    pub fn new(plan: Option<(Cut, usize)>) -> Self {
        Self {
            plan: Arc::new(Mutex::new(plan)),
            dead: Arc::default(),
            asked: Arc::default(),
            is_severed: Arc::default(),
        }
    }

    /// A connector of another router to the same workers. It never cuts.
    pub fn of_another_router(&self) -> Self {
        Self { dead: self.dead.clone(), ..Self::new(None) }
    }

    /// From now on nothing that this router sends arrives: no abort of a stream that its death leaves behind.
    pub fn sever(&self) {
        self.is_severed.store(true, Ordering::Relaxed);
    }

    /// The worker that the last request went to is dead from now on.
    pub fn kill_the_worker_asked_last(&self) {
        lock(&self.dead).extend(lock(&self.asked).clone());
    }
}

impl Connector for CuttingConnector {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Transport>, String>> {
        async move {
            if lock(&self.dead).contains(address) {
                return Err("it is gone".into());
            }
            let inner = Grpc::default().connect(address).await?;
            Ok(Arc::new(Cutting { inner, address: address.to_owned(), connector: self.clone() }) as _)
        }
        .boxed()
    }
}

#[derive(Debug)]
struct Cutting {
    inner: Arc<dyn Transport>,
    address: String,
    connector: CuttingConnector,
}

impl Cutting {
    fn alive(&self) -> Result<(), Status> {
        let is_severed = self.connector.is_severed.load(Ordering::Relaxed);
        if is_severed || lock(&self.connector.dead).contains(&self.address) {
            Err(Status::unavailable("it is gone"))
        } else {
            Ok(())
        }
    }

    /// The stream up to the cut.
    fn cut(
        &self,
        deltas: Messages<wire::GenerateDelta>,
        how: Cut,
        after: usize,
    ) -> Messages<wire::GenerateDelta> {
        let (dead, address) = (self.connector.dead.clone(), self.address.clone());
        let die = move || {
            lock(&dead).insert(address.clone());
        };
        let cut = stream::unfold((Some(deltas), after), move |(deltas, left)| {
            let die = die.clone();
            async move {
                let mut deltas = deltas?;
                let delta = match deltas.next().await? {
                    Ok(delta) => delta,
                    Err(status) => return Some((vec![Err(status)], (None, 0))),
                };
                let units = units(&delta);
                if units <= left {
                    return Some((vec![Ok(delta)], (Some(deltas), left - units)));
                }
                let epoch = delta.epoch;
                let end = match how {
                    Cut::Kill => {
                        die();
                        Err(Status::unavailable("cut: killed"))
                    }
                    Cut::Break => Err(Status::unavailable("cut: broken")),
                    Cut::HandBack => {
                        Ok(wire::GenerateDelta { epoch, hand_back: true, ..wire::GenerateDelta::default() })
                    }
                };
                let part = (left > 0).then(|| Ok(part(delta, left)));
                Some((part.into_iter().chain([end]).collect(), (None, 0)))
            }
        });
        cut.flat_map(stream::iter).boxed()
    }
}

impl Transport for Cutting {
    fn info(&self) -> Call<'_, wire::InfoResponse> {
        self.inner.info()
    }

    fn generate(&self, request: Request<wire::GenerateRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        async move {
            self.alive()?;
            *lock(&self.connector.asked) = Some(self.address.clone());
            let deltas = self.inner.generate(request).await?;
            let plan = lock(&self.connector.plan).take();
            Ok(match plan {
                Some((how, after)) => self.cut(deltas, how, after),
                None => deltas,
            })
        }
        .boxed()
    }

    fn attach(&self, request: Request<wire::AttachRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        async move {
            self.alive()?;
            self.inner.attach(request).await
        }
        .boxed()
    }

    fn abort(&self, request: wire::AbortRequest) -> Call<'_, wire::AbortResponse> {
        match self.alive() {
            Ok(()) => self.inner.abort(request),
            Err(status) => async { Err(status) }.boxed(),
        }
    }

    fn release(&self, request: wire::ReleaseRequest) -> Call<'_, wire::ReleaseResponse> {
        match self.alive() {
            Ok(()) => self.inner.release(request),
            Err(status) => async { Err(status) }.boxed(),
        }
    }

    fn watch(&self, request: wire::WatchRequest) -> Call<'_, Messages<wire::WorkerEvent>> {
        self.inner.watch(request)
    }
}

/// Number of units in a delta: a cut can follow each of them.
pub fn units(delta: &wire::GenerateDelta) -> usize {
    delta.prompt_logprobs.len() + delta.token_ids.len() + usize::from(delta.finish.is_some())
}

/// The first `left` units of a larger delta.
fn part(mut delta: wire::GenerateDelta, left: usize) -> wire::GenerateDelta {
    delta.finish = None;
    delta.prompt_logprobs.truncate(left);
    let left = left - delta.prompt_logprobs.len();
    delta.token_ids.truncate(left);
    delta.logprobs.truncate(left);
    delta
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
