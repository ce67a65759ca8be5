//! One connection through the proxy, from accept to its end or cut.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, watch};

use super::link::{Cut, Flow, Network};
use super::pump::pump;

/// After end of stream was sent to both sides: time for their own end of stream to arrive.
const LINGER: Duration = Duration::from_secs(1);

/// Runs the connection to its end.
pub async fn run(
    near: TcpStream,
    upstream: SocketAddr,
    mut network: watch::Receiver<Network>,
    mut orders: broadcast::Receiver<Cut>,
    seed: u64,
) {
    let connected = tokio::select! {
        connected = connect(upstream, &mut network) => connected,
        _ = orders.recv() => None,
    };
    // Nothing listens upstream: the client sees a reset, as it would without a proxy.
    let Some(far) = connected else { return reset(near) };
    let (mut near, mut far) = (near, far);
    // Small writes should go out at once. The sockets work without this.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let cut = {
        let (mut near_read, mut near_write) = near.split();
        let (mut far_read, mut far_write) = far.split();
        let up = pump(&mut near_read, &mut far_write, network.clone(), |network| network.up, seed);
        let down = pump(&mut far_read, &mut near_write, network, |network| network.down, !seed);
        tokio::select! {
            // As with real sockets, an error in one direction ends both.
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

/// Connects upstream once the simulated network passes bytes; before, not even an attempt is sent.
async fn connect(upstream: SocketAddr, network: &mut watch::Receiver<Network>) -> Option<TcpStream> {
    network.wait_for(|network| network.up.flow == Flow::Pass).await.ok()?;
    TcpStream::connect(upstream).await.ok()
}

/// Closes with a reset instead of end of stream.
pub fn reset(stream: TcpStream) {
    // If the socket refuses this option, it closes normally.
    let _ = stream.set_zero_linger();
}

/// Sends end of stream and waits briefly for the peer's. Closing at once would send a reset.
async fn finish(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut ignored = [0; 4096];
    let read_all = async { while stream.read(&mut ignored).await.is_ok_and(|count| count > 0) {} };
    // A peer that keeps sending is cut off.
    let _ = tokio::time::timeout(LINGER, read_all).await;
}
