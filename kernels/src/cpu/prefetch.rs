//! How far ahead of a multiplication its weights are asked for from memory.

use std::sync::OnceLock;

/// Where one core's loads and the hardware's own prefetching leave a third of the bandwidth unused: Intel's Emerald Rapids reads
/// at 69% of it alone, at 95% with this distance on each of four streams.
const FAR: usize = 2048;
/// On AMD's Zen 4 that distance is slower than this one, by 3 to 20% as the format is (4, 16, 8 bits), and this one is as fast as
/// asking for nothing or a little faster.
const NEAR: usize = 512;

/// Bytes, on each stream, for this machine.
pub(super) fn distance() -> usize {
    static DISTANCE: OnceLock<usize> = OnceLock::new();
    *DISTANCE.get_or_init(|| if is_intel() { FAR } else { NEAR })
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
