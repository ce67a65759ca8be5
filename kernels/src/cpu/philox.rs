//! Philox4x32 with ten rounds (Salmon et al. 2011): random numbers as a function of a key and a counter.

/// Four random words for `counter` under `key`.
#[inline(always)]
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_the_known_answers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/philox.json");
        let golden: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let words = |value: &serde_json::Value| -> Vec<u32> {
            value.as_array().unwrap().iter().map(|word| word.as_u64().unwrap() as u32).collect()
        };
        let vectors = golden["vectors"].as_array().unwrap();
        assert!(vectors.len() >= 3);
        for vector in vectors {
            let counter = words(&vector["counter"]).try_into().unwrap();
            let key = words(&vector["key"]).try_into().unwrap();
            assert_eq!(philox4x32_10(counter, key).to_vec(), words(&vector["output"]), "{vector}");
        }
    }
}
