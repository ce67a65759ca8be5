//! Calls with the name in plain text and the arguments as a JSON object after a marker.

use super::scan::Scan;
use super::skim::{Skim, Skimmed, is_space};
use super::splitter::{Out, Step};
use super::{MAX_NAME_BYTES, in_name};

/// Between the name and the arguments, Mistral's models may write an id of their own.
const OWN_ID: &str = "[CALL_ID]";

/// One such call.
#[derive(Debug)]
pub struct NamedCall {
    before: &'static str,
    after: &'static str,
    head: String,
    scan: Scan,
    /// The arguments; `None` before their marker.
    arguments: Option<Skim>,
    begun: bool,
}

impl NamedCall {
    /// At its beginning.
    pub fn new(before: &'static str, after: &'static str) -> Self {
        Self { before, after, head: String::new(), scan: Scan::default(), arguments: None, begun: false }
    }

    /// Takes the next character.
    pub fn step(&mut self, c: char, out: &mut Out) -> Step {
        let Some(skim) = &mut self.arguments else { return self.head(c, out) };
        if !self.begun {
            match c {
                c if is_space(c) => return Step::More,
                '{' => self.begun = true,
                _ => return Step::Fail,
            }
        }
        match skim.step(c) {
            Skimmed::Inside => {
                out.argument(c);
                Step::More
            }
            Skimmed::Last => {
                out.argument(c);
                out.call_end();
                Step::Done
            }
            Skimmed::After | Skimmed::Wrong => Step::Fail,
        }
    }

    fn head(&mut self, c: char, out: &mut Out) -> Step {
        let head = &mut self.head;
        let found = self.scan.step(c, &[self.after.trim_start()], |c| head.push(c));
        if found.is_none() {
            return if self.may_be_a_head() { Step::More } else { Step::Fail };
        }
        let name = self.head.trim();
        let name = name.strip_prefix(self.before).unwrap_or(name);
        let name = name.split_once(OWN_ID).map_or(name, |(name, _)| name);
        let name = name.split_once(':').map_or(name, |(name, _)| name).trim();
        if name.is_empty() || !name.chars().all(in_name) {
            return Step::Fail;
        }
        out.call(name);
        self.arguments = Some(Skim::default());
        Step::More
    }

    /// Whether the text before the arguments can still become a call's.
    fn may_be_a_head(&self) -> bool {
        let head = self.head.trim_start();
        if self.before.starts_with(head) {
            return true;
        }
        let rest = head.strip_prefix(self.before).unwrap_or(head);
        let fits = |c: char| in_name(c) || ":[]\n".contains(c);
        self.head.len() <= self.before.len() + 2 * MAX_NAME_BYTES && rest.chars().next_back().is_none_or(fits)
    }
}
