//! Calls with the name in plain text and the arguments as a JSON object after a marker.

use super::out::{Consumed, Out};
use super::scan::Scan;
use super::skim::{Skim, Skimmed, is_space};
use super::{MAX_NAME_BYTES, in_name};

/// Mistral models may write a call id between the name and the arguments.
const OWN_ID: &str = "[CALL_ID]";

/// Parser of one call.
#[derive(Debug)]
pub struct NamedCall {
    before: &'static str,
    after: &'static str,
    head: String,
    scan: Scan,
    /// Position in the arguments; `None` before their marker.
    arguments: Option<Skim>,
    /// Empty before that marker.
    name: String,
    begun: bool,
}

impl NamedCall {
    /// Parser at the start of a call.
    pub fn new(before: &'static str, after: &'static str) -> Self {
        let (head, name) = (String::new(), String::new());
        Self { before, after, head, scan: Scan::default(), arguments: None, name, begun: false }
    }

    /// Consumes the next character.
    pub fn step(&mut self, c: char, out: &mut Out) -> Consumed {
        let Some(skim) = &mut self.arguments else { return self.head(c) };
        if !self.begun {
            match c {
                c if is_space(c) => return Consumed::More,
                '{' => {
                    self.begun = true;
                    out.call(&self.name);
                }
                _ => return Consumed::Fail,
            }
        }
        match skim.step(c) {
            Skimmed::Inside => {
                out.argument(c);
                Consumed::More
            }
            Skimmed::Last => {
                out.argument(c);
                out.call_end();
                Consumed::Done
            }
            Skimmed::After | Skimmed::Wrong => Consumed::Fail,
        }
    }

    fn head(&mut self, c: char) -> Consumed {
        let head = &mut self.head;
        let found = self.scan.step(c, &[self.after.trim_start()], |c| head.push(c));
        if found.is_none() {
            return if self.may_be_a_head() { Consumed::More } else { Consumed::Fail };
        }
        let name = self.head.trim();
        let name = name.strip_prefix(self.before).unwrap_or(name);
        let name = name.split_once(OWN_ID).map_or(name, |(name, _)| name);
        let name = name.split_once(':').map_or(name, |(name, _)| name).trim();
        if name.is_empty() || !name.chars().all(in_name) {
            return Consumed::Fail;
        }
        self.name = name.to_owned();
        self.arguments = Some(Skim::default());
        Consumed::More
    }

    /// Whether the text so far can still be the head of a call.
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
