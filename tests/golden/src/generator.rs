//! Drawn tensors, in the bits of `weights.py`: only integers, IEEE products and sums of 64-bit floats, and
//! rounding to nearest even.

use half::{bf16, f16};

/// Deviation of a sum of four halves of a word.
const DEVIATION: f64 = 37837.0;

/// Four random words for `counter` under `key`: Philox4x32-10 (Salmon et al. 2011).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        let high = [b, a].map(|product| (product >> 32) as u32);
        counter = [high[0] ^ counter[1] ^ key[0], b as u32, high[1] ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// 16-bit random numbers. The key is FNV-1a of the name, the counter the block and the seed.
fn halves(seed: u32, name: &str) -> impl Iterator<Item = u16> + use<> {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
    let key = name.bytes().fold(0xCBF2_9CE4_8422_2325, add);
    (0..).flat_map(move |block| {
        let words = philox([block, 0, seed, 0], [key as u32, (key >> 32) as u32]);
        words.into_iter().flat_map(|word| [word as u16, (word >> 16) as u16])
    })
}

/// `count` values of about a normal distribution.
pub fn normal(seed: u32, name: &str, count: usize, deviation: f64) -> Vec<f64> {
    let mut halves = halves(seed, name);
    let mut sum = || (0..4).map(|_| halves.next().map_or(0, i32::from)).sum::<i32>() - 131_070;
    (0..count).map(|_| f64::from(sum()) * (deviation / DEVIATION)).collect()
}

/// `count` values from `low` to below `high`.
pub fn uniform(seed: u32, name: &str, count: usize, [low, high]: [f64; 2]) -> Vec<f64> {
    halves(seed, name).take(count).map(|half| low + f64::from(half) * ((high - low) / 65536.0)).collect()
}

/// `count` bytes: of each, the random bits of `kept`, and those of `fixed`; both are repeated.
pub fn bytes(seed: u32, name: &str, count: usize, kept: &[u8], fixed: &[u8]) -> Vec<u8> {
    let masks = kept.iter().cycle().zip(fixed.iter().cycle());
    let random = halves(seed, name).flat_map(u16::to_le_bytes);
    random.take(count).zip(masks).map(|(byte, (kept, fixed))| byte & kept | fixed).collect()
}

/// `values`, rounded to 32 bits and then to `dtype`; integers are cut off. `None` for types that are not
/// drawn.
pub fn stored(values: &[f64], dtype: &str) -> Option<Vec<u8>> {
    let single = values.iter().map(|value| *value as f32);
    Some(match dtype {
        "BF16" => single.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        "F16" => single.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        "F32" => single.flat_map(f32::to_le_bytes).collect(),
        "U8" => values.iter().map(|value| *value as u8).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn list(value: &Value) -> Vec<u32> {
        value.as_array().expect("a list").iter().map(|word| word.as_u64().expect("a number") as u32).collect()
    }

    #[test]
    fn philox_agrees_with_the_published_vectors() {
        let json: Value = serde_json::from_str(include_str!("../philox.json")).expect("JSON");
        for vector in json["vectors"].as_array().expect("a list") {
            let [counter, key] = ["counter", "key"].map(|field| list(&vector[field]));
            let got = philox(counter.try_into().expect("four"), key.try_into().expect("two"));
            assert_eq!(got.to_vec(), list(&vector["output"]));
        }
    }
}
