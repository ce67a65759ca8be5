use proptest::prelude::*;

use super::*;
use crate::sample::{Sample, list, text, texts, value};

const F32: u32 = 0;
const Q4_0: u32 = 2;
const Q8_0: u32 = 8;
const Q4_K: u32 = 12;
const I8: u32 = 24;

fn good() -> Sample {
    Sample::default()
        .text("general.architecture", "llama")
        .number("llama.block_count", 2)
        .with("tokenizer.ggml.tokens", texts(&["a", "bc", ""]))
        .with("tokenizer.ggml.scores", list(6, 2, &[0, 0, 128, 63, 0, 0, 0, 192]))
        .with("flag", value(7, &[1]))
        .tensor("a", &[4, 2], F32, 0)
        .tensor("b", &[256, 3], Q4_K, 32)
        .data(32 + 3 * 144)
}

fn fault(sample: &Sample) -> Fault {
    Header::read(&sample.bytes()).expect_err("it is refused")
}

#[test]
fn a_correct_file_is_read() {
    let file = good().bytes();
    let header = Header::read(&file).unwrap();
    assert_eq!(header.get(&file, "general.architecture").and_then(Value::as_str), Some("llama"));
    assert_eq!(header.get(&file, "llama.block_count").and_then(Value::as_u64), Some(2));
    assert_eq!(header.get(&file, "flag").and_then(Value::as_bool), Some(true));
    let array = |key| header.get(&file, key).and_then(Value::as_array).unwrap();
    let tokens: Vec<&str> = array("tokenizer.ggml.tokens").texts().unwrap();
    assert_eq!(tokens, ["a", "bc", ""]);
    let scores: Vec<f64> =
        array("tokenizer.ggml.scores").values().unwrap().filter_map(Value::as_f64).collect();
    assert_eq!(scores, [1.0, -2.0]);
    assert!(header.get(&file, "gone").is_none());
    let [a, b] = &header.tensors[..] else { panic!("two tensors") };
    assert_eq!((a.shape.as_slice(), a.bytes.len(), b.shape.as_slice()), (&[2, 4][..], 32, &[3, 256][..]));
    assert_eq!(b.bytes.end, file.len());
    assert_eq!(Header::read(&Sample { version: 2, ..good() }.bytes()).unwrap().tensors.len(), 2);
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    let file = good().bytes();
    for cut in 0..file.len() {
        assert!(Header::read(&file[..cut]).is_err(), "{cut} of {}", file.len());
    }
}

#[test]
fn other_versions_and_byte_orders_are_refused() {
    assert_eq!(fault(&Sample { version: 1, ..good() }), Fault::Version(1));
    assert_eq!(fault(&Sample { version: 4, ..good() }), Fault::Version(4));
    assert_eq!(fault(&Sample { version: 3u32.swap_bytes(), ..good() }), Fault::BigEndian);
    assert_eq!(Header::read(b"GGML").unwrap_err(), Fault::Magic);
    assert_eq!(Header::read(b"").unwrap_err(), Fault::Magic);
}

/// The pattern of CVE-2024-23496 and CVE-2024-39720: counts and lengths beyond the file, which other readers
/// allocate.
#[test]
fn counts_and_lengths_beyond_the_file_are_refused_before_anything_is_allocated() {
    for claims in
        [(u64::MAX, 5), (2, u64::MAX), (1 << 40, 5), (2, 1 << 62), (u64::MAX / 128, 5), (1 << 63, 5)]
    {
        assert!(matches!(fault(&Sample { claims: Some(claims), ..good() }), Fault::TooMany { .. }));
    }
    for claims in [(60_000, 5), (2, 60_000), (3, 5)] {
        let fault = fault(&Sample { claims: Some(claims), ..good() });
        let known =
            matches!(fault, Fault::Truncated { .. } | Fault::TooMany { .. } | Fault::ValueType { .. });
        assert!(known || matches!(fault, Fault::TensorType { .. } | Fault::Shape { .. }), "{fault}");
    }
    let key = |value| fault(&Sample::default().with("key", value));
    for len in [u64::MAX, 1 << 63, 1 << 33, 40] {
        assert!(matches!(key(value(8, &len.to_le_bytes())), Fault::Truncated { .. } | Fault::TooMany { .. }));
        for kind in [0, 5, 8, 12] {
            assert!(matches!(key(list(kind, len, &[])), Fault::Truncated { .. }), "{kind} {len}");
        }
    }
    let mut long = Sample::default();
    long.entries.push((u64::MAX.to_le_bytes().to_vec(), Vec::new()));
    assert!(matches!(fault(&long), Fault::TooMany { .. }));
}

