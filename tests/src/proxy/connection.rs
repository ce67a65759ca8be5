//! One connection through the proxy, from its acceptance to its end or its cut.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, watch};

use super::pump::pump;
use super::{Cut, Flow, Weather};

/// After an end of stream was sent to both sides: time for them to send theirs.
const LINGER: Duration = Duration::from_secs(1);

/// Runs the connection to its end.
pub async fn run(
    near: TcpStream,
    upstream: SocketAddr,
    mut weather: watch::Receiver<Weather>,
    mut orders: broadcast::Receiver<Cut>,
    seed: u64,
) {
    let connected = tokio::select! {
        connected = connect(upstream, &mut weather) => connected,
        _ = orders.recv() => None,
    };
    // Nobody is there: the side that connected hears of it as it would without us.
    let Some(far) = connected else { return reset(near) };
    let (mut near, mut far) = (near, far);
    // What is small should not wait for more; the sockets work without it.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let cut = {
        let (mut near_read, mut near_write) = near.split();
        let (mut far_read, mut far_write) = far.split();
        let up = pump(&mut near_read, &mut far_write, weather.clone(), |weather| weather.up, seed);
        let down = pump(&mut far_read, &mut near_write, weather, |weather| weather.down, !seed);
        tokio::select! {
            // An error of one direction ends both, as the system does it.
            ended = async { tokio::try_join!(up, down) } => if ended.is_ok() { None } else { Some(Cut::Reset) },
            cut = orders.recv() => Some(cut.unwrap_or(Cut::Reset)),
        }
    };
    match cut {
        None => {}
        Some(Cut::Reset) => [near, far].into_iter().for_each(reset),
        Some(Cut::Finish) => drop(tokio::join!(finish(near), finish(far))),
    }
}

/// Nothing is sent to the other side, not even that somebody connects, before the weather lets it through.
async fn connect(upstream: SocketAddr, weather: &mut watch::Receiver<Weather>) -> Option<TcpStream> {
    weather.wait_for(|weather| weather.up.flow == Flow::Pass).await.ok()?;
    TcpStream::connect(upstream).await.ok()
}

/// Closes with a reset instead of an end of stream.
pub fn reset(stream: TcpStream) {
    // A socket that refuses this closes in the other way.
    let _ = stream.set_zero_linger();
}

/// Sends an end of stream, and waits a little for the peer's own: closed at once, the socket would send a reset.
async fn finish(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut ignored = [0; 4096];
    let read_all = async { while stream.read(&mut ignored).await.is_ok_and(|count| count > 0) {} };
    // A peer that goes on sending is cut off.
    let _ = tokio::time::timeout(LINGER, read_all).await;
}
