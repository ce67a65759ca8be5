//! Builds the grammar of a whole answer. Its regions are reasoning, free text, calls, and a final text in a
//! required format. It uses the same markers as the splitter.

use skein_grammar::{JsonForm, Refused, Source};

use super::braced_grammar::braced_call;
use super::formed::Formed;
use super::keyed_grammar::keyed_call;
use super::lark::{Lark, escaped, quoted};
use super::pythonic_grammar::pythonic_call;
use super::tools::{Choice, Function, ToolUse};
use super::{Body, Format, Formats, Keys, Opening};
use crate::control::ControlTokens;

/// White space allowed between regions.
const GAP: &str = "/[ \\t\\r\\n]{1,16}/";

/// Inputs of an answer's grammar.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Output formats of the model.
    pub formats: Formats,
    /// State in which the prompt leaves the model.
    pub opening: Opening,
    /// Tools of the request and the tool choice.
    pub tools: &'a ToolUse,
    /// Grammar fragment for each function's arguments, in the order of the functions.
    pub arguments: &'a [String],
    /// Form of JSON in arguments that stand alone.
    pub json_form: JsonForm,
    /// Required format of the final text; `None` = free text.
    pub last: Option<&'a Source>,
    /// Most tokens of reasoning, if constrained text must follow it.
    pub thought_tokens: u32,
    /// The tokenizer's control tokens.
    pub control: &'a ControlTokens,
}

/// Whether calls follow a grammar: if a call is required, only one call or only some functions are allowed,
/// or a function is strict.
pub fn holds_calls(tools: &ToolUse) -> bool {
    match tools.choice {
        Choice::None => false,
        Choice::Auto => {
            !tools.parallel
                || tools.allowed.is_some()
                || tools.functions.iter().any(|function| function.strict)
        }
        Choice::Required | Choice::Named(_) => true,
    }
}

