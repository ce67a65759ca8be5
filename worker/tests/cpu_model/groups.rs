//! Groups whose ranks are threads of this process, with real memory, frames and links.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use skein_model::on_cpu::packed_cache::PackedCache;
use skein_worker::backend::cpu::{CpuBackend, CpuModel, CpuOptions, NumberTypes};
use skein_worker::backend::{Backend, BackendError, Batch, KvBlocks, StepHandle, StepOutput, WindowBlocks};
use skein_worker::group::{self, Followed, GroupMemory, Leader, Member, NodePlan, Topology, Watch};

use crate::batches::SMALL_BLOCK;

const TIMEOUT: Duration = Duration::from_secs(60);
const EPOCH: u64 = 3;

/// Backend of a group; ends the other ranks on drop.
pub struct Group {
    /// `None` while dropping.
    leader: Option<Leader<CpuBackend>>,
    others: Vec<JoinHandle<()>>,
}

/// Group for the model in `directory`: `tensor` ranks in each of `stages` stages.
pub fn group(directory: &Path, shape: (usize, usize), kv_blocks: u32) -> Group {
    group_of(directory, shape, kv_blocks.into())
}

/// [`group`] that may have window blocks.
pub fn group_of(directory: &Path, (tensor, stages): (usize, usize), blocks: KvBlocks) -> Group {
    let plan = NodePlan::new(Topology::new(tensor, stages, 1).unwrap(), 0, 1 << 16);
    let memory = GroupMemory::create(plan, TIMEOUT).unwrap();
    let options = CpuOptions {
        threads: 1,
        kv_blocks: blocks.blocks,
        window_blocks: blocks.window,
        state_slots: blocks.states.unwrap_or(0),
        block_size: SMALL_BLOCK,
        max_rows: 64,
        numbers: NumberTypes::STORED,
    };
    let load = move |memory: &GroupMemory, directory: &Path, rank| {
        let Member { connections, reports, .. } = group::connect(memory, rank, None, None, None).unwrap();
        let none = PackedCache::none();
        (
            CpuModel::load_rank((directory, None), options, &none, connections, &mut |_, _| {}).unwrap(),
            reports,
        )
    };
    let others = plan.children().map(|rank| {
        let (memory, directory) = (memory.clone(), directory.to_owned());
        std::thread::spawn(move || {
            let (mut model, reports) = load(&memory, &directory, rank);
            let check = || {
                assert!(model.gives_finite_logits().unwrap());
                Ok(CpuBackend::start(model).unwrap())
            };
            group::follow(memory.reader(rank), reports, (EPOCH, Followed::new(None)), check).unwrap();
        })
    });
    let others = others.collect();
    let (mut model, reports) = load(&memory, directory, 0);
    let watch = Watch::new(memory.clone(), || ());
    let leader = Leader::start(&memory, (EPOCH, watch), (reports.unwrap(), None), || {
        assert!(model.gives_finite_logits().unwrap());
        Ok::<_, BackendError>(CpuBackend::start(model).unwrap())
    });
    Group { leader: Some(leader.unwrap()), others }
}

impl Group {
    fn leader(&mut self) -> &mut Leader<CpuBackend> {
        self.leader.as_mut().unwrap()
    }
}

impl Backend for Group {
    fn kv_blocks(&self) -> u32 {
        self.leader.as_ref().unwrap().kv_blocks()
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.leader.as_ref().unwrap().window_blocks()
    }

    fn state_slots(&self) -> Option<u32> {
        self.leader.as_ref().unwrap().state_slots()
    }

    fn steps_in_flight(&self) -> usize {
        self.leader.as_ref().unwrap().steps_in_flight()
    }

    fn stages(&self) -> usize {
        self.leader.as_ref().unwrap().stages()
    }

    fn verifies(&self) -> bool {
        self.leader.as_ref().unwrap().verifies()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        self.leader().launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        self.leader().collect(step)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.leader.take());
        self.others.drain(..).for_each(|rank| rank.join().unwrap());
    }
}
