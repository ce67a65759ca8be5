//! TLS over a socket of the standard library, for threads that block: the same calls as a `TcpStream`'s, with
//! its timeouts and its non-blocking mode. Two handles of one connection may read and write at the same time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::cluster::{CLUSTER_NAME, ClusterTls};
use crate::handshake::HandshakeError;

/// Most bytes that one write encrypts: four records.
const WRITE_BYTES: usize = 64 << 10;
/// Most bytes that one read takes from the socket.
const READ_BYTES: usize = 64 << 10;

/// An encrypted connection. Bytes written leave at the next write or [`flush`](Write::flush), which fails
/// with
/// `WouldBlock` like a socket's write.
#[derive(Clone)]
pub struct TlsSocket(Arc<Parts>);

struct Parts {
    socket: TcpStream,
    session: Mutex<Connection>,
    received: Mutex<Received>,
    /// Locked before `session` by those that need both, so that records leave in their order.
    leaving: Mutex<Leaving>,
}

/// Bytes from the socket that are not decrypted yet.
struct Received {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

/// Encrypted bytes for the socket.
#[derive(Default)]
struct Leaving {
    bytes: Vec<u8>,
    sent: usize,
}

impl std::fmt::Debug for TlsSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsSocket")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

impl ClusterTls {
    /// Serves a connection of another node. The handshake takes place within the first reads, which may be
    /// non-blocking.
    ///
    /// # Errors
    /// If the certificate cannot be used.
    pub fn accept_blocking(&self, socket: TcpStream) -> io::Result<TlsSocket> {
        let mut config = ServerConfig::clone(&self.server.current());
        // Nodes stay connected. A ticket that the client never reads would reset the connection at its end.
        config.send_tls13_tickets = 0;
        let session = ServerConnection::new(Arc::new(config)).map_err(invalid)?;
        Ok(TlsSocket::new(socket, session.into()))
    }

    /// Encrypts a connection to another node, whose certificate must have [`CLUSTER_NAME`]. Leaves the socket
    /// blocking and without timeouts.
    ///
    /// # Errors
    /// If the handshake fails or takes longer than `most`.
    pub fn connect_blocking(&self, socket: TcpStream, most: Duration) -> Result<TlsSocket, HandshakeError> {
        let name = self.client.server_name(CLUSTER_NAME)?;
        let session = ClientConnection::new(self.client.current(), name).map_err(invalid)?;
        let stream = TlsSocket::new(socket, session.into());
        stream.shake_hands(most)?;
        Ok(stream)
    }
}

impl TlsSocket {
    fn new(socket: TcpStream, session: Connection) -> Self {
        let received = Received { bytes: vec![0; READ_BYTES], from: 0, to: 0 };
        Self(Arc::new(Parts {
            socket,
            session: Mutex::new(session),
            received: Mutex::new(received),
            leaving: Mutex::default(),
        }))
    }

    /// The socket below, for its timeouts and its end. Not for bytes.
    pub fn socket(&self) -> &TcpStream {
        &self.0.socket
    }

    fn shake_hands(&self, most: Duration) -> io::Result<()> {
        #[allow(clippy::disallowed_methods)] // bounds a wait for the network; nothing is simulated here
        let began = Instant::now();
        let socket = self.socket();
        socket.set_nonblocking(false)?;
        while lock(&self.0.session).is_handshaking() {
            self.answer()?;
            let left = most.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            socket.set_read_timeout(Some(left))?;
            let mut received = lock(&self.0.received);
            if received.is_empty() {
                match received.fill(socket) {
                    Ok(true) => {}
                    Ok(false) => return Err(ErrorKind::UnexpectedEof.into()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    Err(error) => return Err(error),
                }
            }
            let taken = received.decrypt(&mut lock(&self.0.session));
            drop(received);
            let answered = self.answer();
            taken.and(answered)?;
        }
        self.answer()?;
        socket.set_read_timeout(None)
    }

    /// Sends what the session itself has to say: its part of the handshake, or why it ends.
    fn answer(&self) -> io::Result<()> {
        let mut leaving = lock(&self.0.leaving);
        leaving.encrypt(&mut lock(&self.0.session), &[])?;
        leaving.flush(&self.0.socket)
    }
}

impl Received {
    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Reads from the socket; false at its end.
    fn fill(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        (self.from, self.to) = (0, 0);
        self.to = socket.read(&mut self.bytes)?;
        Ok(self.to > 0)
    }

    /// Gives the session as many bytes as it takes.
    fn decrypt(&mut self, session: &mut Connection) -> io::Result<()> {
        let mut left = &self.bytes[self.from..self.to];
        session.read_tls(&mut left)?;
        self.from = self.to - left.len();
        session.process_new_packets().map(drop).map_err(invalid)
    }
}

impl Leaving {
    /// Encrypts `plain`, or the beginning of it; returns how much.
    fn encrypt(&mut self, session: &mut Connection, plain: &[u8]) -> io::Result<usize> {
        let taken = session.writer().write(&plain[..plain.len().min(WRITE_BYTES)])?;
        while session.wants_write() {
            session.write_tls(&mut self.bytes)?;
        }
        Ok(taken)
    }

    fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match socket.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

impl Read for TlsSocket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut received = lock(&self.0.received);
        loop {
            let was_handshaking = {
                let mut session = lock(&self.0.session);
                match session.reader().read(to) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    outcome => return outcome,
                }
                session.is_handshaking()
            };
            if was_handshaking {
                self.answer()?;
            }
            // The peers' messages have lengths, so an end without notice is seen as one in the middle of a
            // message.
            if received.is_empty() && !received.fill(&self.0.socket)? {
                return if was_handshaking { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(0) };
            }
            let outcome = received.decrypt(&mut lock(&self.0.session));
            if was_handshaking || outcome.is_err() {
                let answered = self.answer();
                outcome.and(answered)?;
            }
        }
    }
}

impl Write for TlsSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut leaving = lock(&self.0.leaving);
        leaving.flush(&self.0.socket)?;
        leaving.encrypt(&mut lock(&self.0.session), from)
    }

    fn flush(&mut self) -> io::Result<()> {
        lock(&self.0.leaving).flush(&self.0.socket)
    }
}
