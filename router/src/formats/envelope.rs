//! Calls as JSON objects with a name and arguments, alone or in a list. Keys may come in any order; unknown
//! keys are skipped.

use super::skim::{Skim, Skimmed, is_space};
use super::splitter::{Consumed, Out};
use super::{MAX_NAME_BYTES, Plan, in_name};

/// Longest key of a call object, in bytes.
const MAX_KEY_BYTES: usize = 64;

/// Parser of one call object.
#[derive(Debug)]
pub struct Envelope {
    at: At,
    /// Fail unless the name is a known function's: without a marker, only the name makes the object a call.
    only_known: bool,
    named: bool,
    /// Arguments that precede the name or are quoted as a string, with the closing bracket.
    early: String,
    has_arguments: bool,
}

#[derive(Debug)]
enum At {
    Begin,
    /// Before a key. `first`: the object may still be empty.
    Key {
        first: bool,
    },
    InKey(String),
    Colon(Field),
    Value(Field),
    Name(String),
    Arguments(Skim),
    /// Arguments given as JSON inside a string.
    Quoted(Skim, String),
    Other(Skim),
    /// After a value: expects `,` or `}`.
    Next,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Field {
    Name,
    Arguments,
    /// Llama models write `"type": "function"`.
    Kind,
    Other,
}

impl Envelope {
    /// Parser that expects `{`.
    pub fn new(only_known: bool) -> Self {
        Self { at: At::Begin, only_known, named: false, early: String::new(), has_arguments: false }
    }

    /// Consumes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        match &mut self.at {
            At::Begin => match c {
                '{' => self.go(At::Key { first: true }),
                c if is_space(c) => Consumed::More,
                _ => Consumed::Fail,
            },
            At::Key { first } => match c {
                '"' => self.go(At::InKey(String::new())),
                '}' if *first => Consumed::Fail,
                c if is_space(c) => Consumed::More,
                _ => Consumed::Fail,
            },
            At::InKey(key) => match c {
                '"' => {
                    let field = field(key);
                    self.go(At::Colon(field))
                }
                '\\' => Consumed::Fail,
                c if key.len() >= MAX_KEY_BYTES || c.is_control() => Consumed::Fail,
                c => {
                    key.push(c);
                    Consumed::More
                }
            },
            At::Colon(field) => match c {
                ':' => {
                    let field = *field;
                    self.go(At::Value(field))
                }
                c if is_space(c) => Consumed::More,
                _ => Consumed::Fail,
            },
            At::Value(_) if is_space(c) => Consumed::More,
            At::Value(field) => {
                let field = *field;
                self.value(field, c, out)
            }
            At::Name(name) => match c {
                '"' => {
                    let name = std::mem::take(name);
                    self.name(&name, plan, out)
                }
                _ if name.len() >= MAX_NAME_BYTES || !in_name(c) => Consumed::Fail,
                c => {
                    name.push(c);
                    Consumed::More
                }
            },
            At::Arguments(skim) => {
                let skimmed = skim.step(c);
                match skimmed {
                    Skimmed::Wrong | Skimmed::After => return Consumed::Fail,
                    Skimmed::Inside | Skimmed::Last if self.named => out.argument(c),
                    Skimmed::Inside | Skimmed::Last => self.early.push(c),
                }
                self.go_if(skimmed == Skimmed::Last, At::Next)
            }
            At::Quoted(skim, text) => {
                let skimmed = skim.step(c);
                text.push(c);
                if skimmed != Skimmed::Last {
                    return if skimmed == Skimmed::Inside { Consumed::More } else { Consumed::Fail };
                }
                let Ok(text) = serde_json::from_str::<String>(text) else { return Consumed::Fail };
                if self.named {
                    out.arguments(&text)
                } else {
                    self.early = text
                }
                self.go(At::Next)
            }
            At::Other(skim) => match skim.step(c) {
                Skimmed::Wrong => Consumed::Fail,
                Skimmed::Inside => Consumed::More,
                Skimmed::Last => self.go(At::Next),
                Skimmed::After => {
                    self.at = At::Next;
                    self.step(c, plan, out)
                }
            },
            At::Next => match c {
                ',' => self.go(At::Key { first: false }),
                '}' => self.end(out),
                c if is_space(c) => Consumed::More,
                _ => Consumed::Fail,
            },
        }
    }

    fn go(&mut self, at: At) -> Consumed {
        self.at = at;
        Consumed::More
    }

    fn go_if(&mut self, condition: bool, at: At) -> Consumed {
        if condition { self.go(at) } else { Consumed::More }
    }

    fn value(&mut self, field: Field, c: char, out: &mut Out) -> Consumed {
        match field {
            Field::Name if c == '"' && !self.named => return self.go(At::Name(String::new())),
            Field::Name => return Consumed::Fail,
            Field::Arguments if self.has_arguments => return Consumed::Fail,
            Field::Arguments if c != '{' && c != '"' => return Consumed::Fail,
            // Without a marker, an unknown key means that the object is not a call.
            Field::Other if self.only_known => return Consumed::Fail,
            Field::Arguments | Field::Kind | Field::Other => {}
        }
        let mut skim = Skim::default();
        let skimmed = skim.step(c);
        if skimmed == Skimmed::Wrong {
            return Consumed::Fail;
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

    fn name(&mut self, name: &str, plan: &Plan, out: &mut Out) -> Consumed {
        if name.is_empty() || (self.only_known && plan.function(name).is_none()) {
            return Consumed::Fail;
        }
        self.named = true;
        out.call(name);
        out.arguments(&std::mem::take(&mut self.early));
        self.go(At::Next)
    }

    fn end(&mut self, out: &mut Out) -> Consumed {
        if !self.named {
            return Consumed::Fail;
        }
        if !self.has_arguments {
            out.arguments("{}");
        }
        out.call_end();
        Consumed::Done
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

/// Parser of a JSON list that holds all calls.
#[derive(Debug, Default)]
pub struct List {
    item: Option<Envelope>,
    opened: bool,
    /// After a comma, so the next value must be an object.
    after_comma: bool,
    items: usize,
}

impl List {
    /// Consumes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        if let Some(item) = &mut self.item {
            let step = item.step(c, plan, out);
            if step == Consumed::Done {
                self.item = None;
                self.items += 1;
            }
            return if step == Consumed::Done { Consumed::More } else { step };
        }
        match c {
            c if is_space(c) => Consumed::More,
            '[' if !self.opened => {
                self.opened = true;
                Consumed::More
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
                Consumed::More
            }
            ']' if self.opened && !self.after_comma => Consumed::Done,
            _ => Consumed::Fail,
        }
    }
}
