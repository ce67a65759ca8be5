//! All device memory of a process: planned and printed, then allocated once and handed out.

use std::fmt;
use std::sync::Arc;

use super::{CudaError, Device, DeviceBuffer, DeviceSlice, Element};

/// Alignment of regions and of the parts that [`Carver`] hands out, in bytes: whole sectors of L2, and more
/// than TMA and cuBLASLt require.
pub const ALIGNMENT: u64 = 256;
/// Number of regions that an error names, largest first.
const NAMED_IN_ERRORS: usize = 4;

/// When a region is in use. [`Phase::Load`] and [`Phase::Step`] share memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Throughout the process: weights, KV cache.
    Always,
    /// Only while weights are being loaded.
    Load,
    /// Only in steps, after loading: activations, workspaces.
    Step,
    /// Memory that the driver and libraries will allocate themselves (code, graphs). It is in the plan so
    /// that it stays free.
    Reserved,
}

/// A planned part of device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Name, unique in the plan.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// When the region is in use.
    pub phase: Phase,
    /// What to do if the plan does not fit, as a verb and a flag ("lower --max-num-seqs").
    pub shrink: &'static str,
}

/// Regions to allocate.
#[derive(Debug, Clone)]
pub struct ArenaPlan {
    device: Arc<Device>,
    free_before: u64,
    regions: Vec<Region>,
}

impl ArenaPlan {
    /// An empty plan. Reads the free memory now, so kernels and libraries that are loaded later are covered
    /// by the reserves.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let (free_before, _) = device.memory_info()?;
        Ok(Self { device: device.clone(), free_before, regions: Vec::new() })
    }

    /// Adds a region of `len` values. `shrink` tells the user how to make it smaller.
    pub fn add<T: Element>(&mut self, name: &'static str, len: usize, phase: Phase, shrink: &'static str) {
        assert!(self.region(name).is_none(), "the plan has two regions called {name}");
        self.regions.push(Region { name, bytes: (len * size_of::<T>()) as u64, phase, shrink });
    }

    /// The region called `name`.
    pub fn region(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|region| region.name == name)
    }

    /// All regions in the order in which they were added.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes that the arena will allocate.
    pub fn arena_bytes(&self) -> u64 {
        self.offset_of(Phase::Step, None)
            .max(self.offset_of(Phase::Load, None))
            .max(self.offset_of(Phase::Always, None))
    }

    /// Bytes of all regions, reserves included.
    pub fn total_bytes(&self) -> u64 {
        self.arena_bytes() + self.sum(Phase::Reserved)
    }

    /// Free bytes when the plan was created.
    pub fn free_bytes(&self) -> u64 {
        self.free_before
    }

    /// Bytes not yet planned if the process may fill `utilization` (0 to 1) of the device's memory, minus
    /// what other processes hold.
    pub fn left(&self, utilization: f64) -> u64 {
        let total = self.device.memory_bytes;
        let others = total.saturating_sub(self.free_before);
        let may = (total as f64 * utilization) as u64;
        may.saturating_sub(others).min(self.free_before).saturating_sub(self.total_bytes())
    }

    fn sum(&self, phase: Phase) -> u64 {
        let of_phase = self.regions.iter().filter(|region| region.phase == phase);
        of_phase.map(|region| region.bytes.next_multiple_of(ALIGNMENT)).sum()
    }

    /// Offset of region `name` of `phase`, or of the phase's end. `Always` regions come first.
    fn offset_of(&self, phase: Phase, name: Option<&str>) -> u64 {
        let start = if phase == Phase::Always { 0 } else { self.sum(Phase::Always) };
        let before =
            self.regions.iter().filter(|it| it.phase == phase).take_while(|it| Some(it.name) != name);
        start + before.map(|region| region.bytes.next_multiple_of(ALIGNMENT)).sum::<u64>()
    }

    /// Allocates all regions in one piece.
    pub fn allocate(self) -> Result<Arena, CudaError> {
        if self.total_bytes() > self.free_before {
            return Err(self.too_large());
        }
        let memory =
            DeviceBuffer::new(&self.device, self.arena_bytes() as usize).map_err(|error| {
                match error.kind() {
                    super::ErrorKind::OutOfMemory => self.too_large(),
                    _ => error,
                }
            })?;
        Ok(Arena { plan: self, memory })
    }

    fn too_large(&self) -> CudaError {
        let mut largest: Vec<&Region> = self.regions.iter().filter(|region| region.bytes > 0).collect();
        largest.sort_by_key(|region| std::cmp::Reverse(region.bytes));
        let named: Vec<String> = largest
            .iter()
            .take(NAMED_IN_ERRORS)
            .map(|region| format!("{} {} ({})", region.name, Size(region.bytes), region.shrink))
            .collect();
        let what = format!(
            "{} needs {} of memory, and {} of {} are free; largest: {}",
            self.device.name,
            Size(self.total_bytes()),
            Size(self.free_before),
            Size(self.device.memory_bytes),
            named.join(", ")
        );
        CudaError::OutOfMemory { what }
    }
}