/// The pattern of CVE-2025-53630 and CVE-2026-27940: sizes whose product or sum overflows.
#[test]
fn sizes_that_wrap_around_are_refused() {
    for dims in [
        &[1u64 << 62, 4][..],
        &[1 << 63, 2],
        &[u64::MAX, 1],
        &[1 << 32, 1 << 32],
        &[0x5555_5555_5555_5556, 3],
        &[1 << 31, 1 << 31, 4],
        &[4, 0],
        &[0],
        &[],
        &[i64::MIN as u64],
    ] {
        let fault = fault(&Sample::default().tensor("a", dims, F32, 0).data(64));
        assert!(matches!(fault, Fault::Shape { .. } | Fault::Truncated { .. }), "{dims:?}: {fault}");
    }
    for offset in [u64::MAX - 31, 1 << 63, u64::MAX / 32 * 32, 64, 1 << 40] {
        let fault = fault(&Sample::default().tensor("a", &[8], F32, offset).data(64));
        assert!(matches!(fault, Fault::Truncated { what: "a tensor", .. }), "{offset}: {fault}");
    }
}

/// The pattern of CVE-2026-33298 and of llama.cpp's pull request 27200: elements times their bytes wrap
/// around to a size that is in the file.
#[test]
fn bytes_of_a_tensor_that_wrap_around_are_refused() {
    // 2^42 + 1 rows of 1152 f32 or Q8_0 values; 18 bytes of Q4_0 times that many values are 64 modulo 2^64.
    for (dims, kind) in [
        (&[1152u64, (1 << 42) + 1][..], F32),
        (&[1152, (1 << 42) + 1], Q8_0),
        (&[1 << 40, 1 << 22], F32),
        (&[5_124_095_576_030_431_008], Q4_0),
        (&[5_124_095_576_030_431_008, 2], Q4_0),
        (&[i64::MAX as u64, 2], I8),
        (&[u64::MAX / 32 * 32, 1, 1, 2], Q8_0),
    ] {
        let fault = fault(&Sample::default().tensor("a", dims, kind, 0).data(4096));
        assert!(
            matches!(fault, Fault::Shape { .. } | Fault::Truncated { .. } | Fault::TensorType { .. }),
            "{dims:?}: {fault}"
        );
    }
}

/// The pattern of CVE-2025-53630 and its bypasses: the sum of padded sizes wraps around, so that a later
/// tensor seems to lie in a small buffer.
#[test]
fn a_sum_of_sizes_that_wraps_around_is_refused() {
    // One tensor whose size wraps when it is padded, then a small one; two that are 2^64 bytes together.
    for (first, second, offset) in
        [(u64::MAX / 4, 8, 0), (u64::MAX / 4, 8, 32), (1 << 61, 1 << 61, 1 << 63), (1 << 61, 1 << 61, 0)]
    {
        let two =
            Sample::default().tensor("a", &[first], F32, 0).tensor("b", &[second], F32, offset).data(64);
        let fault = fault(&two);
        assert!(matches!(fault, Fault::Shape { .. } | Fault::Truncated { .. }), "{first} {second}: {fault}");
    }
}

/// The pattern of CVE-2026-7482 ("Bleeding Llama"): a tensor that extends past the end of the file.
#[test]
fn a_tensor_past_the_end_is_refused() {
    let one_more = Sample::default().tensor("a", &[256, 3], Q4_K, 0).data(3 * 144 - 1);
    assert!(matches!(fault(&one_more), Fault::Truncated { what: "a tensor", .. }));
}

