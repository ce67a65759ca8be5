//! How a driver gets a stream: it reads on in one that is there, or has a worker compute what is missing.

use std::time::Duration;

use skein_node::clock;

use super::delivery::Event;
use super::driver::{Driver, Source, State, job, outcome_of};
use super::reader::Reader;
use super::watch::{Waited, Watch};
use crate::fleet::{Placement, WorkerEpoch};
use crate::links::worker_client::{Attachment, Attempt, CallError, WorkerClient};
use crate::links::workers::Place;

/// A worker that should have the stream says so by then, or it is computed anew.
const ATTACH_WITHIN: Duration = Duration::from_millis(500);
/// Bytes of a request's id on the wire.
const MAX_ID_BYTES: usize = 128;

impl Driver {
    /// Reads on in a stream that is there, or has one computed.
    pub(super) async fn open(&mut self) -> Event {
        // From here on a change counts as new: one that comes after a vain look must not be slept through.
        self.fleet_changes.mark_unchanged();
        let attached = self.attach().await;
        // With a new reader in its place, or with none to come, the old one leaves.
        self.left = None;
        match attached {
            Some(event) => event,
            None => self.generate().await,
        }
    }

    /// Attaches where the stream should be. `None` = nobody has it, which costs a round trip and nothing else.
    async fn attach(&mut self) -> Option<Event> {
        // Nobody had the stream when it was given a place.
        if !self.delivery.may_attach() || self.place.is_some() {
            return None;
        }
        let Place { placed, client } = self.workers.holder(self.stream_key, self.delivery.broken())?;
        let placement = placed.placement;
        let mut reader = self.reader(placement, client);
        let attachment = Attachment {
            id: reader.id.clone(),
            stream_key: self.stream_key,
            samples: self.delivery.positions().collect(),
            from_prompt_position: self.delivery.next_prompt_position(),
            linger: self.workers.linger,
        };
        let client = reader.client();
        let call = tokio::time::timeout(ATTACH_WITHIN, client.attach(attachment));
        let (deadline, rechecks) = (self.request.deadline, &mut self.rechecks);
        let watch = Watch { workers: &self.workers, placement, deadline, rechecks };
        match watch.wait(std::pin::pin!(call), None).await {
            Waited::For(Ok(Ok(deltas))) => {
                reader.opened(deltas);
                self.state = State::Streaming(Source::new(reader, placed));
                tracing::debug!(request = self.request.id, worker = placement.at.worker.0, "attached");
                Some(Event::Attached(placement.at))
            }
            Waited::Deadline => Some(Event::Deadline),
            refused => {
                if let Waited::For(Ok(Err(error))) = refused {
                    tracing::debug!(request = self.request.id, %error, "not attached");
                    reader.forget();
                }
                self.workers.with_fleet(|fleet| fleet.stream_gone(self.stream_key, placement.at.worker));
                None
            }
        }
    }

    /// Has a worker compute what is missing.
    async fn generate(&mut self) -> Event {
        let Some(Place { placed, client }) = self.place.take().or_else(|| self.another_place()) else {
            return Event::NobodyReady;
        };
        let placement = placed.placement;
        let mut reader = self.reader(placement, client);
        let attempt = self.attempt(&reader);
        let client = reader.client();
        let opened = {
            let call = client.generate(&self.request, attempt);
            let (deadline, rechecks) = (self.request.deadline, &mut self.rechecks);
            let watch = Watch { workers: &self.workers, placement, deadline, rechecks };
            watch.wait(std::pin::pin!(call), None).await
        };
        let error = match opened {
            Waited::For(Ok(deltas)) => {
                reader.opened(deltas);
                self.computed_by(placement.at);
                self.state = State::Streaming(Source::new(reader, placed));
                return Event::Opened(placement.at);
            }
            Waited::Deadline | Waited::Abort(_) => return Event::Deadline,
            Waited::Stuck | Waited::Leave => CallError::fault("the worker stands still"),
            Waited::For(Err(error)) => {
                if !matches!(error, CallError::Fault(_)) {
                    reader.forget();
                }
                error
            }
        };
        self.report_for(placement.at, outcome_of(&error));
        Event::NotOpened(placement.at.worker, error)
    }

    /// Has the fleet choose a worker for what is left.
    fn another_place(&self) -> Option<Place> {
        let job = job(&self.workers, &self.request, &self.delivery);
        self.workers.place(&job, self.delivery.full_workers())
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
        }
    }

    /// A worker computes from now on: from another one's tokens, perhaps, and others may find the stream there.
    fn computed_by(&mut self, at: WorkerEpoch) {
        let exact = self.workers.with_fleet(|fleet| {
            fleet.stream_opened(self.stream_key, at);
            fleet.resumes_exactly(at.worker)
        });
        if self.delivery.has_delivered() && !(exact && self.exact_so_far) {
            self.with_journey(|journey| journey.resume_exact = false);
        }
        self.exact_so_far = exact;
    }

    fn reader(&self, placement: Placement, client: WorkerClient) -> Reader {
        let id = attempt_id(&self.request.id, self.workers.router_id, self.workers.next_attempt());
        Reader::new(self.workers.clone(), placement, client, id)
    }
}

/// An id that no other try of any request has, also not one that lives on at a worker after its router gave it up.
fn attempt_id(request_id: &str, router_id: u64, number: u64) -> String {
    let suffix = format!("#{router_id:x}.{number}");
    let mut room = MAX_ID_BYTES - suffix.len();
    while !request_id.is_char_boundary(room.min(request_id.len())) {
        room -= 1;
    }
    format!("{}{suffix}", &request_id[..room.min(request_id.len())])
}
