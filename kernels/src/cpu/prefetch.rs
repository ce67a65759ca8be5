//! Prefetch distances: how far ahead of a product its weights are fetched from memory.

use std::sync::OnceLock;

/// For processors on which loads and hardware prefetching do not use the full bandwidth. Intel's Emerald
/// Rapids read at 69% of it without prefetching and at 95% with this distance on each of four streams. On
/// AMD's Zen 5, products of eight rows gain 9% (16 bits), 5 to 19% (8 bits) and 14 to 23% (4 bits); products
/// of one row gain as much at 4 bits.
const FAR: usize = 2048;
/// AMD's Zen 4 prefetches panels of 12 and 16 bits well in hardware, because they are long streams: 256 and
/// 512 bytes were slower for most shapes and faster for few.
const NONE: usize = 0;
/// For codes of 4 to 6 bits on Zen 4: each line takes so much computation that few lines are in flight, and
/// the hardware prefetches too late. Two threads read a row's Q5_0 at 60% of the bandwidth without
/// prefetching, at 100% with 64 to 256 bytes, and at 85% with 512 to 1,024.
const NEAR: usize = 192;
/// For codes of 8 bits on Zen 4: a line ahead gains 4 to 10%, and 192 bytes lose as much.
const NEXT_LINE: usize = 64;

/// Bytes to prefetch ahead on each stream of `bits`-bit values on this machine; 0 = do not prefetch.
pub(super) fn distance(bits: u32) -> usize {
    static IS_UP_TO_ZEN_4: OnceLock<bool> = OnceLock::new();
    if !*IS_UP_TO_ZEN_4.get_or_init(is_up_to_zen_4) {
        return FAR;
    }
    match bits {
        4..=6 => NEAR,
        8 => NEXT_LINE,
        _ => NONE,
    }
}

/// Whether this is an AMD processor before Zen 5, which is family 26.
#[cfg(target_arch = "x86_64")]
fn is_up_to_zen_4() -> bool {
    use std::arch::x86_64::__cpuid;
    let vendor = __cpuid(0);
    let is_amd = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD";
    let signature = __cpuid(1).eax;
    is_amd && (signature >> 8 & 15) + (signature >> 20 & 255) < 26
}

#[cfg(not(target_arch = "x86_64"))]
fn is_up_to_zen_4() -> bool {
    false
}
