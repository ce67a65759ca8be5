//! Server span of one request in this process: a record of a few hundred bytes until the request ends. Spans
//! are built only if it is exported.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::trace::{Event, SpanId, SpanKind, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents};
use smallvec::SmallVec;

use super::attribute::{Attribute, Pair};
use super::context::{Link, Remote, Traceparent};
use super::export::{self, Exporting};
use super::part::{Attempt, Part, new_span_id};
use super::start;
use super::warning::Warning;
use super::{KEPT, Kept};
use crate::clock::{self, Timestamp};

/// Most parts of a request; further ones are dropped and counted. Even a request with 128 samples and 64
/// moves has fewer.
const MAX_PARTS: usize = 512;
/// Most warnings recorded per request.
const MAX_WARNINGS: usize = 32;

/// Server span of one request in this process. Clones share it; it ends when the last one is dropped. The
/// default is off, which makes every method a no-op. An unsampled request is recorded as well, because it may
/// still fail or be slow. That costs one allocation, and reads the clock only for its parts.
#[derive(Clone, Default)]
pub struct Request(Option<Arc<Live>>);

struct Live {
    own: Link,
    parent: Option<SpanId>,
    state: TraceState,
    begun: Timestamp,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    name: Option<(&'static str, Attribute)>,
    attributes: SmallVec<[Pair; 16]>,
    parts: SmallVec<[Part; 4]>,
    link: Option<Link>,
    warnings: Vec<Warning>,
    kept: Option<Kept>,
    error: Option<Attribute>,
}

impl Record {
    /// Sets `key`, replacing an earlier value.
    fn set(&mut self, key: &'static str, value: Attribute) {
        match self.attributes.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value,
            None => self.attributes.push((key, value)),
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.link() {
            Some(link) => write!(f, "{}", link.trace),
            None => f.write_str("untraced"),
        }
    }
}

impl Request {
    /// Tracing disabled: every method is a no-op.
    pub(super) const OFF: Self = Self(None);

    /// Starts the server span of a request from the caller `remote`.
    pub fn begin(remote: Remote) -> Self {
        let Some(sampling) = start::sampling() else { return Self::OFF };
        let Remote { parent, state } = remote;
        let trace = parent.map_or_else(|| RandomIdGenerator::default().new_trace_id(), |parent| parent.trace);
        let sampled = sampling.samples(trace, parent.map(|parent| parent.sampled));
        Self(Some(Arc::new(Live {
            own: Link { trace, span: new_span_id(), sampled },
            parent: parent.map(|parent| parent.span),
            state,
            begun: clock::now(),
            record: Mutex::default(),
        })))
    }

    /// Whether the request is recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the request is sampled, so that costly details may be measured.
    pub fn is_sampled(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.own.sampled)
    }

    /// Whether the caller sent no trace context, so that only this process can report the trace's id.
    pub fn begins_trace(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.parent.is_none())
    }

    /// Value of `traceparent` for this span.
    pub fn traceparent(&self) -> Option<Traceparent> {
        self.0.as_ref().map(|live| live.own.traceparent())
    }

    /// Names the span `verb object`; the last call wins.
    pub fn name(&self, verb: &'static str, object: impl Into<Attribute>) {
        self.change(|record| record.name = Some((verb, object.into())));
    }

    /// Sets an attribute.
    pub fn set(&self, key: &'static str, value: impl Into<Attribute>) {
        self.change(|record| record.set(key, value.into()));
    }

    /// Sets an attribute that has no value yet.
    pub fn set_default(&self, key: &'static str, value: impl Into<Attribute>) {
        self.change(|record| {
            if record.attributes.iter().all(|(known, _)| *known != key) {
                record.set(key, value.into());
            }
        });
    }

    /// Sets the attributes that `attributes` returns.
    pub fn set_all<const N: usize>(&self, attributes: impl FnOnce() -> [(&'static str, Attribute); N]) {
        self.change(|record| attributes().into_iter().for_each(|(key, value)| record.set(key, value)));
    }

    /// Adds to count attributes: a call with several prompts has one span.
    pub fn sum<const N: usize>(&self, counts: [(&'static str, u64); N]) {
        self.change(|record| {
            for (key, count) in counts {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                match record.attributes.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, Attribute::Int(sum))) => *sum = sum.saturating_add(count),
                    _ => record.set(key, count.into()),
                }
            }
        });
    }

    /// Links the span to the one that it continues.
    pub fn link_to(&self, other: Link) {
        self.change(|record| record.link = Some(other));
    }

    /// Exports the trace even if it is not sampled; the first reason is recorded.
    pub fn keep(&self, why: Kept) {
        self.change(|record| {
            record.kept.get_or_insert(why);
        });
    }

    /// Marks the span as failed and keeps the trace. `kind` is a low-cardinality error type, such as a code.
    pub fn fail(&self, kind: impl Into<Attribute>) {
        self.change(|record| {
            record.kept = Some(Kept::Error);
            record.error.get_or_insert_with(|| kind.into());
        });
    }

    /// Adds a child span, built by `part` only if the request is traced.
    pub fn add(&self, part: impl FnOnce() -> Part) {
        self.change(|record| {
            if record.parts.len() < MAX_PARTS {
                record.parts.push(part());
            } else {
                export::dropped(export::Lost::TooMany, 1);
            }
        });
    }

    /// Adds a warning logged while the request ran.
    pub(super) fn warned(&self, warning: Warning) {
        self.change(|record| {
            if record.warnings.len() < MAX_WARNINGS {
                record.warnings.push(warning);
            }
        });
    }

    /// Generates the ids of a call to another process; `None` if tracing is disabled.
    pub fn attempt(&self) -> Option<Attempt> {
        self.0.as_ref().map(|live| Attempt::new(live.own, &live.state))
    }

    /// Link to this span, for a span of another request.
    pub fn link(&self) -> Option<Link> {
        self.0.as_ref().map(|live| live.own)
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        if let Some(live) = &self.0 {
            change(&mut live.record.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Live {
    /// Decides whether the trace is exported, and builds its spans only then.
    fn drop(&mut self) {
        let record = self.record.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.own.sampled || record.kept.is_some() {
            let record = std::mem::take(record);
            self.export(record);
        }
    }
}

impl Live {
    fn export(&self, record: Record) {
        let exporting = Exporting::new(&self.state);
        let Record { name, attributes, parts, link, warnings, kept, error } = record;
        let name = name.map_or_else(|| "request".to_owned(), |(verb, object)| format!("{verb} {object}"));
        let times = (self.begun, exporting.now());
        let mut data = exporting.span(self.own, name.into(), SpanKind::Server, times, attributes);
        data.parent_span_id = self.parent.unwrap_or(SpanId::INVALID);
        data.parent_span_is_remote = self.parent.is_some();
        exporting.link(&mut data, link);
        if let (Some(kept), false) = (kept, self.own.sampled) {
            exporting.set(&mut data, KEPT, Attribute::Word(kept.label()));
        }
        exporting.fail(&mut data, error);
        warn(&mut data, warnings, &exporting);
        export::push(data);
        for part in parts {
            export::push(part.into_data(self.own, &exporting));
        }
    }
}

fn warn(data: &mut SpanData, warnings: Vec<Warning>, exporting: &Exporting<'_>) {
    let mut events = SpanEvents::default();
    events.events = warnings
        .into_iter()
        .map(|Warning { at, message, attributes }| {
            Event::new(message, exporting.at(at), exporting.pairs(attributes), 0)
        })
        .collect();
    data.events = events;
}
