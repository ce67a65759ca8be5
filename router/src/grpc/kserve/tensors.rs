//! Tensors of the protocol as plain values, and back. Pure.

use std::collections::HashSet;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Number, Value};
use skein_proto::inference::model_infer_request::InferInputTensor;
use skein_proto::inference::model_infer_response::InferOutputTensor;
use skein_proto::inference::{InferTensorContents, ModelInferRequest, ModelInferResponse};

use crate::refusal::Refusal;

/// Most input tensors of a request.
const MAX_INPUTS: usize = 128;
/// Longest name of a tensor that an error repeats, in characters.
const MAX_NAME: usize = 64;
/// Bytes before each element of a BYTES tensor: its length.
const LENGTH_BYTES: usize = size_of::<u32>();

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

/// Elements of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    /// BOOL.
    Flags(Vec<bool>),
    /// INT8 to INT64.
    Signed(Vec<i64>),
    /// UINT8 to UINT64.
    Unsigned(Vec<u64>),
    /// FP32 and FP64.
    Floats(Vec<f64>),
    /// BYTES, which need not be UTF-8.
    Texts(Vec<Bytes>),
}

impl Elements {
    /// The elements in terms of JSON.
    ///
    /// # Errors
    /// What an element is that JSON does not have.
    pub fn values(&self) -> Result<Vec<Value>, &'static str> {
        let float = |float: &f64| Number::from_f64(*float).map(Value::Number).ok_or("NaN or infinite");
        let text = |bytes: &Bytes| std::str::from_utf8(bytes).map(Value::from).map_err(|_| "not UTF-8");
        match self {
            Self::Flags(flags) => Ok(flags.iter().copied().map(Value::from).collect()),
            Self::Signed(integers) => Ok(integers.iter().copied().map(Value::from).collect()),
            Self::Unsigned(integers) => Ok(integers.iter().copied().map(Value::from).collect()),
            Self::Floats(floats) => floats.iter().map(float).collect(),
            Self::Texts(texts) => texts.iter().map(text).collect(),
        }
    }

    /// Name of the datatypes, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Flags(_) => "BOOL",
            Self::Signed(_) | Self::Unsigned(_) => "integers",
            Self::Floats(_) => "floats",
            Self::Texts(_) => "BYTES",
        }
    }
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
    let product = |count: Option<usize>, dim: &i64| count?.checked_mul(usize::try_from(*dim).ok()?);
    let count = input.shape.iter().fold(Some(1), product);
    let count = count.ok_or_else(|| refuse(format!("the shape {:?} has no size", input.shape)))?;
    let elements = match (raw, input.contents) {
        (Some(_), Some(_)) => Err("it has contents beside raw_input_contents; send one of them".to_owned()),
        (None, None) => typed(&input.datatype, InferTensorContents::default(), count),
        (Some(raw), None) => decoded(&input.datatype, &raw, count),
        (None, Some(contents)) => typed(&input.datatype, contents, count),
    };
    let elements = elements.map_err(refuse)?;
    Ok(Tensor { name: input.name, batched: input.shape.len() > 1, elements })
}

