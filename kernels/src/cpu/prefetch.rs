//! How far ahead of a multiplication its weights are asked for from memory.

use std::sync::OnceLock;

/// Where one core's loads and the hardware's own prefetching leave a third of the bandwidth unused: Intel's Emerald Rapids read
/// at 69% of it alone, at 95% with this distance on each of four streams (measured with weights row by row).
const FAR: usize = 2048;
/// On AMD's Zen 4 panels are streams long enough for the hardware to ask for them: 256 and
/// 512 bytes were slower in most shapes, and faster in few.
const NONE: usize = 0;
/// There it asks too late for codes of 4 bits: so much is computed with each line that few of them are in sight.
const NEAR: usize = 512;

/// Bytes, on each stream of values of so many bits, for this machine; 0 for none.
pub(super) fn distance(bits: u32) -> usize {
    static IS_INTEL: OnceLock<bool> = OnceLock::new();
    match IS_INTEL.get_or_init(is_intel) {
        true => FAR,
        false if bits == 4 => NEAR,
        false => NONE,
    }
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}
