//! Renders chat templates in separate processes. A template is a program by the model's author, and some of
//! its operations cannot be limited within a process: a single message may exhaust memory, stack or time. The
//! operating system limits a process's memory and stack, and a deadline limits its time, so only that request
//! is refused.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use skein_node::clock::{self, Timestamp};

use super::chat_template::ChatTemplate;
use super::deep_stack::on_deep_stack;
use super::files::chat_template_of;
pub use super::rendering::Rendering;
use super::sent_messages::{ReceivedMessages, ReceivedRequest, Request, SentMessages};
use super::sources::TextSources;
use crate::refused::TextRefused;

/// Time limit of a rendering. A conversation of 8 MB takes a tenth of a second.
const RENDER_TIMEOUT: Duration = Duration::from_secs(10);
/// A process that has rendered a conversation above this size is not reused, because it keeps the memory.
const KEEP_BELOW_BYTES: usize = 1024 * 1024;
/// Largest message between the processes, in bytes.
const MAX_FRAME_BYTES: usize = 128 * 1024 * 1024;
/// Number of the signal by which the system ends a process for memory.
const SIGKILL: i32 = 9;
/// Header of an answer, in bytes: kind and length.
const HEAD_BYTES: usize = 5;
/// Kinds of answers.
const TEXT: u8 = 0;
const REFUSED: u8 = 1;
const FAILED: u8 = 2;
/// Refused before the process had the messages: it is not used again.
const MALFORMED: u8 = 4;
/// The first frame of a process: its template is loaded. What ends it before is not the conversation.
const LOADED: u8 = 3;

/// How to start a rendering process.
type StartRenderer = dyn Fn() -> io::Result<Command> + Send + Sync;

/// Pool of rendering processes, one per concurrent rendering. They are started on demand and reused.
pub struct RenderProcesses {
    command: RwLock<Box<StartRenderer>>,
    idle: Mutex<Vec<RenderProcess>>,
    most_idle: usize,
    timeout: Duration,
}

impl fmt::Debug for RenderProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderProcesses").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl RenderProcesses {
    /// Pool of processes started by `command`. Each must limit itself and then call [`serve`].
    pub fn new(command: impl Fn() -> io::Result<Command> + Send + Sync + 'static) -> Self {
        Self {
            command: RwLock::new(Box::new(command)),
            idle: Mutex::default(),
            most_idle: std::thread::available_parallelism().map_or(1, usize::from),
            timeout: RENDER_TIMEOUT,
        }
    }

    /// Starts further processes by `command`: the template has moved to another directory.
    pub fn start_by(&self, command: impl Fn() -> io::Result<Command> + Send + Sync + 'static) {
        *self.command.write().unwrap_or_else(PoisonError::into_inner) = Box::new(command);
    }

    /// Renders a conversation. Blocks for up to [`RENDER_TIMEOUT`].
    ///
    /// # Errors
    /// The template's refusal, or that it exhausts memory, stack or time.
    pub fn render(&self, request: &Rendering<'_>) -> Result<String, TextRefused> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let used = idle.map(|process| self.render_with(process, request));
        let answer = match used {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(Broken::Late)) => Err(Broken::Late),
            // An idle process may have been killed, so try a new one.
            Some(Err(Broken::Ended(_))) | None => self.render_with(self.start()?, request),
        };
        match answer {
            Ok((TEXT, text)) => String::from_utf8(text).map_err(|_| TextRefused::Internal),
            Ok((REFUSED | MALFORMED, message)) => {
                Err(TextRefused::invalid("messages", String::from_utf8_lossy(&message).into_owned()))
            }
            Ok(_) => Err(TextRefused::Internal),
            Err(Broken::Late) => {
                let seconds = self.timeout.as_secs_f32();
                let message = format!("The chat template takes over {seconds} s to render these messages.");
                Err(TextRefused::invalid("messages", message))
            }
            Err(Broken::Ended(end)) if end.is_of_the_system() => {
                tracing::error!(
                    "a process for the chat template ended ({end}): this machine or container lacks memory, \
                     or `ulimit -v` allows too little"
                );
                Err(TextRefused::Internal)
            }
            Err(Broken::Ended(_)) => {
                let message = "The chat template exhausts its memory or stack rendering these messages.";
                Err(TextRefused::invalid("messages", message))
            }
        }
    }

    fn start(&self) -> Result<RenderProcess, TextRefused> {
        let command = self.command.read().unwrap_or_else(PoisonError::into_inner)();
        command.and_then(RenderProcess::start).map_err(|error| {
            tracing::error!(%error, "cannot start a process for the chat template");
            TextRefused::Internal
        })
    }

    /// Sends a request to `process`, which is kept for reuse if it answers.
    fn render_with(
        &self,
        mut process: RenderProcess,
        request: &Rendering<'_>,
    ) -> Result<(u8, Vec<u8>), Broken> {
        let sent = process.exchange_messages(request, clock::now() + self.timeout);
        let (answer, sent) = sent.map_err(|error| process.broken(&error))?;
        if sent.whole_bytes < KEEP_BELOW_BYTES && matches!(answer.0, TEXT | REFUSED) {
            process.messages.answered(sent);
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < self.most_idle {
                idle.push(process);
            }
        }
        Ok(answer)
    }
}

