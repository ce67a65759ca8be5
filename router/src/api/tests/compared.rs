//! Compares what these tests send and get with the API's description: every answer, each event of a stream,
//! and every request that is answered.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use hyper::body::Body as _;
use jsonschema::Validator;

use super::*;
use crate::api::openapi;
use crate::api::openapi::document::document;
use crate::api::openapi::schema::Now;
use crate::request::tenant::Tenant;

/// A description, and the validators of the parts that have been compared.
pub struct Described {
    /// The document.
    pub document: Value,
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

/// Descriptions by the settings and the model that they depend on.
static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Described>>>> = LazyLock::new(Mutex::default);

impl Described {
    pub fn of(app: &App) -> Arc<Self> {
        let model = app.fleet.model_limits().ok();
        let names: Vec<String> =
            app.names(&Tenant::default()).into_iter().map(|(name, _)| name.to_string()).collect();
        let key = format!("{:?} {model:?} {names:?} {}", app.config, app.swaps.is_some());
        let mut known = KNOWN.lock().unwrap();
        let described = known.entry(key).or_insert_with(|| {
            let (rooms, open_rooms) = (crate::api::rooms(app), crate::api::open_rooms(app));
            let about = openapi::room();
            let rooms = rooms.iter().chain(&open_rooms).map(|(room, _)| room).chain([&about]);
            let document = document(&crate::api::operations(rooms), &Now { app, model, names });
            Arc::new(Self { document, validators: Mutex::default() })
        });
        described.clone()
    }

    /// Compares `value` with the schema at `pointer`.
    fn check(&self, pointer: &str, value: &Value, what: &str) {
        let validator = self.validators.lock().unwrap().get(pointer).cloned();
        let validator = validator.unwrap_or_else(|| {
            let components = self.document["components"].clone();
            let schema = self.document.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}")).clone();
            let schema = json!({"components": components, "allOf": [schema]});
            let made = Arc::new(
                jsonschema::draft202012::new(&schema).unwrap_or_else(|error| panic!("{pointer}: {error}")),
            );
            self.validators.lock().unwrap().insert(pointer.to_owned(), made.clone());
            made
        });
        let faults: Vec<String> = validator
            .iter_errors(value)
            .map(|fault| format!("{} at {}", fault, fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{what}: {pointer}: {faults:#?}\n{value}");
    }

    /// What a reference leads to, else the schema itself.
    pub fn whole<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = schema["$ref"].as_str().and_then(|to| self.document.pointer(to.trim_start_matches('#')));
        target.unwrap_or(schema)
    }

    /// The described path that `path` is, the most literal first.
    fn path(&self, path: &str) -> Option<String> {
        let paths = self.document["paths"].as_object().unwrap().keys();
        let literal = |path: &&String| path.split(['{', '}']).step_by(2).map(str::len).sum::<usize>();
        paths.filter(|template| fits(template, path)).max_by_key(literal).cloned()
    }
}

/// Whether `path` is one of `template`, whose names in braces may have slashes.
fn fits(template: &str, path: &str) -> bool {
    let Some((before, rest)) = template.split_once('{') else { return template == path };
    let (_, after) = rest.split_once('}').unwrap();
    let Some(path) = path.strip_prefix(before) else { return false };
    (1..=path.len()).filter(|at| path.is_char_boundary(*at)).any(|at| fits(after, &path[at..]))
}

fn pointer(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
}

/// What of a request is compared.
pub struct Asked {
    method: String,
    path: String,
    body: Option<Value>,
}

impl Asked {
    /// Reads a request whose body is whole.
    pub async fn of(request: Request<Body>) -> (Request<Body>, Self) {
        let (method, path) =
            (request.method().as_str().to_ascii_lowercase(), request.uri().path().to_owned());
        if request.body().size_hint().exact().is_none() {
            return (request, Self { method, path, body: None });
        }
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).ok();
        (Request::from_parts(parts, Body::from(bytes)), Self { method, path, body })
    }

    /// Does not compare the request: readers let through more within messages and tools than the shapes say.
    pub fn odd(self) -> Self {
        Self { body: None, ..self }
    }

    /// Compares request and answer with the description.
    pub fn check(&self, app: &App, status: u16, headers: &HeaderMap, body: &str) {
        let media = headers.get("content-type").map_or("", |value| value.to_str().unwrap());
        let media = media.split(';').next().unwrap_or_default();
        if ["head", "options"].contains(&&*self.method) || media.contains("grpc") {
            return;
        }
        let described = Described::of(app);
        let path = self.path.strip_prefix(&*app.config.root_path).unwrap_or(&self.path);
        let what = format!("{} {path} {status}", self.method);
        let found =
            described.path(path).filter(|path| described.document["paths"][path].get(&self.method).is_some());
        let Some(found) = found else {
            // `/v1/models/` is the same as `/v1/models`, and gRPC's paths are not of this document.
            let is_known = path == "/v1/models/" || path.starts_with("/grpc.") || path.starts_with("/skein.");
            assert!(is_known || [401, 404, 405].contains(&status), "{what} is not described");
            return;
        };
        let operation = pointer(&["paths", &found, &self.method]);
        let of_body = format!("{operation}/requestBody/content/application~1json/schema");
        let is_json = described.document.pointer(&of_body).is_some();
        if let Some(asked) = self.body.as_ref().filter(|_| is_json && status == 200) {
            described.check(&of_body, asked, &what);
        }
        described.check_answer(&format!("{operation}/responses/{status}"), media, body, &what);
    }
}

impl Described {
    /// Compares an answer with the response at `pointer`.
    fn check_answer(&self, at: &str, media: &str, body: &str, what: &str) {
        let response = self.document.pointer(at).unwrap_or_else(|| panic!("{what} is not described: {body}"));
        let at = response["$ref"].as_str().map_or(at, |reference| reference.trim_start_matches('#'));
        let content = &self.document.pointer(at).unwrap()["content"];
        if content.is_null() {
            assert_eq!(body, "", "{what} has no body");
            return;
        }
        assert!(content.get(media).is_some(), "{what} is of `{media}`: {body}");
        let schema = at.to_owned() + &pointer(&["content", media, "schema"]);
        let check = |text: &str| {
            let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"));
            self.check(&schema, &value, what);
        };
        match media {
            "application/json" => check(body),
            "application/x-ndjson" => body.lines().for_each(check),
            "text/event-stream" => {
                let data = schema.clone() + "/properties/data";
                let ends_in_done = self.document.pointer(&data).unwrap()["anyOf"][0]["const"] == "[DONE]";
                let schema = data + if ends_in_done { "/anyOf/1/contentSchema" } else { "/contentSchema" };
                let check = |text: &str| {
                    let value =
                        serde_json::from_str(text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"));
                    self.check(&schema, &value, what);
                };
                let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
                data.filter(|data| !ends_in_done || *data != "[DONE]").for_each(check);
            }
            _ => {}
        }
    }
}
