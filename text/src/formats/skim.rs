//! Finds the end of a JSON value in text that arrives in pieces. It tracks strings and brackets only and does
//! not validate the value.

/// Most levels of nested objects and arrays.
const MAX_DEPTH: usize = 128;

/// Position inside a JSON value.
#[derive(Debug, Clone, Default)]
pub struct Skim {
    /// Closing brackets still expected, innermost last.
    due: Vec<char>,
    in_string: bool,
    escaped: bool,
    scalar: bool,
}

/// Role of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skimmed {
    /// Part of the value.
    Inside,
    /// Last character of the value.
    Last,
    /// First character after the value.
    After,
    /// Not valid at this position.
    Wrong,
}

impl Skim {
    /// Consumes the next character. The caller skips white space before the value.
    pub fn step(&mut self, c: char) -> Skimmed {
        if self.in_string {
            return self.in_string(c);
        }
        if self.scalar && self.due.is_empty() && !is_scalar(c) {
            return Skimmed::After;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => {
                self.due.push(if c == '{' { '}' } else { ']' });
                if self.due.len() > MAX_DEPTH {
                    return Skimmed::Wrong;
                }
            }
            '}' | ']' => {
                if self.due.pop() != Some(c) {
                    return Skimmed::Wrong;
                }
                if self.due.is_empty() {
                    return Skimmed::Last;
                }
            }
            ',' | ':' | ' ' | '\t' | '\r' | '\n' if !self.due.is_empty() => {}
            c if is_scalar(c) => self.scalar = true,
            _ => return Skimmed::Wrong,
        }
        Skimmed::Inside
    }

    fn in_string(&mut self, c: char) -> Skimmed {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                if self.due.is_empty() {
                    return Skimmed::Last;
                }
            }
            _ => {}
        }
        Skimmed::Inside
    }
}

fn is_scalar(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+-.".contains(c)
}

/// Whether `c` is white space of JSON.
pub fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
