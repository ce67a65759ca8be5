//! Which HTTP a connection speaks: HTTP/2 begins with words that no request of HTTP/1 has. The bytes that
//! tell are read from the connection and given back before the rest.
//!
//! hyper-util's `auto` does the same, but keeps room for both protocols in every connection, and gives its
//! first bytes to HTTP/1's reader as a read of their own, which doubles that reader's buffer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What an HTTP/2 client says first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes are known.
pub(crate) struct Begun<T> {
    first: [u8; PREFACE.len()],
    /// Bytes of `first` that have been given back.
    given: u8,
    /// Bytes of `first` that were read.
    read: u8,
    inner: T,
}

impl<T: AsyncRead + Unpin> Begun<T> {
    /// Reads until it is known whether `inner` speaks HTTP/2. An end is left to HTTP/1's reader.
    pub async fn read(inner: T) -> io::Result<Self> {
        let mut begun = Self { first: [0; PREFACE.len()], given: 0, read: 0, inner };
        while begun.may_be_http2() && begun.known() < PREFACE.len() {
            let known = begun.known();
            match begun.inner.read(&mut begun.first[known..]).await? {
                0 => break,
                count => begun.read += count as u8,
            }
        }
        Ok(begun)
    }

    pub fn is_http2(&self) -> bool {
        self.known() == PREFACE.len() && self.may_be_http2()
    }

    fn may_be_http2(&self) -> bool {
        PREFACE.starts_with(&self.first[..self.known()])
    }

    fn known(&self) -> usize {
        self.read.into()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Begun<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let left = &this.first[this.given.into()..this.read.into()];
        if left.is_empty() {
            return Pin::new(&mut this.inner).poll_read(context, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..count]);
        this.given += count as u8;
        // What has come since belongs to the same read. A fault shows again at the next one.
        if buffer.remaining() > 0 {
            let _ = Pin::new(&mut this.inner).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Begun<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Sends `parts` one after another; returns whether they begin HTTP/2, and all that is read.
    async fn check(parts: &[&[u8]]) -> (bool, Vec<u8>) {
        let (mut client, server) = tokio::io::duplex(64);
        let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.to_vec()).collect();
        let sent = tokio::spawn(async move {
            for part in parts {
                client.write_all(&part).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut begun = Begun::read(server).await.unwrap();
        let is_http2 = begun.is_http2();
        let mut all = Vec::new();
        begun.read_to_end(&mut all).await.unwrap();
        sent.await.unwrap();
        (is_http2, all)
    }

    #[tokio::test]
    async fn the_preface_tells_however_it_is_cut_and_no_byte_is_lost() {
        for rest in [&b""[..], b"rest"] {
            for cut in 0..=PREFACE.len() {
                let (first, second) = PREFACE.split_at(cut);
                assert_eq!(check(&[first, second, rest]).await, (true, [PREFACE, rest].concat()), "{cut}");
            }
        }
        let (get, long) = (&b"GET / HTTP/1.1\r\n\r\n"[..], [b'x'; 500]);
        let near = [&PREFACE[..PREFACE.len() - 1], b"x"].concat();
        for bytes in [b"", &b"P"[..], b"PRI", b"POST", b"PRI * HTTP/2.0\r\n\r\n", get, &long, &near] {
            for cut in [0, bytes.len() / 2, bytes.len()] {
                let (first, second) = bytes.split_at(cut);
                assert_eq!(check(&[first, second]).await, (false, bytes.to_vec()), "{bytes:?}");
            }
        }
    }

    /// hyper doubles its buffer for a head that comes in two reads.
    #[tokio::test]
    async fn what_has_come_is_one_read() {
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(&[b'x'; 300]).await.unwrap();
        let mut begun = Begun::read(server).await.unwrap();
        assert_eq!(begun.read(&mut [0; 10]).await.unwrap(), 10);
        assert_eq!(begun.read(&mut [0; 1024]).await.unwrap(), 290);
    }
}
