//! Elements of the tensors of KServe v2 as plain values, and back. Pure.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Number, Value};
use skein_proto::inference::InferTensorContents;

/// Longest datatype that an error repeats, in characters.
const MAX_WORD: usize = 64;
/// Bytes before each element of a BYTES tensor: its length.
const LENGTH_BYTES: usize = size_of::<u32>();

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

/// Elements of a tensor with raw elements or typed ones; neither is a tensor without elements.
///
/// # Errors
/// If the elements do not fit datatype and shape.
pub fn elements(
    datatype: &str,
    shape: &[i64],
    contents: Option<InferTensorContents>,
    raw: Option<&Bytes>,
) -> Result<Elements, String> {
    let count = size(shape)?;
    match (raw, contents) {
        (Some(_), Some(_)) => Err("it has contents beside raw_input_contents; send one of them".to_owned()),
        (None, contents) => typed(datatype, contents.unwrap_or_default(), count),
        (Some(raw), None) => decoded(datatype, raw, count),
    }
}

/// Number of elements of a tensor of `shape`.
///
/// # Errors
/// If a dimension is negative, or there are more than can be counted.
fn size(shape: &[i64]) -> Result<usize, String> {
    let product = |count: Option<usize>, dim: &i64| count?.checked_mul(usize::try_from(*dim).ok()?);
    shape.iter().fold(Some(1), product).ok_or_else(|| format!("the shape {shape:?} has no size"))
}

/// Fails if `got` elements are not those of `shape`.
///
/// # Errors
/// Both numbers.
pub fn check_count(shape: &[i64], got: usize) -> Result<(), String> {
    match size(shape)? {
        count if count == got => Ok(()),
        count => Err(format!("the shape has {count} elements, the data has {got}")),
    }
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

/// Raw elements of a BYTES tensor, and their number.
pub fn raw_texts<'a>(texts: impl Iterator<Item = &'a str>) -> (Bytes, usize) {
    let (mut raw, mut count) = (BytesMut::new(), 0);
    for text in texts {
        put_text(&mut raw, text);
        count += 1;
    }
    (raw.freeze(), count)
}

/// Raw elements of a tensor of `datatype`, from values of JSON.
///
/// # Errors
/// What the datatype takes instead.
pub fn encoded(datatype: &str, values: &[Value]) -> Result<Bytes, String> {
    let mut encoder = Encoder::new(datatype);
    values.iter().try_for_each(|value| encoder.push(value))?;
    Ok(encoder.finish().0)
}

/// Encodes values of JSON as raw elements.
#[derive(Debug)]
pub struct Encoder<'a> {
    datatype: &'a str,
    raw: BytesMut,
    count: usize,
}

impl<'a> Encoder<'a> {
    /// Elements of `datatype`.
    pub fn new(datatype: &'a str) -> Self {
        Self { datatype, raw: BytesMut::new(), count: 0 }
    }

    /// Adds an element.
    ///
    /// # Errors
    /// What the datatype takes instead.
    pub fn push(&mut self, value: &Value) -> Result<(), String> {
        let integer = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
        let within = |low: i128, high: i128| {
            let fits = integer.filter(|integer| (low..=high).contains(integer));
            fits.ok_or_else(|| format!("takes integers of {low} to {high}"))
        };
        let float = value.as_f64().ok_or_else(|| "takes numbers".to_owned());
        let raw = &mut self.raw;
        match self.datatype {
            "BYTES" => put_text(raw, value.as_str().ok_or_else(|| "takes text".to_owned())?),
            "BOOL" => raw.put_u8(value.as_bool().ok_or_else(|| "takes true or false".to_owned())?.into()),
            "INT8" => raw.put_i8(within(i8::MIN.into(), i8::MAX.into())? as i8),
            "INT16" => raw.put_i16_le(within(i16::MIN.into(), i16::MAX.into())? as i16),
            "INT32" => raw.put_i32_le(within(i32::MIN.into(), i32::MAX.into())? as i32),
            "INT64" => raw.put_i64_le(within(i64::MIN.into(), i64::MAX.into())? as i64),
            "UINT8" => raw.put_u8(within(0, u8::MAX.into())? as u8),
            "UINT16" => raw.put_u16_le(within(0, u16::MAX.into())? as u16),
            "UINT32" => raw.put_u32_le(within(0, u32::MAX.into())? as u32),
            "UINT64" => raw.put_u64_le(within(0, u64::MAX.into())? as u64),
            "FP32" => raw.put_f32_le(float? as f32),
            "FP64" => raw.put_f64_le(float?),
            other => return Err(format!("has the datatype {}, which is not supported", shown(other))),
        }
        self.count += 1;
        Ok(())
    }

