//! A model's chat template, which converts messages to prompt text. The template is data from the model's
//! directory. It runs with limits on instructions, recursion and output; exceeding one is an error for the
//! client.
//!
//! Some operations cannot be limited from outside: `+`, `{% set %}` blocks, and comparison of values that
//! are large or contain themselves. Servers therefore render in separate processes
//! ([`render_process`](super::render_process)) and test the template at start ([`probe`](super::probe)).

use std::io::{self, Write};
use std::time::Duration;

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Map;

use super::deep_stack::on_deep_stack;
use super::error::TextError;
use super::jinja::{self, limits::MAX_TEXT_BYTES};
use super::template_env::{self, RAISED, to_value};
use crate::refused::TextRefused;

/// Longest template source, in bytes; public models use at most about 40 KB. The compiler recurses over a
/// chain of operators, and the deep stack suffices for any chain of this length.
const MAX_SOURCE_BYTES: usize = 64 * 1024;
const NAME: &str = "chat_template";

/// A compiled template with the model's special strings.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    own: Vec<(String, String)>,
    source: String,
    forms: Forms,
    /// The template for chats with tools, if it is another one.
    tool_use: Option<Box<ChatTemplate>>,
}

/// Message formats that a template expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    /// Content as a list of parts; otherwise their texts are joined into one string.
    pub parts: bool,
    /// Arguments of a call as text, because the template fails on an object.
    pub text_arguments: bool,
    /// The template knows the role `developer`.
    pub developer: bool,
}

impl ChatTemplate {
    /// Compiles `source`. `own` holds variables from the model, such as `bos_token`.
    pub fn compile(
        source: &str,
        own: Vec<(String, String)>,
        clock: fn() -> Duration,
    ) -> Result<Self, TextError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TextError::Template(format!("it is over {MAX_SOURCE_BYTES} bytes long")));
        }
        // Jinja2 reads every line end as one.
        let source = &source.replace("\r\n", "\n").replace('\r', "\n");
        let failed = |error: Error| TextError::Template(first_line(&error));
        let mut env = template_env::environment(clock).map_err(failed)?;
        jinja::check_names(source).map_err(TextError::Template)?;
        on_deep_stack(|| env.add_template_owned(NAME, jinja::rewrite(source)))
            .map_err(TextError::NoThread)?
            .map_err(failed)?;
        let developer = ["'developer'", "\"developer\""].iter().any(|role| source.contains(role));
        let forms = Forms { parts: loops_over_content(source), text_arguments: false, developer };
        let mut template = Self { env, own, source: source.to_owned(), forms, tool_use: None };
        template.forms.text_arguments = template.wants_text_arguments();
        Ok(template)
    }

    /// The same, with another template for chats with tools.
    pub fn with_tool_use(mut self, tool_use: Self) -> Self {
        self.source.push('\n');
        self.source.push_str(&tool_use.source);
        self.tool_use = Some(Box::new(tool_use));
        self
    }

    /// The template that renders a chat with `arguments`: they may have tools, even none.
    pub fn for_arguments(&self, arguments: &Map<String, serde_json::Value>) -> &Self {
        let has_tools = arguments.get("tools").is_some_and(|tools| !tools.is_null());
        self.tool_use.as_deref().filter(|_| has_tools).unwrap_or(self)
    }

    /// Message formats that this template expects.
    pub fn forms(&self) -> Forms {
        self.forms
    }

    /// Source text of the template, and of the one for chats with tools.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the source mentions the variable `name`.
    pub fn reads(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    /// Whether the template fails on a call whose arguments are an object and takes their text: it appends
    /// them with `+`. Templates get an object wherever they take one, as in transformers and vLLM.
    fn wants_text_arguments(&self) -> bool {
        if !self.reads("tool_calls") {
            return false;
        }
        let renders = |arguments: serde_json::Value| {
            let call = serde_json::json!({"id": "call00000", "type": "function",
                "function": {"name": "probe", "arguments": arguments}});
            let messages = serde_json::json!([{"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": [call]}]);
            self.render(&messages, false, &Map::new()).is_ok()
        };
        !renders(serde_json::json!({"key": 1})) && renders("{\"key\": 1}".into())
    }

    /// Frees the compiled program, because other processes render. A hostile template may have large
    /// constants.
    pub fn without_program(self) -> Self {
        let tool_use = self.tool_use.map(|tool_use| Box::new(tool_use.without_program()));
        Self { env: Environment::empty(), tool_use, ..self }
    }

    /// Renders `messages`. `arguments` are extra variables; they cannot override the model's or the
    /// request's.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        arguments: &Map<String, serde_json::Value>,
    ) -> Result<String, TextRefused> {
        on_deep_stack(|| self.render_here(messages, add_generation_prompt, arguments)).map_err(|error| {
            tracing::error!(%error, "cannot start a thread for the chat template");
            TextRefused::Internal
        })?
    }

    /// Like [`render`](Self::render), on this thread, which needs a deep stack.
    pub(super) fn render_here(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        arguments: &Map<String, serde_json::Value>,
    ) -> Result<String, TextRefused> {
        self.render_values(to_value(messages), add_generation_prompt, arguments)
    }

    /// The same of `messages` that are values already.
    pub(super) fn render_values(
        &self,
        messages: Value,
        add_generation_prompt: bool,
        arguments: &Map<String, serde_json::Value>,
    ) -> Result<String, TextRefused> {
        self.for_arguments(arguments).render_one(messages, add_generation_prompt, arguments)
    }

    fn render_one(
        &self,
        messages: Value,
        add_generation_prompt: bool,
        arguments: &Map<String, serde_json::Value>,
    ) -> Result<String, TextRefused> {
        let extra = arguments.iter().map(|(key, value)| (key.clone(), to_value(value)));
        let none = ["tools", "documents"].into_iter().filter(|name| !arguments.contains_key(*name));
        let context = extra
            .chain(none.map(|name| (name.to_owned(), Value::from(()))))
            .chain(self.own.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))))
            .chain([
                ("messages".to_owned(), messages),
                ("add_generation_prompt".to_owned(), Value::from(add_generation_prompt)),
            ]);
        let mut out = Bounded(Vec::new());
        let template = self.env.get_template(NAME).map_err(|error| refusal(&error))?;
        template.render_captured_to(Value::from_pairs(context), &mut out).map_err(|error| refusal(&error))?;
        String::from_utf8(out.0).map_err(|_| TextRefused::Internal)
    }
}

