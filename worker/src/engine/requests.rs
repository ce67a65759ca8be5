//! Handles submits, attaches, releases and aborts, between two steps.

use skein_grammar::Stuck;
use skein_node::clock;
use skein_proto::block_hash::BlockHash;
use skein_proto::finish::FinishReason;
use skein_proto::placement::Placement;
use skein_proto::stream_key::StreamKey;
use skein_proto::watch::Admitted;

use super::constraints::Followed;
use super::{Constraint, Engine, HandBack, LogEntry, Submission, SubmitError};
use crate::scheduler::{NewRequest, RequestEvent, RequestKey};
use crate::streams::{AttachError, Attachment, Join, Opening, TokenStream};

impl Engine {
    pub(super) fn submit(&mut self, submission: Submission) -> Result<TokenStream, SubmitError> {
        let Submission { id, mut request, placement, mut stream_key, linger, trace, constraint } = submission;
        self.sweep_streams();
        self.outbox.flush();
        self.check_submission(&id)?;
        if let Some(key) = stream_key {
            match self.outbox.join(&id, &request, key, linger) {
                Join::Joined(stream) => {
                    self.log_admitted(placement, 0, Vec::new(), stream_key);
                    return Ok(stream);
                }
                Join::Absent => {}
                Join::Differs => {
                    tracing::warn!(
                        id,
                        "a request has the stream key of a different request; it is computed separately"
                    );
                    stream_key = None;
                }
            }
        }
        self.last_key += 1;
        request.key = RequestKey(self.last_key);
        let opening = Opening::of(&request, stream_key, linger).traced(trace.link());
        let key = request.key;
        let now = clock::now();
        if let Some(observer) = &mut self.observer {
            observer.submitted(&request, trace, now);
        }
        let held_to = constraint.map(|constraint| (request.clone(), constraint));
        let mut accepted = self.scheduler.submit(request).inspect_err(|_| {
            self.observer.as_mut().into_iter().for_each(|observer| observer.refused(key));
        })?;
        let failed = self.hold_to(held_to, &mut accepted.events);
        if let Some(observer) = &mut self.observer {
            observer.events(&accepted.events, now, now);
        }
        let stream = self.outbox.open(key, id, opening);
        self.outbox.extend(accepted.events);
        self.fail(failed);
        self.log_admitted(placement, accepted.cached_blocks, accepted.uncached_hashes, stream_key);
        Ok(stream)
    }

    /// Constrains a request's samples to their grammar. A sample whose delivered tokens are already a
    /// complete answer ends as stopped.
    fn hold_to(
        &mut self,
        held_to: Option<(NewRequest, Constraint)>,
        events: &mut Vec<RequestEvent>,
    ) -> Vec<(RequestKey, Stuck)> {
        let Some((request, constraint)) = held_to else { return Vec::new() };
        let followed = self.constraints.open(&request, constraint, &mut self.scheduler);
        for event in events.iter_mut() {
            if let RequestEvent::Finished { request, sample, reason, .. } = event
                && followed.contains(&Followed::Done(*request, *sample))
            {
                *reason = FinishReason::Stop(None);
            }
        }
        self.end_followed(followed, events)
    }

    fn check_submission(&mut self, id: &str) -> Result<(), SubmitError> {
        if self.hand_back != HandBack::No {
            return Err(SubmitError::HandedBack);
        }
        if self.outbox.released_early(id) {
            return Err(SubmitError::Released { id: id.to_owned() });
        }
        if self.outbox.is_reading(id) {
            return Err(SubmitError::Duplicate { id: id.to_owned() });
        }
        let open = self.outbox.readers();
        let limit = self.max_streams;
        if open >= limit { Err(SubmitError::TooManyStreams { open, limit }) } else { Ok(()) }
    }

    fn log_admitted(
        &self,
        placement: Option<Placement>,
        depth: u32,
        hashes: Vec<BlockHash>,
        stream_key: Option<StreamKey>,
    ) {
        if let Some(placement) = placement {
            self.log.append(LogEntry::Admitted(Admitted { placement, depth, hashes, stream_key }));
        }
    }

    pub(super) fn attach(&mut self, attachment: Attachment) -> Result<TokenStream, AttachError> {
        self.sweep_streams();
        self.outbox.flush();
        if self.outbox.is_reading(&attachment.id) {
            return Err(AttachError::Duplicate { id: attachment.id });
        }
        let (open, limit) = (self.outbox.readers(), self.max_streams);
        if open >= limit {
            return Err(AttachError::TooManyStreams { open, limit });
        }
        self.outbox.attach(attachment)
    }

    pub(super) fn release(&mut self, id: &str) -> bool {
        let Some(over) = self.outbox.release(id) else { return false };
        if let Some(key) = over {
            self.cancel(key);
            self.publish_load();
        }
        true
    }

    pub(super) fn abort(&mut self, id: &str, sample: u32) -> bool {
        let event = self.outbox.running(id).and_then(|key| self.scheduler.abort(key, sample));
        if let Some(event) = event.clone() {
            self.constraints.follow(&mut [event], &mut self.scheduler);
        }
        let found = event.is_some();
        if let Some(observer) = &mut self.observer {
            let now = clock::now();
            observer.events(event.as_slice(), now, now);
        }
        self.outbox.extend(event);
        self.outbox.flush();
        found
    }
}
