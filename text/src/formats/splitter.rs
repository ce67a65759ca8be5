//! Splits a streamed answer into reasoning, content, and calls with their arguments. The output up to a
//! character depends only on the text up to it, so a stream that resumes on another router is split the same
//! way. Time is linear in the length of the text.
//!
//! Text that does not parse is content. A call is emitted as soon as its name is known and its arguments
//! begin as an object; if it breaks off after that, the rest is content.

use std::sync::Arc;

use super::braced_call::BracedCall;
use super::envelope::{Envelope, List};
use super::harmony::Harmony;
use super::keyed_call::KeyedCall;
use super::named_call::NamedCall;
use super::out::{Consumed, Out, Piece};
use super::pythonic::Pythonic;
use super::scan::{Markers, Scan};
use super::skim::is_space;
use super::{Body, Format, Opening, Plan, in_name, is_marker};

/// Parser of the call under way.
#[derive(Debug)]
enum InBody {
    Envelope(Envelope),
    List(List),
    Named(NamedCall),
    Keyed(Box<KeyedCall>),
    Pythonic(Pythonic),
    Braced(BracedCall),
}

impl InBody {
    fn new(plan: &Plan, body: &'static Body) -> Option<Self> {
        let only_known = plan.calls.is_some_and(|format| format.begin.is_empty());
        Some(match body {
            Body::Envelope { .. } => Self::Envelope(Envelope::new(only_known)),
            Body::List(_) => Self::List(List::new(only_known)),
            Body::Named { before, after, .. } => Self::Named(NamedCall::new(before, after)),
            Body::Keyed(keyed) => Self::Keyed(Box::new(KeyedCall::new(keyed, plan.held))),
            Body::Pythonic => Self::Pythonic(Pythonic::default()),
            Body::PythonicLines => Self::Pythonic(Pythonic::alone()),
            Body::Braced { quote } => Self::Braced(BracedCall::new(quote)),
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
            Self::Braced(body) => body.step(c, plan, out),
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
    /// There has been content.
    said: bool,
    /// White space between that content and the calls after it.
    gap: String,
    /// A call has just ended, so its end markers may follow.
    after_call: bool,
    /// In reasoning, or in a call that began there.
    thinking: bool,
    /// A call ended the reasoning, so its closing marker may still come.
    unclosed: bool,
    /// A marker before the content has occurred, so one may follow it.
    in_answer: bool,
}

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
            said: false,
            gap: String::new(),
            after_call: false,
            thinking: matches!(plan.opening, Opening::InReasoning | Opening::MidReasoning),
            unclosed: false,
            in_answer: false,
            plan,
        }
    }

