//! How a driver gets a stream: it reads on in one that is there, or has a worker compute what is missing.

use std::time::Duration;

use skein_node::clock;

use super::delivery::Event;
use super::driver::{Driver, Placed, Source, State, outcome_of};
use super::reader::Reader;
use super::watch::{Waited, Watch};
use crate::fleet::{self, Job, Placement};
use crate::links::worker_client::{Attachment, Attempt, CallError, WorkerClient};

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
        if !self.delivery.may_attach() {
            return None;
        }
        let (placement, client) = self.workers.holder(self.stream_key, self.delivery.broken())?;
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
        let (deadline, losses) = (self.request.deadline, &mut self.losses);
        let watch = Watch { workers: &self.workers, placement, deadline, losses };
        match watch.wait(std::pin::pin!(call), None).await {
            Waited::For(Ok(Ok(deltas))) => {
                reader.opened(deltas);
                self.stream(reader);
                tracing::debug!(request = self.request.id, worker = placement.worker.0, "attached");
                Some(Event::Attached(placement.worker, placement.epoch))
            }
            Waited::Deadline => Some(Event::Deadline),
            refused => {
                if let Waited::For(Ok(Err(error))) = refused {
                    tracing::debug!(request = self.request.id, %error, "not attached");
                    reader.over();
                }
                self.workers.with_fleet(|fleet| fleet.stream_gone(self.stream_key, placement.worker));
                None
            }
        }
    }

    /// Has a worker compute what is missing.
    async fn generate(&mut self) -> Event {
        let job = self.job();
        let Some((placement, client)) = self.workers.place(&job, self.delivery.full_workers()) else {
            return Event::NobodyReady;
        };
        let placed = Placed { workers: self.workers.clone(), placement };
        let mut reader = self.reader(placement, client);
        let attempt = self.attempt(&reader);
        let client = reader.client();
        let opened = {
            let call = client.generate(&self.request, attempt);
            let (deadline, losses) = (self.request.deadline, &mut self.losses);
            let watch = Watch { workers: &self.workers, placement, deadline, losses };
            watch.wait(std::pin::pin!(call), None).await
        };
        let Placement { worker, epoch, .. } = placement;
        let error = match opened {
            Waited::For(Ok(deltas)) => {
                reader.opened(deltas);
                self.computed_by(placement);
                self.state =
                    State::Streaming(Box::new(Source { reader, _placed: placed, gave_tokens: false }));
                return Event::Opened(worker, epoch);
            }
            Waited::Deadline | Waited::Abort(_) => return Event::Deadline,
            Waited::Stuck | Waited::Leave => CallError::Fault("the worker stands still".into()),
            Waited::For(Err(error)) => {
                if !matches!(error, CallError::Fault(_)) {
                    reader.over();
                }
                error
            }
        };
        self.workers.handle(fleet::Event::Dispatched(worker, epoch, outcome_of(&error)));
        Event::NotOpened(worker, error)
    }

    fn attempt(&self, reader: &Reader) -> Attempt {
        Attempt {
            id: reader.id.clone(),
            samples: self.delivery.remaining().map(|(index, tokens)| (index, tokens.to_vec())).collect(),
            prompt_logprobs: self.delivery.owes_prompt_logprobs(),
            placement: (self.workers.router_id, reader.placement.sequence),
            time_left: self.request.deadline.map(|deadline| deadline.since(clock::now())),
            stream_key: self.stream_key,
            linger: self.workers.linger,
        }
    }

    /// A worker computes from now on: from another one's tokens, perhaps, and others may find the stream there.
    fn computed_by(&mut self, placement: Placement) {
        let Placement { worker, epoch, .. } = placement;
        let exact = self.workers.with_fleet(|fleet| {
            fleet.stream_opened(self.stream_key, worker, epoch);
            fleet.resumes_exactly(worker)
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

    /// Begins to read a stream that is attached to.
    fn stream(&mut self, reader: Reader) {
        let placed = Placed { workers: self.workers.clone(), placement: reader.placement };
        self.state = State::Streaming(Box::new(Source { reader, _placed: placed, gave_tokens: false }));
    }

    /// What is left of the request, as the fleet sees it. A resume prefills what was delivered, too.
    fn job(&self) -> Job {
        let longest = self.delivery.remaining().map(|(_, tokens)| tokens).max_by_key(|tokens| tokens.len());
        let tokens = [&self.request.prompt[..], longest.unwrap_or_default()].concat();
        let left = self.request.sampling.max_tokens.saturating_sub(longest.map_or(0, <[_]>::len) as u32);
        let sequences = self.delivery.remaining().count() as u32;
        self.workers.job(&self.request, &tokens, left, sequences, self.delivery.owes_prompt_logprobs())
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
