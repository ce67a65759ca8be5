//! Adding and removing readers.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock;
use skein_node::trace::Link;
use skein_proto::stream_key::StreamKey;

use super::Outbox;
use super::position::SamplePosition;
use super::ring::Ring;
use super::run::{AttachError, Attachment, MAX_LINGER, RequestIdentity, Run, first_score, positions};
use super::stream::{Stream, TokenStream};
use crate::scheduler::{NewRequest, NewSample, RequestKey};

/// A new request's stream, before the scheduler has accepted the request.
#[derive(Debug)]
pub(crate) struct Opening {
    ring: Ring,
    run_key: Option<(StreamKey, RequestIdentity)>,
    samples: Vec<SamplePosition>,
    first_score: u32,
    linger: Duration,
    origin: Option<Link>,
}

impl Opening {
    /// Without a key no other reader can find it, so it does not linger.
    pub fn of(request: &NewRequest, key: Option<StreamKey>, linger: Duration) -> Self {
        Self {
            ring: Ring::new(request),
            run_key: key.map(|key| (key, RequestIdentity::of(request))),
            samples: positions(request),
            first_score: first_score(request),
            linger: if key.is_some() { linger.min(MAX_LINGER) } else { Duration::ZERO },
            origin: None,
        }
    }

    /// Links the reader to `origin`, the span of the generating request.
    pub fn traced(self, origin: Option<Link>) -> Self {
        Self { origin, ..self }
    }
}

/// What happens to a request whose stream key is in use.
#[derive(Debug)]
pub(crate) enum Join {
    /// It reads the other request's output.
    Joined(TokenStream),
    /// No such stream, or it does not reach back far enough.
    Absent,
    /// The other request has a different output: one of the two keys is wrong.
    Differs,
}

impl Outbox {
    /// Adds a new request and its first reader.
    pub fn open(&mut self, key: RequestKey, name: String, opening: Opening) -> TokenStream {
        let Opening { ring, run_key, samples, first_score, linger, origin } = opening;
        let keeps = !linger.is_zero();
        let stream = Arc::new(Stream::new(ring, keeps, self.budget.clone(), origin));
        let opened = stream.read_from(&samples, first_score, keeps, &self.open);
        let (number, reader) = opened.expect("a new ring reaches back to what was delivered");
        if let Some((stream_key, _)) = &run_key {
            self.by_key.insert(*stream_key, key);
        }
        let names = vec![(name.clone(), number)];
        self.running.insert(key, Run { stream, key: run_key, linger, orphaned: None, names });
        self.by_name.insert(name, (key, number));
        self.counts.accepted += 1;
        reader
    }

    /// Joins the stream with the request's key, if its output is the one that the request would have.
    pub fn join(
        &mut self,
        name: &str,
        request: &NewRequest,
        stream_key: StreamKey,
        linger: Duration,
    ) -> Join {
        let Some((_, run)) = self.find(stream_key) else { return Join::Absent };
        let Some((_, identity)) = &run.key else { return Join::Absent };
        let agrees = |sample: &NewSample| run.stream.agrees(sample.index, &sample.delivered);
        if !identity.matches(request) || !request.samples.iter().all(agrees) {
            return Join::Differs;
        }
        if !identity.scores_for(request) {
            return Join::Absent;
        }
        let attachment = Attachment {
            id: name.to_owned(),
            key: stream_key,
            samples: positions(request),
            from_score: first_score(request),
            linger,
        };
        self.attach(attachment).map_or(Join::Absent, Join::Joined)
    }

    /// Adds a reader to the running or kept stream with that key.
    pub fn attach(&mut self, attachment: Attachment) -> Result<TokenStream, AttachError> {
        let Attachment { id, key: stream_key, samples, from_score, linger } = attachment;
        let (now, linger, open) = (clock::now(), linger.min(MAX_LINGER), self.open.clone());
        let (key, run) = self.find(stream_key).ok_or(AttachError::NotFound)?;
        let (number, reader) = run.stream.read_from(&samples, from_score, !linger.is_zero(), &open)?;
        run.linger = run.linger.max(linger);
        run.orphaned = None;
        let forgotten = run.named(id.clone(), number);
        self.kept.prolong(key, now, linger);
        for name in forgotten {
            self.forget_name(&name, key);
        }
        self.by_name.insert(id, (key, number));
        Ok(reader)
    }

    fn find(&mut self, stream_key: StreamKey) -> Option<(RequestKey, &mut Run)> {
        let key = *self.by_key.get(&stream_key)?;
        let run = self.running.get_mut(&key).or_else(|| self.kept.get_mut(key))?;
        Some((key, run))
    }

    /// Whether this name's release arrived before its request. Forgets the release.
    pub fn released_early(&mut self, name: &str) -> bool {
        self.early.take(name, clock::now())
    }

    /// Whether a reader of that name reads an unfinished stream.
    pub fn is_reading(&self, name: &str) -> bool {
        let Some((key, number)) = self.by_name.get(name) else { return false };
        self.running.get(key).is_some_and(|run| run.stream.is_read_by(*number))
    }

    /// The running request that `name` reads or used to read.
    pub fn running(&self, name: &str) -> Option<RequestKey> {
        self.by_name.get(name).map(|(key, _)| *key).filter(|key| self.running.contains_key(key))
    }

    /// Removes a reader for good. `None` = no such reader; `Some(Some(key))` = that request has no reader
    /// left and must be cancelled.
    pub fn release(&mut self, name: &str) -> Option<Option<RequestKey>> {
        let Some((key, number)) = self.by_name.remove(name) else {
            self.early.note(name, clock::now());
            return None;
        };
        let run = self.running.get(&key).or_else(|| self.kept.get_mut(key).map(|run| &*run))?;
        if run.stream.release(number) > 0 {
            return Some(None);
        }
        if let Some(run) = self.kept.remove(key) {
            self.forget(key, run);
            return Some(None);
        }
        let run = self.running.remove(&key)?;
        self.counts.cancelled += 1;
        self.forget(key, run);
        Some(Some(key))
    }

    /// Streams that readers hold, ended ones included.
    pub fn readers(&self) -> u32 {
        Arc::strong_count(&self.open) as u32 - 1
    }
}
