//! What an agent's turn costs in the router's text: a conversation of 60,000 tokens, to which each turn
//! adds 600. CPU time of this process and of its renderers, with ids kept and without, and its parts:
//! `cargo run --release -p skein-text --example conversation`. Arguments: tokens shared, tokens new, a
//! template's file, `whole` or `kept` for one of them only.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, io};

use serde_json::{Map, Value, json};
use skein_node::clock;
use skein_proto::{TokenId, block_hash};
use skein_text::chat_template::ChatTemplate;
use skein_text::model_text::{ChatPrompt, ModelText};
use skein_text::render_process::{self, RenderProcesses, Rendering};
use skein_text::sources::TextSources;

/// Turns measured; the first ones start processes and fill caches.
const TURNS: usize = 40;
const WARM_UP: usize = 5;
/// The expression of Qwen 2, which most agents' models split by.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [mode, directory] = &arguments[..]
        && mode == "render"
    {
        return render_process::serve(Path::new(directory), &TextSources::default());
    }
    let number =
        |at: usize, usual: usize| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (shared, new) = (number(0, 60_000), number(1, 600));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let template =
        arguments.get(2).map_or_else(|| root.join("docs/examples/chatml-tools.jinja"), PathBuf::from);
    let directory = model(&root, &fs::read_to_string(template)?)?;
    let text = ModelText::load(&directory, &[]).map_err(io::Error::other)?;
    let started = directory.clone();
    let start = move || {
        let mut command = Command::new(env::current_exe()?);
        command.arg("render").arg(&started);
        Ok(command)
    };
    let text = text.rendered_by(RenderProcesses::new(start.clone()));
    let mut conversation = Conversation::new(&root)?;
    while conversation.tokens(&text)? < shared {
        conversation.turn(4 * new, &text)?;
    }
    println!(
        "{} tokens in {} messages, {new} new a turn",
        conversation.tokens(&text)?,
        conversation.messages.len()
    );
    parts(&conversation, &directory, &RenderProcesses::new(start))?;
    let only = arguments.get(3);
    let modes = [("whole", None), ("kept", Some(""))];
    for (name, scope) in modes.iter().chain(&modes).filter(|(name, _)| only.is_none_or(|only| only == name)) {
        let mut conversation = conversation.clone();
        let mut costs = Vec::new();
        for turn in 0..TURNS + WARM_UP {
            conversation.turn(new, &text)?;
            let (begun, cpu) = (clock::now(), cpu_seconds()?);
            conversation.encode(&text, *scope)?;
            let cost = (clock::now().since(begun).as_secs_f64() * 1e3, (cpu_seconds()? - cpu) * 1e3);
            if turn >= WARM_UP {
                costs.push(cost);
            }
        }
        // In this process, and without anything kept.
        let whole =
            conversation.encode(&ModelText::load(&directory, &[]).map_err(io::Error::other)?, None)?;
        assert!(conversation.encode(&text, *scope)? == whole, "{name}: other ids");
        costs.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (wall, cpu) = costs[TURNS / 2];
        println!("{name:>6}: a turn takes {cpu:.2} ms of CPU, {wall:.2} ms (median of {TURNS})");
    }
    fs::remove_dir_all(directory)
}

