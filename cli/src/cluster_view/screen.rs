//! What `skein top` shows, and how.

use std::collections::HashMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::snapshot::{Blocks, Snapshot, Worker, per_second, percent, step};

/// Cells of a bar of blocks, from narrow screens to wide ones.
const BAR: (u16, u16) = (6, 24);
/// Cells of the columns after the bar and before the name, each with a space before it.
const STATE: u16 = 12;
const FIGURES: [u16; 6] = [7, 7, 9, 8, 5, 8];
/// Lines for the latest moves and requests, with their frame.
const LISTS: u16 = 9;

/// State of the screen.
pub struct Screen {
    url: String,
    snapshot: Option<Snapshot>,
    /// Tokens a second of the router and of each worker.
    rates: Rates,
    chosen: TableState,
    /// Snapshots that arrive are not shown.
    pub paused: bool,
    /// Why nothing arrives.
    pub problem: Option<String>,
    /// What became of an order.
    pub said: String,
    /// A drain that waits for `y`: the worker, and whether to begin or to end it.
    pub asked: Option<(String, bool)>,
}

#[derive(Debug, Default)]
struct Rates {
    requests: f64,
    tokens: f64,
    of_workers: HashMap<String, f64>,
}

impl Screen {
    /// An empty screen for the server at `url`.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            snapshot: None,
            rates: Rates::default(),
            chosen: TableState::default(),
            paused: false,
            problem: None,
            said: String::new(),
            asked: None,
        }
    }

    /// Takes over a snapshot.
    pub fn update(&mut self, snapshot: Snapshot) {
        self.problem = None;
        if self.paused {
            return;
        }
        if let Some(before) = &self.snapshot {
            self.rates = Rates::between(before, &snapshot);
        }
        if self.chosen.selected().is_none() && !snapshot.workers.is_empty() {
            self.chosen.select(Some(0));
        }
        self.snapshot = Some(snapshot);
    }

    /// Chooses the worker `by` lines further down.
    pub fn select(&mut self, by: isize) {
        let workers = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.workers.len());
        let at = self.chosen.selected().unwrap_or(0).saturating_add_signed(by);
        self.chosen.select((workers > 0).then(|| at.min(workers - 1)));
    }

    /// Asks whether the chosen worker should drain, or take requests again.
    pub fn ask_to_drain(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        if !snapshot.admin {
            self.said = "draining needs an admin's key".to_owned();
            return;
        }
        let worker = self.chosen.selected().and_then(|at| snapshot.workers.get(at));
        self.asked = worker.map(|worker| (worker.id.clone(), worker.state != "draining"));
        if let Some(router) = worker.filter(|worker| worker.router) {
            self.said = format!("{} is a router; drain its workers there", router.id);
            self.asked = None;
        }
    }
}

impl Rates {
    fn between(before: &Snapshot, after: &Snapshot) -> Self {
        let seconds = after.time - before.time;
        let of = |worker: &Worker| {
            let known = before.workers.iter().find(|known| known.id == worker.id);
            known.map_or(0.0, |known| per_second(known.output_tokens, worker.output_tokens, seconds))
        };
        Self {
            requests: per_second(before.totals.requests, after.totals.requests, seconds),
            tokens: per_second(before.totals.output_tokens, after.totals.output_tokens, seconds),
            of_workers: after.workers.iter().map(|worker| (worker.id.clone(), of(worker))).collect(),
        }
    }
}

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let areas = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(4),
        Constraint::Length(LISTS),
        Constraint::Length(1),
    ]);
    let [head, workers, lists, foot] = areas.areas(frame.area());
    let Some(snapshot) = screen.snapshot.clone() else {
        frame.render_widget(Paragraph::new(format!("{}: waiting for the first snapshot", screen.url)), head);
        return;
    };
    frame.render_widget(heading(&snapshot, screen), head);
    let table = table(&snapshot, &screen.rates, workers.width);
    // The rows in sight follow from the chosen one, also after the terminal has grown.
    *screen.chosen.offset_mut() = 0;
    frame.render_stateful_widget(table, workers, &mut screen.chosen);
    let [moves, requests] =
        Layout::horizontal([Constraint::Percentage(45), Constraint::Fill(1)]).areas(lists);
    frame.render_widget(latest_moves(&snapshot), moves);
    frame.render_widget(latest_requests(&snapshot), requests);
    frame.render_widget(footer(screen), foot);
}

