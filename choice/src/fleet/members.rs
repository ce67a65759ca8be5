//! Membership: discovery proposes members, the links decide.

use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_node::discovery::Member;
use skein_proto::version::Version;

use super::worker::Worker;
use super::{Action, Fleet, Notice, TICK};
use crate::worker_id::WorkerId;

/// Runs of removed caches freed per tick: a fraction of a millisecond of work.
const CLEANED_EACH_TICK: usize = 1024;
/// A tick this late means that this process was paused, not its workers.
const OWN_PAUSE: Duration = Duration::from_secs(1);

impl Fleet {
    /// Adds a member. If it is already known under this name and address, its link stays: a discovery source
    /// that lost its state announces all members again. Another address means another process.
    pub(super) fn join(&mut self, now: Timestamp, member: Member) -> Vec<Action> {
        if let Some(&id) = self.members.get(&member.id)
            && let Some(worker) = self.workers.get_mut(&id)
            && worker.member.address == member.address
        {
            worker.departed = false;
            return if worker.watching { Vec::new() } else { vec![Action::Hurry(id)] };
        }
        let mut actions = self.remove(&member.id);
        self.next_id += 1;
        let id = WorkerId(self.next_id);
        actions.push(Action::Follow(id, member.address.clone()));
        self.members.insert(member.id.clone(), id);
        self.workers.insert(id, Worker::new(member, now));
        actions
    }

    /// Removes a member, unless the worker still talks: discovery may be wrong, for example when a lease
    /// expired in a pause.
    pub(super) fn leave(&mut self, now: Timestamp, name: &str) -> Vec<Action> {
        let limits = self.limits;
        let worker = self.members.get(name).and_then(|id| self.workers.get_mut(id));
        match worker {
            Some(worker) if worker.watching && !worker.is_lost(now, &limits) => {
                worker.departed = true;
                Vec::new()
            }
            _ => self.remove(name),
        }
    }

    /// Handles a broken link. A worker that discovery no longer lists is removed.
    pub(super) fn link_lost(&mut self, id: WorkerId) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(&id) else { return Vec::new() };
        worker.watching = false;
        if !worker.departed {
            return Vec::new();
        }
        let name = worker.member.id.clone();
        self.remove(&name)
    }

    fn remove(&mut self, name: &str) -> Vec<Action> {
        let Some(id) = self.members.remove(name) else { return Vec::new() };
        self.workers.remove(&id);
        self.standings.remove(id);
        self.index.remove(id);
        self.streams.forget_worker(id);
        self.adapters.forget(id);
        vec![Action::Unfollow(id), Action::Recheck(id)]
    }

    /// Finds workers that have become lost since the last tick.
    pub(super) fn tick(&mut self, now: Timestamp) -> Vec<Action> {
        let since = self.ticked_at.replace(now).map_or(Duration::ZERO, |at| now.since(at));
        let pause = since.saturating_sub(TICK);
        let mut actions = Vec::new();
        let another_ready = self.standings.takers(now, Version::UNKNOWN).next().is_some();
        self.index.clean(CLEANED_EACH_TICK);
        let mut departed = Vec::new();
        for (&id, worker) in &mut self.workers {
            if pause >= OWN_PAUSE {
                worker.excuse(now);
            }
            let lost = worker.is_lost(now, &self.limits);
            if lost && !worker.lost {
                actions.push(Action::Lost(worker.member.clone()));
            }
            if lost && !worker.lost && worker.info.is_some() {
                let name = worker.member.id.clone();
                let loss = worker.loss(now, &self.limits);
                let left = worker.has_drained();
                actions.push(Action::Log(if left { Notice::Left(name) } else { Notice::Lost(name, loss) }));
                actions.push(Action::Recheck(id));
            } else if another_ready && worker.is_giving_back() {
                actions.push(Action::Recheck(id));
            }
            worker.lost = lost;
            if lost && worker.departed {
                departed.push(worker.member.id.clone());
            }
        }
        actions.extend(departed.iter().flat_map(|name| self.remove(name)));
        if pause >= OWN_PAUSE {
            let all: Vec<WorkerId> = self.workers.keys().copied().collect();
            all.into_iter().for_each(|id| self.refresh(id));
        }
        actions
    }
}
