//! Takes an answer apart while it arrives: reasoning, content, and calls with their arguments. What comes out
//! up to a character of the text depends on the text up to there and on nothing else, so a stream that is
//! taken up elsewhere is split as it would have been. Time is linear in the text.
//!
//! What does not parse is content. A call is announced once its name is known; if it breaks off later, what
//! follows is content.

use std::sync::Arc;

use super::envelope::{Envelope, List};
use super::harmony::Harmony;
use super::keyed::KeyedCall;
use super::named::NamedCall;
use super::pythonic::Pythonic;
use super::scan::Scan;
use super::skim::is_space;
use super::{Body, Opening, Plan};

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text for the reader.
    Content(String),
    /// Reasoning.
    Reasoning(String),
    /// A call begins. Calls are numbered from 0.
    Call {
        /// Its number.
        index: u32,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments; the parts of a call add up to its JSON.
    Arguments {
        /// The call's number.
        index: u32,
        /// The part.
        json: String,
    },
    /// A call's arguments are complete.
    CallEnd {
        /// The call's number.
        index: u32,
    },
}

/// Collects pieces.
#[derive(Debug, Default)]
pub struct Out {
    pieces: Vec<Piece>,
    calls: u32,
}

impl Out {
    /// Adds content.
    pub fn content(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Content(all)) => all.push_str(text),
            _ => self.pieces.push(Piece::Content(text.to_owned())),
        }
    }

    /// Adds reasoning.
    pub fn reasoning(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Reasoning(all)) => all.push_str(text),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }

    /// Begins a call.
    pub fn call(&mut self, name: &str) {
        self.pieces.push(Piece::Call { index: self.calls, name: name.to_owned() });
        self.calls += 1;
    }

    /// Adds to the arguments of the latest call.
    pub fn arguments(&mut self, text: &str) {
        let latest = self.calls.saturating_sub(1);
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Arguments { json, .. }) => json.push_str(text),
            _ => self.pieces.push(Piece::Arguments { index: latest, json: text.to_owned() }),
        }
    }

    /// [`Self::arguments`] of one character.
    pub fn argument(&mut self, c: char) {
        self.arguments(c.encode_utf8(&mut [0; 4]));
    }

    /// Ends the latest call.
    pub fn call_end(&mut self) {
        self.pieces.push(Piece::CallEnd { index: self.calls.saturating_sub(1) });
    }

    /// Calls that have begun.
    pub fn calls(&self) -> u32 {
        self.calls
    }
}

/// What a character does to a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It goes on.
    More,
    /// It ends with this character.
    Done,
    /// This character does not belong to it.
    Fail,
}

/// A body on its way.
#[derive(Debug)]
enum InBody {
    Envelope(Envelope),
    List(List),
    Named(NamedCall),
    Keyed(Box<KeyedCall>),
    Pythonic(Pythonic),
}

impl InBody {
    fn new(plan: &Plan, body: &'static Body) -> Option<Self> {
        let only_known = plan.calls.is_some_and(|format| format.begin.is_empty());
        Some(match body {
            Body::Envelope { .. } => Self::Envelope(Envelope::new(only_known)),
            Body::List => Self::List(List::default()),
            Body::Named { before, after, .. } => Self::Named(NamedCall::new(before, after)),
            Body::Keyed(keyed) => Self::Keyed(Box::new(KeyedCall::new(keyed))),
            Body::Pythonic => Self::Pythonic(Pythonic::default()),
            Body::Harmony => return None,
        })
    }

    fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Step {
        match self {
            Self::Envelope(body) => body.step(c, plan, out),
            Self::List(body) => body.step(c, plan, out),
            Self::Named(body) => body.step(c, out),
            Self::Keyed(body) => body.step(c, plan, out),
            Self::Pythonic(body) => body.step(c, plan, out),
        }
    }
}

#[derive(Debug)]
enum State {
    Reasoning,
    Content,
    /// Within a call; the number of calls before it.
    Call(InBody, u32),
    Harmony(Harmony),
}

/// The splitter of one answer.
#[derive(Debug)]
pub struct Splitter {
    plan: Arc<Plan>,
    state: State,
    scan: Scan,
    out: Out,
    /// White space and section markers that are content only if content follows.
    pending: String,
    /// The text of a call that has not been announced yet.
    raw: String,
    /// The answer has no content and no call yet.
    fresh: bool,
    /// There was reasoning, or it cannot come any more.
    thought: bool,
    /// White space before the next content is left out.
    trim: bool,
    /// The latest thing was a call, so its end markers may follow.
    after_call: bool,
}

/// Most markers looked for at once.
const MAX_MARKERS: usize = 8;

impl Splitter {
    /// A splitter at the beginning of an answer.
    pub fn new(plan: Arc<Plan>) -> Self {
        let state = match plan.opening {
            _ if plan.harmony => State::Harmony(Harmony::default()),
            Opening::InReasoning => State::Reasoning,
            Opening::Fresh | Opening::Closed => State::Content,
        };
        Self {
            thought: plan.opening != Opening::Fresh,
            trim: plan.opening == Opening::InReasoning,
            plan,
            state,
            scan: Scan::default(),
            out: Out::default(),
            pending: String::new(),
            raw: String::new(),
            fresh: true,
            after_call: false,
        }
    }

