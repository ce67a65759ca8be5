//! Opens a stream for a driver: attaches to a running one, or has a worker generate the rest.

use std::fmt::Write;
use std::time::Duration;

use skein_choice::fleet::WorkerPlacement;
use skein_choice::worker_id::WorkerEpoch;
use skein_node::clock;
use skein_proto::version::Version;

use super::attempts::Ended;
use super::delivery::RequestEvent;
use super::driver::{Driver, OpenStream, State, job, outcome_of, route_span};
use super::reader::Reader;
use super::watch::{Waited, Watch};
use crate::links::worker_client::{Attachment, Attempt, CallError, WorkerClient};
use crate::links::workers::Place;

/// Time limit for a worker that may have the stream; then the rest is generated again.
const ATTACH_WITHIN: Duration = Duration::from_millis(500);
/// Longest request id on the wire, bytes.
const MAX_ID_BYTES: usize = 128;
/// `#`, a router's id of 16 digits, `.`, and a number of up to 20.
const MAX_SUFFIX_BYTES: usize = 38;

impl Driver {
    /// Attaches to the stream if a worker has it, else has the rest generated.
    pub(super) async fn open(&mut self) -> RequestEvent {
        // Changes from here on count as new, so that one during the attempt is not missed.
        self.fleet_changes.mark_unchanged();
        let attached = self.attach().await;
        // The old reader leaves now: a new one has taken its place, or none will.
        self.left = None;
        match attached {
            Some(event) => event,
            None => self.generate().await,
        }
    }

    /// Attaches to the stream where it should be; `None` = no worker has it, at the cost of one round trip.
    async fn attach(&mut self) -> Option<RequestEvent> {
        // A place was assigned only because no worker had the stream.
        if !self.delivery.may_attach() || self.place.is_some() {
            return None;
        }
        let Place { placed, client, name, .. } =
            self.workers.holder(self.stream_key, self.delivery.version(), self.delivery.broken())?;
        let placement = placed.placement;
        let mut reader = self.reader(placement, client);
        let trace = self.attempts.begin("attach", name);
        let attachment = Attachment {
            trace,
            id: reader.id.clone(),
            stream_key: self.stream_key,
            samples: self.delivery.positions().collect(),
            from_prompt_position: self.delivery.next_prompt_position(),
            linger: self.workers.linger,
        };
        let client = reader.client();
        let call = tokio::time::timeout(ATTACH_WITHIN, client.attach(attachment));
        let (deadline, rechecks, timer) = (self.request.deadline, &mut self.rechecks, &mut self.timer);
        let version = self.delivery.version();
        let watch = Watch { workers: &self.workers, placement, version, deadline, rechecks, timer };
        match watch.wait(std::pin::pin!(call), None).await {
            Waited::Answer(Ok(Ok(deltas))) => {
                reader.opened(deltas);
                let at = placement.at;
                let (name, version) =
                    self.workers.with_fleet(|fleet| (fleet.name(at.worker), fleet.version_at(at)));
                self.set_worker(name);
                self.state = State::Streaming(OpenStream::new(reader, version, placed));
                tracing::debug!(request = &*self.request.id, worker = placement.at.worker.0, "attached");
                Some(RequestEvent::Attached(placement.at))
            }
            Waited::Deadline => Some(RequestEvent::Deadline),
            refused => {
                self.attempts.end(Ended::NotAttached);
                if let Waited::Answer(Ok(Err(error))) = refused {
                    tracing::debug!(request = &*self.request.id, %error, "not attached");
                    reader.forget();
                }
                self.workers.with_fleet(|fleet| fleet.stream_gone(self.stream_key, placement.at.worker));
                None
            }
        }
    }

