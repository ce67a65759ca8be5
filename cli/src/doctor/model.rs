//! The model: whether `skein serve` would load it. Every check is the one that serving makes: this file only
//! runs them in turn and says what to do.

use std::path::{Path, PathBuf};

use serde_json::{Map, json};
use skein_hub::{Environment, Hub, ModelName, Need, Revision};
use skein_model::config::ModelConfig;
use skein_sys::memory_limit;
use skein_text::model_text::{ChatPrompt, ModelText};
use skein_worker::config::BackendKind;
use skein_worker::load;

use super::report::{Report, size};
use crate::exit::{DEVICE, Failure, USAGE};
use crate::front::{self, Served};
use crate::local_workers::{default_workers, visible_gpus};
use crate::model::{self, ModelArgument};
use crate::probe::render_processes;
use crate::serve_settings::ServeSettings;
use crate::settings::{FrontSettings, ResponseStore};
use crate::worker;

/// Checks the model of `settings`.
pub async fn check(report: &mut Report, settings: ServeSettings) {
    let argument = settings.named.argument.clone();
    let Some(path) = find(report, &argument).await else { return };
    let served = Served { names: vec![model::default_name(&path)], model: path };
    weights(report, &settings, &served);
    text(report, settings, &served).await;
}

/// The model's directory or file. Downloads nothing.
async fn find(report: &mut Report, argument: &ModelArgument) -> Option<PathBuf> {
    let given = argument.given.as_deref();
    let is_here = given.is_none_or(|given| Path::new(given).exists());
    if let Some(name) = given.filter(|_| !is_here).and_then(|given| ModelName::parse(given).ok()) {
        return in_cache(report, &name, argument.revision.as_ref());
    }
    match model::find(argument, Need::All).await {
        Ok(path) => {
            let what = if given.is_some() { "" } else { "the shipped model, in " };
            report.ok("model", format!("{what}{}", path.display()));
            Some(path)
        }
        Err(failure) => {
            report.fail(
                "model",
                failure.message,
                "name a model directory, a GGUF file, or organisation/model",
            );
            None
        }
    }
}

fn in_cache(report: &mut Report, name: &ModelName, revision: Option<&Revision>) -> Option<PathBuf> {
    let hub = match Environment::of_process() {
        Ok(environment) => Hub::new(environment),
        Err(error) => {
            report.fail("model", error.to_string(), "see `skein help pull` for the variables");
            return None;
        }
    };
    let main = Revision::main();
    let revision = revision.unwrap_or(&main);
    if let Some(directory) = hub.cache().find(name, revision, Need::All) {
        report.ok("model", directory.display().to_string());
        return Some(directory);
    }
    let root = hub.cache().root().display();
    let cached = hub.cache().list().unwrap_or_default();
    let fix = format!("skein pull {name}");
    if cached.iter().any(|model| model.name == *name) {
        report.fail(
            "model",
            format!("{name} is in {root}, but not complete"),
            format!("{fix} fetches the rest"),
        );
    } else {
        report.warn(
            "model",
            format!("{name} is not in {root}, so it cannot be checked; `skein serve` downloads it first"),
            format!("{fix} downloads it now"),
        );
    }
    None
}

/// The files of weights, and whether they fit into memory.
fn weights(report: &mut Report, settings: &ServeSettings, served: &Served) {
    let gpus = visible_gpus(&settings.engine);
    let workers = settings.workers.unwrap_or_else(|| default_workers(&settings.engine, gpus));
    let mut config = settings.engine.worker.clone();
    config.model.clone_from(&served.model);
    config.memory_sharers = workers as u32;
    if config.backend == BackendKind::Auto && gpus > 0 {
        config.backend = BackendKind::Cuda;
    }
    if config.backend == BackendKind::Fake {
        return report.ok("weights", "not used: --device fake");
    }
    let plan = match load::plan(&config) {
        Ok(plan) => plan,
        Err(error) => return not_loadable(report, &served.model, &worker::failure(&error)),
    };
    let facts = model::facts(&served.model);
    report.ok(
        "weights",
        format!(
            "{}, {:.1}M parameters, {}, {}",
            facts.family,
            facts.parameters as f64 / 1e6,
            facts.dtype,
            size(facts.bytes)
        ),
    );
    let needed = plan.bytes_of(workers as u64);
    let tokens = u64::from(plan.kv_blocks) * u64::from(plan.block_size);
    let found = format!(
        "{workers} worker(s) take {}; each has a KV cache of {tokens} tokens: {} sequence(s) of {}",
        size(needed),
        plan.sequences(),
        plan.max_model_len
    );
    let longest = ModelConfig::from_dir(&served.model).map_or(0, |config| config.max_position_embeddings);
    let is_own_choice = config.scheduler.max_model_len.is_some();
    let available = memory_limit::of_this_process().map_or(u64::MAX, |memory| memory.available);
    if config.backend != BackendKind::Cuda && needed > available {
        report.warn(
            "memory",
            format!("{found}; only {} is free", size(available)),
            "end other programs, start fewer --workers, or lower --kv-cache-memory-bytes",
        );
    } else if plan.max_model_len < longest && !is_own_choice {
        report.warn(
            "memory",
            format!("{found}, although the model has been made for {longest}"),
            "for a longer context give more memory, --kv-cache-dtype int8, --quantization int8 or int4, or fewer --workers",
        );
    } else {
        report.ok("memory", found);
    }
}

