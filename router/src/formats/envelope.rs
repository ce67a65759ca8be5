//! Calls as JSON objects with a name and arguments, alone or in a list. The keys may come in any order, and
//! others beside them are skipped.

use super::skim::{Skim, Skimmed, is_space};
use super::splitter::{Out, Step};
use super::{MAX_NAME_BYTES, Plan, in_name};

/// Longest key of a call's object, bytes.
const MAX_KEY_BYTES: usize = 64;

/// One call as an object.
#[derive(Debug)]
pub struct Envelope {
    at: At,
    /// Fail unless the name is a known function's: the object has no marker that makes it a call.
    only_known: bool,
    named: bool,
    /// Arguments that came before the name, or as a string; with their closing.
    early: String,
    has_arguments: bool,
}

#[derive(Debug)]
enum At {
    Begin,
    /// Before a key; the first one may be missing.
    Key {
        first: bool,
    },
    InKey(String),
    Colon(Field),
    Value(Field),
    Name(String),
    Arguments(Skim),
    /// Arguments as a JSON text in a string.
    Quoted(Skim, String),
    Other(Skim),
    /// After a value.
    Next,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Field {
    Name,
    Arguments,
    /// Llama's models write `"type": "function"`.
    Kind,
    Other,
}

impl Envelope {
    /// At its beginning.
    pub fn new(only_known: bool) -> Self {
        Self { at: At::Begin, only_known, named: false, early: String::new(), has_arguments: false }
    }

    /// Takes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Step {
        match &mut self.at {
            At::Begin => match c {
                '{' => self.go(At::Key { first: true }),
                c if is_space(c) => Step::More,
                _ => Step::Fail,
            },
            At::Key { first } => match c {
                '"' => self.go(At::InKey(String::new())),
                '}' if *first => Step::Fail,
                c if is_space(c) => Step::More,
                _ => Step::Fail,
            },
            At::InKey(key) => match c {
                '"' => {
                    let field = field(key);
                    self.go(At::Colon(field))
                }
                '\\' => Step::Fail,
                c if key.len() >= MAX_KEY_BYTES || c.is_control() => Step::Fail,
                c => {
                    key.push(c);
                    Step::More
                }
            },
            At::Colon(field) => match c {
                ':' => {
                    let field = *field;
                    self.go(At::Value(field))
                }
                c if is_space(c) => Step::More,
                _ => Step::Fail,
            },
            At::Value(_) if is_space(c) => Step::More,
            At::Value(field) => {
                let field = *field;
                self.value(field, c, out)
            }
            At::Name(name) => match c {
                '"' => {
                    let name = std::mem::take(name);
                    self.name(&name, plan, out)
                }
                _ if name.len() >= MAX_NAME_BYTES || !in_name(c) => Step::Fail,
                c => {
                    name.push(c);
                    Step::More
                }
            },
            At::Arguments(skim) => {
                let skimmed = skim.step(c);
                match skimmed {
                    Skimmed::Wrong | Skimmed::After => return Step::Fail,
                    Skimmed::Inside | Skimmed::Last if self.named => out.argument(c),
                    Skimmed::Inside | Skimmed::Last => self.early.push(c),
                }
                self.go_if(skimmed == Skimmed::Last, At::Next)
            }
            At::Quoted(skim, text) => {
                let skimmed = skim.step(c);
                text.push(c);
                if skimmed != Skimmed::Last {
                    return if skimmed == Skimmed::Inside { Step::More } else { Step::Fail };
                }
                let Ok(text) = serde_json::from_str::<String>(text) else { return Step::Fail };
                if self.named {
                    out.arguments(&text)
                } else {
                    self.early = text
                }
                self.go(At::Next)
            }
            At::Other(skim) => match skim.step(c) {
                Skimmed::Wrong => Step::Fail,
                Skimmed::Inside => Step::More,
                Skimmed::Last => self.go(At::Next),
                Skimmed::After => {
                    self.at = At::Next;
                    self.step(c, plan, out)
                }
            },
            At::Next => match c {
                ',' => self.go(At::Key { first: false }),
                '}' => self.end(out),
                c if is_space(c) => Step::More,
                _ => Step::Fail,
            },
        }
    }

    fn go(&mut self, at: At) -> Step {
        self.at = at;
        Step::More
    }

    fn go_if(&mut self, condition: bool, at: At) -> Step {
        if condition { self.go(at) } else { Step::More }
    }

    fn value(&mut self, field: Field, c: char, out: &mut Out) -> Step {
        match field {
            Field::Name if c == '"' && !self.named => return self.go(At::Name(String::new())),
            Field::Name => return Step::Fail,
            Field::Arguments if self.has_arguments => return Step::Fail,
            Field::Arguments if c != '{' && c != '"' => return Step::Fail,
            // Without a marker, other keys say that this is no call.
            Field::Other if self.only_known => return Step::Fail,
            Field::Arguments | Field::Kind | Field::Other => {}
        }
        let mut skim = Skim::default();
        let skimmed = skim.step(c);
        if skimmed == Skimmed::Wrong {
            return Step::Fail;
        }
        self.has_arguments |= field == Field::Arguments;
        match (field, c) {
            (Field::Arguments, '"') => self.go(At::Quoted(skim, String::from(c))),
            (Field::Arguments, _) => {
                if self.named {
                    out.argument(c)
                } else {
                    self.early.push(c)
                }
                self.go(At::Arguments(skim))
            }
            _ => self.go(At::Other(skim)),
        }
    }

    fn name(&mut self, name: &str, plan: &Plan, out: &mut Out) -> Step {
        if name.is_empty() || (self.only_known && plan.function(name).is_none()) {
            return Step::Fail;
        }
        self.named = true;
        out.call(name);
        out.arguments(&std::mem::take(&mut self.early));
        self.go(At::Next)
    }

    fn end(&mut self, out: &mut Out) -> Step {
        if !self.named {
            return Step::Fail;
        }
        if !self.has_arguments {
            out.arguments("{}");
        }
        out.call_end();
        Step::Done
    }
}

fn field(key: &str) -> Field {
    match key {
        "name" => Field::Name,
        "arguments" | "parameters" => Field::Arguments,
        "type" | "id" => Field::Kind,
        _ => Field::Other,
    }
}

/// All calls in one list.
#[derive(Debug, Default)]
pub struct List {
    item: Option<Envelope>,
    opened: bool,
    /// The next thing must be an object.
    after_comma: bool,
    items: usize,
}

impl List {
    /// Takes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Step {
        if let Some(item) = &mut self.item {
            let step = item.step(c, plan, out);
            if step == Step::Done {
                self.item = None;
                self.items += 1;
            }
            return if step == Step::Done { Step::More } else { step };
        }
        match c {
            c if is_space(c) => Step::More,
            '[' if !self.opened => {
                self.opened = true;
                Step::More
            }
            '{' if self.opened && (self.items == 0 || self.after_comma) => {
                self.after_comma = false;
                let mut item = Envelope::new(false);
                let step = item.step(c, plan, out);
                self.item = Some(item);
                step
            }
            ',' if self.items > 0 && !self.after_comma => {
                self.after_comma = true;
                Step::More
            }
            ']' if self.opened && !self.after_comma => Step::Done,
            _ => Step::Fail,
        }
    }
}
