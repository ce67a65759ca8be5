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

/// [`philox4x32_10`] of `N` counters under one key, `[word][counter]`, written so that compilers vectorise
/// it.
#[inline(always)]
pub fn philox4x32_10_many<const N: usize>(mut counters: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    for _ in 0..10 {
        let before = counters;
        for i in 0..N {
            let a = u64::from(before[0][i]) * 0xD251_1F53;
            let b = u64::from(before[2][i]) * 0xCD9E_8D57;
            counters[0][i] = (b >> 32) as u32 ^ before[1][i] ^ key[0];
            counters[1][i] = b as u32;
            counters[2][i] = (a >> 32) as u32 ^ before[3][i] ^ key[1];
            counters[3][i] = a as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counters
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

    #[test]
    fn many_counters_give_the_words_of_each() {
        let counters: [[u32; 5]; 4] = std::array::from_fn(|word| {
            std::array::from_fn(|i| (word * 0x1234_5677 + i * 0x0765_4321) as u32)
        });
        let many = philox4x32_10_many(counters, [7, 0xffff_fff0]);
        for i in 0..5 {
            let one = philox4x32_10(counters.map(|words| words[i]), [7, 0xffff_fff0]);
            assert_eq!(many.map(|words| words[i]), one);
        }
    }
}
