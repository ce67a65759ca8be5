//! Input tensors of a request, and output tensors of a response.

use std::collections::HashSet;

use bytes::Bytes;
use skein_proto::inference::model_infer_request::InferInputTensor;
use skein_proto::inference::model_infer_response::InferOutputTensor;
use skein_proto::inference::{ModelInferRequest, ModelInferResponse};

use super::elements::{Elements, elements, raw_texts, shown};
use crate::refusal::Refusal;

/// Most input tensors of a request.
const MAX_INPUTS: usize = 128;

/// An input tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Name in the request.
    pub name: String,
    /// Whether the shape has a batch dimension before that of the elements.
    pub batched: bool,
    /// Elements in row-major order.
    pub elements: Elements,
}

/// Takes the input tensors out of `request`.
///
/// # Errors
/// If a tensor's elements do not fit its datatype and shape, or a name comes twice.
pub fn take(request: &mut ModelInferRequest) -> Result<Vec<Tensor>, Refusal> {
    let inputs = std::mem::take(&mut request.inputs);
    let raw = std::mem::take(&mut request.raw_input_contents);
    if inputs.len() > MAX_INPUTS {
        return Err(invalid(format!("A request takes at most {MAX_INPUTS} inputs, got {}.", inputs.len())));
    }
    if !raw.is_empty() && raw.len() != inputs.len() {
        let message = "raw_input_contents must have one entry for each input";
        return Err(invalid(format!("{message}: got {} for {} inputs.", raw.len(), inputs.len())));
    }
    let mut names = HashSet::new();
    if let Some(twice) = inputs.iter().find(|input| !names.insert(&input.name)) {
        return Err(invalid(format!("The input `{}` is given twice.", shown(&twice.name))));
    }
    let mut raw = raw.into_iter();
    inputs.into_iter().map(|input| tensor(input, raw.next())).collect()
}

fn tensor(input: InferInputTensor, raw: Option<Bytes>) -> Result<Tensor, Refusal> {
    let refuse = |what: String| invalid(format!("The input `{}`: {what}.", shown(&input.name)));
    if input.parameters.keys().any(|key| key.starts_with("shared_memory")) {
        return Err(refuse("shared memory is not supported; send the elements".to_owned()));
    }
    let read = elements(&input.datatype, &input.shape, input.contents, raw.as_ref());
    Ok(Tensor { elements: read.map_err(refuse)?, batched: input.shape.len() > 1, name: input.name })
}

fn invalid(message: String) -> Refusal {
    Refusal::Invalid { param: None, message }
}

/// Output tensors of a response, of one shape `[elements]` or `[1, elements]`.
pub struct Outputs {
    batched: bool,
    response: ModelInferResponse,
}

impl Outputs {
    /// Adds tensors to `response`.
    pub fn of(response: ModelInferResponse, batched: bool) -> Self {
        Self { batched, response }
    }

    /// Adds a BYTES tensor.
    pub fn texts<'a>(&mut self, name: &str, texts: impl Iterator<Item = &'a str>) {
        let (raw, count) = raw_texts(texts);
        self.add(name, "BYTES", count, raw);
    }

    /// Adds a UINT32 tensor.
    pub fn integers(&mut self, name: &str, integers: impl Iterator<Item = u32>) {
        self.words(name, "UINT32", integers);
    }

    /// Adds an FP32 tensor.
    pub fn floats(&mut self, name: &str, floats: impl Iterator<Item = f32>) {
        self.words(name, "FP32", floats.map(f32::to_bits));
    }

    /// Adds an FP32 tensor of shape `[rows, width]`; rows are equally wide.
    pub fn rows(&mut self, name: &str, rows: &[Vec<f32>]) {
        let count = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        let raw: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        self.response.outputs.push(InferOutputTensor {
            name: name.to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![count(rows.len()), count(rows.first().map_or(0, Vec::len))],
            ..InferOutputTensor::default()
        });
        self.response.raw_output_contents.push(raw.into());
    }

    fn words(&mut self, name: &str, datatype: &str, words: impl Iterator<Item = u32>) {
        let raw: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        self.add(name, datatype, raw.len() / size_of::<u32>(), raw.into());
    }

    fn add(&mut self, name: &str, datatype: &str, count: usize, raw: Bytes) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.response.outputs.push(InferOutputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: if self.batched { vec![1, count] } else { vec![count] },
            ..InferOutputTensor::default()
        });
        self.response.raw_output_contents.push(raw);
    }

    /// The response with its tensors.
    pub fn finish(self) -> ModelInferResponse {
        self.response
    }
}

#[cfg(test)]
mod tests {
    use skein_proto::inference::InferTensorContents;

    use super::*;

    fn input(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferInputTensor {
        let (name, datatype) = ("x".to_owned(), datatype.to_owned());
        InferInputTensor { name, datatype, shape: shape.to_vec(), contents, ..InferInputTensor::default() }
    }

    #[test]
    fn inputs_have_one_name_and_one_form_each() {
        let refused = |inputs: Vec<InferInputTensor>, raw: Vec<Bytes>| {
            let mut request =
                ModelInferRequest { inputs, raw_input_contents: raw, ..ModelInferRequest::default() };
            take(&mut request).unwrap_err().to_string()
        };
        let one = || input("BOOL", &[1], None);
        let flag = || Bytes::from_static(&[1]);
        assert!(refused(vec![one(), one()], vec![flag(), flag()]).contains("given twice"));
        assert!(refused(vec![one()], vec![flag(), flag()]).contains("got 2 for 1 inputs"));
        let both = input("BOOL", &[1], Some(InferTensorContents::default()));
        assert!(refused(vec![both], vec![flag()]).contains("send one of them"));
        let mut shared = one();
        shared.parameters.insert("shared_memory_region".to_owned(), Default::default());
        assert!(refused(vec![shared], vec![flag()]).contains("shared memory is not supported"));
        assert!(refused(vec![one(); 129], Vec::new()).contains("at most 128 inputs"));
    }
}