/// Elements of a raw tensor.
fn decoded(datatype: &str, raw: &Bytes, count: usize) -> Result<Elements, String> {
    if datatype == "BYTES" {
        return texts(raw, count).map(Elements::Texts);
    }
    let width = match datatype {
        "BOOL" | "INT8" | "UINT8" => 1,
        "INT16" | "UINT16" => 2,
        "INT32" | "UINT32" | "FP32" => 4,
        "INT64" | "UINT64" | "FP64" => 8,
        other => return Err(unknown(other)),
    };
    if Some(raw.len()) != count.checked_mul(width) {
        return Err(format!(
            "{count} elements of {datatype} take {width} bytes each, got {} bytes",
            raw.len()
        ));
    }
    let words = raw.chunks_exact(width).map(|chunk| {
        let mut word = [0; 8];
        word[..width].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    // Shifted to the top and back to extend the sign.
    let signed = |word: u64| (word << (64 - 8 * width)).cast_signed() >> (64 - 8 * width);
    Ok(match datatype {
        "BOOL" => Elements::Flags(words.map(|word| word != 0).collect()),
        "FP32" => Elements::Floats(words.map(|word| widened(f32::from_bits(word as u32))).collect()),
        "FP64" => Elements::Floats(words.map(f64::from_bits).collect()),
        signed_type if signed_type.starts_with('I') => Elements::Signed(words.map(signed).collect()),
        _ => Elements::Unsigned(words.collect()),
    })
}

/// The double with the same shortest decimals: an FP32 of 0.1 is read as 0.1.
fn widened(float: f32) -> f64 {
    float.to_string().parse().unwrap_or_else(|_| f64::from(float))
}

fn texts(raw: &Bytes, count: usize) -> Result<Vec<Bytes>, String> {
    let cut = || "an element is longer than the rest of the data".to_owned();
    let mut rest = raw.clone();
    let mut texts = Vec::new();
    while !rest.is_empty() {
        if texts.len() == count {
            return Err(format!("the shape has {count} elements, the data has more"));
        }
        let (length, _) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(cut)?;
        let end = LENGTH_BYTES.checked_add(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
        if rest.len() < end {
            return Err(cut());
        }
        texts.push(rest.split_to(end).slice(LENGTH_BYTES..));
    }
    counted(texts, count)
}

/// Elements of a tensor with one list for its datatype.
fn typed(datatype: &str, contents: InferTensorContents, count: usize) -> Result<Elements, String> {
    Ok(match datatype {
        "BOOL" => Elements::Flags(counted(contents.bool_contents, count)?),
        "INT8" | "INT16" | "INT32" => {
            Elements::Signed(counted(contents.int_contents, count)?.into_iter().map(i64::from).collect())
        }
        "INT64" => Elements::Signed(counted(contents.int64_contents, count)?),
        "UINT8" | "UINT16" | "UINT32" => {
            Elements::Unsigned(counted(contents.uint_contents, count)?.into_iter().map(u64::from).collect())
        }
        "UINT64" => Elements::Unsigned(counted(contents.uint64_contents, count)?),
        "FP32" => {
            Elements::Floats(counted(contents.fp32_contents, count)?.into_iter().map(widened).collect())
        }
        "FP64" => Elements::Floats(counted(contents.fp64_contents, count)?),
        "BYTES" => Elements::Texts(counted(contents.bytes_contents, count)?),
        other => return Err(unknown(other)),
    })
}

fn counted<T>(elements: Vec<T>, count: usize) -> Result<Vec<T>, String> {
    match elements.len() {
        got if got == count => Ok(elements),
        got => Err(format!("the shape has {count} elements, the data has {got}")),
    }
}

fn unknown(datatype: &str) -> String {
    let known = "BOOL, INT8 to INT64, UINT8 to UINT64, FP32, FP64 and BYTES are";
    format!("the datatype `{}` is not supported; {known}", shown(datatype))
}

/// A client's word as an error can repeat it.
pub fn shown(word: &str) -> String {
    word.escape_default().take(MAX_NAME).collect()
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
        let (mut raw, mut count) = (BytesMut::new(), 0);
        for text in texts {
            // An answer is far shorter than 4 GiB.
            raw.put_u32_le(u32::try_from(text.len()).unwrap_or(u32::MAX));
            raw.put_slice(text.as_bytes());
            count += 1;
        }
        self.add(name, "BYTES", count, raw.freeze());
    }

    /// Adds a UINT32 tensor.
    pub fn integers(&mut self, name: &str, integers: impl Iterator<Item = u32>) {
        self.words(name, "UINT32", integers);
    }

    /// Adds an FP32 tensor.
    pub fn floats(&mut self, name: &str, floats: impl Iterator<Item = f32>) {
        self.words(name, "FP32", floats.map(f32::to_bits));
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
    use super::*;

    fn input(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferInputTensor {
        let (name, datatype) = ("x".to_owned(), datatype.to_owned());
        InferInputTensor { name, datatype, shape: shape.to_vec(), contents, ..InferInputTensor::default() }
    }

    fn raw(datatype: &str, shape: &[i64], raw: &[u8]) -> Result<Elements, String> {
        let tensor = tensor(input(datatype, shape, None), Some(Bytes::copy_from_slice(raw)));
        tensor.map(|tensor| tensor.elements).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn raw_elements_are_read_by_datatype_and_shape() {
        let check = |datatype: &str, shape: &[i64], bytes: &[u8], expected: Elements| {
            assert_eq!(raw(datatype, shape, bytes).unwrap(), expected, "{datatype}");
        };
        check("BOOL", &[2], &[0, 1], Elements::Flags(vec![false, true]));
        check("INT8", &[1, 2], &[0xff, 1], Elements::Signed(vec![-1, 1]));
        check("INT32", &[1], &(-7_i32).to_le_bytes(), Elements::Signed(vec![-7]));
        check("INT64", &[1], &i64::MIN.to_le_bytes(), Elements::Signed(vec![i64::MIN]));
        check("UINT16", &[1], &[0xff, 0xff], Elements::Unsigned(vec![65535]));
        check("UINT64", &[1], &u64::MAX.to_le_bytes(), Elements::Unsigned(vec![u64::MAX]));
        check("FP32", &[1], &0.1_f32.to_le_bytes(), Elements::Floats(vec![0.1]));
        check("FP64", &[], &0.3_f64.to_le_bytes(), Elements::Floats(vec![0.3]));
        let texts = [&[2, 0, 0, 0, b'h', b'i', 0, 0, 0, 0][..]].concat();
        check("BYTES", &[2], &texts, Elements::Texts(vec!["hi".into(), "".into()]));
        check("BYTES", &[0], &[], Elements::Texts(Vec::new()));
    }

    #[test]
    fn elements_that_do_not_fit_are_refused() {
        let cases: [(&str, &[i64], &[u8], &str); 9] = [
            ("INT32", &[2], &[0; 4], "2 elements of INT32 take 4 bytes each, got 4 bytes"),
            ("INT32", &[-1], &[0; 4], "the shape [-1] has no size"),
            ("INT32", &[i64::MAX, i64::MAX], &[0; 4], "has no size"),
            ("FP64", &[i64::MAX], &[0; 8], "take 8 bytes each"),
            ("FP16", &[1], &[0; 2], "`FP16` is not supported"),
            ("BYTES", &[1], &[9, 0, 0, 0, 1], "longer than the rest"),
            ("BYTES", &[1], &[9, 0], "longer than the rest"),
            ("BYTES", &[1], &[0; 8], "1 elements, the data has more"),
            ("BYTES", &[3], &[0; 8], "3 elements, the data has 2"),
        ];
        for (datatype, shape, bytes, expected) in cases {
            let message = raw(datatype, shape, bytes).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn typed_contents_equal_raw_ones() {
        let contents = |datatype: &str, contents: InferTensorContents| {
            tensor(input(datatype, &[2], Some(contents)), None).map(|tensor| tensor.elements)
        };
        let integers = InferTensorContents { int_contents: vec![-1, 2], ..InferTensorContents::default() };
        assert_eq!(contents("INT16", integers.clone()).unwrap(), Elements::Signed(vec![-1, 2]));
        assert!(contents("INT64", integers).unwrap_err().to_string().contains("2 elements, the data has 0"));
        let floats = InferTensorContents { fp32_contents: vec![0.1, 2.0], ..InferTensorContents::default() };
        assert_eq!(contents("FP32", floats).unwrap(), Elements::Floats(vec![0.1, 2.0]));
        let texts = vec!["a".into(), Bytes::from_static(&[0xff])];
        let texts = InferTensorContents { bytes_contents: texts, ..InferTensorContents::default() };
        assert_eq!(contents("BYTES", texts).unwrap().values(), Err("not UTF-8"));
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
