//! One operation of the API: a method of a path, with what goes in and what comes out.

use serde_json::Value;

use crate::api::fields::object::Fields;
use crate::app::App;

/// Reads a body; what it returns does not matter.
pub type Reader = fn(Fields, &App);

/// Media types of answers.
pub const JSON: &str = "application/json";
pub const EVENTS: &str = "text/event-stream";
pub const LINES: &str = "application/x-ndjson";
pub const TEXT: &str = "text/plain";

/// Headers of requests that generate: names of parameters of the document.
pub const GENERATION: [&str; 6] =
    ["IdempotencyKey", "LastEventId", "XRequestId", "RequestTimeout", "Receipt", "ShowMoves"];
/// The same where streams cannot be resumed.
pub const UNRESUMED: [&str; 3] = ["XRequestId", "RequestTimeout", "Receipt"];
/// Refusals of requests that generate.
pub const REFUSALS: [u16; 9] = [400, 404, 409, 413, 415, 429, 500, 503, 504];

/// A part of the API: its operations are listed together, and share a form of errors.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// One sentence about it.
    pub about: &'static str,
    /// Component for its errors.
    pub errors: &'static str,
}

/// Who may call an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everyone.
    Open,
    /// Who has a key, if the server has keys.
    Key,
    /// Who has an admin key, if the server has keys.
    Admin,
}

/// What a request's body is.
#[derive(Clone)]
pub enum Body {
    /// A JSON object, by the reader of its fields; the name is that of its component.
    Fields(&'static str, Reader),
    /// A component, in this media type.
    Shape(&'static str, &'static str),
    /// A JSON object whose component of this name the function makes.
    Made(&'static str, fn() -> Value),
}

/// An answer that is no refusal.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its media type; empty = it has no body.
    pub media: &'static str,
    /// Component of the body, or of each event or line; `None` = text.
    pub shape: Option<&'static str>,
    /// Whether the data of the last event is `[DONE]`, which is no JSON.
    pub ends_in_done: bool,
}

/// A method of a path.
#[derive(Clone)]
pub struct Operation {
    /// In lower case.
    pub method: &'static str,
    /// In the document's form, from the root.
    pub path: String,
    /// Its name, unique in the document.
    pub id: String,
    /// What it does.
    pub about: &'static str,
    /// Who may call it.
    pub access: Access,
    /// The part of the API that it belongs to.
    pub part: Option<&'static Part>,
    /// Its query and headers: names of parameters of the document.
    pub parameters: Vec<&'static str>,
    /// Its body.
    pub body: Option<Body>,
    /// Whether the body may be left out.
    pub body_is_optional: bool,
    /// A body that is answered, as JSON.
    pub example: Option<&'static str>,
    /// What it answers.
    pub answers: Vec<Answer>,
    /// Statuses of its refusals.
    pub refusals: Vec<u16>,
}

/// A GET operation.
pub fn get(id: &'static str, about: &'static str) -> Operation {
    of("get", id, about)
}

/// A POST operation.
pub fn post(id: &'static str, about: &'static str) -> Operation {
    of("post", id, about)
}

/// A DELETE operation.
pub fn delete(id: &'static str, about: &'static str) -> Operation {
    of("delete", id, about)
}

fn of(method: &'static str, id: &'static str, about: &'static str) -> Operation {
    Operation {
        method,
        path: String::new(),
        id: id.to_owned(),
        about,
        access: Access::Key,
        part: None,
        parameters: Vec::new(),
        body: None,
        body_is_optional: false,
        example: None,
        answers: Vec::new(),
        refusals: Vec::new(),
    }
}

impl Operation {
    /// The path in the document's form, where it is not the router's.
    pub fn at(mut self, path: &'static str) -> Self {
        self.path = path.to_owned();
        self
    }

    /// The same operation at another path, whose id ends in `more`.
    pub fn also_at(&self, path: String, more: &str) -> Self {
        Self { path, id: format!("{}{more}", self.id), ..self.clone() }
    }

    /// Its query and headers.
    pub fn with(mut self, parameters: &[&'static str]) -> Self {
        self.parameters.extend(parameters);
        self
    }

    /// It takes a JSON object of the fields that `reader` takes.
    pub fn reads(mut self, name: &'static str, reader: Reader) -> Self {
        self.body = Some(Body::Fields(name, reader));
        self
    }

    /// It takes a component in a media type.
    pub fn takes(mut self, media: &'static str, shape: &'static str) -> Self {
        self.body = Some(Body::Shape(media, shape));
        self
    }

    /// It takes a JSON object that `make` describes.
    pub fn takes_made(mut self, name: &'static str, make: fn() -> Value) -> Self {
        self.body = Some(Body::Made(name, make));
        self
    }

    /// A body that is answered, as JSON.
    pub fn like(mut self, example: &'static str) -> Self {
        self.example = Some(example);
        self
    }

    /// Its body may be left out.
    pub fn or_nothing(mut self) -> Self {
        self.body_is_optional = true;
        self
    }

    /// It answers with a component as JSON.
    pub fn gives(self, shape: &'static str) -> Self {
        self.answers(200, JSON, Some(shape))
    }

    /// It answers with events or lines of a component.
    pub fn streams(self, media: &'static str, shape: &'static str) -> Self {
        self.answers(200, media, Some(shape))
    }

    /// It answers with events of a component, and then with `[DONE]`.
    pub fn streams_until_done(mut self, shape: &'static str) -> Self {
        self.answers.push(Answer { status: 200, media: EVENTS, shape: Some(shape), ends_in_done: true });
        self
    }

    /// It answers with something else.
    pub fn answers(mut self, status: u16, media: &'static str, shape: Option<&'static str>) -> Self {
        self.answers.push(Answer { status, media, shape, ends_in_done: false });
        self
    }

    /// Statuses of its refusals, beside those for lack of a key.
    pub fn refuses(mut self, statuses: &[u16]) -> Self {
        self.refusals.extend(statuses);
        self
    }
}
