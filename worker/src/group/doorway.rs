//! Connections whose peers have not said yet who they are. All are heard at once, each has one deadline, and
//! their number is bounded, so that one that says nothing keeps no other out. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use skein_node::clock::Timestamp;

/// Most connections at once; a further one takes the place of the one that has waited longest.
const MAX_WAITING: usize = 128;

/// Connections that wait to be let in.
#[derive(Debug)]
pub struct Doorway<T> {
    limit: Duration,
    waiting: VecDeque<(T, Timestamp)>,
}

impl<T> Doorway<T> {
    /// An empty one; each connection has `limit` to say all that it has to.
    pub fn new(limit: Duration) -> Self {
        Self { limit, waiting: VecDeque::new() }
    }

    /// Takes a new connection. Returns one that has to leave for it.
    pub fn enter(&mut self, stranger: T, now: Timestamp) -> Option<T> {
        let is_full = self.waiting.len() >= MAX_WAITING;
        let leaves = if is_full { self.waiting.pop_front() } else { None };
        self.waiting.push_back((stranger, now));
        leaves.map(|(stranger, _)| stranger)
    }

    /// Hears each connection once. Returns those for which `hear` has a verdict, and `late` for those whose
    /// time is over.
    pub fn hear<V>(
        &mut self,
        now: Timestamp,
        mut hear: impl FnMut(&mut T) -> Option<V>,
        late: impl Fn() -> V,
    ) -> Vec<(T, V)> {
        let mut done = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some((mut stranger, since)) = self.waiting.pop_front() else { break };
            let verdict = hear(&mut stranger).or_else(|| (now.since(since) >= self.limit).then(&late));
            match verdict {
                Some(verdict) => done.push((stranger, verdict)),
                None => self.waiting.push_back((stranger, since)),
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn silent_connections_keep_nobody_out() {
        let mut doorway = Doorway::new(Duration::from_secs(4));
        for second in 0..1000 {
            for silent in 0..20 {
                doorway.enter(silent, at(second));
                assert!(doorway.waiting.len() <= MAX_WAITING);
            }
            doorway.enter(99, at(second));
            let heard = doorway.hear(at(second), |stranger| (*stranger == 99).then_some(true), || false);
            assert_eq!(heard.iter().filter(|(_, verdict)| *verdict).count(), 1, "second {second}");
        }
    }

    #[test]
    fn each_has_one_deadline_and_their_order_stays() {
        let mut doorway = Doorway::new(Duration::from_secs(4));
        (0..4).for_each(|second| assert_eq!(doorway.enter(second, at(second)), None));
        let mut order = Vec::new();
        let late = doorway.hear(
            at(5),
            |stranger| {
                order.push(*stranger);
                None
            },
            || "late",
        );
        assert_eq!((order, late), (vec![0, 1, 2, 3], vec![(0, "late"), (1, "late")]));
        assert_eq!(doorway.hear(at(5), |_| Some("heard"), || "late"), [(2, "heard"), (3, "heard")]);
        let full: Vec<_> =
            (0..MAX_WAITING + 2).filter_map(|number| doorway.enter(number as u64, at(6))).collect();
        assert_eq!(full, [0, 1], "the one that has waited longest leaves");
    }
}