    /// The raw elements and their number.
    pub fn finish(self) -> (Bytes, usize) {
        (self.raw.freeze(), self.count)
    }
}

fn put_text(raw: &mut BytesMut, text: &str) {
    // A message is far shorter than 4 GiB.
    raw.put_u32_le(u32::try_from(text.len()).unwrap_or(u32::MAX));
    raw.put_slice(text.as_bytes());
}

/// A peer's word as an error can repeat it.
pub fn shown(word: &str) -> String {
    word.escape_default().take(MAX_WORD).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(datatype: &str, shape: &[i64], raw: &[u8]) -> Result<Elements, String> {
        elements(datatype, shape, None, Some(&Bytes::copy_from_slice(raw)))
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
        let contents = |datatype: &str, contents| elements(datatype, &[2], Some(contents), None);
        let integers = InferTensorContents { int_contents: vec![-1, 2], ..InferTensorContents::default() };
        assert_eq!(contents("INT16", integers.clone()).unwrap(), Elements::Signed(vec![-1, 2]));
        assert!(contents("INT64", integers).unwrap_err().contains("2 elements, the data has 0"));
        let floats = InferTensorContents { fp32_contents: vec![0.1, 2.0], ..InferTensorContents::default() };
        assert_eq!(contents("FP32", floats).unwrap(), Elements::Floats(vec![0.1, 2.0]));
        let texts = vec!["a".into(), Bytes::from_static(&[0xff])];
        let texts = InferTensorContents { bytes_contents: texts, ..InferTensorContents::default() };
        assert_eq!(contents("BYTES", texts).unwrap().values(), Err("not UTF-8"));
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let check = |datatype: &str, values: serde_json::Value| {
            let values = values.as_array().unwrap();
            let raw = encoded(datatype, values).unwrap();
            let read = elements(datatype, &[values.len() as i64], None, Some(&raw)).unwrap();
            assert_eq!(&read.values().unwrap(), values, "{datatype}");
        };
        check("BOOL", json!([true, false]));
        check("INT8", json!([i8::MIN, 7]));
        check("INT16", json!([i16::MIN, 7]));
        check("UINT8", json!([u8::MAX, 7]));
        check("UINT16", json!([u16::MAX, 7]));
        check("INT32", json!([i32::MIN, 7]));
        check("INT64", json!([i64::MIN, 7]));
        check("UINT32", json!([u32::MAX, 7]));
        check("UINT64", json!([u64::MAX, 7]));
        check("FP32", json!([0.1, 2.5]));
        check("FP64", json!([0.3]));
        check("BYTES", json!(["", "h\u{e9}"]));
        for (datatype, value) in [
            ("BOOL", json!(1)),
            ("INT32", json!(1_i64 << 40)),
            ("UINT32", json!(-1)),
            ("INT8", json!(128)),
            ("UINT16", json!(65536)),
            ("INT64", json!(0.5)),
            ("FP32", json!("1")),
            ("BYTES", json!(1)),
            ("FP16", json!(1)),
        ] {
            assert!(encoded(datatype, std::slice::from_ref(&value)).is_err(), "{datatype} {value}");
        }
    }
}