fn heading(snapshot: &Snapshot, screen: &Screen) -> Paragraph<'static> {
    let totals = &snapshot.totals;
    let (model, version) = snapshot.title();
    let first = Line::from(vec![
        Span::from(model).bold(),
        Span::from(format!("  version {version}  Skein {}  {}", snapshot.version, screen.url)).dim(),
    ]);
    let second = Line::from(format!(
        "{} of {} workers ready   {} running   {:.1} requests/s   {:.0} tokens/s   {} moves   {} of prompt tokens cached",
        snapshot.ready(),
        snapshot.workers.len(),
        totals.requests_in_flight,
        screen.rates.requests,
        screen.rates.tokens,
        totals.moves,
        percent(totals.cached_prompt_tokens, totals.prompt_tokens),
    ));
    let third = match &screen.problem {
        Some(problem) => Line::from(problem.clone()).red(),
        None if snapshot.draining => Line::from("this router shuts down").yellow(),
        None if screen.paused => Line::from("paused").yellow(),
        None => Line::default(),
    };
    Paragraph::new(vec![first, third, second]).wrap(Wrap { trim: true })
}

fn table(snapshot: &Snapshot, rates: &Rates, width: u16) -> Table<'static> {
    let names = snapshot.workers.iter().map(|worker| worker.id.chars().count());
    let name = u16::try_from(names.max().unwrap_or(0)).unwrap_or(u16::MAX).clamp(8, 32);
    let others = name + STATE + 2 + FIGURES.iter().map(|cells| cells + 1).sum::<u16>();
    let cells = width.saturating_sub(others).clamp(BAR.0, BAR.1);
    let rows = snapshot.workers.iter().map(|worker| {
        let rate = rates.of_workers.get(&worker.id).copied().unwrap_or(0.0);
        let step = step(worker.step_seconds);
        let colour = match (worker.ready, worker.state.as_str()) {
            (true, _) => Color::Green,
            (false, "draining") => Color::Yellow,
            (false, _) => Color::Red,
        };
        Row::new([
            Cell::from(worker.id.clone()),
            Cell::from(Span::styled(worker.state.clone(), Style::new().fg(colour))),
            Cell::from(bar(worker.blocks, cells.into())),
            Cell::from(Line::from(worker.running.to_string()).right_aligned()),
            Cell::from(Line::from(worker.waiting.to_string()).right_aligned()),
            Cell::from(Line::from(step).right_aligned()),
            Cell::from(Line::from(format!("{rate:.0}")).right_aligned()),
            Cell::from(
                Line::from(percent(worker.cached_prompt_tokens, worker.prompt_tokens)).right_aligned(),
            ),
            Cell::from(worker.model_version.as_deref().unwrap_or("-").chars().take(8).collect::<String>()),
        ])
    });
    let widths = [name, STATE, cells].into_iter().chain(FIGURES).map(Constraint::Length);
    let header = [
        "worker",
        "state",
        if cells == BAR.1 { "held shared cached free" } else { "blocks" },
        "running",
        "waiting",
        "step",
        "tokens/s",
        "hits",
        "version",
    ];
    Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::DIM)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Blocks as a bar: each kind a letter and a colour, so that it is read without colours, too.
fn bar(blocks: Blocks, cells: u64) -> Line<'static> {
    let kinds = [
        (blocks.held, "h", Color::Cyan),
        (blocks.shared, "s", Color::Magenta),
        (blocks.cached, "c", Color::Yellow),
        (blocks.free, ".", Color::DarkGray),
    ];
    let mut spans = Vec::new();
    let (mut sum, mut drawn) = (0, 0);
    for (count, letter, colour) in kinds {
        sum += count;
        let end = (sum * cells).checked_div(blocks.total).unwrap_or(0).min(cells);
        spans.push(Span::styled(letter.repeat((end - drawn) as usize), Style::new().fg(colour)));
        drawn = end;
    }
    Line::from(spans)
}

