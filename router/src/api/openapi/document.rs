//! The document, of the operations that are served and of the server as it is now.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::components;
use super::operation::{Access, Answer, Body, EVENTS, JSON, Operation};
use super::schema::{self, Now, reference};
use super::shared::share;

/// Version of the form of the document.
const OPENAPI: &str = "3.1.0";
/// Queries and headers, by the names that operations use.
const PARAMETERS: &str = include_str!("components/parameters.json");

/// The document.
pub fn document(operations: &[Operation], now: &Now<'_>) -> Value {
    let config = &now.app.config;
    let mut schemas = components::all(config);
    let mut paths = Map::new();
    let mut bodies = Vec::new();
    let mut refusals = BTreeSet::new();
    for operation in operations {
        match operation.body {
            Some(Body::Fields(name, reader)) => {
                schemas.entry(name).or_insert_with(|| schema::of(name, reader, now));
                bodies.push(name);
            }
            Some(Body::Made(name, make)) => {
                schemas.entry(name).or_insert_with(make);
            }
            Some(Body::Shape(..)) | None => {}
        }
        let path = paths.entry(operation.path.clone()).or_insert_with(|| json!({}));
        path[operation.method] = described(operation, has_locks(now), &mut refusals);
    }
    if config.is_one_of_several {
        for name in &bodies {
            require_model(schemas.entry(*name).or_insert_with(|| json!({})));
        }
    }
    share(&mut schemas, &bodies);
    let mut parts: Vec<Value> = Vec::new();
    for part in operations.iter().filter_map(|operation| operation.part) {
        if !parts.iter().any(|known| known["name"] == part.name) {
            parts.push(json!({"name": part.name, "description": part.about}));
        }
    }
    let responses: Map<String, Value> = refusals.into_iter().map(refused).collect();
    let parameters: Value = serde_json::from_str(PARAMETERS).unwrap_or_default();
    let mut components = json!({
        "schemas": schemas, "responses": responses, "parameters": parameters, "headers": headers(),
    });
    if has_locks(now) {
        components["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        });
    }
    let root = if config.root_path.is_empty() { "/" } else { &config.root_path };
    json!({
        "openapi": OPENAPI,
        "info": {
            "title": "Skein",
            "description": "The APIs of this server and its model, with the limits that it has now.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root}],
        "tags": parts,
        "paths": paths,
        "components": components,
    })
}

/// No model is the default of several.
fn require_model(body: &mut Value) {
    if body["properties"].get("model").is_none() {
        return;
    }
    let given = body["required"].as_array().into_iter().flatten();
    let mut required: Vec<Value> = given.filter(|name| *name != "model").cloned().collect();
    required.push("model".into());
    body["required"] = required.into();
}

/// Whether anything needs a key.
fn has_locks(now: &Now<'_>) -> bool {
    now.app.config.has_keys() || now.app.config.admin_api_key.is_some()
}

/// A refusal, by its status and the component of its form.
type Refusal = (u16, &'static str);

fn described(operation: &Operation, has_locks: bool, refusals: &mut BTreeSet<Refusal>) -> Value {
    let mut object = json!({
        "operationId": operation.id,
        "summary": operation.about,
        "tags": operation.part.iter().map(|part| part.name).collect::<Vec<_>>(),
    });
    let of_path = names_in(&operation.path).map(|name| {
        json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}})
    });
    let named =
        operation.parameters.iter().map(|name| json!({"$ref": format!("#/components/parameters/{name}")}));
    let parameters: Vec<Value> = of_path.chain(named).collect();
    if !parameters.is_empty() {
        object["parameters"] = parameters.into();
    }
    if let Some(body) = &operation.body {
        let (media, name) = match *body {
            Body::Fields(name, _) | Body::Made(name, _) => (JSON, name),
            Body::Shape(media, name) => (media, name),
        };
        let mut content = json!({media: {"schema": reference(name)}});
        if let Some(example) = operation.example.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            content[media]["example"] = example;
        }
        object["requestBody"] = json!({"required": !operation.body_is_optional, "content": content});
    }
    object["responses"] = responses(operation, has_locks, refusals);
    if has_locks {
        object["security"] = match operation.access {
            Access::Open => json!([]),
            Access::Key | Access::Admin => json!([{"bearer": []}, {"apiKey": []}]),
        };
    }
    object
}

