//! Faults of processes and their devices.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::Nemesis;
use crate::network::Host;
use crate::world::Downtime;

impl Nemesis {
    pub(super) fn kill(&self, host: Host, after_polls: Option<u64>, dark: bool) {
        let Some(process) = self.world.process(host) else { return };
        let lasts = self.random.millis(50, 10_000);
        self.world.plan_downtime(host, Downtime { lasts, dark });
        match after_polls {
            None => {
                self.say(host, format_args!("is killed for {} ms", lasts.as_millis()));
                process.kill();
            }
            Some(polls) => {
                self.say(
                    host,
                    format_args!("is to be killed after {polls} polls, for {} ms", lasts.as_millis()),
                );
                process.kill_after(Some(polls));
            }
        }
    }

    pub(super) fn stop(&self) {
        let host = if self.random.once_in(3) { self.a_router() } else { self.a_worker() };
        let Some(process) = self.world.process(host) else { return };
        let lasts = self.a_while();
        self.say(host, format_args!("is stopped for {} ms", lasts.as_millis()));
        process.stop(true);
        let network = self.world.network.clone();
        network.mute(host, true);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            process.stop(false);
            network.mute(host, false);
        });
    }

    pub(super) fn stick(&self) {
        let host = self.a_worker();
        let Some(worker) = self.world.worker(host) else { return };
        let lasts = self.a_while();
        self.say(host, format_args!("its engine is stuck for {} ms", lasts.as_millis()));
        worker.device.stick(Instant::now() + lasts);
    }

    pub(super) fn slow(&self) {
        let host = self.a_worker();
        let Some(worker) = self.world.worker(host) else { return };
        let lasts = self.a_while();
        let times = self.random.small(2, 20);
        self.say(host, format_args!("is {times} times as slow for {} ms", lasts.as_millis()));
        worker.device.slowness.store(times, Ordering::Relaxed);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            worker.device.slowness.store(1, Ordering::Relaxed);
        });
    }

    pub(super) fn fail_step(&self) {
        let host = self.a_worker();
        let Some(worker) = self.world.worker(host) else { return };
        self.say(host, format_args!("its next step fails"));
        worker.device.fails.store(true, Ordering::Relaxed);
    }

    pub(super) fn drain(&self) {
        let host = self.a_worker();
        let Some(worker) = self.world.worker(host) else { return };
        let lasts = self.random.millis(50, 10_000);
        self.say(host, format_args!("is told to end, and is down for {} ms", lasts.as_millis()));
        self.world.plan_downtime(host, Downtime { lasts, dark: false });
        worker.told_to_end.notify_one();
    }

    /// Kills the worker and restarts it at once with a different model of the same name.
    pub(super) fn swap_weights(&self) {
        let host = self.a_worker();
        let Some(worker) = self.world.worker(host) else { return };
        self.say(host, format_args!("comes back with other weights"));
        self.world.swap_weights(host);
        self.world.plan_downtime(host, Downtime { lasts: self.random.millis(1, 500), dark: false });
        worker.process.kill();
    }
}
