//! The faults: which, when, and how they end.

mod kind;
mod processes;
mod wires;

pub use kind::Fault;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::names::{CLIENT, ETCD};
use crate::network::Host;
use crate::random::Random;
use crate::world::World;

/// Injects faults until `until`, then repairs everything.
pub async fn disturb(world: Arc<World>, random: Random, until: Instant) {
    let nemesis = Nemesis { world, random };
    if !nemesis.world.plan.faults.is_empty() {
        loop {
            let pause = nemesis.random.millis(20, nemesis.world.plan.fault_pause.as_millis() as u64);
            if Instant::now() + pause >= until {
                break;
            }
            tokio::time::sleep(pause).await;
            let fault = nemesis.random.pick(&nemesis.world.plan.faults);
            nemesis.strike(fault);
        }
    }
    tokio::time::sleep_until(until).await;
    nemesis.mend();
}

struct Nemesis {
    world: Arc<World>,
    random: Random,
}

impl Nemesis {
    fn say(&self, who: Host, what: std::fmt::Arguments<'_>) {
        self.world.log.say(who, format_args!("! {what}"));
    }

    fn a_worker(&self) -> Host {
        self.random.pick(&self.world.plan.workers)
    }

    fn a_router(&self) -> Host {
        self.random.pick(&self.world.plan.routers)
    }

    /// Two hosts that talk to each other.
    fn a_pair(&self) -> (Host, Host) {
        match self.random.between(0, 5) {
            0 => (CLIENT, self.a_router()),
            1 => (self.a_router(), ETCD),
            2 => (self.a_worker(), ETCD),
            _ => (self.a_router(), self.a_worker()),
        }
    }

    /// A random duration; short ones are as likely as long ones.
    fn a_while(&self) -> Duration {
        self.random.millis(20, 15_000)
    }

    fn strike(&self, fault: Fault) {
        self.world.log.disturbed();
        match fault {
            Fault::KillWorker => self.kill(self.a_worker(), None, false),
            Fault::KillRouter => self.kill(self.a_router(), None, false),
            Fault::KillWorkerAtAnAwait => {
                self.kill(self.a_worker(), Some(self.random.between(1, 300)), false)
            }
            Fault::KillRouterAtAnAwait => {
                self.kill(self.a_router(), Some(self.random.between(1, 300)), false)
            }
            Fault::PowerLost => self.kill(self.a_worker(), None, true),
            Fault::StopProcess => self.stop(),
            Fault::EngineStuck => self.stick(),
            Fault::EngineSlow => self.slow(),
            Fault::StepFails => self.fail_step(),
            Fault::Drain => self.drain(),
            Fault::OtherWeights => self.swap_weights(),
            Fault::Cut => {
                let (one, other) = self.a_pair();
                self.say(one, format_args!("connections to {other} are cut"));
                self.world.network.cut(one, other);
            }
            Fault::Partition => self.partition(true),
            Fault::OneWay => self.partition(false),
            Fault::Abused => self.abuse(),
            Fault::EtcdAway => self.etcd_away(),
            Fault::EtcdDeaf => {
                self.say(ETCD, format_args!("its watches go deaf"));
                self.world.etcd.deafen();
            }
            Fault::EtcdCompacts => {
                self.say(ETCD, format_args!("compacts"));
                self.world.etcd.compact();
            }
            Fault::EtcdWiped => {
                self.say(ETCD, format_args!("loses its data"));
                self.world.etcd.wipe();
            }
            Fault::LeasesEnd => {
                self.say(ETCD, format_args!("ends all leases"));
                self.world.etcd.end_leases();
            }
        }
    }

    /// Ends all faults. Processes that are down return after their downtime.
    fn mend(&self) {
        let World { plan, network, etcd, .. } = &*self.world;
        self.say("all", format_args!("the faults are over"));
        network.heal();
        self.world.right_weights();
        etcd.set_away(false, true);
        for &host in plan.workers.iter().chain(&plan.routers) {
            network.mute(host, false);
            if let Some(process) = self.world.process(host) {
                process.stop(false);
                process.kill_after(None);
            }
            if let Some(worker) = self.world.worker(host) {
                worker.device.stick(Instant::now());
                worker.device.fails.store(false, Ordering::Relaxed);
                worker.device.slowness.store(1, Ordering::Relaxed);
                if worker.other_weights {
                    worker.process.kill();
                }
            }
        }
    }
}
