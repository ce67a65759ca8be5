//! Triton's `generate` and `generate_stream`: inputs and outputs as members of a JSON object.

use std::pin::Pin;

use futures::{Stream, StreamExt};
use serde_json::{Map, Value, json};
use skein_proto::inference::{ModelInferRequest, ModelInferResponse};

use super::super::answer::{Answer, FINAL};
use super::super::elements::elements;
use super::body::Parts;
use super::parameters::{add, wrong};
use super::values::of_parameter;
use crate::api::answer::call_stream::FIRST_OUTPUT_WAIT;
use crate::api::fields::field::Field;
use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::refusal::Refusal;

/// Member with more inputs and parameters.
const PARAMETERS: &str = "parameters";

/// Reads a request.
///
/// # Errors
/// If the JSON or a value is malformed.
pub fn parse(parts: Parts) -> Result<ModelInferRequest, Refusal> {
    if !parts.binary.is_empty() {
        let message = "generate takes JSON without binary tensors behind it; send these to infer.";
        return Err(Refusal::InvalidJson(message.to_owned()));
    }
    let mut fields = Fields::parse(&parts.json)?;
    let mut request = ModelInferRequest { id: fields.string("id").unwrap_or_default(), ..Default::default() };
    let nested = match fields.take(PARAMETERS, Kind::Object) {
        None => Map::new(),
        Some(Value::Object(nested)) => nested,
        Some(_) => return Err(wrong(PARAMETERS, "must be an object")),
    };
    for (name, value) in fields.into_untaken()? {
        add(&mut request, name.into(), value)?;
    }
    for (name, value) in nested {
        add(&mut request, name, Field::from(value))?;
    }
    Ok(request)
}

/// A response as an object: each output by its name, alone if it has one element.
///
/// # Errors
/// If the response's tensors are malformed: a fault of ours.
pub fn object(mut response: ModelInferResponse) -> Result<Value, Refusal> {
    let mut object = Map::new();
    if !response.id.is_empty() {
        object.insert("id".to_owned(), response.id.into());
    }
    object.insert("model_name".to_owned(), response.model_name.into());
    object.insert("model_version".to_owned(), response.model_version.into());
    response.parameters.remove(FINAL);
    object.extend(response.parameters.into_iter().map(|(name, value)| (name, of_parameter(value))));
    for (output, raw) in response.outputs.into_iter().zip(&response.raw_output_contents) {
        let read = elements(&output.datatype, &output.shape, None, Some(raw));
        let mut values = read.map_err(|_| Refusal::Internal)?.values().map_err(|_| Refusal::Internal)?;
        let value = match output.shape[..] {
            // Rows of a model that pools.
            [rows, width] if rows > 1 && width > 0 => {
                values.chunks(usize::try_from(width).unwrap_or(1)).map(Value::from).collect()
            }
            _ if values.len() == 1 => values.remove(0),
            _ => values.into(),
        };
        object.insert(output.name, value);
    }
    Ok(object.into())
}

type Events = Pin<Box<dyn Stream<Item = Result<Value, Refusal>> + Send>>;

/// The events of an answer: one for each delta, or one if the request is not streamed. Waits briefly for the
/// first, so that an early refusal is a status.
///
/// # Errors
/// If the request fails within that time.
pub async fn events(mut answer: Answer) -> Result<impl Stream<Item = Value> + Send, Refusal> {
    let mut events: Events = Box::pin(async_stream::try_stream! {
        if !answer.streams() {
            yield object(answer.whole().await?)?;
            return;
        }
        while let Some(response) = answer.next().await {
            if let Some(response) = response?.infer_response {
                yield object(response)?;
            }
        }
    });
    let first = tokio::time::timeout(FIRST_OUTPUT_WAIT, events.next()).await.ok().flatten().transpose()?;
    let failed = |refusal: Refusal| json!({"error": refusal.to_string()});
    Ok(futures::stream::iter(first).chain(events.map(move |event| event.unwrap_or_else(failed))))
}
