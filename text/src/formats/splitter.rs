//! Splits a streamed answer into reasoning, content, and calls with their arguments. The output up to a
//! character depends only on the text up to it, so a stream that resumes on another router is split the same
//! way. Time is linear in the length of the text.
//!
//! Text that does not parse is content. A call is emitted as soon as its name is known; if it breaks off
//! after that, the rest is content.

use std::sync::Arc;

use super::envelope::{Envelope, List};
use super::harmony::Harmony;
use super::keyed_call::KeyedCall;
use super::named_call::NamedCall;
use super::out::{Consumed, Out, Piece};
use super::pythonic::Pythonic;
use super::scan::Scan;
use super::skim::is_space;
use super::{Body, Opening, Plan};

/// Parser of the call under way.
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
            Body::Keyed(keyed) => Self::Keyed(Box::new(KeyedCall::new(keyed, plan.held))),
            Body::Pythonic => Self::Pythonic(Pythonic::default()),
            Body::Harmony => return None,
        })
    }

    fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
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
    /// Inside a call; holds its parser and the number of calls before it.
    Call(InBody, u32),
    Harmony(Harmony),
}

/// Splits one answer.
#[derive(Debug)]
pub struct Splitter {
    plan: Arc<Plan>,
    state: State,
    scan: Scan,
    out: Out,
    /// White space and section markers, which become content only if content follows.
    pending: String,
    /// Text of a call whose name is not yet known.
    raw: String,
    /// No content and no call yet.
    fresh: bool,
    /// Reasoning has occurred or is no longer possible.
    thought: bool,
    /// Drop white space before the next content.
    trim: bool,
    /// A call has just ended, so its end markers may follow.
    after_call: bool,
    /// In reasoning, or in a call that began there.
    thinking: bool,
    /// A call ended the reasoning, so its closing marker may still come.
    unclosed: bool,
}

/// Most markers searched for at once.
const MAX_MARKERS: usize = 8;

impl Splitter {
    /// Splitter at the start of an answer.
    pub fn new(plan: Arc<Plan>) -> Self {
        let state = match plan.opening {
            _ if plan.harmony => State::Harmony(Harmony::default()),
            Opening::InReasoning | Opening::MidReasoning => State::Reasoning,
            Opening::Fresh | Opening::Closed => State::Content,
        };
        Self {
            thought: plan.opening != Opening::Fresh,
            trim: plan.opening == Opening::InReasoning,
            state,
            scan: Scan::default(),
            out: Out::default(),
            pending: String::new(),
            raw: String::new(),
            fresh: true,
            after_call: false,
            thinking: matches!(plan.opening, Opening::InReasoning | Opening::MidReasoning),
            unclosed: false,
            plan,
        }
    }

