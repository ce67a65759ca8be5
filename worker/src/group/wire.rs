//! Messages between the nodes of a group, over one connection per node. A message is a kind, a length and
//! its bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use skein_kernels::collective::Stream;
use skein_node::clock;

use super::connection::Connection;
use super::heartbeat::HEARTBEAT_TIMEOUT;
use super::memory::MAX_FRAME_WORDS;

/// Kind of a message, in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A node introduces itself to the leader.
    Hello = 1,
    /// The leader proves knowledge of the secret.
    Challenge,
    /// The node proves knowledge of the secret.
    Proof,
    /// The leader refuses the node.
    Refused,
    /// The leader admits the node; carries the configuration of its ranks.
    Welcome,
    /// An answer of a rank.
    Answer,
    /// A line for the standard input of every rank.
    Line,
    /// A frame for the ranks to execute.
    Frame,
    /// Heartbeat of the sender.
    Heartbeat,
    /// The group ends because a rank failed.
    End,
    /// The group ends because its leader is stopping.
    Stop,
}

const KINDS: [Kind; 11] = [
    Kind::Hello,
    Kind::Challenge,
    Kind::Proof,
    Kind::Refused,
    Kind::Welcome,
    Kind::Answer,
    Kind::Line,
    Kind::Frame,
    Kind::Heartbeat,
    Kind::End,
    Kind::Stop,
];

/// Size of a message header, in bytes: kind and length.
const HEADER: usize = 8;
/// Longest message from a node that has not joined yet, in bytes.
pub const MAX_HANDSHAKE_BYTES: usize = 64 << 10;
/// Longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4 * MAX_FRAME_WORDS;

/// Why a connection is unusable.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Ended,
    /// The network or the system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The received bytes are not a message.
    #[error("message {kind} of {bytes} bytes is not from this version of Skein")]
    Unknown {
        /// Number of the message kind.
        kind: u32,
        /// Length of the message, in bytes.
        bytes: usize,
    },
}

/// Receiving side of a connection. A timeout loses no bytes.
#[derive(Debug)]
pub struct Incoming {
    stream: Connection,
    most: usize,
    bytes: Vec<u8>,
}

/// The sending side of a connection.
#[derive(Debug)]
pub struct Outgoing {
    stream: Connection,
}

/// Splits a new connection. A send fails if the peer reads nothing for the heartbeat timeout.
///
/// # Errors
/// If the socket cannot be configured.
pub fn split(stream: Connection) -> std::io::Result<(Incoming, Outgoing)> {
    let socket = stream.socket();
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(HEARTBEAT_TIMEOUT))?;
    let incoming = Incoming { stream: stream.try_clone()?, most: MAX_HANDSHAKE_BYTES, bytes: Vec::new() };
    Ok((incoming, Outgoing { stream }))
}

impl Incoming {
    /// Allows messages of full length from now on.
    pub fn allow_long_messages(&mut self) {
        self.most = MAX_MESSAGE_BYTES;
    }

    /// Address of the peer.
    ///
    /// # Errors
    /// If the peer has closed the connection.
    pub fn peer(&self) -> std::io::Result<SocketAddr> {
        self.stream.socket().peer_addr()
    }

    /// Whether reads and writes of both sides return at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
        self.stream.socket().set_nonblocking(nonblocking)
    }

    /// The next message of a non-blocking connection; `None` if it has not arrived.
    ///
    /// # Errors
    /// If the connection is unusable.
    pub fn arrived(&mut self) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// Next message; `None` if none arrives within `most`.
    ///
    /// # Errors
    /// If the connection is unusable.
    pub fn receive(&mut self, most: Duration) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
        let began = clock::now();
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let left = most.saturating_sub(clock::now().since(began));
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.socket().set_read_timeout(Some(left))?;
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// Reads once; false if nothing arrived in the socket's time.
    fn read(&mut self) -> Result<bool, WireError> {
        let mut room = [0; 64 << 10];
        match self.stream.read(&mut room) {
            Ok(0) => return Err(WireError::Ended),
            Ok(read) => self.bytes.extend_from_slice(&room[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// First buffered message, if it is complete.
    fn take(&mut self) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
        let Some((header, rest)) = self.bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, bytes] = [&header[..4], &header[4..]]
            .map(|word| word.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)));
        let length = bytes as usize;
        let known = KINDS.into_iter().find(|known| *known as u32 == kind);
        let Some(known) = known.filter(|_| length <= self.most) else {
            return Err(WireError::Unknown { kind, bytes: length });
        };
        if rest.len() < length {
            return Ok(None);
        }
        let message = rest[..length].to_vec();
        self.bytes.drain(..HEADER + length);
        Ok(Some((known, message)))
    }
}

impl Outgoing {
    /// Sends a message.
    ///
    /// # Errors
    /// If the peer does not read or has closed the connection.
    pub fn send(&mut self, kind: Kind, message: &[u8]) -> std::io::Result<()> {
        let mut bytes = Vec::with_capacity(HEADER + message.len());
        bytes.extend_from_slice(&(kind as u32).to_le_bytes());
        bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
        bytes.extend_from_slice(message);
        self.stream.write_all(&bytes)?;
        self.stream.flush()
    }

    /// Sends a frame's words.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_words(&mut self, words: &[u32]) -> std::io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.send(Kind::Frame, &bytes)
    }

    /// Sends a last message if that needs no wait, and closes the connection.
    pub fn send_last(&mut self, kind: Kind, message: &[u8]) {
        // Each call fails if the connection is closed.
        let _ = self.stream.socket().set_nonblocking(true);
        let _ = self.send(kind, message);
        let _ = self.stream.socket().shutdown(Shutdown::Write);
    }
}

/// Words of a [`Kind::Frame`].
pub fn words(message: &[u8]) -> Vec<u32> {
    let (words, _) = message.as_chunks();
    words.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
pub mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Both ends of a connection.
    pub fn connection() -> [Connection; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [one, listener.accept().unwrap().0].map(Connection::Plain)
    }

    fn pair() -> (Connection, Incoming) {
        let [one, other] = connection();
        (one, split(other).unwrap().0)
    }

    #[test]
    fn messages_arrive_whole_also_if_their_bytes_come_one_by_one() {
        let (mut one, mut other) = pair();
        let (_, mut outgoing) = split(one.try_clone().unwrap()).unwrap();
        outgoing.send_words(&[1, 2, 3]).unwrap();
        outgoing.send(Kind::Heartbeat, &[]).unwrap();
        let second = Duration::from_secs(20);
        let (kind, message) = other.receive(second).unwrap().unwrap();
        assert_eq!((kind, words(&message)), (Kind::Frame, vec![1, 2, 3]));
        assert_eq!(other.receive(second).unwrap(), Some((Kind::Heartbeat, Vec::new())));
        for byte in [6, 0, 0, 0, 2, 0, 0, 0, 7, 8] {
            assert!(other.receive(Duration::from_millis(1)).unwrap().is_none());
            one.write_all(&[byte]).unwrap();
        }
        assert_eq!(other.receive(second).unwrap(), Some((Kind::Answer, vec![7, 8])));
        drop((one, outgoing));
        assert!(matches!(other.receive(second), Err(WireError::Ended)));
    }

    #[test]
    fn invalid_messages_are_refused_before_they_take_memory() {
        for bytes in [[99, 0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0x40]] {
            let (mut one, mut other) = pair();
            one.write_all(&bytes).unwrap();
            assert!(matches!(other.receive(Duration::from_secs(20)), Err(WireError::Unknown { .. })));
        }
    }
}