/// Why a process did not answer.
#[derive(Debug)]
enum Broken {
    /// It exceeded the time limit.
    Late,
    /// It exited or closed its pipe.
    Ended(End),
}

/// How a process ended.
#[derive(Debug)]
struct End {
    /// Whether its template was loaded.
    loaded: bool,
    status: Option<ExitStatus>,
}

impl End {
    /// Whether the template and the conversation are not to blame: the process never began to render, or the
    /// system killed it. A process that exceeds its own limits aborts.
    fn is_of_the_system(&self) -> bool {
        !self.loaded || self.status.is_some_and(|status| status.signal() == Some(SIGKILL))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.loaded { "while it rendered" } else { "before its template was loaded" };
        match self.status {
            Some(status) => write!(f, "{status}, {when}"),
            None => f.write_str(when),
        }
    }
}

/// A rendering process. It ends when its standard input closes: on drop, or when this process ends.
struct RenderProcess {
    child: Child,
    socket: UnixStream,
    /// Whether it has loaded its template.
    loaded: bool,
    messages: SentMessages,
}

impl RenderProcess {
    fn start(mut command: Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        command.stdin(Stdio::from(theirs.try_clone()?)).stdout(Stdio::from(theirs)).stderr(Stdio::null());
        let child = command.spawn()?;
        Ok(Self { child, socket: ours, loaded: false, messages: SentMessages::default() })
    }

    /// Sends what is new of a conversation; returns the answer and what was sent.
    fn exchange_messages(
        &mut self,
        request: &Rendering<'_>,
        until: Timestamp,
    ) -> io::Result<((u8, Vec<u8>), Request)> {
        let request = self.messages.request(request)?;
        Ok((self.exchange(&request.bytes, until)?, request))
    }

