//! The server span of one request in this process: a record of a few hundred bytes to begin with, and spans
//! only if it is exported.

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
use super::warnings::Warning;
use super::{KEPT, Kept};
use crate::clock::{self, Timestamp};

/// Most parts of one request; those beyond it are counted as dropped. A request with 128 samples and 64 moves
/// has fewer.
const MAX_PARTS: usize = 512;
/// Most warnings that one request records.
const MAX_WARNINGS: usize = 32;

/// The server span of one request in this process. Clones share it; it ends when the last one is dropped.
/// The default is off: everything is then a no-op. A request that is not sampled is recorded, too, because it
/// may yet fail or be slow; that takes one allocation and no clock but those of its parts.
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
    /// The last value of a key counts.
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
    /// One that is off.
    pub(super) const OFF: Self = Self(None);

    /// Begins the server span of a request that arrived with `remote` as its caller.
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

    /// Whether it is recorded at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is sampled, so that details worth their cost may be measured.
    pub fn is_sampled(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.own.sampled)
    }

    /// The value of `traceparent` that names this span.
    pub fn traceparent(&self) -> Option<Traceparent> {
        self.0.as_ref().map(|live| live.own.traceparent())
    }

    /// Names the span by what it does, and to what; the last name counts.
    pub fn name(&self, verb: &'static str, object: impl Into<Attribute>) {
        self.change(|record| record.name = Some((verb, object.into())));
    }

    /// Sets an attribute.
    pub fn set(&self, key: &'static str, value: impl Into<Attribute>) {
        self.change(|record| record.set(key, value.into()));
    }

    /// Sets the attributes that `attributes` makes.
    pub fn set_all<const N: usize>(&self, attributes: impl FnOnce() -> [(&'static str, Attribute); N]) {
        self.change(|record| attributes().into_iter().for_each(|(key, value)| record.set(key, value)));
    }

    /// Adds to counts: a call with several prompts has one span.
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

    /// Links it to a span that it goes on from.
    pub fn link_to(&self, other: Link) {
        self.change(|record| record.link = Some(other));
    }

    /// Exports its trace whether it is sampled or not; the first reason counts.
    pub fn keep(&self, why: Kept) {
        self.change(|record| {
            record.kept.get_or_insert(why);
        });
    }

    /// Marks it as failed, and keeps it. `kind` is a low-cardinality name, such as a code.
    pub fn fail(&self, kind: impl Into<Attribute>) {
        self.change(|record| {
            record.kept = Some(Kept::Error);
            record.error.get_or_insert_with(|| kind.into());
        });
    }

    /// Adds a span below it, made by `part` if the request is traced.
    pub fn add(&self, part: impl FnOnce() -> Part) {
        self.change(|record| {
            if record.parts.len() < MAX_PARTS {
                record.parts.push(part());
            } else {
                export::dropped(export::Lost::TooMany, 1);
            }
        });
    }

    /// Adds a warning that was logged while it ran.
    pub(super) fn warned(&self, warning: Warning) {
        self.change(|record| {
            if record.warnings.len() < MAX_WARNINGS {
                record.warnings.push(warning);
            }
        });
    }

    /// Draws the ids of a call to another process; `None` if it is off.
    pub fn attempt(&self) -> Option<Attempt> {
        self.0.as_ref().map(|live| Attempt::new(live.own, &live.state))
    }

    /// The link to this span, for a span of another request.
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
    /// Decides whether the trace is exported, and only then makes its spans.
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
