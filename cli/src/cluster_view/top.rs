//! The loop of `skein top`: snapshots and keys in, a screen out.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::json;
use skein_client::Response;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::screen::{self, Screen};
use super::server::Server;
use super::snapshot::Snapshot;
use crate::exit::{Failure, USAGE};
use crate::server_events::ServerEvents;

/// A shell's exit code of a command that a signal ended, less the signal's number.
const SIGNALLED: u8 = 128;
const EVENTS: &str = "/v1/cluster/events";
/// Time between two attempts to connect again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often the thread that reads keys looks whether it should end.
const KEY_POLL: Duration = Duration::from_millis(100);
/// Keys that may wait to be handled.
const KEY_QUEUE: usize = 64;

/// Shows the cluster of `server` until `q`.
///
/// # Errors
/// If there is no terminal, or the server refuses.
pub async fn run(server: Server) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::new(USAGE, "skein top needs a terminal; skein status prints once"));
    }
    // Refused before the screen is taken.
    let events = server.get(EVENTS).await;
    let events = events.map_err(|why| Failure::other(format!("{}: {why}", server.base_url)))?;
    let mut terminal = ratatui::try_init().map_err(Failure::other)?;
    let mut keys = Keys::read();
    let outcome = watch(&server, events, &mut terminal, &mut keys).await;
    ratatui::restore();
    match outcome.map_err(Failure::other)? {
        Some(signal) => Err(Failure::new(SIGNALLED + signal, format!("ended by signal {signal}"))),
        None => Ok(()),
    }
}

/// Signals that end the command, so that it leaves the terminal as it was.
struct Ends([(u8, Signal); 3]);

impl Ends {
    fn new() -> std::io::Result<Self> {
        let signals =
            [(2, SignalKind::interrupt()), (15, SignalKind::terminate()), (1, SignalKind::hangup())];
        let [a, b, c] = signals.map(|(number, kind)| signal(kind).map(|signal| (number, signal)));
        Ok(Self([a?, b?, c?]))
    }

    async fn next(&mut self) -> u8 {
        let [(a, first), (b, second), (c, third)] = &mut self.0;
        tokio::select! {
            _ = first.recv() => *a,
            _ = second.recv() => *b,
            _ = third.recv() => *c,
        }
    }
}

/// What arrives next.
enum Next {
    Key(Option<KeyEvent>),
    Said(String),
    Bytes(Result<Option<bytes::Bytes>, String>),
}

/// Shows snapshots until a key or a signal ends that. Returns the signal's number.
async fn watch(
    server: &Server,
    first: Response,
    terminal: &mut DefaultTerminal,
    keys: &mut Keys,
) -> std::io::Result<Option<u8>> {
    let mut screen = Screen::new(&server.base_url);
    let mut link = Some((first, ServerEvents::default()));
    let mut ends = Ends::new()?;
    // An order that the server has not answered yet.
    let mut order: Option<BoxFuture<'_, String>> = None;
    loop {
        terminal.draw(|frame| screen::draw(frame, &mut screen))?;
        let next = tokio::select! {
            signal = ends.next() => return Ok(Some(signal)),
            key = keys.next() => Next::Key(key),
            said = answered(&mut order) => Next::Said(said),
            bytes = receive(server, &mut link) => Next::Bytes(bytes),
        };
        match next {
            Next::Key(None) => return Ok(None),
            Next::Key(Some(key)) => match pressed(&mut screen, key) {
                Pressed::Quit => return Ok(None),
                Pressed::Drain { .. } if order.is_some() => {
                    screen.said = "the order before has not been answered yet".to_owned();
                }
                Pressed::Drain { worker, on } => {
                    screen.said = format!("waiting for {worker}");
                    order = Some(Box::pin(drain(server, worker, on)));
                }
                Pressed::Other => {}
            },
            Next::Said(said) => (screen.said, order) = (said, None),
            Next::Bytes(Ok(Some(bytes))) => {
                let whole = link.as_mut().map_or(Ok(Vec::new()), |(_, events)| events.push(&bytes));
                for event in whole.unwrap_or_default() {
                    let answer = serde_json::from_str(&event.data);
                    if let Ok(snapshot) = answer.and_then(Snapshot::read) {
                        screen.update(snapshot);
                    }
                }
            }
            Next::Bytes(ended) => {
                screen.problem = Some(match ended {
                    Err(why) => format!("{why}; connecting again"),
                    _ => "the server ended the stream; connecting again".to_owned(),
                });
                link = None;
            }
        }
    }
}

/// What became of the order; never, if there is none.
async fn answered(order: &mut Option<BoxFuture<'_, String>>) -> String {
    match order {
        Some(order) => order.await,
        None => std::future::pending().await,
    }
}

/// The next bytes of the stream of snapshots, which is opened again if it has broken.
async fn receive(
    server: &Server,
    link: &mut Option<(Response, ServerEvents)>,
) -> Result<Option<bytes::Bytes>, String> {
    if link.is_none() {
        tokio::time::sleep(AGAIN_AFTER).await;
        *link = Some((server.get(EVENTS).await?, ServerEvents::default()));
    }
    match link {
        Some((response, _)) => response.chunk().await.map_err(|error| error.to_string()),
        None => Ok(None),
    }
}

async fn drain(server: &Server, worker: String, on: bool) -> String {
    let safe: String = url::form_urlencoded::byte_serialize(worker.as_bytes()).collect();
    let path = format!("/v1/cluster/workers/{}/drain", safe.replace('+', "%20"));
    match server.post(&path, &json!({ "on": on })).await {
        Ok(_) if on => format!("{worker} drains"),
        Ok(_) => format!("{worker} takes requests"),
        Err(why) => why,
    }
}

/// What a key asks for.
enum Pressed {
    Quit,
    Drain { worker: String, on: bool },
    Other,
}

fn pressed(screen: &mut Screen, key: KeyEvent) -> Pressed {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    if let Some((worker, on)) = screen.asked.take() {
        // Anything but `y` means no.
        return if key.code == KeyCode::Char('y') { Pressed::Drain { worker, on } } else { Pressed::Other };
    }
    screen.said.clear();
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Pressed::Quit,
        KeyCode::Char('c') if is_control => return Pressed::Quit,
        KeyCode::Down | KeyCode::Char('j') => screen.select(1),
        KeyCode::Up | KeyCode::Char('k') => screen.select(-1),
        KeyCode::Char('p') => screen.paused = !screen.paused,
        KeyCode::Char('d') => screen.ask_to_drain(),
        _ => {}
    }
    Pressed::Other
}

/// Keys, read by a thread of their own.
struct Keys {
    received: mpsc::Receiver<KeyEvent>,
    is_over: Arc<AtomicBool>,
}

impl Keys {
    fn read() -> Self {
        let (sender, received) = mpsc::channel(KEY_QUEUE);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let ready = match event::poll(KEY_POLL) {
                    Ok(ready) => ready,
                    Err(_) => return,
                };
                match ready.then(event::read) {
                    None | Some(Ok(Event::FocusGained | Event::FocusLost)) => {}
                    Some(Ok(Event::Key(key))) if key.kind == KeyEventKind::Press => {
                        // A full queue means that nobody waits for the keys.
                        if matches!(sender.try_send(key), Err(mpsc::error::TrySendError::Closed(_))) {
                            return;
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return,
                }
            }
        });
        Self { received, is_over }
    }

    async fn next(&mut self) -> Option<KeyEvent> {
        self.received.recv().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
