//! Memory of other processes' devices, by the driver's inter-process handles.

use std::sync::Arc;

use cudarc::driver::sys;

use super::super::error::check;
use super::agreement::agree;
use super::{CudaError, Device, NoPeers};
use crate::collective::Ranks;

const UUID_BYTES: usize = 16;
const HANDLE_BYTES: usize = 64;

/// The devices of all ranks.
pub(super) struct Devices(Vec<[u8; UUID_BYTES]>);

/// Another process's allocation, mapped into this one.
#[derive(Debug)]
pub(super) struct Opened {
    address: u64,
    device: Arc<Device>,
}

impl Opened {
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        // SAFETY: opened in `open` and closed once; the driver waits for work that uses it. Errors do not
        // matter here.
        let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
    }
}

/// Exchanges the devices' identities. Also returns the blocks that all of them can hold at once.
pub(super) fn exchange_devices(device: &Device, ranks: &mut dyn Ranks) -> Result<(Devices, u32), NoPeers> {
    let uuid = device.uuid().map_err(|error| format!("cannot tell its device's id: {error}"));
    let uuid = agree(ranks, uuid)?;
    let mut mine = [0; UUID_BYTES + 4];
    mine[..UUID_BYTES].copy_from_slice(&uuid);
    mine[UUID_BYTES..].copy_from_slice(&device.multiprocessors.to_le_bytes());
    let mut all = vec![0; mine.len() * ranks.count()];
    ranks.gather(&mine, &mut all)?;
    let mut uuids = Vec::new();
    let mut blocks = u32::MAX;
    for one in all.chunks_exact(mine.len()) {
        let (mut uuid, mut its) = ([0; UUID_BYTES], [0; 4]);
        uuid.copy_from_slice(&one[..UUID_BYTES]);
        its.copy_from_slice(&one[UUID_BYTES..]);
        uuids.push(uuid);
        blocks = blocks.min(u32::from_le_bytes(its));
    }
    Ok((Devices(uuids), blocks.max(1)))
}

/// Opens the allocation at `own` of each rank on all others.
pub(super) fn open_inboxes(
    device: &Arc<Device>,
    ranks: &mut dyn Ranks,
    devices: &Devices,
    own: u64,
) -> Result<Vec<Option<Opened>>, NoPeers> {
    let handle = export(own).map_err(|error| format!("cannot share its memory: {error}"));
    let mine = agree(ranks, handle)?;
    let mut all = vec![0; HANDLE_BYTES * ranks.count()];
    ranks.gather(&mine, &mut all)?;
    let open_from = |(rank, handle): (usize, &[u8])| {
        if rank == ranks.rank() {
            return Ok(None);
        }
        let ordinal = device.ordinal_of(&devices.0[rank])?;
        let ordinal = ordinal
            .ok_or_else(|| CudaError::invalid("it is not visible to this process or not in this machine"))?;
        if !device.can_access(ordinal)? {
            return Err(CudaError::invalid("the driver reports no access"));
        }
        let mut bytes = [0; HANDLE_BYTES];
        bytes.copy_from_slice(handle);
        open(device, bytes).map(Some)
    };
    let opened: Result<Vec<_>, String> = all
        .chunks_exact(HANDLE_BYTES)
        .enumerate()
        .map(|(rank, handle)| {
            open_from((rank, handle))
                .map_err(|error| format!("does not reach the memory of rank {rank}'s GPU: {error}"))
        })
        .collect();
    agree(ranks, opened)
}

fn export(address: u64) -> Result<[u8; HANDLE_BYTES], CudaError> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    // SAFETY: the out-pointer is valid for the call.
    check("cuIpcGetMemHandle", unsafe { sys::cuIpcGetMemHandle(&mut handle, address) })?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

fn open(device: &Arc<Device>, handle: [u8; HANDLE_BYTES]) -> Result<Opened, CudaError> {
    let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
    let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut address = 0;
    // SAFETY: the out-pointer is valid for the call.
    check("cuIpcOpenMemHandle", unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) })?;
    Ok(Opened { address, device: Arc::clone(device) })
}