    /// Has a worker generate the rest.
    async fn generate(&mut self) -> RequestEvent {
        let Some(Place { placed, client, name, .. }) = self.place.take().or_else(|| self.another_place())
        else {
            return self.no_place();
        };
        let placement = placed.placement;
        let mut reader = self.reader(placement, client);
        let trace = self.attempts.begin("generate", name);
        let attempt = Attempt { trace, ..self.attempt(&reader) };
        let client = reader.client();
        let opened = {
            let call = client.generate(&self.request, attempt);
            let (deadline, rechecks, timer) = (self.request.deadline, &mut self.rechecks, &mut self.timer);
            let version = self.delivery.version();
            let watch = Watch { workers: &self.workers, placement, version, deadline, rechecks, timer };
            watch.wait(std::pin::pin!(call), None).await
        };
        let error = match opened {
            Waited::Answer(Ok(deltas)) => {
                reader.opened(deltas);
                let version = self.generated_by(placement.at);
                self.state = State::Streaming(OpenStream::new(reader, version, placed));
                // There may be more than one free seat; the first refusal ends the calls.
                self.workers.seats.call();
                return RequestEvent::Opened(placement.at);
            }
            Waited::Deadline | Waited::Abort(_) => return RequestEvent::Deadline,
            Waited::Stuck | Waited::Leave => CallError::fault("the worker makes no progress"),
            Waited::Answer(Err(error)) => {
                if !matches!(error, CallError::Fault(_)) {
                    reader.forget();
                }
                error
            }
        };
        self.report_for(placement.at, outcome_of(&error));
        RequestEvent::NotOpened(placement.at.worker, error)
    }

    /// Why no worker could be chosen.
    fn no_place(&self) -> RequestEvent {
        let version = self.delivery.version();
        let (is_full, is_gone) = self.workers.with_fleet(|fleet| {
            let now = clock::now();
            (fleet.is_full(now, version), fleet.lacks(now, version))
        });
        if self.must_wait() || is_full {
            RequestEvent::AllFull
        } else if is_gone {
            RequestEvent::NoneOfVersion
        } else {
            RequestEvent::NobodyReady
        }
    }

    /// Whether earlier requests wait for a seat. A request whose answer has already begun goes first.
    fn must_wait(&self) -> bool {
        self.request.waits_for_worker
            && !self.delivery.has_delivered()
            && self.workers.seats.is_behind(&self.ticket)
    }

    /// Has the fleet choose a worker for the rest.
    fn another_place(&self) -> Option<Place> {
        if self.must_wait() {
            return None;
        }
        let from = clock::now();
        let job = job(&self.workers, &self.request, &self.delivery);
        let place = self.workers.place(&job, self.delivery.full_workers());
        if place.is_some() {
            route_span(&self.attempts, &self.request, from, place.as_ref());
        }
        place
    }

    fn attempt(&self, reader: &Reader) -> Attempt {
        Attempt {
            id: reader.id.clone(),
            samples: self.delivery.remaining().map(|(index, tokens)| (index, tokens.to_vec())).collect(),
            prompt_logprobs: self.delivery.owes_prompt_logprobs(),
            placement: skein_proto::placement::Placement {
                router: self.workers.router_id,
                sequence: reader.placement.sequence,
            },
            time_left: self.request.deadline.map(|deadline| deadline.since(clock::now())),
            stream_key: self.stream_key,
            linger: self.workers.linger,
            version: self.delivery.version(),
            trace: None,
        }
    }

    /// Records that a worker generates from now on: whether the resume is exact, and where other readers find
    /// the stream. Returns the version of its model.
    fn generated_by(&mut self, at: WorkerEpoch) -> Version {
        let (exact, name, version) = self.workers.with_fleet(|fleet| {
            fleet.stream_opened(self.stream_key, at);
            (fleet.resumes_exactly(at.worker), fleet.name(at.worker), fleet.version_at(at))
        });
        self.set_worker(name);
        if self.delivery.has_delivered() && !(exact && self.exact_so_far) {
            self.with_journey(|journey| journey.resume_exact = false);
        }
        self.exact_so_far = exact;
        version
    }

    fn reader(&self, placement: WorkerPlacement, client: WorkerClient) -> Reader {
        let id = attempt_id(&self.request.id, self.workers.router_id, self.workers.next_attempt());
        Reader::new(self.workers.clone(), placement, client, id)
    }
}

/// An id that no other attempt of any request has, including attempts that linger at a worker after their
/// router died.
fn attempt_id(request_id: &str, router_id: u64, number: u64) -> String {
    let mut room = (MAX_ID_BYTES - MAX_SUFFIX_BYTES).min(request_id.len());
    while !request_id.is_char_boundary(room) {
        room -= 1;
    }
    let mut id = String::with_capacity(room + MAX_SUFFIX_BYTES);
    id.push_str(&request_id[..room]);
    // Writing to memory cannot fail.
    let _ = write!(id, "#{router_id:x}.{number}");
    id
}