/// The parts of a whole rendering and tokenization, milliseconds, medians.
fn parts(conversation: &Conversation, directory: &Path, processes: &RenderProcesses) -> io::Result<()> {
    let text = ModelText::load(directory, &[]).map_err(io::Error::other)?;
    let template: &ChatTemplate = text.chat_template.as_ref().ok_or(io::ErrorKind::NotFound)?;
    let (messages, arguments) = (Value::Array(conversation.messages.clone()), conversation.arguments.clone());
    let request = Rendering {
        messages: &messages,
        add_generation_prompt: true,
        arguments: &arguments,
        kept_in: Some(""),
    };
    let json = serde_json::to_vec(&messages)?;
    let rendered = template.render(&messages, true, &arguments).map_err(io::Error::other)?;
    let ids = text.tokenizer.encode(&rendered, false).map_err(io::Error::other)?;
    text.tokenizer.encode_kept(&rendered, false, "").map_err(io::Error::other)?;
    println!("{} bytes of JSON, {} of text", json.len(), rendered.len());
    let report = |name: &str, work: &dyn Fn() -> usize| {
        let mut times: Vec<f64> = (0..15)
            .map(|_| {
                let begun = clock::now();
                assert!(work() > 0, "{name}");
                clock::now().since(begun).as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("  {name}: {:.4} ms", times[7]);
    };
    report("copy the messages", &|| messages.clone().as_array().map_or(0, Vec::len));
    report("look for control tokens", &|| usize::from(!text.tokenizer.control().contains_control(&messages)));
    report("write JSON", &|| serde_json::to_vec(&messages).map_or(0, |json| json.len()));
    report("read JSON", &|| serde_json::from_slice::<Value>(&json).map_or(0, |_| 1));
    report("render", &|| template.render(&messages, true, &arguments).map_or(0, |text| text.len()));
    report("render in a child", &|| processes.render(&request).map_or(0, |text| text.len()));
    report("tokenize", &|| text.tokenizer.encode(&rendered, false).map_or(0, |ids| ids.len()));
    let scopes = Cell::new(0);
    report("tokenize, to keep", &|| {
        scopes.set(scopes.get() + 1);
        let scope = scopes.get().to_string();
        text.tokenizer.encode_kept(&rendered, false, &scope).map_or(0, |ids| ids.len())
    });
    report("tokenize, all kept", &|| {
        text.tokenizer.encode_kept(&rendered, false, "").map_or(0, |ids| ids.len())
    });
    for bytes in [127, 16 * 1024] {
        let start = &rendered[..rendered.floor_char_boundary(bytes)];
        report(&format!("tokenize {bytes} bytes"), &|| {
            text.tokenizer.encode(start, true).map_or(0, |ids| ids.len())
        });
        report(&format!("tokenize {bytes} bytes, all kept"), &|| {
            text.tokenizer.encode_kept(start, true, "").map_or(0, |ids| ids.len())
        });
    }
    report("hash blocks", &|| block_hash::chain(block_hash::root("m", "", ""), &ids, 16).len());
    Ok(())
}

#[derive(Clone)]
struct Conversation {
    messages: Vec<Value>,
    arguments: Map<String, Value>,
    source: Vec<char>,
    read: usize,
}

impl Conversation {
    /// Opens with instructions and tools; results will be this crate's own source.
    fn new(root: &Path) -> io::Result<Self> {
        let mut source = String::new();
        let mut files: Vec<PathBuf> =
            fs::read_dir(root.join("text/src"))?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
            // Control tokens in a message are another path.
            source.push_str(&fs::read_to_string(file)?.replace("<|", "< |"));
        }
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name, "description": "Reads a part of a file.",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "from": {"type": "integer"}}}}})
        };
        let tools: Vec<Value> = ["read", "search", "edit", "run", "list"].map(tool).to_vec();
        let arguments = Map::from_iter([("tools".to_owned(), tools.into())]);
        let system = json!({"role": "system", "content": "You change programs with care. ".repeat(200)});
        let task = json!({"role": "user", "content": "Find out why the tokenizer is slow on long texts."});
        Ok(Self { messages: vec![system, task], arguments, source: source.chars().collect(), read: 0 })
    }

    /// Adds a call and its result, until `tokens` more are there.
    fn turn(&mut self, tokens: usize, text: &ModelText) -> io::Result<()> {
        let mut added = 0;
        while added < tokens {
            let from = self.read % self.source.len();
            let result: String =
                self.source[from..].iter().take((tokens - added).clamp(40, 600) * 3).collect();
            self.read += result.len();
            let arguments = json!({"path": "text/src/tokenizer.rs", "from": from});
            let call = json!({"id": format!("call-{from}"), "type": "function",
                "function": {"name": "read", "arguments": arguments}});
            self.messages.push(json!({"role": "assistant", "content": "I read on.", "tool_calls": [call]}));
            added += 30 + text.tokenizer.encode(&result, false).map_err(io::Error::other)?.len();
            self.messages
                .push(json!({"role": "tool", "tool_call_id": format!("call-{from}"), "content": result}));
        }
        Ok(())
    }

    fn tokens(&self, text: &ModelText) -> io::Result<usize> {
        self.encode(text, None).map(|ids| ids.len())
    }

    fn encode(&self, text: &ModelText, kept_in: Option<&str>) -> io::Result<Vec<TokenId>> {
        let prompt = ChatPrompt {
            messages: &self.messages,
            add_generation_prompt: true,
            continue_final_message: false,
            template_kwargs: &self.arguments,
            kept_in,
        };
        text.encode_chat(&prompt, 1 << 20).map_err(io::Error::other)
    }
}

/// A directory with the shipped vocabulary, Qwen's word rule and ChatML's control tokens.
fn model(root: &Path, template: &str) -> io::Result<PathBuf> {
    let directory = env::temp_dir().join(format!("skein-conversation-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let mut tree: Value = serde_json::from_slice(&fs::read(root.join("models/skein-7m/tokenizer.json"))?)?;
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let split =
        json!({"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": false});
    tree["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    for (id, content) in [(4096, "<|im_start|>"), (4097, "<|im_end|>")] {
        let token = json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true});
        tree["added_tokens"].as_array_mut().ok_or(io::ErrorKind::InvalidData)?.push(token);
    }
    fs::write(directory.join("tokenizer.json"), tree.to_string())?;
    fs::write(directory.join("chat_template.jinja"), template)?;
    Ok(directory)
}

/// Seconds on a processor of this process's threads and of its children.
fn cpu_seconds() -> io::Result<f64> {
    // The system adds up a thread's time when it stops.
    std::thread::sleep(Duration::from_micros(50));
    let mut seconds = 0.0;
    let mut processes = vec!["self".to_owned()];
    while let Some(process) = processes.pop() {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let thread = thread?.path();
            let times = fs::read_to_string(thread.join("schedstat"))?;
            seconds += times.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) * 1e-9;
            let children = fs::read_to_string(thread.join("children"))?;
            processes.extend(children.split_whitespace().map(str::to_owned));
        }
    }
    Ok(seconds)
}