    /// Consumes the next text of the answer and returns the pieces that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        for c in text.chars() {
            self.step(c);
        }
        self.out.take()
    }

    /// Ends the answer and returns the remaining pieces.
    pub fn finish(&mut self) -> Vec<Piece> {
        let held = self.scan.rest();
        // The answer may end within the end marker of its last call, most often at `max_tokens`.
        let ends_call = self.after_call && self.begins_end(&held);
        match &mut self.state {
            State::Reasoning if held.is_empty() => {}
            State::Reasoning => self.thought(&held),
            State::Harmony(harmony) => harmony.finish(&mut self.out),
            State::Content if ends_call => {}
            State::Content => {
                self.pending.push_str(&held);
                self.flush();
            }
            State::Call(_, before) if *before == self.out.calls() => {
                let raw = std::mem::take(&mut self.raw);
                if self.thinking {
                    self.thought(&raw);
                } else {
                    self.pending.insert_str(0, &raw);
                    self.flush();
                }
            }
            State::Call(..) => {}
        }
        self.out.take()
    }

    /// Whether `held` is the start of a marker that ends a call.
    fn begins_end(&self, held: &str) -> bool {
        let begins = |marker: &str| marker.trim_matches(is_space).starts_with(held);
        let Some(format) = self.plan.calls.filter(|_| !held.is_empty()) else { return false };
        format.ends.iter().any(|end| begins(end)) || begins(format.section_end)
    }

    /// Whether the next text is reasoning, unless it is a marker or a call.
    pub fn is_in_reasoning(&self) -> bool {
        match &self.state {
            State::Reasoning => true,
            State::Harmony(harmony) => harmony.is_in_reasoning(),
            // A call that is none is reasoning, too.
            State::Call(_, before) => self.thinking && *before == self.out.calls(),
            State::Content => false,
        }
    }

    /// Whether text is held back that may be a marker or a call.
    pub fn holds_back(&self) -> bool {
        match &self.state {
            State::Harmony(harmony) => harmony.holds_back(),
            State::Call(..) => true,
            State::Reasoning | State::Content => !self.scan.is_empty(),
        }
    }

    /// Whether there can be no more reasoning.
    pub fn has_reasoned(&self) -> bool {
        matches!(self.state, State::Content) && (self.thought || !self.fresh)
    }

    /// Whether the answer has had a call so far.
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

    fn after_step(&mut self, c: char, step: Consumed, before: u32) {
        let announced = self.out.calls() > before;
        match step {
            Consumed::More if announced => self.raw.clear(),
            Consumed::More => self.raw.push(c),
            Consumed::Done if announced => self.call_ended(),
            Consumed::Done => {
                self.raw.push(c);
                self.call_failed(announced);
            }
            Consumed::Fail => {
                self.call_failed(announced);
                self.step(c);
            }
        }
    }

    fn call_failed(&mut self, announced: bool) {
        let raw = std::mem::take(&mut self.raw);
        if !announced && self.thinking {
            self.thought(&raw);
            self.state = State::Reasoning;
            return;
        }
        if !announced {
            self.pending.push_str(&raw);
            self.flush();
        }
        self.unclosed |= std::mem::take(&mut self.thinking);
        self.fresh = false;
        self.after_call = false;
        self.state = State::Content;
    }

    fn call_ended(&mut self) {
        self.raw.clear();
        self.pending.clear();
        self.fresh = false;
        self.thought = true;
        self.unclosed |= std::mem::take(&mut self.thinking);
        self.trim = true;
        self.after_call = true;
        self.state = State::Content;
    }

    fn reasoning(&mut self, c: char) {
        let close = self.plan.reasoning.map_or("", |reasoning| reasoning.close);
        // A model may call without closing its reasoning. `close` again stands for no marker.
        let format = self.plan.calls.filter(|format| !format.begin.is_empty() && !self.plan.held);
        let or_close = |marker: &'static str| if marker.is_empty() { close } else { marker };
        let begin = format.map_or(close, |format| or_close(format.begin.trim_matches(is_space)));
        let section = format.map_or(close, |format| or_close(format.section_begin.trim_matches(is_space)));
        let Self { scan, out, pending, trim, .. } = self;
        let found = scan.step(c, &[close, begin, section], |c| {
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
        match found {
            None => {}
            Some(0) => {
                self.pending.clear();
                self.trim = true;
                self.thinking = false;
                self.state = State::Content;
            }
            Some(1) => {
                self.raw = std::mem::take(&mut self.pending) + begin;
                self.begin_call();
            }
            Some(_) => self.pending.push_str(section),
        }
    }

    /// Emits `text` as reasoning, behind what is pending. White space at its end stays pending.
    fn thought(&mut self, text: &str) {
        let all = std::mem::take(&mut self.pending) + text;
        let text = all.trim_end();
        self.pending.push_str(&all[text.len()..]);
        let text = if std::mem::take(&mut self.trim) { text.trim_start() } else { text };
        self.out.reasoning(text);
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
            self.thinking = true;
            self.trim = true;
            self.state = State::Reasoning;
        } else if let Some(tags) = self.plan.bare_tags().filter(|tags| marker == tags.name_open.trim()) {
            self.raw = std::mem::take(&mut self.pending) + marker;
            let body = InBody::Keyed(Box::new(KeyedCall::at_name(tags)));
            self.state = State::Call(body, self.out.calls());
        } else {
            // End marker of the previous call, or of the reasoning that it ended.
            self.pending.clear();
        }
    }

    fn begin_call(&mut self) {
        let Some(format) = self.plan.calls else { return };
        if let Some(body) = InBody::new(&self.plan, &format.body) {
            self.state = State::Call(body, self.out.calls());
        }
    }

    /// Whether `c` starts a call without a marker: a bracket at the start of the answer or after another
    /// call.
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
            // Separator between two calls.
            return self.after_call && c == ';';
        }
        self.raw = std::mem::take(&mut self.pending);
        self.begin_call();
        self.step(c);
        true
    }

    /// Markers that may occur in the current state.
    fn markers(&self) -> ([&'static str; MAX_MARKERS], usize) {
        let mut markers = [""; MAX_MARKERS];
        let mut count = 0;
        let mut add = |marker: &'static str| {
            // White space around a marker is held back separately.
            let marker = marker.trim_matches(is_space);
            if !marker.is_empty() && count < MAX_MARKERS {
                markers[count] = marker;
                count += 1;
            }
        };
        if let Some(reasoning) = self.plan.reasoning.filter(|_| self.fresh && !self.thought) {
            add(reasoning.open);
        }
        if let Some(reasoning) = self.plan.reasoning.filter(|_| self.unclosed) {
            add(reasoning.close);
        }
        if let Some(format) = self.plan.calls {
            add(format.begin);
            add(format.section_begin);
            if let Some(tags) = self.plan.bare_tags() {
                add(tags.name_open);
            }
            if self.after_call {
                format.ends.iter().for_each(|end| add(end));
                add(format.section_end);
            }
        }
        (markers, count)
    }

    /// Emits the pending text as content.
    fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let text = if std::mem::take(&mut self.trim) { pending.trim_start() } else { &pending };
        self.out.content(text);
    }
}