impl fmt::Display for ArenaPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.device.memory_bytes.max(1);
        let mut row = |name: &str, bytes: u64, note: &str| {
            let percent = bytes as f64 / total as f64 * 100.0;
            let line = format!("  {name:<28} {:>10} {percent:>6.1}%  {note}", Size(bytes).to_string());
            writeln!(f, "{}", line.trim_end())
        };
        row(&self.device.name, self.device.memory_bytes, "device memory")?;
        row("free", self.free_before, "")?;
        for region in &self.regions {
            let note = match region.phase {
                Phase::Always => "",
                Phase::Load => "while loading",
                Phase::Step => "in steps",
                Phase::Reserved => "reserved, not allocated",
            };
            row(region.name, region.bytes, note)?;
        }
        row("total", self.total_bytes(), "")
    }
}

/// The allocated device memory of a process.
#[derive(Debug)]
pub struct Arena {
    plan: ArenaPlan,
    memory: DeviceBuffer<u8>,
}

/// Planned and actual use of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Planned, reserves included.
    pub planned_bytes: u64,
    /// Device memory that was free when the plan was created and no longer is, including what other processes
    /// have taken.
    pub actual_bytes: u64,
}

impl Usage {
    /// (actual - planned) / planned.
    pub fn deviation(&self) -> f64 {
        (self.actual_bytes as f64 - self.planned_bytes as f64) / self.planned_bytes.max(1) as f64
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (planned, actual) = (Size(self.planned_bytes), Size(self.actual_bytes));
        write!(f, "{actual} taken of {planned} planned ({:+.2}%)", self.deviation() * 100.0)
    }
}

impl Arena {
    /// The region called `name` as values of `T`.
    ///
    /// # Panics
    /// If the plan has no such region; names are constants of the program.
    pub fn slice<T: Element>(&self, name: &str) -> DeviceSlice<T> {
        let region = self.plan.region(name).unwrap_or_else(|| panic!("no region called {name} was planned"));
        assert!(region.phase != Phase::Reserved, "region {name} is reserved, not allocated");
        let start = self.plan.offset_of(region.phase, Some(name)) as usize;
        self.memory.slice(start..start + region.bytes as usize).cast()
    }

    /// The plan of this arena.
    pub fn plan(&self) -> &ArenaPlan {
        &self.plan
    }

    /// Planned and actual use of the device. Call it once everything is loaded.
    pub fn usage(&self) -> Result<Usage, CudaError> {
        let (free, _) = self.plan.device.memory_info()?;
        let actual_bytes = self.plan.free_before.saturating_sub(free);
        Ok(Usage { planned_bytes: self.plan.total_bytes(), actual_bytes })
    }
}

/// Hands out consecutive parts of a region, for regions of many tensors.
#[derive(Debug)]
pub struct Carver {
    region: DeviceSlice<u8>,
    used: usize,
}

impl Carver {
    /// Starts at the beginning of `region`.
    pub fn new(region: DeviceSlice<u8>) -> Self {
        Self { region, used: 0 }
    }

    /// Bytes that `len` values of `T` take; for the plan.
    pub fn bytes_for<T: Element>(len: usize) -> usize {
        (len * size_of::<T>()).next_multiple_of(ALIGNMENT as usize)
    }

    /// The next `len` values.
    ///
    /// # Panics
    /// If the region is too small; its size was computed from the same list.
    pub fn take<T: Element>(&mut self, len: usize) -> DeviceSlice<T> {
        let start = self.used;
        self.used += Self::bytes_for::<T>(len);
        let (used, all) = (self.used, self.region.bytes());
        assert!(start + len * size_of::<T>() <= all, "{used} bytes do not fit a region of {all}");
        self.region.slice(start..start + len * size_of::<T>()).cast()
    }

    /// Bytes handed out so far.
    pub fn used(&self) -> usize {
        self.used
    }
}

/// Formats bytes as MiB below 1 GiB, and as GiB from there on.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.0 as f64 / f64::from(1 << 20);
        if mebibytes < 1024.0 {
            write!(f, "{mebibytes:.1} MiB")
        } else {
            write!(f, "{:.2} GiB", mebibytes / 1024.0)
        }
    }
}
