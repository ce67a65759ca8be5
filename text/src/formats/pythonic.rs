//! Calls as a Python list: `[f(a=1), g(b="x")]`, or as one call without brackets. Each call is emitted whole,
//! because a Python literal can be converted to JSON only when it is complete.

use super::out::{Consumed, Out};
use super::{MAX_NAME_BYTES, Plan, in_name, python_literal};

/// Parser of a list of calls.
#[derive(Debug, Default)]
pub struct Pythonic {
    opened: bool,
    /// One call, without brackets.
    is_alone: bool,
    name: String,
    /// Text inside the parentheses; `None` outside them.
    arguments: Option<String>,
    depth: usize,
    quote: Option<char>,
    escaped: bool,
    items: usize,
    after_comma: bool,
}

impl Pythonic {
    /// Parser of one call without brackets.
    pub fn alone() -> Self {
        Self { opened: true, is_alone: true, ..Self::default() }
    }

    /// Consumes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        if self.arguments.is_some() {
            return self.argument(c, out);
        }
        match c {
            '[' if !self.opened => self.opened = true,
            _ if !self.opened => return Consumed::Fail,
            c if c.is_whitespace() && self.name.is_empty() => {}
            '(' if plan.function(&self.name).is_some() => self.arguments = Some(String::new()),
            ',' if self.name.is_empty() && self.items > 0 && !self.after_comma => self.after_comma = true,
            ']' if self.name.is_empty() && self.items > 0 => return Consumed::Done,
            c if in_name(c) && self.name.len() < MAX_NAME_BYTES && (self.items == 0 || self.after_comma) => {
                self.name.push(c);
            }
            _ => return Consumed::Fail,
        }
        Consumed::More
    }

    fn argument(&mut self, c: char, out: &mut Out) -> Consumed {
        let Some(text) = &mut self.arguments else { return Consumed::Fail };
        match (self.quote, c) {
            (Some(_), _) if self.escaped => self.escaped = false,
            (Some(_), '\\') => self.escaped = true,
            (Some(quote), c) if quote == c => self.quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => self.quote = Some(c),
            (None, '(' | '[' | '{') => self.depth += 1,
            (None, ')') if self.depth == 0 => {
                let Some(arguments) = python_literal::keywords(text) else { return Consumed::Fail };
                out.call(&self.name);
                out.arguments(&arguments);
                out.call_end();
                self.name.clear();
                self.arguments = None;
                self.after_comma = false;
                self.items += 1;
                return if self.is_alone { Consumed::Done } else { Consumed::More };
            }
            (None, ')' | ']' | '}') => match self.depth.checked_sub(1) {
                Some(depth) => self.depth = depth,
                None => return Consumed::Fail,
            },
            (None, _) => {}
        }
        text.push(c);
        Consumed::More
    }
}
