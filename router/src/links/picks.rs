//! Picks a worker for a request that another process, such as Envoy, sends to the worker's host.

use std::net::SocketAddr;
use std::sync::Arc;

use skein_choice::breaker::Outcome;
use skein_choice::fleet::{self, Job, WorkerPlacement};
use skein_node::clock;

use super::allowed::Allowed;
use super::workers::{Arrival, Place, Placed, Workers};
use crate::admission::{Admission, Permit};
use crate::refusal::Refusal;
use crate::request::TokenRequest;

/// Endpoints to pick from: the host of each worker with a common port.
#[derive(Debug, Clone)]
pub struct Endpoints {
    /// Port on which workers' hosts serve HTTP.
    pub port: u16,
    /// Restricts the choice to these endpoints; `None` = all workers.
    pub only: Option<Vec<Allowed>>,
}

impl Endpoints {
    /// Endpoint of the worker at `address`. `None` if it is not among the allowed ones or its host is a name:
    /// proxies require addresses.
    pub fn of(&self, address: &str) -> Option<SocketAddr> {
        let mut endpoint: SocketAddr = address.parse().ok()?;
        endpoint.set_port(self.port);
        self.only
            .as_ref()
            .is_none_or(|only| only.iter().any(|allowed| allowed.contains(endpoint)))
            .then_some(endpoint)
    }
}

/// A picked worker. Dropping it returns the request's place in admission and in the worker's ledger.
pub struct Picked {
    /// Name of the worker in discovery.
    pub worker: Arc<str>,
    /// Destination of the request.
    pub endpoint: SocketAddr,
    placed: Option<InLedger>,
    _permit: Option<Permit>,
}

struct InLedger {
    workers: Arc<Workers>,
    placed: Placed,
}

impl Picked {
    /// A pick without a place in the ledger.
    pub fn without_place(worker: impl Into<Arc<str>>, endpoint: SocketAddr) -> Self {
        Self { worker: worker.into(), endpoint, placed: None, _permit: None }
    }

    /// Picks like a router that would place the request itself, with the same refusals.
    pub(crate) fn now(
        workers: &Arc<Workers>,
        admission: &Admission,
        request: &TokenRequest,
        from: &Endpoints,
    ) -> Result<Self, Refusal> {
        Self::among(workers, admission, request, from).map_err(|refusal| match (refusal, &from.only) {
            (Refusal::NoReadyWorker { retry_after, .. }, Some(only)) => Refusal::NoReadyWorker {
                reason: format!("the proxy allows {} endpoints, none of which is a ready worker", only.len()),
                retry_after,
            },
            (refusal, _) => refusal,
        })
    }

    fn among(
        workers: &Arc<Workers>,
        admission: &Admission,
        request: &TokenRequest,
        from: &Endpoints,
    ) -> Result<Self, Refusal> {
        let without =
            workers.with_fleet(|fleet| fleet.at_other_addresses(|address| from.of(address).is_some()));
        let stream_key = request.stream_key();
        let arrival = Arrival {
            job: &job(workers, request),
            stream_key,
            resumes: false,
            waits: false,
            time_left: request.deadline.map(|deadline| deadline.since(clock::now())),
            without: &without,
            ticket: None,
        };
        let (permit, place) = workers.admit(&arrival, admission)?;
        // A running stream is read from its worker, if that is an allowed endpoint.
        let running = || workers.holder(stream_key, request.version, None);
        let allowed = |place: &Place| !without.contains(&place.placed.placement.at.worker);
        let place = place.or_else(running).filter(allowed).or_else(|| workers.place(arrival.job, &without));
        let placed = place.ok_or_else(|| workers.none_ready())?.placed;
        let member = workers.with_fleet(|fleet| fleet.member(placed.placement.at.worker).cloned());
        let endpoint = member.as_ref().and_then(|member| from.of(&member.address));
        let (Some(member), Some(endpoint)) = (member, endpoint) else { return Err(workers.none_ready()) };
        let placed = Some(InLedger { workers: workers.clone(), placed });
        Ok(Self { worker: member.id.into(), endpoint, placed, _permit: Some(permit) })
    }

    /// Records that the answer has begun: the prompt is no longer queued, and its prefix is cached.
    pub fn answered(&mut self) {
        if let Some(InLedger { workers, placed }) = self.placed.take() {
            workers.handle(fleet::Event::FirstToken(placed.placement));
        }
    }

    /// Records that the worker's own reports now count the request.
    pub fn reported(&mut self) {
        if let Some(InLedger { workers, placed }) = self.placed.take() {
            let WorkerPlacement { at, .. } = placed.placement;
            workers.handle(fleet::Event::Dispatched(at, Outcome::Neutral));
        }
    }
}

impl Drop for Picked {
    fn drop(&mut self) {
        self.reported();
    }
}

/// Properties of a new request for the fleet.
fn job(workers: &Workers, request: &TokenRequest) -> Job {
    let job = workers.job(request, &[], request.n);
    Job { cacheable: request.sampling.prompt_logprobs.is_none(), ..job }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_the_workers_address_with_the_port_of_all() {
        let check = |only: Option<&[&str]>, address: &str, expected: Option<&str>| {
            let only = only.map(|only| only.iter().flat_map(|one| Allowed::of_list(one)).collect());
            let endpoint = Endpoints { port: 8000, only }.of(address);
            assert_eq!(endpoint.map(|endpoint| endpoint.to_string()).as_deref(), expected, "{address}");
        };
        check(None, "10.0.0.7:9000", Some("10.0.0.7:8000"));
        check(None, "[fd00::7]:9000", Some("[fd00::7]:8000"));
        check(None, "worker-0:9000", None);
        check(Some(&["10.0.0.7:8000"]), "10.0.0.7:9000", Some("10.0.0.7:8000"));
        check(Some(&["10.0.0.7:9000"]), "10.0.0.7:9000", None);
        check(Some(&[]), "10.0.0.7:9000", None);
    }
}