#[test]
fn rows_of_partial_blocks_and_unknown_types_are_refused() {
    assert!(matches!(
        fault(&Sample::default().tensor("a", &[100, 2], Q4_K, 0).data(999)),
        Fault::Shape { .. }
    ));
    for kind in [4, 5, 31, 38, 43, u32::MAX] {
        let fault = fault(&Sample::default().tensor("a", &[256], kind, 0).data(999));
        assert_eq!(fault, Fault::TensorType { tensor: "a".into(), kind });
    }
    let five = Sample::default().tensor("a", &[1; 5], F32, 0).data(64);
    assert!(matches!(fault(&five), Fault::TooMany { what: "dimensions of a tensor", .. }));
}

/// In other readers, an alignment of zero led to a division by zero, and one of 2^31 to sizes of zero.
#[test]
fn invalid_alignments_are_refused() {
    for alignment in [0u32, 3, 4, 48, 1 << 20, 1 << 31, u32::MAX] {
        let sample = Sample::default().number("general.alignment", alignment);
        assert_eq!(fault(&sample), Fault::Alignment(alignment.to_string()));
    }
    let text = Sample::default().text("general.alignment", "32");
    assert!(matches!(fault(&text), Fault::Alignment(_)));
    let wide = Sample { alignment: 4096, ..Sample::default() };
    let wide = wide.number("general.alignment", 4096).tensor("a", &[4], F32, 4096).data(4112);
    assert_eq!(Header::read(&wide.bytes()).unwrap().tensors[0].bytes.len(), 16);
}

#[test]
fn tensors_share_neither_bytes_nor_names_nor_keys() {
    let two = |first: &str, second: u64| {
        Sample::default().tensor(first, &[16], F32, 0).tensor("b", &[16], F32, second).data(256)
    };
    assert_eq!(fault(&two("a", 32)), Fault::Overlap("a".into(), "b".into()));
    assert_eq!(fault(&two("b", 64)), Fault::Twice("tensor b".into()));
    assert!(matches!(fault(&two("a", 65)), Fault::Misaligned { .. }));
    assert_eq!(fault(&good().number("llama.block_count", 2)), Fault::Twice("llama.block_count".into()));
}

#[test]
fn values_of_unknown_types_nested_lists_and_bad_texts_are_refused() {
    let key = |value| fault(&Sample::default().with("key", value));
    assert_eq!(key(value(13, &[0; 8])), Fault::ValueType { key: "key".into(), kind: 13 });
    assert_eq!(key(list(99, 1, &[0; 8])), Fault::ValueType { key: "key".into(), kind: 99 });
    assert_eq!(key(list(9, 1, &[0; 12])), Fault::NestedArray { key: "key".into() });
    let bad = [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat();
    assert!(matches!(key(value(8, &bad)), Fault::NotUtf8 { .. }));
    // Elements of lists are decoded when they are used.
    let file = Sample::default().with("key", list(8, 2, &[&text("ab")[..], &bad].concat())).bytes();
    let list = Header::read(&file).unwrap().get(&file, "key").and_then(Value::as_array).unwrap();
    assert_eq!((list.texts(), list.text(0), list.text(1), list.text(2)), (None, Some("ab"), None, None));
    let mut name = Sample::default().data(64);
    name.tensors.push((bad, vec![4], F32, 0));
    assert!(matches!(fault(&name), Fault::NotUtf8 { .. }));
    assert_eq!(text("ab").len(), 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// All reads stay within the file, and nothing panics.
    #[test]
    fn changed_bytes_are_refused_or_harmless(changes in prop::collection::vec((0usize..1000, any::<u8>()), 1..6)) {
        let mut file = good().bytes();
        for (at, byte) in changes {
            let at = at % file.len();
            file[at] = byte;
        }
        if let Ok(header) = Header::read(&file) {
            for tensor in &header.tensors {
                prop_assert!(tensor.bytes.end <= file.len() && !tensor.bytes.is_empty());
            }
            for key in header.entries.keys() {
                let value = header.get(&file, key).unwrap();
                let texts = value.as_array().and_then(|list| list.texts()).map(|texts| texts.len());
                let values = value.as_array().and_then(|list| list.values()).map(Iterator::count);
                let len = value.as_array().map(|list| list.len());
                prop_assert!(texts.or(values).is_none_or(|count| Some(count) == len));
            }
        }
    }

    #[test]
    fn noise_after_the_magic_is_refused_or_harmless(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let file = [&b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"[..], &noise].concat();
        let _ = Header::read(&file);
    }
}
