//! One direction of a connection: reads bytes, delays them as configured and writes them in order.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::link::{Flow, Link, Network};
use crate::seeded::SeededRng;

/// Most bytes per read.
const CHUNK: usize = 16 * 1024;
/// Most chunks in flight. At this number the pump stops reading, which blocks the sender.
const MAX_IN_FLIGHT: usize = 256;

/// Arrival time and bytes of a chunk in flight; no bytes = end of stream.
type Chunk = (Timestamp, Vec<u8>);

/// Carries bytes until end of stream has arrived.
///
/// # Errors
/// I/O errors of the two sockets.
pub async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut network: watch::Receiver<Network>,
    side: fn(&Network) -> Link,
    seed: u64,
) -> io::Result<()> {
    let mut transit =
        Transit { in_flight: VecDeque::new(), free_at: clock::now(), rng: SeededRng::new(seed) };
    let mut buffer = vec![0; CHUNK];
    let (mut ended, mut poisoned) = (false, false);
    loop {
        let link = side(&network.borrow_and_update());
        let swallows = poisoned || link.flow == Flow::Swallow;
        if swallows {
            poisoned |= !transit.in_flight.is_empty();
            transit.in_flight.clear();
        }
        let reads = !ended && transit.in_flight.len() < MAX_IN_FLIGHT;
        let first = transit.in_flight.front().map(|chunk| chunk.0);
        tokio::select! {
            // The proxy is gone, and this connection's tasks end with it.
            changed = network.changed() => if changed.is_err() { return Ok(()) },
            count = from.read(&mut buffer), if reads => {
                let count = count?;
                ended = count == 0;
                if swallows {
                    poisoned = true;
                } else {
                    transit.enter(&link, &buffer[..count]);
                }
            }
            () = until(first), if first.is_some() && link.flow == Flow::Pass => {
                let Some((_, bytes)) = transit.in_flight.pop_front() else { continue };
                if bytes.is_empty() {
                    return to.shutdown().await;
                }
                to.write_all(&bytes).await?;
            }
        }
    }
}

/// The chunks in flight.
struct Transit {
    in_flight: VecDeque<Chunk>,
    /// The link is busy with the last chunk until then; no later chunk arrives earlier.
    free_at: Timestamp,
    rng: SeededRng,
}

impl Transit {
    fn enter(&mut self, link: &Link, bytes: &[u8]) {
        let start = self.free_at.max(clock::now());
        let mut on_the_wire = Duration::ZERO;
        if let Some(bandwidth) = link.bandwidth {
            on_the_wire = Duration::from_secs_f64(bytes.len() as f64 / bandwidth.max(1) as f64);
        }
        if link.loss > 0.0 && self.rng.unit() < link.loss {
            on_the_wire += link.resend_after;
        }
        self.free_at = start + on_the_wire;
        self.in_flight.push_back((self.free_at + link.delay, bytes.to_vec()));
    }
}

async fn until(time: Option<Timestamp>) {
    let wait = time.map_or(Duration::ZERO, |time| time.since(clock::now()));
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}
