//! Messages between the nodes of a group: a kind, a length, and as many bytes, over one TCP connection for
//! each node.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use skein_node::clock;

use super::memory::MAX_FRAME_WORDS;
use super::pulse::SILENCE;

/// Kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A node says what it is, to the leader.
    Hello = 1,
    /// The leader proves that it has the secret.
    Challenge,
    /// The node proves that it has the secret.
    Proof,
    /// The node may not join.
    Refused,
    /// The node may join; carries what its ranks need.
    Welcome,
    /// A rank's answer.
    Answer,
    /// The addresses of all ranks.
    Peers,
    /// A frame, for the ranks to follow.
    Frame,
    /// The sender is alive.
    Beat,
    /// The group ends because of a rank.
    End,
    /// The group ends because its leader was told to stop.
    Stop,
}

const KINDS: [Kind; 11] = [
    Kind::Hello,
    Kind::Challenge,
    Kind::Proof,
    Kind::Refused,
    Kind::Welcome,
    Kind::Answer,
    Kind::Peers,
    Kind::Frame,
    Kind::Beat,
    Kind::End,
    Kind::Stop,
];

/// Bytes before a message: kind and length.
const HEADER: usize = 8;
/// Longest message of a node that has not joined yet.
pub const MAX_UNKNOWN: usize = 64 << 10;
/// Longest message of all.
pub const MAX_KNOWN: usize = 4 * MAX_FRAME_WORDS;

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It was closed.
    #[error("the connection has ended")]
    Ended,
    /// The network or the system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The bytes received are not a message.
    #[error("message {kind} of {bytes} bytes is not from this program")]
    Unknown {
        /// Number of its kind.
        kind: u32,
        /// Its length.
        bytes: usize,
    },
}

/// The receiving side of a connection. Waiting too long loses no bytes.
#[derive(Debug)]
pub struct Incoming {
    stream: TcpStream,
    most: usize,
    bytes: Vec<u8>,
}

/// The sending side of a connection.
#[derive(Debug)]
pub struct Outgoing {
    stream: TcpStream,
}

/// Both sides of a new connection. Sending fails if the other side reads nothing for as long as it may be
/// silent.
///
/// # Errors
/// If the socket cannot be set up.
pub fn split(stream: TcpStream) -> std::io::Result<(Incoming, Outgoing)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(SILENCE))?;
    let incoming = Incoming { stream: stream.try_clone()?, most: MAX_UNKNOWN, bytes: Vec::new() };
    Ok((incoming, Outgoing { stream }))
}

impl Incoming {
    /// From now on, messages may be long.
    pub fn trust(&mut self) {
        self.most = MAX_KNOWN;
    }

    /// Address of the other side.
    ///
    /// # Errors
    /// If it has closed the connection.
    pub fn peer(&self) -> std::io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// The next message; `None` if there is none within `most`.
    ///
    /// # Errors
    /// If no further message can come.
    pub fn receive(&mut self, most: Duration) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
        let began = clock::now();
        let mut room = [0; 64 << 10];
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let left = most.saturating_sub(clock::now().since(began));
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut room) {
                Ok(0) => return Err(WireError::Ended),
                Ok(read) => self.bytes.extend_from_slice(&room[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(None),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The first message, if it is complete.
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
    /// If the other side does not read, or has closed the connection.
    pub fn send(&mut self, kind: Kind, message: &[u8]) -> std::io::Result<()> {
        let mut bytes = Vec::with_capacity(HEADER + message.len());
        bytes.extend_from_slice(&(kind as u32).to_le_bytes());
        bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
        bytes.extend_from_slice(message);
        self.stream.write_all(&bytes)
    }

    /// Sends words.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_words(&mut self, words: &[u32]) -> std::io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.send(Kind::Frame, &bytes)
    }

    /// Sends a last message if there is room for it, without waiting, and closes the connection.
    pub fn send_last(&mut self, kind: Kind, message: &[u8]) {
        // Each fails if the connection is closed.
        let _ = self.stream.set_nonblocking(true);
        let _ = self.send(kind, message);
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// The words of a [`Kind::Frame`].
pub fn words(message: &[u8]) -> Vec<u32> {
    let (words, _) = message.as_chunks();
    words.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, Incoming) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, split(listener.accept().unwrap().0).unwrap().0)
    }

    #[test]
    fn messages_arrive_whole_also_if_their_bytes_come_one_by_one() {
        let (one, mut other) = pair();
        let (_, mut outgoing) = split(one.try_clone().unwrap()).unwrap();
        outgoing.send_words(&[1, 2, 3]).unwrap();
        outgoing.send(Kind::Beat, &[]).unwrap();
        let second = Duration::from_secs(20);
        let (kind, message) = other.receive(second).unwrap().unwrap();
        assert_eq!((kind, words(&message)), (Kind::Frame, vec![1, 2, 3]));
        assert_eq!(other.receive(second).unwrap(), Some((Kind::Beat, Vec::new())));
        let mut raw = &one;
        for byte in [6, 0, 0, 0, 2, 0, 0, 0, 7, 8] {
            assert!(other.receive(Duration::from_millis(1)).unwrap().is_none());
            raw.write_all(&[byte]).unwrap();
        }
        assert_eq!(other.receive(second).unwrap(), Some((Kind::Answer, vec![7, 8])));
        drop((one, outgoing));
        assert!(matches!(other.receive(second), Err(WireError::Ended)));
    }

    #[test]
    fn what_is_no_message_is_refused_before_it_takes_memory() {
        for bytes in [[99, 0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0x40]] {
            let (mut one, mut other) = pair();
            one.write_all(&bytes).unwrap();
            assert!(matches!(other.receive(Duration::from_secs(20)), Err(WireError::Unknown { .. })));
        }
    }
}
