//! Minimal HTTP/1.1 for the lab: messages framed by Content-Length, one at a time. Any other form that a proxy might
//! use is counted as an error.

use std::fmt;
use std::io::{self, Read as _};

use mio::net::TcpStream;
use rustix::net::RecvFlags;

const HEAD_READ_BYTES: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;

/// Error in a received message.
#[derive(Debug)]
pub(crate) enum MessageError {
    Closed,
    Io(io::Error),
    Head(httparse::Error),
    NoLength,
    TrailingBytes,
    Status(u16),
    Length(u64),
    Frame,
    Reset(u64),
    GoAway(u64),
    /// Status of a gRPC call other than 0.
    GrpcStatus(String),
    Tls(rustls::Error),
    Quic(quinn_proto::ConnectionError),
    NotResumed,
    /// The body exceeds one frame, the limit of the lab over HTTP/2.
    TooLong(usize),
}

impl fmt::Display for MessageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(out, "the connection was closed"),
            Self::Io(error) => write!(out, "{error}"),
            Self::Head(error) => write!(out, "malformed message head: {error}"),
            Self::NoLength => write!(out, "no valid Content-Length"),
            Self::TrailingBytes => write!(out, "bytes after the end of a message"),
            Self::Status(status) => write!(out, "status {status}"),
            Self::Length(bytes) => write!(out, "unexpected body length: {bytes} bytes"),
            Self::Frame => write!(out, "malformed frame"),
            Self::Reset(code) => write!(out, "stream reset with code {code}"),
            Self::GoAway(code) => write!(out, "GOAWAY with code {code}"),
            Self::GrpcStatus(status) => write!(out, "gRPC status {status}"),
            Self::Tls(error) => write!(out, "{error}"),
            Self::Quic(error) => write!(out, "{error}"),
            Self::NotResumed => write!(out, "the TLS session was not resumed as expected"),
            Self::TooLong(bytes) => {
                write!(out, "a body of {bytes} bytes is too long for HTTP/2 in the lab")
            }
        }
    }
}

/// The part of a message before its body.
pub(crate) trait MessageHead: Sized {
    /// Parses the head and returns it with its length in bytes; `None` while it is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError>;
    fn body_bytes(&self) -> u64;
}

pub(crate) struct RequestHead {
    pub(crate) body_bytes: u64,
    pub(crate) wanted: ResponseSpec,
    /// True if the client expects the connection to close after the response.
    pub(crate) closes: bool,
}

/// Response that a request's path asks of an endpoint.
pub(crate) enum ResponseSpec {
    /// For `…/b/N`: a body of N bytes; any other path is treated as `/b/100`.
    Bytes(usize),
    /// For `…/echo`: the head of the request as it arrived.
    Echo(Vec<u8>),
    /// For `…/b/N` in a gRPC call: a message of N bytes.
    Call(usize),
}

impl MessageHead for RequestHead {
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(length) =
            request.parse(bytes).map_err(MessageError::Head)?
        else {
            return Ok(None);
        };
        let body_bytes = content_length(request.headers)?.unwrap_or(0);
        let path = request.path.unwrap_or("/");
        let wanted = if path.ends_with("/echo") {
            ResponseSpec::Echo(bytes[..length].to_vec())
        } else {
            ResponseSpec::Bytes(bytes_in_path(path))
        };
        let closes = announces_close(request.headers);
        Ok(Some((Self { body_bytes, wanted, closes }, length)))
    }

    fn body_bytes(&self) -> u64 {
        self.body_bytes
    }
}

pub(crate) fn bytes_in_path(path: &str) -> usize {
    path.rsplit_once("/b/").and_then(|(_, number)| number.parse().ok()).unwrap_or(100)
}

pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    /// True if the connection accepts no further request.
    pub(crate) closes: bool,
}

impl MessageHead for ResponseHead {
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(length) =
            response.parse(bytes).map_err(MessageError::Head)?
        else {
            return Ok(None);
        };
        let body_bytes = content_length(response.headers)?.ok_or(MessageError::NoLength)?;
        let closes = announces_close(response.headers);
        Ok(Some((Self { status: response.code.unwrap_or(0), body_bytes, closes }, length)))
    }

    fn body_bytes(&self) -> u64 {
        self.body_bytes
    }
}

fn announces_close(headers: &[httparse::Header<'_>]) -> bool {
    headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("connection")
            && header.value.eq_ignore_ascii_case(b"close")
    })
}

