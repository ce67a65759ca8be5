//! Ranks on different machines, with a TCP connection between each two.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use skein_sys::poll::Poll;

use super::link::is_passing;
use super::stream::Stream;
use super::{Begun, How, Lost, Ranks, check_lengths};

/// Size of a message header, in bytes: number of the exchange and length.
const HEADER: usize = 16;

/// A rank of a group with connections to all others.
#[derive(Debug)]
pub struct Sockets {
    rank: usize,
    /// The other ranks, in order.
    peers: Vec<Peer>,
    /// Number of exchanges so far.
    number: u64,
    timeout: Duration,
    poll: Poll,
}

#[derive(Debug)]
struct Peer {
    rank: usize,
    stream: Box<dyn Stream>,
    /// Whether written bytes may not have left yet.
    unflushed: bool,
    /// Bytes sent and received in this exchange, including headers.
    sent: usize,
    got: usize,
    header: [u8; HEADER],
}

/// Aborts a rank's exchanges from another thread.
#[derive(Debug)]
pub struct Closer(Vec<TcpStream>);

impl Closer {
    /// Handle that can close `streams`.
    pub fn new(streams: Vec<TcpStream>) -> Self {
        Self(streams)
    }

    /// Closes the connections: waits on them fail immediately, at both ends.
    pub fn close(&self) {
        for stream in &self.0 {
            // An error means that it is already closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Sockets {
    /// Rank `rank` of `streams.len() + 1`, with connections to the other ranks in order. A wait lasts at most
    /// `timeout`.
    ///
    /// # Errors
    /// If the sockets cannot be configured.
    pub fn new(rank: usize, streams: Vec<Box<dyn Stream>>, timeout: Duration) -> std::io::Result<Self> {
        let others = (0..streams.len() + 1).filter(|other| *other != rank);
        let peer = |(rank, stream): (usize, Box<dyn Stream>)| {
            stream.socket().set_nodelay(true)?;
            stream.socket().set_nonblocking(true)?;
            Ok(Peer { rank, stream, unflushed: false, sent: 0, got: 0, header: [0; HEADER] })
        };
        let peers = others.zip(streams).map(peer).collect::<std::io::Result<_>>()?;
        Ok(Self { rank, peers, number: 0, timeout, poll: Poll::default() })
    }
}

#[cfg(test)]
impl Sockets {
    /// Connection to the first other rank.
    pub(super) fn peers_of_test(&self) -> TcpStream {
        self.peers[0].stream.socket().try_clone().unwrap()
    }
}

impl Peer {
    /// Sends as much of `header` and `mine` as fits now; returns whether it sent anything.
    fn send(&mut self, header: &[u8; HEADER], mine: &[u8]) -> Result<bool, How> {
        let before = self.sent;
        while self.sent < HEADER + mine.len() {
            let bytes = match self.sent.checked_sub(HEADER) {
                None => &header[self.sent..],
                Some(at) => &mine[at..],
            };
            match self.stream.write(bytes) {
                Ok(0) => return Err(How::Ended),
                Ok(sent) => {
                    self.sent += sent;
                    self.unflushed = true;
                }
                Err(error) if is_passing(&error) => break,
                Err(_) => return Err(How::Ended),
            }
        }
        if self.unflushed {
            match self.stream.flush() {
                Ok(()) => self.unflushed = false,
                Err(error) if is_passing(&error) => {}
                Err(_) => return Err(How::Ended),
            }
        }
        Ok(self.sent > before)
    }

    /// Reads the bytes of this exchange that have arrived; returns whether there were any.
    fn get(&mut self, expected: &[u8; HEADER], to: &mut [u8]) -> Result<bool, How> {
        let before = self.got;
        while self.got < HEADER + to.len() {
            let room = match self.got.checked_sub(HEADER) {
                None => &mut self.header[self.got..],
                Some(at) => &mut to[at..],
            };
            match self.stream.read(room) {
                Ok(0) => return Err(How::Ended),
                Ok(got) => self.got += got,
                Err(error) if is_passing(&error) => break,
                Err(_) => return Err(How::Ended),
            }
            if self.got == HEADER && self.header != *expected {
                let length = self.header[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                return Err(How::Differs(length));
            }
        }
        Ok(self.got > before)
    }
}

impl Ranks for Sockets {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.peers.len() + 1
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost> {
        let len = mine.len();
        check_lengths(mine, all, self.count());
        self.number += 1;
        let begun = Begun::new(self.number, len, self.timeout);
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.number.to_le_bytes());
        header[8..].copy_from_slice(&(len as u64).to_le_bytes());
        all[self.rank * len..][..len].copy_from_slice(mine);
        self.peers.iter_mut().for_each(|peer| (peer.sent, peer.got) = (0, 0));
        loop {
            let (mut moved, mut missing, mut failed) = (false, None, None);
            for peer in &mut self.peers {
                let to = &mut all[peer.rank * len..][..len];
                let sent = peer.send(&header, mine);
                match sent.and_then(|sent| Ok(sent | peer.get(&header, to)?)) {
                    Ok(now) => moved |= now,
                    // The other ranks still get this rank's bytes, so that they report the same lost rank.
                    Err(how) => failed = failed.or(Some((peer.rank, how))),
                }
                if peer.unflushed || peer.sent.min(peer.got) < HEADER + len {
                    missing.get_or_insert(peer.rank);
                }
            }
            if let Some((rank, how)) = failed {
                return Err(begun.lost(rank, how));
            }
            let Some(missing) = missing else { return Ok(()) };
            if moved {
                continue;
            }
            let left = begun.left();
            if left.is_zero() {
                return Err(begun.lost(missing, How::Silent));
            }
            self.poll.clear();
            for peer in &self.peers {
                let sends = peer.unflushed || peer.sent < HEADER + len;
                self.poll.add(peer.stream.socket(), peer.got < HEADER + len, sends);
            }
            self.poll.wait(left);
        }
    }
}
