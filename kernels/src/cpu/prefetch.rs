//! Prefetch distances: how far ahead of a product its weights are fetched from memory.

use std::sync::OnceLock;

/// For processors on which loads and hardware prefetching do not use the full bandwidth. Intel's Emerald
/// Rapids read at 69% of it without prefetching and at 95% with this distance on each of four streams. On
/// AMD's Zen 5, products of eight rows gain 9% (16 bits), 5 to 19% (8 bits) and 14 to 23% (4 bits); products
/// of one row gain as much at 4 bits.
const FAR: usize = 2048;
/// AMD's Zen 4 prefetches panels well in hardware, because they are long streams: 256 and 512 bytes were
/// slower for most shapes and faster for few.
const NONE: usize = 0;
/// For 4-bit codes on Zen 4: each line takes so much computation that few lines are in flight, and the
/// hardware prefetches too late.
const NEAR: usize = 512;

/// Bytes to prefetch ahead on each stream of `bits`-bit values on this machine; 0 = do not prefetch.
pub(super) fn distance(bits: u32) -> usize {
    static IS_UP_TO_ZEN_4: OnceLock<bool> = OnceLock::new();
    if !*IS_UP_TO_ZEN_4.get_or_init(is_up_to_zen_4) {
        FAR
    } else if bits == 4 {
        NEAR
    } else {
        NONE
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
