//! Matrix shapes used by the benchmarks of products.

/// Names and shapes `[out, in]` of a layer's matrices and the head.
pub const SHAPES: [(&str, usize, usize); 8] = [
    ("0.5b qkv", 1152, 896),
    ("0.5b gate+up", 9728, 896),
    ("0.5b down", 896, 4864),
    ("0.5b head", 151_936, 896),
    ("1b qkv", 3072, 2048),
    ("1b gate+up", 16_384, 2048),
    ("1b down", 2048, 8192),
    ("1b head", 128_256, 2048),
];
