//! How far ahead of a multiplication its weights are asked for from memory.

use std::sync::OnceLock;

/// Where loads and the hardware's own prefetching leave a part of the bandwidth unused. Intel's Emerald Rapids read at 69% of it without,
/// at 95% with this distance on each of four streams; on AMD's Zen 5 products of eight rows gain 9% (16 bits), 5 to 19% (8) and
/// 14 to 23% (4), those of one row of 4 bits as much.
const FAR: usize = 2048;
/// On AMD's Zen 4 panels are streams long enough for the hardware to ask for them: 256 and
/// 512 bytes were slower in most shapes, and faster in few.
const NONE: usize = 0;
/// There it asks too late for codes of 4 bits: so much is computed with each line that few of them are in sight.
const NEAR: usize = 512;

/// Bytes, on each stream of values of so many bits, for this machine; 0 for none.
pub(super) fn distance(bits: u32) -> usize {
    static IS_UP_TO_ZEN_4: OnceLock<bool> = OnceLock::new();
    match IS_UP_TO_ZEN_4.get_or_init(is_up_to_zen_4) {
        false => FAR,
        true if bits == 4 => NEAR,
        true => NONE,
    }
}

/// Zen 5 is AMD's family 26.
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