fn content_length(headers: &[httparse::Header<'_>]) -> Result<Option<u64>, MessageError> {
    let Some(header) = headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"))
    else {
        return Ok(None);
    };
    let text = std::str::from_utf8(header.value).map_err(|_utf8| MessageError::NoLength)?;
    text.parse().map(Some).map_err(|_number| MessageError::NoLength)
}

/// Reader of one message. The body is counted and discarded.
pub(crate) struct MessageReader<H> {
    /// Bytes of an incomplete head.
    partial: Vec<u8>,
    head: Option<H>,
    body_left: u64,
}

impl<H: MessageHead> MessageReader<H> {
    pub(crate) fn new() -> Self {
        Self { partial: Vec::new(), head: None, body_left: 0 }
    }

    /// True if part of a message has been read.
    pub(crate) fn is_partial(&self) -> bool {
        self.head.is_some() || !self.partial.is_empty()
    }

    /// Reads until one message is complete or the socket has no more bytes. A read shorter than requested has drained
    /// the socket: the next bytes raise a new event.
    pub(crate) fn read(
        &mut self,
        socket: &TcpStream,
        scratch: &mut [u8],
    ) -> Result<Option<H>, MessageError> {
        loop {
            let requested;
            let count;
            if self.head.is_none() {
                requested = HEAD_READ_BYTES;
                count = or_blocked((&mut &*socket).read(&mut scratch[..requested]))?;
                self.take_head(&scratch[..count.unwrap_or(0)])?;
            } else {
                requested = self.body_left.min(scratch.len() as u64) as usize;
                count = or_blocked(discard(socket, &mut scratch[..requested]))?;
                self.body_left -= count.unwrap_or(0) as u64;
            }
            if self.head.is_some() && self.body_left == 0 {
                return Ok(self.head.take());
            }
            match count {
                Some(0) => return Err(MessageError::Closed),
                Some(count) if count == requested => {}
                Some(_) | None => return Ok(None),
            }
        }
    }

    fn take_head(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let whole = if self.partial.is_empty() {
            bytes
        } else {
            self.partial.extend_from_slice(bytes);
            &self.partial
        };
        let Some((head, length)) = H::parse(whole)? else {
            if self.partial.is_empty() {
                self.partial.extend_from_slice(bytes);
            }
            return Ok(());
        };
        let after_head = (whole.len() - length) as u64;
        self.body_left =
            head.body_bytes().checked_sub(after_head).ok_or(MessageError::TrailingBytes)?;
        self.head = Some(head);
        self.partial.clear();
        Ok(())
    }
}

/// Reads without copying: with `MSG_TRUNC` the kernel discards the bytes, which saves CPU time of the lab.
fn discard(socket: &TcpStream, scratch: &mut [u8]) -> io::Result<usize> {
    let (_, count) = rustix::net::recv(socket, scratch, RecvFlags::TRUNC)?;
    Ok(count)
}

fn or_blocked(result: io::Result<usize>) -> Result<Option<usize>, MessageError> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(MessageError::Io(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(pieces: &[&[u8]]) -> Result<MessageReader<ResponseHead>, MessageError> {
        let mut incoming = MessageReader::new();
        for piece in pieces {
            incoming.take_head(piece)?;
        }
        Ok(incoming)
    }

    #[test]
    fn head_is_parsed_across_read_boundaries() {
        let done = incoming(&[b"HTTP/1.1 200 OK\r\nContent-", b"Length: 5\r\n\r\nab"]).unwrap();
        assert_eq!(done.head.unwrap().status, 200);
        assert_eq!(done.body_left, 3);
    }

    #[test]
    fn connection_close_is_detected_in_a_response() {
        let closes = |head: &[u8]| ResponseHead::parse(head).unwrap().unwrap().0.closes;
        assert!(closes(b"HTTP/1.1 503 Busy\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n"));
        assert!(!closes(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"));
    }

    #[test]
    fn message_is_partial_until_it_is_read() {
        assert!(!incoming(&[]).unwrap().is_partial());
        assert!(incoming(&[b"HTTP/1.1 200 OK\r\n"]).unwrap().is_partial());
        assert!(incoming(&[b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"]).unwrap().is_partial());
    }

    #[test]
    fn bytes_beyond_the_body_are_a_fault() {
        let fault = incoming(&[b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"]).err();
        assert!(matches!(fault, Some(MessageError::TrailingBytes)));
    }

    #[test]
    fn response_without_length_is_a_fault() {
        let fault = incoming(&[b"HTTP/1.1 200 OK\r\n\r\n"]).err();
        assert!(matches!(fault, Some(MessageError::NoLength)));
    }

    #[test]
    fn response_length_is_read_from_the_path() {
        assert_eq!(bytes_in_path("/p17/b/65536"), 65536);
        assert_eq!(bytes_in_path("/"), 100);
    }
}
