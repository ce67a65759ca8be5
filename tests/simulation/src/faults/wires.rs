//! Faults of the network, and of etcd.

use super::Nemesis;
use crate::names::ETCD;
use crate::network::Abuse;
use crate::random::Random;

impl Nemesis {
    pub(super) fn partition(&self, both_ways: bool) {
        let (one, other) = self.a_pair();
        let (one, other) = if self.random.once_in(2) { (one, other) } else { (other, one) };
        let lasts = self.a_while();
        let ways = if both_ways { "to and from" } else { "to" };
        self.say(one, format_args!("nothing gets {ways} {other} for {} ms", lasts.as_millis()));
        let network = self.world.network.clone();
        network.block(one, other, true);
        if both_ways {
            network.block(other, one, true);
        }
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            network.block(one, other, false);
            network.block(other, one, false);
        });
    }

    pub(super) fn abuse(&self) {
        let rate = |random: &Random| random.pick(&[0, 5, 20, 100]);
        let random = &self.random;
        let abuse = Abuse { dropped: rate(random), doubled: rate(random), swapped: rate(random) };
        let lasts = self.a_while();
        self.say("net", format_args!("{abuse:?} for {} ms", lasts.as_millis()));
        let network = self.world.network.clone();
        network.abuse(abuse);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            network.abuse(Abuse::default());
        });
    }

    pub(super) fn etcd_away(&self) {
        let lasts = self.random.millis(100, 30_000);
        let kept = self.random.once_in(2);
        self.say(ETCD, format_args!("is down for {} ms", lasts.as_millis()));
        let etcd = self.world.etcd.clone();
        etcd.set_away(true, kept);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            etcd.set_away(false, kept);
        });
    }
}