    /// Consumes the next text of the answer and returns the pieces that are now certain. `control_at`: where
    /// in `text` control tokens begin, ascending.
    pub fn push(&mut self, text: &str, control_at: &[usize]) -> Vec<Piece> {
        let mut control_at = control_at.iter().copied().peekable();
        for (at, c) in text.char_indices() {
            let is_control = control_at.next_if_eq(&at).is_some();
            match &mut self.state {
                State::Harmony(harmony) => harmony.step(c, is_control, &self.plan, &mut self.out),
                _ => self.step(c),
            }
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
                self.drop_answer_close(&held);
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

    /// Removes the marker after the content, or its start `held`, from the end of the answer.
    fn drop_answer_close(&mut self, held: &str) {
        let Some(reasoning) = self.plan.reasoning.filter(|_| self.in_answer) else { return };
        let pending = self.pending.trim_end();
        let whole = reasoning.answer_close.iter().find(|close| pending.ends_with(**close));
        let is_cut = |close: &&&str| !held.is_empty() && close.starts_with(held);
        let cut = reasoning.answer_close.iter().find(is_cut).map(|_| held);
        if let Some(close) = whole.copied().or(cut) {
            let before = pending.len() - close.len();
            self.pending.truncate(self.pending[..before].trim_end().len());
        }
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
            State::Harmony(harmony) => harmony.step(c, false, &self.plan, &mut self.out),
            State::Call(body, before) => {
                let (before, calls, was_in_call) = (*before, self.out.calls(), self.out.is_in_call());
                let step = body.step(c, &self.plan, &mut self.out);
                let is_emitted = was_in_call || self.out.calls() > calls;
                self.after_step(c, step, before, is_emitted);
            }
        }
    }

    /// `is_emitted`: `c` is part of a call that has been emitted.
    fn after_step(&mut self, c: char, step: Consumed, before: u32, is_emitted: bool) {
        let announced = self.out.calls() > before;
        match step {
            Consumed::More if is_emitted => self.raw.clear(),
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
        self.out.call_breaks_off();
        if !announced && self.thinking {
            self.thought(&raw);
            self.state = State::Reasoning;
            return;
        }
        // In a list, `raw` is the text since the previous call.
        self.pending.push_str(&raw);
        if !raw.trim().is_empty() {
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
        let mut markers = Markers::default();
        markers.add(close);
        // A model may call without closing its reasoning.
        let format = self.plan.calls.filter(|format| !format.begin.is_empty() && !self.plan.held);
        if let Some(format) = format {
            markers.add(format.begin);
            format.also_begin.iter().for_each(|begin| markers.add(begin));
            markers.add(format.section_begin);
        }
        let Self { scan, out, pending, trim, .. } = self;
        let found = scan.step(c, markers.all(), |c| {
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
        match found.map(|at| markers.all()[at]) {
            None => {}
            Some(marker) if marker == close => {
                self.pending.clear();
                self.trim = true;
                self.thinking = false;
                self.state = State::Content;
            }
            Some(marker) if self.begins_call(marker) => {
                self.raw = std::mem::take(&mut self.pending) + marker;
                self.begin_call();
            }
            Some(section) => self.pending.push_str(section),
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
        let markers = self.markers();
        let Self { scan, out, pending, trim, fresh, after_call, said, gap, .. } = self;
        let found = scan.step(c, markers.all(), |c| {
            if is_space(c) {
                pending.push(c);
                return;
            }
            trim_start(pending, trim, *said, gap);
            out.content(pending);
            pending.clear();
            *said = true;
            out.content(c.encode_utf8(&mut [0; 4]));
            *fresh = false;
            *after_call = false;
        });
        if let Some(marker) = found.map(|at| markers.all()[at]) {
            self.marker(marker);
        }
    }

    fn marker(&mut self, marker: &'static str) {
        let (format, reasoning) = (self.plan.calls, self.plan.reasoning);
        let is_one_of = |markers: &[&str]| markers.iter().any(|one| is_marker(marker, one));
        if self.begins_call(marker) {
            self.keep_gap();
            self.raw = std::mem::take(&mut self.pending) + marker;
            self.begin_call();
        } else if format.is_some_and(|format| is_marker(marker, format.section_begin)) {
            self.pending.push_str(marker);
        } else if reasoning.is_some_and(|reasoning| is_marker(marker, reasoning.open)) {
            self.pending.clear();
            self.thought = true;
            self.thinking = true;
            self.trim = true;
            self.state = State::Reasoning;
        } else if reasoning.is_some_and(|reasoning| is_one_of(reasoning.answer_open)) {
            self.pending.clear();
            self.thought = true;
            self.trim = true;
            self.in_answer = true;
        } else if self.in_answer && reasoning.is_some_and(|reasoning| is_one_of(reasoning.answer_close)) {
            self.pending.push_str(marker);
        } else if let Some(tags) = self.plan.bare_tags().filter(|tags| is_marker(marker, tags.name_open)) {
            self.keep_gap();
            self.raw = std::mem::take(&mut self.pending) + marker;
            let body = InBody::Keyed(Box::new(KeyedCall::at_name(tags)));
            self.state = State::Call(body, self.out.calls());
        } else {
            // End marker of the previous call, or of the reasoning that it ended.
            self.pending.clear();
        }
    }

    /// Whether `marker` starts a call.
    fn begins_call(&self, marker: &str) -> bool {
        let begins = |format: &Format| {
            is_marker(marker, format.begin) || format.also_begin.iter().any(|one| is_marker(marker, one))
        };
        self.plan.calls.is_some_and(begins)
    }

    fn begin_call(&mut self) {
        let Some(format) = self.plan.calls else { return };
        if let Some(body) = InBody::new(&self.plan, &format.body) {
            self.state = State::Call(body, self.out.calls());
        }
    }

    /// Whether `c` starts a call without a marker: a bracket at the start of the answer or after another
    /// call, or a name on the line after another call.
    fn begins_bare_call(&mut self, c: char) -> bool {
        let Some(format) = self.plan.calls else { return false };
        let begins = match format.body {
            Body::PythonicLines if self.after_call => in_name(c),
            _ if !format.begin.is_empty() => return false,
            Body::Envelope { .. } => c == '{',
            Body::Pythonic | Body::List(_) => c == '[',
            _ => return false,
        };
        let may_begin = self.fresh || self.after_call;
        if !may_begin || !self.scan.is_empty() {
            return false;
        }
        if !begins {
            // Separator between two calls.
            return format.begin.is_empty() && self.after_call && c == ';';
        }
        self.keep_gap();
        self.raw = std::mem::take(&mut self.pending);
        self.begin_call();
        self.step(c);
        true
    }

    /// Markers that may occur in the current state.
    fn markers(&self) -> Markers {
        let mut markers = Markers::default();
        if let Some(reasoning) = self.plan.reasoning {
            if self.fresh && !self.thought {
                markers.add(reasoning.open);
            }
            if self.unclosed {
                markers.add(reasoning.close);
            }
            let answer = if self.in_answer { reasoning.answer_close } else { reasoning.answer_open };
            if self.in_answer || self.fresh {
                answer.iter().for_each(|marker| markers.add(marker));
            }
        }
        if let Some(format) = self.plan.calls {
            markers.add(format.begin);
            format.also_begin.iter().for_each(|begin| markers.add(begin));
            markers.add(format.section_begin);
            if let Some(tags) = self.plan.bare_tags() {
                markers.add(tags.name_open);
            }
            if self.after_call {
                format.ends.iter().for_each(|end| markers.add(end));
                markers.add(format.section_end);
            }
        }
        markers
    }

    /// Emits the pending text as content.
    fn flush(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        if self.trim && pending.trim().is_empty() {
            return;
        }
        trim_start(&mut pending, &mut self.trim, self.said, &mut self.gap);
        self.said |= !pending.is_empty();
        self.out.content(&pending);
    }

    /// Keeps the white space before a call, in case that content surrounds the call.
    fn keep_gap(&mut self) {
        if self.said && self.gap.is_empty() {
            let blank = self.pending.len() - self.pending.trim_start().len();
            self.gap.push_str(&self.pending[..blank]);
        }
    }
}

/// Trims the start of `pending`, which becomes content. Between two texts with calls between them stays the
/// white space before the calls (`gap`) or, if there is none, that after them.
fn trim_start(pending: &mut String, trim: &mut bool, said: bool, gap: &mut String) {
    let gap = std::mem::take(gap);
    let is_trimmed = std::mem::take(trim) && !said;
    if is_trimmed || !gap.is_empty() {
        let blank = pending.len() - pending.trim_start().len();
        pending.replace_range(..blank, &gap);
    }
}
