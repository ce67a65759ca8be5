//! What workers say, and when routers hear it.

use skein_choice::fleet::{Action, Event};
use skein_proto::load::LoadReport;
use skein_proto::watch::{WatchBody, WatchEvent};

use super::simulation::{EPOCH, Happening, Message, Router, Simulation, time};

impl Simulation<'_> {
    /// Appends an event to a worker's log, which all routers read.
    pub(super) fn tell(&mut self, now: u64, worker: usize, body: WatchBody) {
        for router in 0..self.routers.len() {
            self.tell_router(now, router, worker, body.clone());
        }
        self.logs[worker] += 1;
    }

    /// Sends a worker's load to all routers.
    pub(super) fn report(&mut self, now: u64, worker: usize) {
        let report = self.workers[worker].report(now);
        for router in 0..self.routers.len() {
            let last_placement_sequence = self.workers[worker].seen(router);
            let report = LoadReport { last_placement_sequence, ..report };
            self.tell_router(now, router, worker, WatchBody::Load(report, Vec::new()));
        }
    }

    fn tell_router(&mut self, now: u64, router: usize, worker: usize, body: WatchBody) {
        let event = WatchEvent { epoch: EPOCH, sequence: self.logs[worker], body };
        self.send(now, router, Message::Watched { worker, event });
    }

    pub(super) fn send(&mut self, now: u64, router: usize, message: Message) {
        if self.cluster.delay == 0 {
            return self.hear(now, router, message);
        }
        self.messages.push_back((router, message));
        self.at(now + self.cluster.delay, Happening::Heard);
    }

    pub(super) fn hear(&mut self, now: u64, router: usize, message: Message) {
        let Router { fleet, ids } = &mut self.routers[router];
        match message {
            Message::Watched { worker, event } => {
                let actions = fleet.handle(time(now), Event::Watched(ids[worker], event));
                let is_lost = actions.iter().any(|action| matches!(action, Action::Resubscribe(_)));
                assert!(!is_lost, "the simulated worker {worker} keeps to the protocol: {actions:?}");
            }
            Message::FirstToken(placement) => drop(fleet.handle(time(now), Event::FirstToken(placement))),
            Message::Ended(placement) => drop(fleet.ended(placement)),
        }
    }
}