    /// Takes the next text of the answer; returns what has become certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        for c in text.chars() {
            self.step(c);
        }
        std::mem::take(&mut self.out.pieces)
    }

    /// Ends the answer; returns the rest.
    pub fn finish(&mut self) -> Vec<Piece> {
        let held = self.scan.rest();
        match &mut self.state {
            State::Reasoning => self.out.reasoning(&held),
            State::Harmony(harmony) => harmony.finish(&mut self.out),
            State::Content => {
                self.pending.push_str(&held);
                self.flush();
            }
            State::Call(_, before) if *before == self.out.calls() => {
                let raw = std::mem::take(&mut self.raw);
                self.pending.insert_str(0, &raw);
                self.flush();
            }
            State::Call(..) => {}
        }
        std::mem::take(&mut self.out.pieces)
    }

    /// Whether the answer has calls so far.
    pub fn has_calls(&self) -> bool {
        self.out.calls() > 0
    }

    fn step(&mut self, c: char) {
        match &mut self.state {
            State::Reasoning => self.reasoning(c),
            State::Content => self.content(c),
            State::Harmony(harmony) => harmony.step(c, &self.plan, &mut self.out),
            State::Call(body, before) => {
                let before = *before;
                let step = body.step(c, &self.plan, &mut self.out);
                self.after_step(c, step, before);
            }
        }
    }

    fn after_step(&mut self, c: char, step: Step, before: u32) {
        let announced = self.out.calls() > before;
        match step {
            Step::More if announced => self.raw.clear(),
            Step::More => self.raw.push(c),
            Step::Done if announced => self.call_ended(),
            Step::Done => {
                self.raw.push(c);
                self.call_failed(announced);
            }
            Step::Fail => {
                self.call_failed(announced);
                self.step(c);
            }
        }
    }

    fn call_failed(&mut self, announced: bool) {
        let raw = std::mem::take(&mut self.raw);
        if !announced {
            self.pending.push_str(&raw);
            self.flush();
        }
        self.fresh = false;
        self.after_call = false;
        self.state = State::Content;
    }

    fn call_ended(&mut self) {
        self.raw.clear();
        self.pending.clear();
        self.fresh = false;
        self.thought = true;
        self.trim = true;
        self.after_call = true;
        self.state = State::Content;
    }

    fn reasoning(&mut self, c: char) {
        let close = self.plan.reasoning.map_or("", |reasoning| reasoning.close);
        let Self { scan, out, pending, trim, .. } = self;
        let found = scan.step(c, &[close], |c| {
            if is_space(c) {
                pending.push(c);
                return;
            }
            if !std::mem::take(trim) {
                out.reasoning(pending);
            }
            pending.clear();
            out.reasoning(c.encode_utf8(&mut [0; 4]));
        });
        if found.is_some() {
            self.pending.clear();
            self.trim = true;
            self.state = State::Content;
        }
    }

    fn content(&mut self, c: char) {
        if self.begins_bare_call(c) {
            return;
        }
        let (markers, count) = self.markers();
        let Self { scan, out, pending, trim, fresh, after_call, .. } = self;
        let found = scan.step(c, &markers[..count], |c| {
            if is_space(c) {
                pending.push(c);
                return;
            }
            let before = if std::mem::take(trim) { pending.trim_start() } else { pending.as_str() };
            out.content(before);
            pending.clear();
            out.content(c.encode_utf8(&mut [0; 4]));
            *fresh = false;
            *after_call = false;
        });
        if let Some(marker) = found.map(|at| markers[at]) {
            self.marker(marker);
        }
    }

    fn marker(&mut self, marker: &'static str) {
        let format = self.plan.calls;
        if format.is_some_and(|format| marker == format.begin) {
            self.raw = std::mem::take(&mut self.pending) + marker;
            self.begin_call();
        } else if format.is_some_and(|format| marker == format.section_begin) {
            self.pending.push_str(marker);
        } else if self.plan.reasoning.is_some_and(|reasoning| marker == reasoning.open) {
            self.pending.clear();
            self.thought = true;
            self.trim = true;
            self.state = State::Reasoning;
        } else {
            // An end of the call before.
            self.pending.clear();
        }
    }

    fn begin_call(&mut self) {
        let Some(format) = self.plan.calls else { return };
        if let Some(body) = InBody::new(&self.plan, &format.body) {
            self.state = State::Call(body, self.out.calls());
        }
    }

    /// A call without a marker begins with its bracket, where the answer begins or after another one.
    fn begins_bare_call(&mut self, c: char) -> bool {
        let Some(format) = self.plan.calls.filter(|format| format.begin.is_empty()) else { return false };
        let bracket = match format.body {
            Body::Envelope { .. } => '{',
            Body::Pythonic => '[',
            _ => return false,
        };
        let may_begin = self.fresh || self.after_call;
        if !may_begin || !self.scan.is_empty() {
            return false;
        }
        if c != bracket {
            // Between two calls.
            return self.after_call && c == ';';
        }
        self.raw = std::mem::take(&mut self.pending);
        self.begin_call();
        self.step(c);
        true
    }

    /// The markers that count here.
    fn markers(&self) -> ([&'static str; MAX_MARKERS], usize) {
        let mut markers = [""; MAX_MARKERS];
        let mut count = 0;
        let mut add = |marker: &'static str| {
            // A marker's own white space has been held back apart from it.
            let marker = marker.trim_matches(is_space);
            if !marker.is_empty() && count < MAX_MARKERS {
                markers[count] = marker;
                count += 1;
            }
        };
        if let Some(reasoning) = self.plan.reasoning.filter(|_| self.fresh && !self.thought) {
            add(reasoning.open);
        }
        if let Some(format) = self.plan.calls {
            add(format.begin);
            add(format.section_begin);
            if self.after_call {
                format.ends.iter().for_each(|end| add(end));
                add(format.section_end);
            }
        }
        (markers, count)
    }

    /// What is pending turns out to be content.
    fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let text = if std::mem::take(&mut self.trim) { pending.trim_start() } else { &pending };
        self.out.content(text);
    }
}
