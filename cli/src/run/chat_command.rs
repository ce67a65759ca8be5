//! Parses a line typed in a chat. Pure.

/// A parsed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A blank line.
    Empty,
    /// A prompt to answer.
    Say(String),
    /// `/bye`: ends the chat.
    Bye,
    /// `/help`: prints the commands.
    Help,
    /// `/clear`: forgets the conversation.
    Clear,
    /// `/stats`: shows or hides the figures after each turn.
    Stats,
    /// `/system TEXT`; `None` removes the system message.
    System(Option<String>),
    /// `/set NAME VALUE`
    Set(String, String),
    /// An unknown command.
    Unknown(String),
}

/// The text of `/help`.
pub const HELP: &str = "\
\"\"\"               begins and ends a text of several lines
/set NAME VALUE   a sampling parameter: temperature, top-p, top-k, seed, max-tokens, ...
/system TEXT      the system message; without TEXT there is none
/clear            forget the conversation
/stats            show or hide tokens/s after each turn
/bye              end (also Ctrl-D); Ctrl-C stops an answer";

/// Marks the beginning and the end of a text of several lines.
const FENCE: &str = "\"\"\"";

/// Text of several lines that is being typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block(Vec<String>);

impl Block {
    /// Starts a block if `line` opens one.
    pub fn begin(line: &str) -> Option<Self> {
        let mut block = Self(Vec::new());
        let rest = line.trim_start().strip_prefix(FENCE)?;
        block.0.push(rest.to_owned());
        Some(block)
    }

    /// The whole text once its last line closes it.
    pub fn text(&self) -> Option<String> {
        let (last, before) = self.0.split_last()?;
        let last = last.trim_end().strip_suffix(FENCE)?;
        let lines = before.iter().map(String::as_str).chain([last]);
        Some(lines.collect::<Vec<_>>().join("\n").trim_matches('\n').to_owned())
    }

    /// Appends a line.
    pub fn push(&mut self, line: &str) {
        self.0.push(line.to_owned());
    }
}

impl Line {
    /// Parses a line. A leading double slash stands for a prompt that starts with a slash.
    pub fn parse(line: &str) -> Self {
        let line = line.trim();
        if let Some(said) = line.strip_prefix("//") {
            return Self::Say(format!("/{said}"));
        }
        let Some(command) = line.strip_prefix('/') else {
            return if line.is_empty() { Self::Empty } else { Self::Say(line.to_owned()) };
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (name, rest.trim()) {
            ("bye" | "exit" | "quit", _) => Self::Bye,
            ("help" | "?", _) => Self::Help,
            ("clear", _) => Self::Clear,
            ("stats", _) => Self::Stats,
            ("system", "") => Self::System(None),
            ("system", text) => Self::System(Some(text.to_owned())),
            ("set", rest) => match rest.split_once(char::is_whitespace) {
                Some((name, value)) => Self::Set(name.to_owned(), value.trim().to_owned()),
                None => Self::Unknown(line.to_owned()),
            },
            _ => Self::Unknown(line.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quotes_hold_many_lines() {
        let check = |lines: &[&str], expected: Option<&str>| {
            let mut block = Block::begin(lines[0]).expect("it begins");
            lines[1..].iter().for_each(|line| block.push(line));
            assert_eq!(block.text().as_deref(), expected, "{lines:?}");
        };
        check(&["\"\"\""], None);
        check(&["\"\"\"", "a", "  /b"], None);
        check(&["\"\"\"", "a", "  /b", "\"\"\""], Some("a\n  /b"));
        check(&["\"\"\"a", "", "b\"\"\" "], Some("a\n\nb"));
        check(&["\"\"\"one line\"\"\""], Some("one line"));
        assert_eq!(Block::begin("no quotes"), None);
    }

    #[test]
    fn lines_are_parsed() {
        let check = |line: &str, expected: Line| assert_eq!(Line::parse(line), expected, "{line}");
        check("  ", Line::Empty);
        check("hello /there ", Line::Say("hello /there".into()));
        check("//usr/bin", Line::Say("/usr/bin".into()));
        check("/bye", Line::Bye);
        check("/system Be brief. ", Line::System(Some("Be brief.".into())));
        check("/system", Line::System(None));
        check("/set  temperature  0.5", Line::Set("temperature".into(), "0.5".into()));
        check("/set temperature", Line::Unknown("/set temperature".into()));
        check("/sing", Line::Unknown("/sing".into()));
    }
}
