//! A chat in the terminal.

use std::io;

use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use serde_json::{Value, json};
use skein_node::shutdown::Shutdown;
use skein_router::refusal::Refusal;

use super::answer::Unanswered;
use super::chat_command::{Block, HELP, Line};
use super::generate::Target;
use super::options::AnswerOptions;
use super::{generate, sampling};
use crate::exit::Failure;

/// Lines kept in the history.
const HISTORY_LINES: usize = 500;

/// Runs the chat until `/bye`.
///
/// # Errors
/// If the terminal cannot be read.
pub async fn talk(target: &Target, options: AnswerOptions) -> Result<(), Failure> {
    let config = Config::builder().max_history_size(HISTORY_LINES).map_err(Failure::other)?.build();
    let mut editor = DefaultEditor::with_config(config).map_err(Failure::other)?;
    let mut chat = Chat { options, messages: Vec::new(), stats: true };
    errln!("{}; /help lists commands, /bye ends", target.model());
    let mut block: Option<Block> = None;
    loop {
        let prompt = if block.is_some() { "... " } else { ">>> " };
        let (returned, line) = read_line(editor, prompt).await?;
        editor = returned;
        match line {
            Ok(line) => {
                match &mut block {
                    Some(block) => block.push(&line),
                    None => block = Block::begin(&line),
                }
                let said = block.as_ref().map(Block::text);
                let meant = match said {
                    None => Line::parse(&line),
                    Some(None) => continue,
                    Some(Some(text)) => Line::Say(text),
                };
                block = None;
                if chat.take(target, meant).await? {
                    return Ok(());
                }
                // A failure to remember the line does not matter.
                let _ = editor.add_history_entry(line);
            }
            Err(ReadlineError::Interrupted) => {
                block = None;
                errln!("(/bye or Ctrl-D ends)");
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                errln!("(a line that is not UTF-8 was dropped)");
            }
            Err(error) => return Err(Failure::other(error)),
        }
    }
}

/// Reads a line on a blocking thread.
async fn read_line(
    mut editor: DefaultEditor,
    prompt: &'static str,
) -> Result<(DefaultEditor, Result<String, ReadlineError>), Failure> {
    let read = move || {
        let line = editor.readline(prompt);
        (editor, line)
    };
    tokio::task::spawn_blocking(read).await.map_err(Failure::other)
}

struct Chat {
    options: AnswerOptions,
    messages: Vec<Value>,
    stats: bool,
}

impl Chat {
    /// Handles a line; returns true if the chat is over.
    async fn take(&mut self, target: &Target, line: Line) -> Result<bool, Failure> {
        match line {
            Line::Empty => {}
            Line::Bye => return Ok(true),
            Line::Help => errln!("{HELP}"),
            Line::Clear => self.messages.clear(),
            Line::Stats => self.stats = !self.stats,
            Line::System(text) => self.options.system = text,
            Line::Set(name, value) => {
                if let Err(reason) = sampling::set_checked(&mut self.options.sampling, &name, &value) {
                    errln!("{reason}");
                }
            }
            Line::Unknown(line) => errln!("`{line}` is not a command; /help lists them"),
            Line::Say(prompt) => self.say(target, prompt).await?,
        }
        Ok(false)
    }

    async fn say(&mut self, target: &Target, prompt: String) -> Result<(), Failure> {
        let draft = generate::draft(&self.options, &self.messages, &prompt);
        // While an answer is printed, Ctrl-C stops the answer, not the chat.
        let stop = Shutdown::default();
        let interrupted = stop.clone();
        let interrupt = tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                interrupted.request();
            }
        });
        let outcome = generate::answer(target, draft, &stop).await;
        interrupt.abort();
        match outcome {
            Ok(answer) => {
                if self.stats {
                    errln!("{}", answer.stats());
                }
                self.messages.push(json!({"role": "user", "content": prompt}));
                self.messages.push(json!({"role": "assistant", "content": answer.text}));
            }
            Err(Unanswered::Refused(
                refusal @ (Refusal::ContextLength { .. } | Refusal::PromptTooLong(_)),
            )) => {
                errln!("{refusal}\n/clear starts a new conversation.")
            }
            Err(refusal) => errln!("{refusal}"),
        }
        Ok(())
    }
}
