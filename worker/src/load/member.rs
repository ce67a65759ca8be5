//! A rank other than the leader: joins the group, reads its part of adapters, and follows.

use std::sync::Arc;

use skein_kernels::collective::Ranks;
use skein_model::served_adapter::AdapterModel;
use skein_tls::ClusterTls;

use super::terms::terms;
use crate::backend::Backend;
use crate::group::{self, Answer, Followed, Member, RankError, RankProcess, RankReader, Welcome};

/// Joins the leader's group and connects this rank to the others.
pub(super) fn join(process: &RankProcess, arithmetic: &str) -> Result<Member, String> {
    let RankProcess { welcome, memory, .. } = process;
    let own = terms(&welcome.config, welcome.device, arithmetic).map_err(|error| error.to_string())?;
    let listener = group::listen(&welcome.plan.topology, welcome.address);
    let listener = listener.map_err(|error| format!("cannot listen for other nodes: {error}"))?;
    let port = listener.as_ref().and_then(|listener| listener.local_addr().ok()).map(|own| own.port());
    Answer::Joined { terms: own.clone(), port }.emit();
    if let Some(why) = own.differ(welcome.rank, &welcome.terms) {
        return Err(why);
    }
    let peers = listener.is_some().then(|| process.peers()).transpose()?;
    let files = welcome.config.ranks.nodes.tls.as_ref().filter(|_| listener.is_some());
    let tls = files.map(ClusterTls::read).transpose().map_err(|error| error.to_string())?;
    group::connect(memory, welcome.rank, listener, peers.as_ref(), tls.as_ref())
}

/// Reports to the leader that this rank has loaded its part, and follows the leader. `reader` reads its part
/// of adapters. `check` checks the model together with all ranks.
pub(super) fn follow<B: Backend>(
    process: &RankProcess,
    reports: Option<Box<dyn Ranks>>,
    reader: Option<RankReader>,
    check: impl FnOnce() -> Result<B, String>,
) -> Result<(), String> {
    let RankProcess { welcome, memory, .. } = process;
    Answer::Loaded.emit();
    let adapters = (welcome.epoch, Followed::new(reader));
    let ended = group::follow(memory.reader(welcome.rank), reports, adapters, check);
    ended.map_err(|error: RankError| error.to_string())
}

/// Reads the rank's part of adapters, which its backend keeps in a form; `None` if none are served.
pub(super) fn reader(welcome: &Welcome, model: AdapterModel) -> Option<RankReader> {
    let adapters = &welcome.config.adapters;
    let max_rank = adapters.is_enabled.then_some(adapters.max_lora_rank)?;
    let model = Arc::new(model);
    let to_read = Arc::clone(&model);
    // Ranks of one machine would all find the same; the leader has looked on its own.
    let Welcome { rank, plan, .. } = welcome;
    let looks = plan.node > 0 && rank % plan.topology.on_node() == 0;
    Some(RankReader {
        read: Box::new(move |id, directory| crate::adapters::read_on_rank(directory, id, &to_read, max_rank)),
        check: Box::new(move |id, directory| {
            let check = || crate::adapters::check_on_rank(directory, id, &model.spec, max_rank);
            if looks { check() } else { Ok(()) }
        }),
        answer: Box::new(|frame, problem| Answer::Adapter { frame, problem }.emit()),
    })
}
