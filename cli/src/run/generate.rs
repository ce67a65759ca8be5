//! Generates one answer, by the router's core in this process or by a server, and prints it as it arrives.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value, json};
use skein_node::clock;
use skein_node::shutdown::Shutdown;
use skein_router::app::App;
use skein_router::refusal::Refusal;
use skein_router::request::{Draft, Prompt};

use super::AnswerOptions;
use super::remote::Remote;

/// An answer, already printed.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The whole text.
    pub text: String,
    /// Number of output tokens.
    pub tokens: u32,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the cache from earlier turns.
    pub cached_tokens: u32,
    /// Time from the request to the first text.
    pub first: Duration,
    /// Time from the first text to the end.
    pub rest: Duration,
}

impl Answer {
    /// Token counts and speed in one line.
    pub fn stats(&self) -> String {
        let Self { tokens, prompt_tokens, cached_tokens, first, .. } = self;
        let rate = f64::from(tokens.saturating_sub(1)) / self.rest.as_secs_f64().max(1e-9);
        let rate = if *tokens > 1 { format!(", {rate:.1} tokens/s") } else { String::new() };
        let first = first.as_millis();
        let unit = if *tokens == 1 { "token" } else { "tokens" };
        format!(
            "[{tokens} {unit}{rate}, first after {first} ms; prompt {prompt_tokens}, {cached_tokens} cached]"
        )
    }
}

/// A request for the next turn after `history`.
pub fn draft(options: &AnswerOptions, history: &[Value], prompt: &str) -> Draft {
    let prompt = if options.raw {
        Prompt::Text(prompt.to_owned())
    } else {
        let system = options.system.iter().map(|system| json!({"role": "system", "content": system}));
        let turn = json!({"role": "user", "content": prompt});
        Prompt::Chat {
            messages: system.chain(history.iter().cloned()).chain([turn]).collect(),
            add_generation_prompt: true,
            continue_final_message: false,
            template_kwargs: Map::new(),
        }
    };
    Draft { prompt, sampling: options.sampling.clone(), ..Draft::default() }
}

/// Where answers come from.
pub enum Target {
    /// The router's core in this process.
    Here(Box<App>),
    /// A running server.
    Server(Remote),
}

impl Target {
    /// Name of the model.
    pub fn model(&self) -> String {
        match self {
            Self::Here(app) => app.text.name().to_string(),
            Self::Server(remote) => remote.model.clone(),
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// The router in this process refused the request.
    Refused(Refusal),
    /// The server's error message, or why the server could not be reached.
    Server(String),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Server(message) => f.write_str(message),
        }
    }
}

/// Prints the answer to `draft` as it arrives, until its end or until `stop` is requested.
///
/// # Errors
/// If the request is refused or fails.
pub async fn answer(target: &Target, draft: Draft, stop: &Shutdown) -> Result<Answer, Unanswered> {
    match target {
        Target::Here(app) => answer_here(app, draft, stop).await.map_err(Unanswered::Refused),
        Target::Server(remote) => remote.answer(&draft, stop).await,
    }
}

async fn answer_here(app: &App, draft: Draft, stop: &Shutdown) -> Result<Answer, Refusal> {
    let sent = clock::now();
    let mut answer = Answer::default();
    let mut stream = app.start(draft).await?.stream;
    let mut first = None;
    loop {
        let delta = tokio::select! {
            delta = stream.next() => delta,
            () = stop.requested() => None,
        };
        let Some(delta) = delta.transpose()? else { break };
        first.get_or_insert_with(clock::now);
        answer.text.push_str(&delta.text);
        out!("{}", delta.text);
    }
    outln!();
    let first = first.unwrap_or_else(clock::now);
    let usage = stream.usage();
    answer.tokens = usage.completion_tokens;
    answer.prompt_tokens = usage.prompt_tokens;
    answer.cached_tokens = usage.cached_tokens;
    answer.first = first.since(sent);
    answer.rest = clock::now().since(first);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use skein_proto::sampling::SamplingOptions;

    use super::*;

    #[test]
    fn a_turn_carries_system_history_and_prompt() {
        let options = AnswerOptions {
            sampling: SamplingOptions::default(),
            system: Some("Be brief.".into()),
            raw: false,
        };
        let history = [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "b"})];
        let Prompt::Chat { messages, add_generation_prompt: true, .. } =
            draft(&options, &history, "c").prompt
        else {
            panic!("a chat was requested");
        };
        let contents: Vec<_> = messages.iter().filter_map(|message| message["content"].as_str()).collect();
        assert_eq!(contents, ["Be brief.", "a", "b", "c"]);
        let raw = AnswerOptions { raw: true, ..options };
        assert!(matches!(draft(&raw, &history, "c").prompt, Prompt::Text(text) if text == "c"));
    }

    #[test]
    fn stats_read_well_for_short_answers_too() {
        let answer = Answer {
            tokens: 21,
            prompt_tokens: 9,
            first: Duration::from_millis(12),
            rest: Duration::from_millis(100),
            ..Answer::default()
        };
        assert_eq!(answer.stats(), "[21 tokens, 200.0 tokens/s, first after 12 ms; prompt 9, 0 cached]");
        let short = Answer { tokens: 1, ..answer };
        assert_eq!(short.stats(), "[1 token, first after 12 ms; prompt 9, 0 cached]");
    }
}
