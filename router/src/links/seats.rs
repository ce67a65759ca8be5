//! Queue of requests that wait because every worker is full. A seat is room for one running sample: a worker
//! has `max_num_seqs` seats. When a seat becomes free, the next request is called: the oldest one of
//! the tenant with the fewest tokens in called requests.
//!
//! The order is that of virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI
//! 2024): a tenant that joins starts at the counter of the waiting tenants, so that no tenant accumulates
//! credit. The fleet chooses the worker of a called request.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::request::tenant::Tenant;

/// A waiting request retries after this time without a call, because a report of a free seat may be lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Position of a request in the queue, kept if it is called but finds no seat.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    tenant: Tenant,
    /// Estimated cost of the request, in tokens.
    cost: u64,
    /// Rank within its tenant; `None` before its first wait.
    number: Option<u64>,
    /// Whether it was called and has not waited since.
    is_called: bool,
}

impl Ticket {
    /// Ticket of a request that costs about `cost` tokens.
    pub fn new(tenant: Tenant, cost: u64) -> Self {
        Self { tenant, cost, number: None, is_called: false }
    }
}

/// Requests that wait for a seat.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<Line<Arc<Notify>>>);

impl Seats {
    /// Whether a request must wait because others came first.
    pub fn is_behind(&self, ticket: &Ticket) -> bool {
        !ticket.is_called && self.with(|line| line.waiting > 0)
    }

    /// Waits until the request is called, or until the retry interval passes.
    pub async fn wait(&self, ticket: &mut Ticket) {
        let called = Arc::new(Notify::new());
        let number = self.with(|line| line.join(ticket, called.clone()));
        let mut place = Place { seats: self, tenant: &ticket.tenant, number, looks: false };
        let _ = tokio::time::timeout(LOOK_AGAIN, called.notified()).await;
        // Called or timed out, the request now looks for a seat.
        place.looks = true;
        drop(place);
        ticket.is_called = true;
    }

    /// Calls the next request, because a seat may be free.
    pub fn call(&self) {
        if let Some(next) = self.with(Line::call) {
            next.notify_one();
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Line<Arc<Notify>>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Place of a waiting request in the queue. A request that leaves after it was called passes the call on.
struct Place<'a> {
    seats: &'a Seats,
    tenant: &'a Tenant,
    number: u64,
    /// Whether it was called and is now trying to get a worker.
    looks: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let was_waiting = self.seats.with(|line| line.leave(self.tenant, self.number));
        if !was_waiting && !self.looks {
            self.seats.call();
        }
    }
}

/// Order of the waiting requests. Pure.
#[derive(Debug)]
struct Line<T> {
    tenants: HashMap<Tenant, Turn<T>>,
    waiting: usize,
    next_number: u64,
    /// Counter of the tenant called last, before that call.
    floor: u64,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { tenants: HashMap::new(), waiting: 0, next_number: 1, floor: 0 }
    }
}

#[derive(Debug)]
struct Turn<T> {
    /// Tokens of its called requests.
    served: u64,
    /// Its waiting requests by number: cost, and the channel for the call.
    waiting: BTreeMap<u64, (u64, T)>,
}

impl<T> Line<T> {
    fn join(&mut self, ticket: &mut Ticket, how: T) -> u64 {
        ticket.is_called = false;
        let number = *ticket.number.get_or_insert_with(|| {
            self.next_number += 1;
            self.next_number - 1
        });
        let floor = self.floor;
        let turn = self.tenants.entry(ticket.tenant.clone());
        let turn = turn.or_insert_with(|| Turn { served: floor, waiting: BTreeMap::new() });
        if turn.waiting.is_empty() {
            turn.served = turn.served.max(floor);
        }
        self.waiting += usize::from(turn.waiting.insert(number, (ticket.cost, how)).is_none());
        number
    }

    fn leave(&mut self, tenant: &Tenant, number: u64) -> bool {
        let turn = self.tenants.get_mut(tenant);
        let was_waiting = turn.is_some_and(|turn| turn.waiting.remove(&number).is_some());
        self.waiting -= usize::from(was_waiting);
        self.forget_idle();
        was_waiting
    }

    fn call(&mut self) -> Option<T> {
        let waiting = self.tenants.values_mut().filter(|turn| !turn.waiting.is_empty());
        // Among tenants with equal counters, the one that has waited longest; the table's order must not
        // matter.
        let next = waiting.min_by_key(|turn| (turn.served, turn.waiting.keys().next().copied()))?;
        let (_, (cost, how)) = next.waiting.pop_first()?;
        self.floor = self.floor.max(next.served);
        next.served += cost;
        self.waiting -= 1;
        self.forget_idle();
        Some(how)
    }

    /// Removes tenants that would start at the floor anyway, and all tenants once no request waits.
    fn forget_idle(&mut self) {
        let (floor, nobody) = (self.floor, self.waiting == 0);
        self.tenants.retain(|_, turn| !turn.waiting.is_empty() || (turn.served > floor && !nobody));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(tenant: &str, cost: u64) -> Ticket {
        Ticket::new(Tenant::of_key(tenant), cost)
    }

    #[test]
    fn tenants_get_equal_tokens_whatever_they_send() {
        let mut line = Line::default();
        for request in 0..100 {
            line.join(&mut ticket("flood", 100), ("flood", request));
        }
        for request in 0..10 {
            line.join(&mut ticket("light", 200), ("light", request));
        }
        let order: Vec<&str> = (0..15).filter_map(|_| line.call().map(|(tenant, _)| tenant)).collect();
        let light = order.iter().filter(|tenant| **tenant == "light").count();
        assert_eq!(light, 5, "five of 200 tokens beside ten of 100: {order:?}");
    }

    #[test]
    fn within_a_tenant_the_first_comes_first_and_keeps_its_place() {
        let mut line = Line::default();
        let (mut one, mut other) = (ticket("a", 1), ticket("a", 1));
        line.join(&mut one, 1);
        line.join(&mut other, 2);
        assert_eq!(line.call(), Some(1));
        // The request found no seat.
        line.join(&mut one, 1);
        assert_eq!((line.call(), line.call(), line.call()), (Some(1), Some(2), None));
        assert_eq!((line.waiting, line.tenants.len()), (0, 0), "nothing is left behind");
    }

    #[test]
    fn nobody_saves_up_turns() {
        let mut line = Line::default();
        for request in 0..50 {
            line.join(&mut ticket("busy", 100), ("busy", request));
        }
        assert!((0..20).all(|_| line.call().is_some()));
        for request in 0..20 {
            line.join(&mut ticket("new", 100), ("new", request));
        }
        let next: Vec<&str> = (0..6).filter_map(|_| line.call().map(|(tenant, _)| tenant)).collect();
        let new = next.iter().filter(|tenant| **tenant == "new").count();
        assert!((3..=4).contains(&new), "not all six: {next:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_its_request_no_longer_needs_goes_to_the_next() {
        let seats = Arc::new(Seats::default());
        let wait = |tenant: &'static str| {
            let seats = seats.clone();
            tokio::spawn(async move { seats.wait(&mut ticket(tenant, 1)).await })
        };
        let (gone, next) = (wait("a"), wait("b"));
        tokio::task::yield_now().await;
        assert!(seats.is_behind(&ticket("c", 1)));
        seats.call();
        gone.abort();
        assert!(gone.await.is_err());
        tokio::time::timeout(Duration::from_millis(10), next).await.expect("it is called").expect("it waits");
        assert!(!seats.is_behind(&ticket("c", 1)));
    }
}
