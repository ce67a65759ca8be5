//! Generates one answer, by the router's core in this process or by a server, and prints it as it arrives.

use serde_json::{Map, Value, json};
use skein_node::clock;
use skein_node::shutdown::Shutdown;
use skein_router::app::App;
use skein_router::refusal::Refusal;
use skein_router::request::{Draft, Prompt};

use super::answer::{Answer, Unanswered};
use super::options::AnswerOptions;
use super::remote::Remote;

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
    Server(Box<Remote>),
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
}