impl Answer<'_> {
    /// Builds the grammar; `None` if nothing in the answer is constrained.
    ///
    /// # Errors
    /// [`Refused`] if this format cannot enforce the constraint.
    pub fn grammar(&self) -> Result<Option<Source>, Refused> {
        let calls = self.formats.calls.filter(|_| self.tools.is_on() && self.is_about_calls());
        if calls.is_none() && self.last.is_none() {
            return Ok(None);
        }
        let mut lark = Lark::new(self.control);
        let start = if self.formats.harmony {
            self.channels(&mut lark)
        } else {
            let main = self.main(&mut lark, calls)?;
            format!("{}{main}", self.reasoning(&mut lark))
        };
        let text =
            format!("start: {start}\ngap: {GAP}\nANY: /(?s:.+)/\nFREE: {}\n{}", self.free(&lark), lark.rules);
        Source::from_text(text).map(Some)
    }

    fn form_of<'f>(&self, function: &'f Function) -> Formed<'f> {
        let strict = JsonForm { is_closed: function.strict, ..JsonForm::default() };
        Formed { function, json: self.json_form.and(strict) }
    }

    /// Most tokens of reasoning; `None` if nothing has to follow it, so reasoning without an end does no
    /// harm.
    fn bound_of_thought(&self) -> Option<u32> {
        let must_call = self.tools.is_on() && self.tools.choice.is_forced();
        (must_call || self.last.is_some()).then_some(self.thought_tokens)
    }

    fn is_about_calls(&self) -> bool {
        holds_calls(self.tools) || (self.last.is_some() && self.tools.is_on())
    }

    /// Free text. It must not start with the reasoning marker, or it would be reasoning.
    fn free(&self, lark: &Lark<'_>) -> String {
        let open = self.formats.reasoning.map_or("", |reasoning| reasoning.open);
        if open.is_empty() || self.opening != Opening::Fresh || lark.has_control(open) {
            return "/(?s:.+)/".to_owned();
        }
        format!("/(?s:.+)/ & ~/[ \\t\\r\\n]*{}(?s:.*)/", escaped(open))
    }

    /// Optional reasoning region before the answer.
    fn reasoning(&self, lark: &mut Lark<'_>) -> String {
        let Some(reasoning) = self.formats.reasoning else { return String::new() };
        if self.opening == Opening::Closed {
            return String::new();
        }
        let thought = match self.bound_of_thought() {
            Some(most) => lark.until_within(most, reasoning.close),
            None => lark.until("ANY", reasoning.close),
        };
        match self.opening {
            Opening::InReasoning | Opening::MidReasoning => format!("{thought} gap? "),
            _ => format!("(gap? {} {thought} gap?)? ", lark.spelt(reasoning.open)),
        }
    }

    /// Optional markers before and after the content, which free text cannot contain if they are control
    /// tokens.
    fn answer_markers(&self, lark: &mut Lark<'_>) -> (String, String) {
        let Some(reasoning) = self.formats.reasoning else { return Default::default() };
        let one_of = |markers: &[&str]| {
            let markers: Vec<String> = markers.iter().map(|marker| lark.spelt(marker)).collect();
            markers.join(" | ")
        };
        let (open, close) = (one_of(reasoning.answer_open), one_of(reasoning.answer_close));
        if open.is_empty() {
            return Default::default();
        }
        (format!("(gap? ({open}) gap?)? "), format!(" (gap? ({close}))?"))
    }

    /// Region for free text, calls, or the final text.
    fn main(&self, lark: &mut Lark<'_>, calls: Option<&'static Format>) -> Result<String, Refused> {
        let (open, close) = self.answer_markers(lark);
        let last = self.last.map(|last| format!("{open}{}{close}", last.nested()));
        let Some(format) = calls else { return Ok(last.unwrap_or_default()) };
        let (first, rest) = self.calls(lark, format)?;
        let rest = lark.rule(&rest);
        let whole = format!("{} {rest}", lark.spelt(first));
        Ok(match (&self.tools.choice, last) {
            (Choice::Auto, Some(last)) => format!("({whole} | {})", lark.rule(&last)),
            // Without a marker, only its first character distinguishes a call from text.
            (Choice::Auto, None) if first.is_empty() => {
                let is_list = matches!(format.body, Body::Pythonic | Body::List(_));
                let bracket = if is_list { "\\[" } else { "{" };
                lark.rules += &format!("PLAIN: FREE & /(?s:[^\\s{bracket}].*)/\n");
                format!("({rest} | PLAIN)?")
            }
            (Choice::Auto, None) => {
                let text_and_calls = format!("{} {rest}", lark.until("FREE", first));
                let text = lark.rule(&format!("FREE?{close}"));
                if self.tools.parallel {
                    format!("{open}({text_and_calls})* {text}")
                } else {
                    format!("{open}({text_and_calls} | {text})")
                }
            }
            // A model may write line breaks before its first marker, as its template does.
            _ if first.is_empty() => whole,
            _ => format!("gap? {whole}"),
        })
    }

    /// All calls of an answer. Returns the first marker, and the rule for everything after it.
    fn calls(&self, lark: &mut Lark<'_>, format: &'static Format) -> Result<(&'static str, String), Refused> {
        let mut each = Vec::new();
        for (at, function) in self.tools.callable() {
            let arguments = self.arguments.get(at).map_or("%json {}", String::as_str);
            let body = call(lark, &format.body, &self.form_of(function), arguments)?;
            each.push(lark.rule(&body));
        }
        let one = lark.rule(&each.join(" | "));
        let ends: String = format.ends.iter().map(|end| format!(" {}", lark.spelt(end))).collect();
        let more = |between: &str, one: &str| {
            if self.tools.parallel { format!(" ({between} {one})*") } else { String::new() }
        };
        let calls = if format.body == Body::PythonicLines {
            format!("{one}{}{ends}", more(&quoted("\n"), &one))
        } else if matches!(format.body, Body::List(_) | Body::Pythonic) {
            format!("\"[\" {one}{} \"]\"{ends}", more(&quoted(", "), &one))
        } else {
            // One literal: the lexer takes the longest and never goes back, and the end of the section may
            // begin alike.
            let between = lark.spelt_loosely(&format!("{}{}", format.between, format.begin));
            let one = lark.rule(&format!("{one}{ends}"));
            format!("{one}{}", more(&between, &one))
        };
        // Llama's `<|python_tag|>` introduces its built-in tools; function calls have no marker.
        let is_bare = format.begin.is_empty();
        if is_bare || format.section_begin.is_empty() {
            return Ok((format.begin, calls));
        }
        let (begin, end) = (lark.spelt(format.begin), lark.spelt(format.section_end));
        Ok((format.section_begin, format!("{begin} {calls} {end}")))
    }

    /// A GPT-OSS answer: reasoning and commentary, then a call or the final text.
    fn channels(&self, lark: &mut Lark<'_>) -> String {
        let channel = |lark: &mut Lark<'_>, name: &str, text: &str| {
            format!("{} {text}", lark.spelt(&format!("<|channel|>{name}<|message|>")))
        };
        let after = lark.spelt("<|end|><|start|>assistant");
        let bound = self.bound_of_thought();
        let thought = bound.map_or_else(|| "ANY?".to_owned(), |most| format!("{}?", lark.text_within(most)));
        let aside = channel(lark, "analysis", &thought);
        let aside = lark.rule(&format!("{aside} {after}"));
        // Any number of bounded asides would be unbounded in total.
        let asides = if bound.is_some() { "?" } else { "*" };
        let mut ends = Vec::new();
        if self.tools.is_on() && self.is_about_calls() {
            for (at, function) in self.tools.callable() {
                let arguments = self.arguments.get(at).map_or("%json {}", String::as_str);
                let header = format!("commentary to=functions.{} <|constrain|>json", function.name);
                let call = channel(lark, &header, arguments);
                ends.push(lark.rule(&call));
            }
        }
        if !self.tools.choice.is_forced() || ends.is_empty() {
            let last = self.last.map_or_else(|| "ANY?".to_owned(), Source::nested);
            let last = channel(lark, "final", &last);
            ends.push(lark.rule(&last));
        }
        format!("{aside}{asides} ({})", ends.join(" | "))
    }
}