fn refusal(error: &Error) -> TextRefused {
    let detail = error.detail().unwrap_or_default();
    let message = match error.kind() {
        ErrorKind::OutOfFuel => "The chat template takes too many steps for these messages.".to_owned(),
        ErrorKind::WriteFailure => {
            format!("The chat template writes over {MAX_TEXT_BYTES} bytes for these messages.")
        }
        _ => match detail.strip_prefix(RAISED) {
            Some(raised) => format!("The chat template rejects these messages: {raised}"),
            None => format!("The chat template fails on these messages: {}", first_line(error)),
        },
    };
    TextRefused::invalid("messages", message)
}

/// Error and line number, without the source that a debug build appends.
fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

/// Whether a `for` in the template iterates over some `content`, so that the template expects parts. vLLM
/// decides this from the syntax tree; the text of the `for` tags is enough here.
fn loops_over_content(source: &str) -> bool {
    source.split("{%").skip(1).any(|tag| {
        let tag = tag.split("%}").next().unwrap_or_default();
        let words = tag.trim_start_matches(['-', '+']).trim();
        let Some((_, walked)) = words.strip_prefix("for ").and_then(|rest| rest.split_once(" in ")) else {
            return false;
        };
        let walked = walked.trim_end_matches(['-', '+']).trim();
        ["content", "content']", "content\"]"].iter().any(|end| walked.ends_with(end))
    })
}

