//! Calls as JSON objects with a name and arguments, alone or in a list. Keys may come in any order; unknown
//! keys are skipped.

use super::out::{Consumed, Out};
use super::skim::{Skim, Skimmed, is_space};
use super::{MAX_NAME_BYTES, Plan, in_name};

/// Longest key of a call object, in bytes.
const MAX_KEY_BYTES: usize = 64;

/// Parser of one call object.
#[derive(Debug)]
pub struct Envelope {
    at: At,
    /// Fail unless the name is a known function's: without a marker, only the name makes the object a call.
    only_known: bool,
    name: Option<String>,
    /// The call has been emitted: its name is known and its arguments are an object.
    announced: bool,
    /// Arguments that precede the name or are quoted as a string, with the closing bracket.
    early: String,
    has_arguments: bool,
}

#[derive(Debug)]
enum At {
    Begin,
    /// Before a key.
    Key,
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
        Self {
            at: At::Begin,
            only_known,
            name: None,
            announced: false,
            early: String::new(),
            has_arguments: false,
        }
    }

    /// Takes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        match &self.at {
            At::Begin | At::Key | At::Colon(_) | At::Value(_) | At::Next if is_space(c) => Consumed::More,
            At::Begin if c == '{' => self.go(At::Key),
            At::Key if c == '"' => self.go(At::InKey(String::new())),
            At::Colon(field) if c == ':' => self.go(At::Value(*field)),
            At::Next if c == ',' => self.go(At::Key),
            At::Next if c == '}' => self.end(out),
            At::Begin | At::Key | At::Colon(_) | At::Next => Consumed::Fail,
            At::Value(field) => self.value(*field, c, out),
            At::InKey(_) => self.in_key(c),
            At::Name(_) => self.in_name(c, plan, out),
            At::Arguments(_) => self.in_arguments(c, out),
            At::Quoted(..) => self.in_quoted(c, out),
            At::Other(_) => self.in_other(c, plan, out),
        }
    }

    fn in_key(&mut self, c: char) -> Consumed {
        let At::InKey(key) = &mut self.at else { return Consumed::Fail };
        match c {
            '"' => {
                let field = field(key);
                self.go(At::Colon(field))
            }
            c if c == '\\' || key.len() >= MAX_KEY_BYTES || c.is_control() => Consumed::Fail,
            c => {
                key.push(c);
                Consumed::More
            }
        }
    }

    fn in_name(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        let At::Name(name) = &mut self.at else { return Consumed::Fail };
        match c {
            '"' => {
                let name = std::mem::take(name);
                self.name(&name, plan, out)
            }
            _ if name.len() >= MAX_NAME_BYTES || !in_name(c) => Consumed::Fail,
            c => {
                name.push(c);
                Consumed::More
            }
        }
    }

    fn in_arguments(&mut self, c: char, out: &mut Out) -> Consumed {
        let At::Arguments(skim) = &mut self.at else { return Consumed::Fail };
        let skimmed = skim.step(c);
        match skimmed {
            Skimmed::Wrong | Skimmed::After => return Consumed::Fail,
            Skimmed::Inside | Skimmed::Last if self.announced => out.argument(c),
            Skimmed::Inside | Skimmed::Last => self.early.push(c),
        }
        if skimmed == Skimmed::Last && !self.announced && !is_object(&self.early) {
            return Consumed::Fail;
        }
        if skimmed == Skimmed::Last { self.go(At::Next) } else { Consumed::More }
    }

    /// Arguments in a string: their JSON is known at its end.
    fn in_quoted(&mut self, c: char, out: &mut Out) -> Consumed {
        let At::Quoted(skim, text) = &mut self.at else { return Consumed::Fail };
        let skimmed = skim.step(c);
        text.push(c);
        if skimmed != Skimmed::Last {
            return if skimmed == Skimmed::Inside { Consumed::More } else { Consumed::Fail };
        }
        let Ok(text) = serde_json::from_str::<String>(text) else { return Consumed::Fail };
        // An empty string stands for no arguments.
        self.early = if text.trim().is_empty() { "{}".to_owned() } else { text };
        if !is_object(&self.early) {
            return Consumed::Fail;
        }
        self.announce(out);
        self.go(At::Next)
    }

    fn in_other(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        let At::Other(skim) = &mut self.at else { return Consumed::Fail };
        match skim.step(c) {
            Skimmed::Wrong => Consumed::Fail,
            Skimmed::Inside => Consumed::More,
            Skimmed::Last => self.go(At::Next),
            // A number ends with the character after it.
            Skimmed::After => {
                self.at = At::Next;
                self.step(c, plan, out)
            }
        }
    }

    fn go(&mut self, at: At) -> Consumed {
        self.at = at;
        Consumed::More
    }

    fn value(&mut self, field: Field, c: char, out: &mut Out) -> Consumed {
        match field {
            Field::Name if c == '"' && self.name.is_none() => return self.go(At::Name(String::new())),
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
                self.early.push(c);
                self.announce(out);
                self.go(At::Arguments(skim))
            }
            _ => self.go(At::Other(skim)),
        }
    }

    fn name(&mut self, name: &str, plan: &Plan, out: &mut Out) -> Consumed {
        if name.is_empty() || (self.only_known && plan.function(name).is_none()) {
            return Consumed::Fail;
        }
        self.name = Some(name.to_owned());
        if self.has_arguments {
            self.announce(out);
        }
        self.go(At::Next)
    }

    /// Emits the call with the arguments so far, if its name is known.
    fn announce(&mut self, out: &mut Out) {
        let Some(name) = &self.name else { return };
        self.announced = true;
        out.call(name);
        out.arguments(&std::mem::take(&mut self.early));
    }

    fn end(&mut self, out: &mut Out) -> Consumed {
        if self.name.is_none() {
            return Consumed::Fail;
        }
        if !self.has_arguments {
            self.early.push_str("{}");
            self.announce(out);
        }
        out.call_end();
        Consumed::Done
    }
}

/// Whether `text` is a JSON object.
fn is_object(text: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).is_ok()
}

fn field(key: &str) -> Field {
    match key {
        "name" | "tool_name" => Field::Name,
        "arguments" | "parameters" => Field::Arguments,
        "type" | "id" | "tool_call_id" => Field::Kind,
        _ => Field::Other,
    }
}

/// Parser of a JSON list that holds all calls.
#[derive(Debug, Default)]
pub struct List {
    /// As for [`Envelope`].
    only_known: bool,
    item: Option<Envelope>,
    opened: bool,
    /// After a comma, so the next value must be an object.
    after_comma: bool,
    items: usize,
}

impl List {
    /// Parser that expects `[`.
    pub fn new(only_known: bool) -> Self {
        Self { only_known, ..Self::default() }
    }

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
                let mut item = Envelope::new(self.only_known);
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
