//! HTTP/1.1 client that may send slowly, abort, pipeline or violate the protocol; it parses
//! responses strictly.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::http1::{BufferedBody, Http1Error, Http1Reader, ParsedHead, RemainingBody};
use crate::payload::{self, BodyDigest};
use crate::tls::TlsClientOptions;

/// One connection.
pub struct Http1TestClient {
    pub reader: Http1Reader,
    pub writer: BoxedWriter,
    /// Second descriptor of the socket, which may be below TLS.
    socket: OwnedFd,
}

pub type BoxedWriter = Box<dyn AsyncWrite + Send + Unpin>;

/// Complete response.
#[derive(Clone, Debug)]
pub struct Http1TestResponse {
    pub head: ParsedHead,
    /// The 1xx responses that came before it.
    pub informational: Vec<ParsedHead>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Http1TestResponse {
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    pub fn field(&self, name: &str) -> Option<String> {
        self.head.field(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// True if the server announces that it closes the connection after this response.
    pub fn closes(&self) -> bool {
        self.head.field_lists("connection", "close")
    }
}

impl Http1TestClient {
    pub async fn connect(address: SocketAddr) -> Result<Self, Http1Error> {
        Ok(Self::over(TcpStream::connect(address).await?))
    }

    /// Connects from this address, for tests of trusted proxies.
    pub async fn connect_from(source: IpAddr, address: SocketAddr) -> Result<Self, Http1Error> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(source, 0))?;
        Ok(Self::over(socket.connect(address).await?))
    }

    /// Connects with a small receive buffer, for tests of back-pressure.
    pub async fn connect_with_small_buffer(address: SocketAddr) -> Result<Self, Http1Error> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(16 * 1024)?;
        Ok(Self::over(socket.connect(address).await?))
    }

    /// Connects to this host by TLS.
    pub async fn connect_tls(
        address: SocketAddr,
        host: &str,
        options: &TlsClientOptions,
    ) -> crate::Result<Self> {
        Ok(Self::over_tls(options.connect(address, host).await?))
    }

    pub fn over_tls(stream: TlsStream<TcpStream>) -> Self {
        let socket = duplicate_socket(stream.get_ref().0);
        Self::of(stream, socket)
    }

    fn over(stream: TcpStream) -> Self {
        // Without TCP_NODELAY, a head and a body sent one after the other may wait 40 ms for each
        // other.
        stream.set_nodelay(true).expect("a connected socket takes options");
        let socket = duplicate_socket(&stream);
        Self::of(stream, socket)
    }

    fn of(stream: impl AsyncRead + AsyncWrite + Send + 'static, socket: OwnedFd) -> Self {
        let (read, write) = split(stream);
        Self { reader: Http1Reader::new(read), writer: Box::new(write), socket }
    }

    pub fn local_address(&self) -> SocketAddr {
        let address = SockRef::from(&self.socket).local_addr();
        let address = address.expect("a connected socket has an address").as_socket();
        address.expect("it is an internet socket")
    }

    pub async fn get(&mut self, target: &str) -> Result<Http1TestResponse, Http1Error> {
        self.exchange("GET", target, &[], b"").await
    }

    pub async fn post(
        &mut self,
        target: &str,
        body: &[u8],
    ) -> Result<Http1TestResponse, Http1Error> {
        self.exchange("POST", target, &[], body).await
    }

    /// Sends a request and reads its response.
    pub async fn exchange(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Http1TestResponse, Http1Error> {
        self.send(&request(method, target, fields, body)).await?;
        self.response(method).await
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Http1Error> {
        Ok(self.writer.write_all(bytes.as_ref()).await?)
    }

    /// Sends these bytes one by one, with pauses.
    pub async fn send_slowly(&mut self, bytes: &[u8], pause: Duration) -> Result<(), Http1Error> {
        for byte in bytes {
            self.writer.write_all(&[*byte]).await?;
            tokio::time::sleep(pause).await; // The client is slow.
        }
        Ok(())
    }

    /// Sends the pattern's first `length` bytes.
    pub async fn send_pattern(&mut self, length: u64) -> Result<(), Http1Error> {
        send_pattern(&mut self.writer, length).await
    }

    /// Reads the response to a request with this method.
    pub async fn response(&mut self, method: &str) -> Result<Http1TestResponse, Http1Error> {
        let (head, informational) = self.read_final_head().await?;
        let left = head.response_body(method)?;
        let BufferedBody { bytes: body, trailers } = self.reader.body(left).await?;
        Ok(Http1TestResponse { head, informational, body, trailers })
    }

    /// Reads the response to a GET or POST; keeps only the digest of its body.
    pub async fn response_digest(&mut self) -> Result<(ParsedHead, BodyDigest), Http1Error> {
        let (head, _) = self.read_final_head().await?;
        let left = head.response_body("GET")?;
        Ok((head, self.reader.digest(left).await?))
    }

    /// Reads the next final head, and returns it with the informational ones before it. 101 is
    /// final.
    pub async fn read_final_head(&mut self) -> Result<(ParsedHead, Vec<ParsedHead>), Http1Error> {
        let mut informational = Vec::new();
        loop {
            let head = self.reader.head().await?;
            check_status_line(&head)?;
            if head.status() >= 200 || head.status() == 101 {
                return Ok((head, informational));
            }
            informational.push(head);
        }
    }

    /// Reads the next piece of a body.
    pub async fn read_body_piece(
        &mut self,
        left: &mut RemainingBody,
    ) -> Result<Option<Vec<u8>>, Http1Error> {
        self.reader.read_piece(left).await
    }

    /// Shuts down the sending side; responses can still be received.
    pub async fn finish_sending(&mut self) -> Result<(), Http1Error> {
        Ok(self.writer.shutdown().await?)
    }

    /// Waits for the server to close; it is an error if bytes arrive before.
    pub async fn expect_end(&mut self) -> Result<(), Http1Error> {
        self.reader.expect_end().await
    }

    /// Closes the connection with a reset.
    pub fn reset(self) {
        let socket = SockRef::from(&self.socket);
        socket.set_linger(Some(Duration::ZERO)).expect("linger can be set");
    }
}

/// Returns a request with the Host `test` (unless `fields` contain another), and with a
/// Content-Length if it has a body.
pub fn request(method: &str, target: &str, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\n");
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        bytes += "Host: test\r\n";
    }
    for (name, value) in fields {
        bytes += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() || method == "POST" {
        bytes += &format!("Content-Length: {}\r\n", body.len());
    }
    bytes += "\r\n";
    [bytes.as_bytes(), body].concat()
}

pub async fn send_pattern(writer: &mut BoxedWriter, length: u64) -> Result<(), Http1Error> {
    for piece in payload::pieces(length) {
        writer.write_all(piece).await?;
    }
    Ok(())
}

fn duplicate_socket(stream: &TcpStream) -> OwnedFd {
    rustix::io::dup(stream).expect("a descriptor is free")
}

fn check_status_line(head: &ParsedHead) -> Result<(), Http1Error> {
    let version = head.start.starts_with("HTTP/1.1 ");
    let status = (100..1000).contains(&head.status());
    if version && status && head.start.as_bytes().get(12) == Some(&b' ') {
        return Ok(());
    }
    Err(Http1Error::Malformed(format!("status line: {:?}", head.start)))
}