/// Says what to do about a model that serving refuses with `why`.
fn not_loadable(report: &mut Report, model: &Path, failure: &Failure) {
    let why = failure.message.as_str();
    let missing = model::missing_shards(model);
    if !missing.is_empty() {
        let named = missing.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        let more = if missing.len() > 4 { ", ..." } else { "" };
        return report.fail(
            "weights",
            format!("{} file(s) of weights that the index names are missing: {named}{more}", missing.len()),
            "copy or download them again; for a model of the hub: skein pull NAME",
        );
    }
    let fix = match failure.code {
        DEVICE => "see the GPU above; --device cpu computes without it",
        USAGE => "correct that setting",
        _ if why.contains("does not fit") => {
            "take a machine or limit with more memory, or a smaller form of the model"
        }
        _ => {
            "if a file is missing, damaged or cut short, copy or download the model again; the manual's page Models lists \
             what is served"
        }
    };
    report.fail("weights", why, fix);
}

/// Tokenizer and chat template, as the router loads them, and a first chat.
async fn text(report: &mut Report, settings: ServeSettings, served: &Served) {
    // The log of usage and the store of responses would be made here.
    let front = FrontSettings { usage_log: None, response_store: ResponseStore::None, ..settings.front };
    let config = match front::router_config(front, served, ([127, 0, 0, 1], 0).into()) {
        Ok(config) => config,
        Err(failure) => return report.fail("settings", failure.message, "correct the flag that it names"),
    };
    let text = match front::load_text(&config).await {
        Ok(text) => text.rendered_by(render_processes(&config.model, &config.text)),
        Err(failure) => {
            let fix = "take the files of the model's own repository, or give others with --tokenizer and --chat-template";
            return report.fail("tokenizer", failure.message, fix);
        }
    };
    let vocabulary = model::vocab_size(&served.model);
    report.ok(
        "tokenizer",
        match vocabulary {
            Some(size) => format!("fits the model's vocabulary of {size}"),
            None => "loads; the model does not say the size of its vocabulary".to_owned(),
        },
    );
    if text.chat_template.is_none() {
        return report.warn(
            "chat template",
            "there is none: /v1/completions works, and chats are refused",
            "give one with --chat-template FILE, or serve an instruction-tuned version of the model",
        );
    }
    let rendered = tokio::task::spawn_blocking(move || first_chat(&text)).await;
    match rendered {
        Ok(Ok(tokens)) => report.ok("chat template", format!("renders a greeting in {tokens} tokens")),
        Ok(Err(why)) => report.fail(
            "chat template",
            format!("it does not render a greeting: {why}"),
            "correct it, or give another with --chat-template FILE",
        ),
        Err(error) => {
            report.fail("chat template", error.to_string(), "give another with --chat-template FILE")
        }
    }
}

fn first_chat(text: &ModelText) -> Result<usize, String> {
    let messages = [json!({"role": "user", "content": "Hello!"})];
    let none = Map::new();
    let prompt = ChatPrompt {
        messages: &messages,
        add_generation_prompt: true,
        continue_final_message: false,
        template_kwargs: &none,
        kept_in: None,
    };
    text.encode_chat(&prompt, u32::MAX).map(|tokens| tokens.len()).map_err(|refused| refused.to_string())
}
