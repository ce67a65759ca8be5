//! The agents: how each is told of a server. Settings are those of docs/src/clients.md, in arguments and
//! variables instead of files.

use serde_json::json;

use super::served::Served;

/// A coding agent.
pub struct Agent {
    /// Name in `skein launch NAME`.
    pub name: &'static str,
    /// Its program.
    pub program: &'static str,
    /// Command that installs it.
    pub install: &'static str,
    /// Tokens of its first prompt, in SmolLM2's tokenizer, as measured for docs/src/clients.md.
    pub first_prompt: u32,
    /// How to start it on a server.
    pub start: fn(&Served) -> Start,
}

/// What an agent is started with, besides the arguments of the user.
#[derive(Debug, Default)]
pub struct Start {
    /// Arguments before the user's.
    pub arguments: Vec<String>,
    /// Variables of its environment.
    pub variables: Vec<(&'static str, String)>,
    /// Those of them that hold the key.
    pub secret: &'static [&'static str],
    /// Variables that it must not have, because they would win.
    pub removed: &'static [&'static str],
}

/// All agents.
pub const AGENTS: [Agent; 4] = [
    Agent {
        name: "codex",
        program: "codex",
        install: "npm install -g @openai/codex",
        first_prompt: 9_000,
        start: codex,
    },
    Agent {
        name: "claude",
        program: "claude",
        install: "npm install -g @anthropic-ai/claude-code",
        first_prompt: 11_900,
        start: claude,
    },
    Agent {
        name: "opencode",
        program: "opencode",
        install: "npm install -g opencode-ai",
        first_prompt: 7_600,
        start: opencode,
    },
    Agent {
        name: "qwen",
        program: "qwen",
        install: "npm install -g @qwen-code/qwen-code",
        first_prompt: 15_900,
        start: qwen,
    },
];

/// The agent of this name.
pub fn named(name: &str) -> Option<&'static Agent> {
    AGENTS.iter().find(|agent| agent.name == name)
}

impl Agent {
    /// Least context for it, tokens: its first prompt and half as many for work, in whole thousands (1,024).
    pub fn least_context(&self) -> u32 {
        (self.first_prompt * 3 / 2).div_ceil(1024) * 1024
    }
}

const CODEX_KEY: &str = "LOCAL_API_KEY";

fn codex(served: &Served) -> Start {
    // JSON's strings are TOML's, too.
    let toml = |value: &str| serde_json::Value::from(value).to_string();
    let mut settings = vec![
        format!("model={}", toml(&served.model)),
        "model_provider=\"skein\"".to_owned(),
        "model_providers.skein.name=\"Skein\"".to_owned(),
        format!("model_providers.skein.base_url={}", toml(&served.openai_url())),
        "model_providers.skein.wire_api=\"responses\"".to_owned(),
        format!("model_providers.skein.env_key=\"{CODEX_KEY}\""),
    ];
    settings.extend(served.max_model_len.map(|tokens| format!("model_context_window={tokens}")));
    Start {
        arguments: settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect(),
        variables: vec![(CODEX_KEY, served.key().to_owned())],
        secret: &[CODEX_KEY],
        removed: &[],
    }
}

fn claude(served: &Served) -> Start {
    let mut variables = vec![
        ("ANTHROPIC_BASE_URL", served.base_url.clone()),
        ("ANTHROPIC_AUTH_TOKEN", served.key().to_owned()),
        ("ANTHROPIC_MODEL", served.model.clone()),
        ("ANTHROPIC_SMALL_FAST_MODEL", served.model.clone()),
    ];
    let number = |name, tokens: Option<u32>| tokens.map(|tokens| (name, tokens.to_string()));
    variables.extend(number("CLAUDE_CODE_MAX_CONTEXT_TOKENS", served.max_model_len));
    variables.extend(number("CLAUDE_CODE_MAX_OUTPUT_TOKENS", served.answer_tokens()));
    // With a key of Anthropic's, it would ask which of the two to use.
    Start {
        variables,
        secret: &["ANTHROPIC_AUTH_TOKEN"],
        removed: &["ANTHROPIC_API_KEY"],
        ..Start::default()
    }
}

fn opencode(served: &Served) -> Start {
    let mut model = json!({"name": served.model});
    if let (Some(context), Some(output)) = (served.max_model_len, served.answer_tokens()) {
        model["limit"] = json!({"context": context, "output": output});
    }
    let name = format!("skein/{}", served.model);
    let config = json!({
        "model": name,
        "small_model": name,
        "provider": {
            "skein": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Skein",
                "options": {"baseURL": served.openai_url(), "apiKey": "{env:LOCAL_API_KEY}"},
                "models": {&served.model: model},
            },
        },
    });
    Start {
        variables: vec![
            ("OPENCODE_CONFIG_CONTENT", config.to_string()),
            ("LOCAL_API_KEY", served.key().to_owned()),
        ],
        secret: &["LOCAL_API_KEY"],
        ..Start::default()
    }
}

fn qwen(served: &Served) -> Start {
    let mut variables = vec![
        ("OPENAI_BASE_URL", served.openai_url()),
        ("OPENAI_API_KEY", served.key().to_owned()),
        ("OPENAI_MODEL", served.model.clone()),
    ];
    variables
        .extend(served.answer_tokens().map(|tokens| ("QWEN_CODE_MAX_OUTPUT_TOKENS", tokens.to_string())));
    let arguments = vec!["--auth-type".to_owned(), "openai".to_owned()];
    Start { arguments, variables, secret: &["OPENAI_API_KEY"], removed: &[] }
}
