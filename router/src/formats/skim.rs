//! Finds the end of a JSON value in text that arrives in pieces. It follows strings and brackets; whether the
//! value is right in every detail is for its reader to find out.

/// Deepest nesting that is followed.
const MAX_DEPTH: usize = 128;

/// A JSON value on its way.
#[derive(Debug, Clone, Default)]
pub struct Skim {
    /// The closing brackets that are due.
    due: Vec<char>,
    in_string: bool,
    escaped: bool,
    scalar: bool,
}

/// What a character is to the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skimmed {
    /// Part of it.
    Inside,
    /// Its last one.
    Last,
    /// The first after it.
    After,
    /// It cannot be there.
    Wrong,
}

impl Skim {
    /// Takes the next character. White space before the value is not to be given.
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
