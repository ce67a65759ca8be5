//! A router process: the production cluster code over the simulated network, with membership from the
//! simulated etcd. It handles no text: a stop string is modelled as the number of tokens after which it ends
//! the sample.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use skein_node::discovery::etcd::{FollowerConfig, follow};
use skein_node::discovery::in_process;
use skein_proto::finish::FinishReason;
use skein_router::cluster::{Cluster, TokenStream, Tuning};
use skein_router::generator::TokenSource;
use skein_router::refusal::Refusal;
use skein_router::request::TokenDelta;

use crate::model::MODEL;
use crate::network::{Host, SimConnector};
use crate::process::Process;
use crate::served::{Ask, Front, Part, Served, Tokens};
use crate::world::World;

/// One run of a router's process.
pub struct RouterRun {
    /// Host that it runs on.
    pub host: Host,
    /// The process that owns its tasks.
    pub process: Process,
    cluster: Mutex<Option<Cluster>>,
}

impl RouterRun {
    /// Its cluster, while the process runs.
    pub fn cluster(&self) -> Option<Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops the resources of the dead process.
    pub fn bury(&self) {
        let cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.process.within(|| drop(cluster));
    }
}

/// Starts a router at `host`.
pub fn start(world: &Arc<World>, host: Host) -> Arc<RouterRun> {
    let (process, seed) = world.new_process();
    world.log.say(host, format_args!("starts as router"));
    let (changes, members) = in_process();
    let connector = SimConnector { network: world.network.clone(), host, process: process.clone() };
    let tuning = Tuning { seed: Some(world.plan.seed ^ seed) };
    let cluster = process
        .within(|| Cluster::start_with(&world.plan.router, members, MODEL, tuning, Arc::new(connector)));
    let front = Arc::new(RouterFront(cluster.clone()));
    world.network.listen(host, &process, Served { worker: None, front: Some(front) });
    let etcd = world.etcd.link(host);
    process.spawn(async move { follow(&etcd, FollowerConfig::new(MODEL, seed), changes).await });
    Arc::new(RouterRun { host, process, cluster: Mutex::new(Some(cluster)) })
}

struct RouterFront(Cluster);

impl Front for RouterFront {
    fn submit(&self, ask: Ask) -> BoxFuture<'static, Result<Tokens, Refusal>> {
        let cluster = self.0.clone();
        async move {
            let resumed = ask.request.resume.is_some();
            let texts = ask.stop_after.into_iter().zip(ask.has).map(|(stop_after, has)| Text {
                stop_after,
                tokens: if resumed { has } else { 0 },
                ended: false,
            });
            let texts = texts.collect();
            let stream = cluster.submit(ask.request).await?;
            let edge = Edge { stream, texts };
            Ok(futures::stream::unfold(edge, async |mut edge| Some((edge.next().await?, edge))).boxed())
        }
        .boxed()
    }
}

/// Stands for the layer that turns tokens into text and can end a sample at a stop string.
struct Edge {
    stream: TokenStream,
    texts: Vec<Text>,
}

struct Text {
    stop_after: Option<u32>,
    tokens: u32,
    ended: bool,
}

impl Edge {
    async fn next(&mut self) -> Option<Result<Part, Refusal>> {
        while let Some(item) = self.stream.next().await {
            let delta = match item {
                Ok(delta) => delta,
                Err(refusal) => return Some(Err(refusal)),
            };
            let Some(delta) = self.cut(delta) else { continue };
            return Some(Ok(Part { delta, version: self.stream.journey().version }));
        }
        None
    }

    /// The part of a delta that the client receives.
    fn cut(&mut self, mut delta: TokenDelta) -> Option<TokenDelta> {
        let sample = delta.sample_index;
        let Some(text) = self.texts.get_mut(sample as usize) else { return Some(delta) };
        if text.ended {
            return None;
        }
        text.tokens += delta.tokens.len() as u32;
        text.ended = delta.finish.is_some();
        if let Some(surplus) = text.stop_after.and_then(|most| text.tokens.checked_sub(most)) {
            let kept = delta.tokens.len() - (surplus as usize).min(delta.tokens.len());
            delta.tokens.truncate(kept);
            delta.logprobs.truncate(kept);
            if surplus > 0 || !text.ended {
                delta.finish = Some(FinishReason::Abort);
            }
            text.ended = true;
            self.stream.abort_sample(sample);
        }
        Some(delta)
    }
}