fn responses(operation: &Operation, has_locks: bool, refusals: &mut BTreeSet<Refusal>) -> Value {
    let mut responses = json!({});
    for Answer { status, media, shape, ends_in_done } in &operation.answers {
        let answer = &mut responses[status.to_string()];
        if answer.is_null() {
            *answer = json!({"description": meaning(*status), "headers": header_names(operation)});
        }
        if !media.is_empty() {
            let schema = shape.map_or_else(|| json!({"type": "string"}), reference);
            let schema = if *media == EVENTS { event(&schema, *ends_in_done) } else { schema };
            answer["content"][*media] = json!({"schema": schema});
        }
    }
    let locked: &[u16] = match (has_locks, operation.access) {
        // From a page of another origin.
        (false, Access::Admin) => &[403],
        (false, _) | (_, Access::Open) => &[],
        (true, Access::Key) => &[401],
        (true, Access::Admin) => &[401, 403],
    };
    let form = operation.part.map_or("OpenAiError", |part| part.errors);
    for status in operation.refusals.iter().chain(locked) {
        refusals.insert((*status, form));
        responses[status.to_string()] = json!({"$ref": format!("#/components/responses/{form}{status}")});
    }
    responses
}

/// An event of a stream, in the form of OpenAPI 3.2.
fn event(data: &Value, ends_in_done: bool) -> Value {
    let object = json!({"type": "string", "contentMediaType": JSON, "contentSchema": data});
    let data = if ends_in_done { json!({"anyOf": [{"const": "[DONE]"}, object]}) } else { object };
    json!({
        "description": if ends_in_done { "Each event. The data of the last one is `[DONE]`." } else { "Each event." },
        "type": "object",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": data},
    })
}

fn refused((status, form): Refusal) -> (String, Value) {
    let content = json!({JSON: {"schema": reference(form)}});
    let mut response = json!({"description": meaning(status), "content": content});
    let names: &[&str] = match status {
        429 | 503 => &["x-request-id", "x-should-retry", "retry-after", "retry-after-ms"],
        _ => &["x-request-id", "x-should-retry"],
    };
    response["headers"] = header_references(names);
    (format!("{form}{status}"), response)
}

/// Headers of an answer that is no refusal.
fn header_names(operation: &Operation) -> Value {
    let generates = operation.parameters.contains(&"RequestTimeout");
    header_references(if generates {
        &["x-request-id", "x-ignored-params", "x-skein-receipt"]
    } else {
        &["x-request-id"]
    })
}

fn header_references(names: &[&str]) -> Value {
    let reference =
        |name: &&str| ((*name).to_owned(), json!({"$ref": format!("#/components/headers/{name}")}));
    Value::Object(names.iter().map(reference).collect())
}

fn headers() -> Value {
    let of = |about: &str, kind: &str| json!({"description": about, "schema": {"type": kind}});
    json!({
        "x-request-id": of("The client's value, else the request's id.", "string"),
        "x-ignored-params": of("Fields of the body that had no effect.", "string"),
        "x-skein-receipt": of("Why the worker was chosen, as JSON, if the request asked.", "string"),
        "x-should-retry": of("Whether the same request may succeed later.", "string"),
        "retry-after": of("Seconds after which to retry.", "integer"),
        "retry-after-ms": of("Milliseconds after which to retry.", "integer"),
    })
}

/// Names in braces.
fn names_in(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
}

fn meaning(status: u16) -> &'static str {
    match status {
        200 => "The answer.",
        304 => "The client has it.",
        308 => "It is at another path.",
        400 => "A field is malformed or out of its range, or the request does not fit the model.",
        401 => "The key is missing, wrong or expired.",
        403 => "It needs an admin key; or, without keys, a page of another origin sent it.",
        404 => "There is no such thing here, or no model of this name.",
        409 => "Something under way excludes it, or the answer cannot be continued.",
        413 => "The body is too large.",
        415 => "The body is of another type, or compressed.",
        429 => "A limit of the key or of the cluster is reached.",
        500 => "A fault of the server.",
        503 => "No worker is ready, or the server is shutting down.",
        504 => "The deadline passed.",
        507 => "There is no room to store more.",
        _ => "See the manual.",
    }
}