    fn exchange(&mut self, request: &[u8], until: Timestamp) -> io::Result<(u8, Vec<u8>)> {
        self.write(&u32::try_from(request.len()).map_err(io::Error::other)?.to_le_bytes(), until)?;
        self.write(request, until)?;
        if !self.loaded {
            let (kind, _) = self.frame(until)?;
            if kind != LOADED {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.loaded = true;
        }
        self.frame(until)
    }

    /// Reads a frame: its kind and content.
    fn frame(&mut self, until: Timestamp) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; HEAD_BYTES];
        self.read(&mut head, until)?;
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut content = vec![0; length];
        self.read(&mut content, until)?;
        Ok((kind, content))
    }

    fn write(&mut self, mut bytes: &[u8], until: Timestamp) -> io::Result<()> {
        while !bytes.is_empty() {
            self.socket.set_write_timeout(Some(time_left(until)?))?;
            match self.socket.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self, mut into: &mut [u8], until: Timestamp) -> io::Result<()> {
        while !into.is_empty() {
            self.socket.set_read_timeout(Some(time_left(until)?))?;
            match self.socket.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => into = &mut into[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Why an exchange failed with `error`. Ends the process.
    fn broken(&mut self, error: &io::Error) -> Broken {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return Broken::Late;
        }
        // A process that is ending keeps its own status.
        let _ = self.child.kill();
        Broken::Ended(End { loaded: self.loaded, status: self.child.wait().ok() })
    }
}

impl Drop for RenderProcess {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn time_left(until: Timestamp) -> io::Result<Duration> {
    let left = until.since(clock::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Main loop of the child: renders with the template of the model in `directory` until standard input closes.
///
/// # Errors
/// If the template is unusable or the parent has ended.
pub fn serve(directory: &Path, sources: &TextSources) -> io::Result<()> {
    let template = chat_template_of(directory, sources).map_err(io::Error::other)?;
    let template = template.ok_or_else(|| io::Error::other("the model has no chat template"))?;
    on_deep_stack(|| serve_on(&template, &mut io::stdin().lock(), &mut io::stdout().lock()))?
}

fn serve_on(template: &ChatTemplate, input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    write_frame(output, LOADED, "")?;
    let (mut length, mut messages) = ([0; 4], ReceivedMessages::default());
    loop {
        match input.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let mut request = vec![0; u32::from_le_bytes(length) as usize];
        input.read_exact(&mut request)?;
        let (kind, content) = answer(template, &request, &mut messages);
        write_frame(output, kind, &content)?;
    }
}

fn write_frame(output: &mut impl Write, kind: u8, content: &str) -> io::Result<()> {
    let length = u32::try_from(content.len()).map_err(io::Error::other)?;
    output.write_all(&[kind])?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(content.as_bytes())?;
    output.flush()
}

fn answer(template: &ChatTemplate, request: &[u8], messages: &mut ReceivedMessages) -> (u8, String) {
    // The parent sends valid JSON; serde_json refuses only excessive nesting.
    let Ok(mut request) = serde_json::from_slice::<ReceivedRequest>(request) else {
        return (MALFORMED, "messages are nested too deeply.".to_owned());
    };
    let Some(conversation) = messages.conversation(&mut request) else { return (FAILED, String::new()) };
    match template.render_values(conversation, request.add_generation_prompt, &request.arguments) {
        Ok(text) => (TEXT, text),
        Err(TextRefused::Internal) => (FAILED, String::new()),
        Err(refusal) => (REFUSED, refusal.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// A shell script in place of the process.
    fn shell(text: &str, timeout: Duration) -> RenderProcesses {
        let text = text.to_owned();
        let command = move || {
            let mut command = Command::new("sh");
            command.args(["-c", &text]);
            Ok(command)
        };
        RenderProcesses { timeout, ..RenderProcesses::new(command) }
    }

    /// The same after it has loaded its template.
    fn loaded(text: &str, timeout: Duration) -> RenderProcesses {
        shell(&format!("printf '\\3\\0\\0\\0\\0'; {text}"), timeout)
    }

    fn render(processes: &RenderProcesses) -> Result<String, TextRefused> {
        let (messages, arguments) = (json!([{"role": "user", "content": "a"}]), Map::new());
        processes.render(&Rendering {
            messages: &messages,
            add_generation_prompt: true,
            arguments: &arguments,
            kept_in: Some(""),
        })
    }

    #[test]
    fn a_process_that_ends_or_hangs_refuses_one_request() {
        let check = |text: &str, timeout, expected: &str| {
            let refusal = render(&loaded(text, Duration::from_millis(timeout))).unwrap_err();
            assert_eq!(refusal.param(), Some("messages"));
            assert!(refusal.to_string().contains(expected), "{refusal}");
        };
        check("head -c 9 >/dev/null; exit 1", 10_000, "exhausts its memory or stack");
        check("head -c 9 >/dev/null; kill -ABRT $$", 10_000, "exhausts its memory or stack");
        check("head -c 9 >/dev/null; printf '\\0'", 10_000, "exhausts its memory or stack");
        check("exec sleep 600", 50, "takes over 0.05 s");
        check("head -c 9 >/dev/null; printf '\\0\\3\\0\\0\\0ab'; exec sleep 600", 50, "takes over 0.05 s");
    }

    #[test]
    fn what_ends_before_it_renders_or_is_killed_is_not_the_templates_fault() {
        let check = |processes: RenderProcesses| {
            assert_eq!(render(&processes).unwrap_err(), TextRefused::Internal);
        };
        check(shell("exit 3", Duration::from_secs(10)));
        check(shell("kill -ABRT $$", Duration::from_secs(10)));
        check(loaded("head -c 9 >/dev/null; kill -9 $$", Duration::from_secs(10)));
    }

    #[test]
    fn a_process_is_used_again_and_replaced_when_it_has_ended() {
        // Each process answers once and ends.
        let processes = loaded("head -c 9 >/dev/null; printf '\\0\\2\\0\\0\\0hi'", Duration::from_secs(10));
        for _ in 0..3 {
            assert_eq!(render(&processes).unwrap(), "hi");
        }
    }

    /// Each golden conversation under each template, message by message, in a process that has most of it.
    #[test]
    fn a_conversation_that_grows_is_rendered_as_the_whole() {
        let goldens = include_str!("../../tests/golden/chat_templates.json");
        let goldens: Value = serde_json::from_str(goldens).unwrap();
        let mut compared = 0;
        for golden in goldens["templates"].as_array().unwrap() {
            let own = ["bos_token", "eos_token"]
                .map(|name| (name.to_owned(), golden[name].as_str().unwrap().to_owned()));
            let template =
                ChatTemplate::compile(golden["template"].as_str().unwrap(), own.to_vec(), || Duration::ZERO)
                    .unwrap();
            let (mut ours, mut theirs) = (SentMessages::default(), ReceivedMessages::default());
            for conversation in goldens["conversations"].as_object().unwrap().values() {
                let mut arguments = conversation.as_object().unwrap().clone();
                let messages = arguments.remove("messages").unwrap();
                let add_generation_prompt =
                    arguments.remove("add_generation_prompt").is_some_and(|add| add == true);
                for count in 1..=messages.as_array().unwrap().len() {
                    let messages = Value::from(messages.as_array().unwrap()[..count].to_vec());
                    let rendering = Rendering {
                        messages: &messages,
                        add_generation_prompt,
                        arguments: &arguments,
                        kept_in: Some(""),
                    };
                    let request = ours.request(&rendering).unwrap();
                    let (kind, text) = answer(&template, &request.bytes, &mut theirs);
                    ours.answered(request);
                    match template.render(&messages, add_generation_prompt, &arguments) {
                        Ok(whole) => {
                            assert_eq!((kind, text), (TEXT, whole), "{}: {messages}", golden["name"])
                        }
                        Err(refusal) => assert_eq!((kind, text), (REFUSED, refusal.to_string())),
                    }
                    compared += 1;
                }
            }
        }
        assert!(compared > 100, "{compared}");
    }

    #[test]
    fn both_sides_speak_the_same_language() {
        let source = "{{ raise_exception('no') if messages|length > 1 }}{{ messages[0].content }}{{ mood }}";
        let template = ChatTemplate::compile(source, Vec::new(), || Duration::ZERO).unwrap();
        let ask = |messages: Value| {
            let arguments = json!({"mood": " é"});
            let arguments = arguments.as_object().unwrap();
            let request =
                Rendering { messages: &messages, add_generation_prompt: true, arguments, kept_in: Some("") };
            let request = SentMessages::default().request(&request).unwrap().bytes;
            let (mut input, mut output) =
                (u32::try_from(request.len()).unwrap().to_le_bytes().to_vec(), Vec::new());
            input.extend(request);
            serve_on(&template, &mut &input[..], &mut output).unwrap();
            let (loaded, answer) = output.split_at(HEAD_BYTES);
            assert_eq!(loaded, [LOADED, 0, 0, 0, 0]);
            (answer[0], String::from_utf8(answer[HEAD_BYTES..].to_vec()).unwrap())
        };
        assert_eq!(ask(json!([{"content": "hi"}])), (TEXT, "hi é".to_owned()));
        assert_eq!(
            ask(json!([{}, {}])),
            (REFUSED, "The chat template rejects these messages: no".to_owned())
        );
        let mut deep = json!("x");
        for _ in 0..200 {
            deep = json!([deep]);
        }
        assert_eq!(ask(json!([{"content": deep}])).0, MALFORMED);
    }
}
