use std::path::Path;

use super::*;

/// A golden file of a type: its blocks, or their values according to the `gguf` package.
fn golden(kind: BlockType, what: &str) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gguf/blocks");
    let path = directory.join(format!("{}.{what}", kind.name()));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn values_have_the_bits_of_the_gguf_package() {
    for kind in BlockType::ALL {
        let (blocks, expected) = (golden(kind, "blocks"), golden(kind, "values"));
        let mut values = vec![0.0; expected.len() / 4];
        assert_eq!(kind.row_bytes(values.len()), Some(blocks.len()), "{}", kind.name());
        kind.widen(&blocks, &mut values);
        for (i, (value, expected)) in values.iter().zip(expected.as_chunks::<4>().0).enumerate() {
            let expected = f32::from_le_bytes(*expected);
            assert_eq!(value.to_bits(), expected.to_bits(), "{} {i}: {value} for {expected}", kind.name());
        }
    }
}

#[test]
fn rows_are_whole_blocks() {
    assert_eq!(BlockType::Q8_0.row_bytes(96), Some(102));
    assert_eq!(BlockType::Q8_0.row_bytes(40), None);
    assert_eq!(BlockType::Q4K.row_bytes(896), None);
}
