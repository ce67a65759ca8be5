//! One direction of a connection: bytes are read, wait as the weather says, and are written in their order.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::{Conduct, Flow, Weather};
use crate::seeded::Seeded;

/// Most bytes read at once.
const CHUNK: usize = 16 * 1024;
/// Most chunks under way; the sender waits while there are as many.
const UNDER_WAY: usize = 256;

/// Bytes under way, and when they arrive; no bytes = the end of the stream.
type Chunk = (Timestamp, Vec<u8>);

/// Carries bytes until the end of the stream has arrived.
///
/// # Errors
/// Those of the sockets.
pub async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut weather: watch::Receiver<Weather>,
    side: fn(&Weather) -> Conduct,
    seed: u64,
) -> io::Result<()> {
    let mut road = Road { under_way: VecDeque::new(), free_at: clock::now(), dice: Seeded::new(seed) };
    let mut buffer = vec![0; CHUNK];
    let (mut ended, mut poisoned) = (false, false);
    loop {
        let conduct = side(&weather.borrow_and_update());
        let swallows = poisoned || conduct.flow == Flow::Swallow;
        if swallows {
            poisoned |= !road.under_way.is_empty();
            road.under_way.clear();
        }
        let reads = !ended && road.under_way.len() < UNDER_WAY;
        let first = road.under_way.front().map(|chunk| chunk.0);
        tokio::select! {
            // The sender has gone: the connection ends, and its tasks are about to.
            changed = weather.changed() => if changed.is_err() { return Ok(()) },
            count = from.read(&mut buffer), if reads => {
                let count = count?;
                ended = count == 0;
                if swallows {
                    poisoned = true;
                } else {
                    road.enter(&conduct, &buffer[..count]);
                }
            }
            () = until(first), if first.is_some() && conduct.flow == Flow::Pass => {
                let Some((_, bytes)) = road.under_way.pop_front() else { continue };
                if bytes.is_empty() {
                    return to.shutdown().await;
                }
                to.write_all(&bytes).await?;
            }
        }
    }
}

/// The way that bytes take.
struct Road {
    under_way: VecDeque<Chunk>,
    /// The last chunk is on the wire until then: no later one arrives before it.
    free_at: Timestamp,
    dice: Seeded,
}

impl Road {
    fn enter(&mut self, conduct: &Conduct, bytes: &[u8]) {
        let start = self.free_at.max(clock::now());
        let mut on_the_wire = Duration::ZERO;
        if let Some(bandwidth) = conduct.bandwidth {
            on_the_wire = Duration::from_secs_f64(bytes.len() as f64 / bandwidth.max(1) as f64);
        }
        if conduct.loss > 0.0 && self.dice.unit() < conduct.loss {
            on_the_wire += conduct.resend_after;
        }
        self.free_at = start + on_the_wire;
        self.under_way.push_back((self.free_at + conduct.delay, bytes.to_vec()));
    }
}

async fn until(time: Option<Timestamp>) {
    let wait = time.map_or(Duration::ZERO, |time| time.since(clock::now()));
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}