/// A buffer of at most [`MAX_TEXT_BYTES`].
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT_BYTES {
            return Err(io::Error::other("output limit"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The time of the golden files, 2026-03-09 08:05:07.
    fn clock() -> Duration {
        Duration::from_secs(1_773_043_507)
    }

    fn compile(source: &str) -> ChatTemplate {
        ChatTemplate::compile(source, Vec::new(), clock).unwrap()
    }

    fn check_refused(source: &str, expected: &str) {
        let refusal = compile(source).render(&json!([]), true, &Map::new()).unwrap_err();
        assert_eq!(refusal.param(), Some("messages"));
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }

    #[test]
    fn agrees_with_transformers() {
        let goldens = include_str!("../../tests/golden/chat_templates.json");
        let goldens: serde_json::Value = serde_json::from_str(goldens).unwrap();
        let mut different = Vec::new();
        for golden in goldens["templates"].as_array().unwrap() {
            let own = ["bos_token", "eos_token"]
                .map(|name| (name.to_owned(), golden[name].as_str().unwrap().to_owned()));
            let template =
                ChatTemplate::compile(golden["template"].as_str().unwrap(), own.to_vec(), clock).unwrap();
            for case in golden["cases"].as_array().unwrap() {
                let mut arguments =
                    goldens["conversations"][case["name"].as_str().unwrap()].as_object().unwrap().clone();
                let messages = arguments.remove("messages").unwrap();
                let generate = arguments.remove("add_generation_prompt").is_some_and(|value| value == true);
                let rendered = template.render(&messages, generate, &arguments);
                let same = match (&rendered, case["expected"].as_str(), case["error"].as_str()) {
                    (Ok(text), Some(expected), _) => text == expected,
                    (Err(refusal), None, Some(error)) => refusal.to_string().ends_with(error),
                    _ => false,
                };
                if !same {
                    different
                        .push(format!("{} / {}: {rendered:?}\n  not {case}", golden["name"], case["name"]));
                }
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n"));
    }

    #[test]
    fn expressions_agree_with_jinja2() {
        let goldens = include_str!("../../tests/golden/expressions.json");
        let goldens: serde_json::Value = serde_json::from_str(goldens).unwrap();
        let lines: Vec<&str> = include_str!("../../tests/golden/expressions.txt").lines().collect();
        let answers = goldens["answers"].as_array().unwrap();
        assert_eq!(answers.len(), lines.len());
        let mut different = Vec::new();
        for (line, answer) in lines.into_iter().zip(answers) {
            let source = if line.starts_with('{') { line.to_owned() } else { line.replace("\\n", "\n") };
            let template = ChatTemplate::compile(&source, Vec::new(), clock);
            let text = template.map(|template| {
                template.render(&json!([]), false, goldens["given"].as_object().unwrap()).ok()
            });
            if !text.as_ref().is_ok_and(|text| text.as_deref() == answer.as_str()) {
                different.push(format!("{line}\n  {text:?}\n  not {answer}"));
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n"));
    }

    #[test]
    fn hostile_templates_are_stopped_and_refused() {
        check_refused(
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "too many steps",
        );
        check_refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on these messages");
        check_refused("{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}", "writes over");
        check_refused("{{ messages[0].content.nope() }}", "fails on these messages");
        check_refused(
            "{{ raise_exception('roles must alternate') }}",
            "rejects these messages: roles must alternate",
        );
    }

    #[test]
    fn a_template_that_contains_itself_or_nests_without_end_is_refused() {
        check_refused(
            "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
            "prints a value nested deeper than",
        );
        check_refused(
            "{% set ns = namespace(a=[]) %}{% for i in range(10000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
            "prints a value nested deeper than",
        );
        check_refused(
            "{% set ns = namespace(a=['x']) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}\
             {{ ns.a|tojson }}",
            "produces a value of over",
        );
        check_refused(
            "{% set ns = namespace(a='x') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
            "produces a value of over",
        );
        check_refused("{{ 'x' * 100000000 }}", "produces a value of over");
    }

    #[test]
    fn a_long_chain_of_operators_does_not_overflow_the_stack() {
        for (first, link) in [("", "not "), ("", "-"), ("1", "+1"), ("a", ".a"), ("1", "~1")] {
            let links = link.repeat(50_000 / link.len());
            let last = if first.is_empty() { "1" } else { "" };
            let source = format!("{{% if false %}}{{{{ {first}{links}{last} }}}}{{% endif %}}");
            // It may compile or be refused, but must return.
            let _ = ChatTemplate::compile(&source, Vec::new(), clock);
        }
    }

    #[test]
    fn a_source_over_the_limit_is_refused() {
        let error = ChatTemplate::compile(&"x".repeat(70_000), Vec::new(), clock).unwrap_err();
        assert!(error.to_string().contains("over 65536 bytes"), "{error}");
    }

    #[test]
    fn a_syntax_error_is_found_at_start() {
        let error = ChatTemplate::compile("{% for %}", Vec::new(), clock).unwrap_err();
        assert!(error.to_string().contains("does not compile"), "{error}");
    }

    #[test]
    fn arguments_cannot_replace_the_messages() {
        let arguments =
            json!({"messages": "mine", "bos_token": "mine", "add_generation_prompt": true, "mood": "good"});
        let template = ChatTemplate::compile(
            "{{ bos_token }}{{ messages|length }}{{ add_generation_prompt }}{{ mood }}",
            vec![("bos_token".to_owned(), "<s>".to_owned())],
            clock,
        )
        .unwrap();
        let text = template.render(&json!([{}]), false, arguments.as_object().unwrap()).unwrap();
        assert_eq!(text, "<s>1Falsegood");
    }

    #[test]
    fn arguments_are_text_only_where_an_object_fails() {
        let calls = |body: &str| {
            format!(
                "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{body}{{% endfor %}}{{% endfor %}}"
            )
        };
        for (body, expected) in [
            // Neither JSON nor tags: Gemma 4's calls.
            (
                "{% set f = c['function'] %}{% for k, v in f.arguments | items %}{{ k }}:{{ v }}{% endfor %}",
                false,
            ),
            ("{{ c.function.arguments | tojson }}", false),
            (
                "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}",
                false,
            ),
            ("{{ c.function.arguments }}", false),
            // DeepSeek's.
            ("{{ '```json\n' + c['function']['arguments'] + '```' }}", true),
            ("{{ raise_exception('no calls') }}", false),
        ] {
            assert_eq!(compile(&calls(body)).forms().text_arguments, expected, "{body}");
        }
    }

    #[test]
    fn a_template_that_walks_over_content_takes_parts() {
        assert!(compile("{%- for part in message['content'] -%}{% endfor %}").forms().parts);
        assert!(compile("{% for part in message.content %}{% endfor %}").forms().parts);
        assert!(!compile("{% for message in messages %}{{ message.content }}{% endfor %}").forms().parts);
    }
}