/// One call of a function, without the markers around it.
fn call(lark: &mut Lark<'_>, body: &Body, formed: &Formed<'_>, arguments: &str) -> Result<String, Refused> {
    let name = &formed.function.name;
    Ok(match body {
        Body::Envelope { arguments: key, pad } => {
            let begin = lark.spelt_loosely(&format!("{pad}{{\"name\": \"{name}\", \"{key}\": "));
            let end = if pad.is_empty() {
                quoted("}")
            } else {
                format!("({} | \"}}\")", quoted(&format!("}}{pad}")))
            };
            format!("{begin} {arguments} {end}")
        }
        Body::List(Keys::Name) => {
            let begin = format!("{{\"name\": \"{name}\", \"arguments\": ");
            format!("{} {arguments} \"}}\"", quoted(&begin))
        }
        Body::List(Keys::ToolName) => {
            let begin = format!("\", \"tool_name\": \"{name}\", \"parameters\": ");
            let id = quoted("{\"tool_call_id\": \"");
            format!("{id} /[0-9]{{1,3}}/ {} {arguments} \"}}\"", quoted(&begin))
        }
        Body::Named { before, after, numbered } => {
            let number = if *numbered { " \":\" /[0-9]{1,3}/ " } else { " " };
            format!("{}{number}{} {arguments}", lark.spelt(&format!("{before}{name}")), lark.spelt(after))
        }
        Body::Keyed(keyed) => keyed_call(lark, keyed, formed)?,
        Body::Pythonic | Body::PythonicLines => pythonic_call(formed),
        Body::Braced { quote } => braced_call(lark, quote, formed)?,
        Body::Harmony => String::new(),
    })
}