fn latest_moves(snapshot: &Snapshot) -> Paragraph<'static> {
    let line = |from: &Option<String>| from.clone().unwrap_or_else(|| "?".to_owned());
    let lines = snapshot.moves.iter().map(|one| {
        Line::from(format!(
            "{} -> {} after {} tokens  {}",
            line(&one.from),
            line(&one.to),
            one.tokens,
            one.request
        ))
    });
    Paragraph::new(lines.collect::<Vec<_>>()).block(Block::bordered().title("moves"))
}

fn latest_requests(snapshot: &Snapshot) -> Paragraph<'static> {
    let lines = snapshot.requests.iter().map(|one| {
        let first = one.ttft_seconds.map_or("-".to_owned(), |seconds| format!("{:.0} ms", 1e3 * seconds));
        let outcome = one.code.as_deref().unwrap_or(&one.outcome);
        let colour = if one.status < 400 { Color::Green } else { Color::Red };
        Line::from(vec![
            Span::styled(format!("{} {outcome}  ", one.status), Style::new().fg(colour)),
            Span::from(format!(
                "{}+{} tokens, first {first}, {:.2} s  {}  {}",
                one.prompt_tokens,
                one.output_tokens,
                one.seconds,
                one.workers.join(" -> "),
                one.id
            )),
        ])
    });
    Paragraph::new(lines.collect::<Vec<_>>()).block(Block::bordered().title("latest requests"))
}

fn footer(screen: &Screen) -> Line<'static> {
    match &screen.asked {
        Some((worker, true)) => {
            Line::from(format!("drain {worker}? Its streams move to other workers (y/n)")).yellow()
        }
        Some((worker, false)) => Line::from(format!("let {worker} take requests again? (y/n)")).yellow(),
        None if !screen.said.is_empty() => Line::from(screen.said.clone()).yellow(),
        None => Line::from("q quit   arrows choose a worker   d drain   p pause").dim(),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn snapshot(time: f64, tokens: u64) -> Snapshot {
        let worker = Worker {
            id: "worker-0".to_owned(),
            ready: true,
            state: "ready".to_owned(),
            blocks: Blocks { total: 24, held: 6, shared: 6, cached: 6, free: 6 },
            output_tokens: tokens,
            ..Worker::default()
        };
        Snapshot {
            time,
            model: Some("m".to_owned()),
            admin: true,
            workers: vec![worker],
            ..Snapshot::default()
        }
    }

    fn drawn(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).expect("memory");
        terminal.draw(|frame| draw(frame, screen)).expect("memory");
        terminal.backend().to_string()
    }

    #[test]
    fn rates_are_those_between_two_snapshots() {
        let mut screen = Screen::new("http://a");
        assert!(drawn(&mut screen).contains("waiting for the first snapshot"));
        screen.update(snapshot(10.0, 100));
        screen.update(snapshot(12.0, 1100));
        let text = drawn(&mut screen);
        assert!(text.contains("500") && text.contains("hhhhhhsssssscccccc......"), "{text}");
        screen.paused = true;
        screen.update(snapshot(13.0, 9000));
        assert!(drawn(&mut screen).contains("500"));
    }

    #[test]
    fn a_terminal_of_80_columns_has_room_for_every_column() {
        let mut screen = Screen::new("http://a");
        screen.update(snapshot(1.0, 0));
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("memory");
        terminal.draw(|frame| draw(frame, &mut screen)).expect("memory");
        let text = terminal.backend().to_string();
        for whole in ["worker-0", "running", "waiting", "tokens/s", "hits", "version"] {
            assert!(text.contains(whole), "{whole}: {text}");
        }
    }

    #[test]
    fn a_drain_is_asked_for_and_needs_an_admin() {
        let mut screen = Screen::new("http://a");
        screen.update(snapshot(1.0, 0));
        screen.select(5);
        screen.ask_to_drain();
        assert_eq!(screen.asked, Some(("worker-0".to_owned(), true)));
        assert!(drawn(&mut screen).contains("drain worker-0?"));
        screen.asked = None;
        screen.update(Snapshot { admin: false, ..snapshot(2.0, 0) });
        screen.ask_to_drain();
        assert!(screen.asked.is_none() && drawn(&mut screen).contains("needs an admin's key"));
    }
}
