//! TCP and UDP servers without HTTP: a function of the test serves each connection, and an echo
//! server of datagrams.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::configuration::SERVICE;
use crate::payload::{self, BodyDigest};
use crate::waiting::within;
use crate::{ConfigDirectory, SheaveProcess, objects};

/// TCP server; it stops, with all its connections, when dropped.
pub struct RawServer {
    pub address: SocketAddr,
    counts: Arc<RawServerCounts>,
    accepting: AbortHandle,
}

#[derive(Default)]
struct RawServerCounts {
    accepted: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl RawServer {
    /// Starts a server on a free port that serves each connection by this function.
    pub async fn start<F, S>(serve: F) -> Result<Self>
    where
        F: Fn(TcpStream) -> S + Send + 'static,
        S: Future<Output = Result<()>> + Send + 'static,
    {
        Self::start_with_connection_guard(move |stream, open| {
            let served = serve(stream);
            async move {
                let result = served.await;
                drop(open);
                result
            }
        })
        .await
    }

    /// Like [`RawServer::start`], but a connection counts as open until the function drops the
    /// guard.
    async fn start_with_connection_guard<F, S>(serve: F) -> Result<Self>
    where
        F: Fn(TcpStream, CountedRawConnection) -> S + Send + 'static,
        S: Future<Output = Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let counts = Arc::<RawServerCounts>::default();
        let task_counts = counts.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let served = serve(stream, CountedRawConnection::new(&task_counts));
                // The error is the client's disconnect.
                connections.spawn(async move { drop(served.await) });
            }
        });
        Ok(Self { address, counts, accepting: accepting.abort_handle() })
    }

    /// Starts a server that sends back all bytes, and closes its sending side when the client has.
    pub async fn echo() -> Result<Self> {
        Self::start_with_connection_guard(|stream, open| async move {
            let (mut from, mut to) = stream.into_split();
            tokio::io::copy(&mut from, &mut to).await?;
            // Before the client can know it.
            drop(open);
            Ok(to.shutdown().await?)
        })
        .await
    }

    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    pub fn open_connections(&self) -> usize {
        self.counts.open.load(Ordering::SeqCst)
    }

    pub fn max_open_connections(&self) -> usize {
        self.counts.most_open.load(Ordering::SeqCst)
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Guard that counts an open connection.
struct CountedRawConnection(Arc<RawServerCounts>);

impl CountedRawConnection {
    fn new(counts: &Arc<RawServerCounts>) -> Self {
        counts.accepted.fetch_add(1, Ordering::SeqCst);
        let open = counts.open.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most_open.fetch_max(open, Ordering::SeqCst);
        Self(counts.clone())
    }
}

impl Drop for CountedRawConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// UDP server that sends each datagram back with its own port in front; it stops when dropped.
pub struct UdpEcho {
    pub address: SocketAddr,
    echoing: AbortHandle,
}

impl UdpEcho {
    pub async fn start() -> Result<Self> {
        Self::start_at("127.0.0.1:0".parse()?).await
    }

    /// Starts a server on this address, such as that of a server that has stopped.
    pub async fn start_at(address: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        let address = socket.local_addr()?;
        let echoing = tokio::spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
                let answer = [&address.port().to_be_bytes(), &buffer[..length]].concat();
                drop(socket.send_to(&answer, from).await);
            }
        });
        Ok(Self { address, echoing: echoing.abort_handle() })
    }
}

impl Drop for UdpEcho {
    fn drop(&mut self) {
        self.echoing.abort();
    }
}

/// Returns a client socket that is connected to this address.
pub async fn udp_client(to: SocketAddr) -> Result<UdpSocket> {
    let any = if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// Returns the port of the [`UdpEcho`] that answers.
pub async fn request_server_port(socket: &UdpSocket, question: &[u8]) -> Result<u16> {
    socket.send(question).await?;
    let mut buffer = vec![0; 64 * 1024];
    let length = within("an answer", socket.recv(&mut buffer)).await??;
    let (port, echo) = buffer[..length].split_at(2);
    ensure!(echo == question, "{} bytes came back", echo.len());
    Ok(u16::from_be_bytes([port[0], port[1]]))
}

/// Returns true if no answer arrives within the time that one would need.
pub async fn is_ignored(socket: &UdpSocket, question: &[u8]) -> Result<bool> {
    socket.send(question).await?;
    Ok(timeout(Duration::from_millis(300), socket.recv(&mut [0; 16])).await.is_err())
}

/// Sheave in front of such servers: one listener, TCP or UDP, on every address.
pub struct L4Fixture {
    pub sheave: SheaveProcess,
    pub configuration: ConfigDirectory,
    transport: &'static str,
}

impl L4Fixture {
    pub async fn tcp(to: &[SocketAddr], policies: &[Value], arguments: &[&str]) -> Result<Self> {
        Self::start("TCP", to, policies, arguments).await
    }

    pub async fn udp(to: &[SocketAddr], policies: &[Value], arguments: &[&str]) -> Result<Self> {
        Self::start("UDP", to, policies, arguments).await
    }

    async fn start(
        transport: &'static str,
        to: &[SocketAddr],
        policies: &[Value],
        arguments: &[&str],
    ) -> Result<Self> {
        let configuration = ConfigDirectory::empty()?;
        let mut main = objects::gateway_at("::", transport);
        main.push(objects::stream_route(&format!("{transport}Route"), SERVICE));
        main.push(objects::with_transport(transport, objects::service(SERVICE)));
        main.extend_from_slice(policies);
        configuration.write("main.yaml", &main)?;
        write_endpoints(&configuration, transport, to)?;
        let sheave = SheaveProcess::serve_with(&configuration, arguments).await?;
        Ok(Self { sheave, configuration, transport })
    }

    /// Returns the listener's address at this local IP address.
    pub fn listener_address(&self, ip: &str) -> Result<SocketAddr> {
        Ok(SocketAddr::new(ip.parse()?, self.sheave.address().port()))
    }

    pub async fn connect(&self) -> Result<TcpStream> {
        Ok(TcpStream::connect(self.listener_address("127.0.0.1")?).await?)
    }

    /// Opens a connection, sends nothing, and returns how it ends; a reset may arrive before the
    /// connect has returned.
    pub async fn connect_and_wait_for_end(&self) -> Result<SocketEnd> {
        match TcpStream::connect(self.listener_address("127.0.0.1")?).await {
            Ok(mut stream) => wait_for_end(&mut stream).await,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(SocketEnd::Reset),
            Err(error) => Err(error.into()),
        }
    }

    pub fn set_endpoints(&self, to: &[SocketAddr]) -> Result<()> {
        write_endpoints(&self.configuration, self.transport, to)
    }
}

fn write_endpoints(
    configuration: &ConfigDirectory,
    transport: &str,
    to: &[SocketAddr],
) -> Result<()> {
    let slices = objects::slices(SERVICE, to).into_iter();
    let slices: Vec<_> = slices.map(|slice| objects::with_transport(transport, slice)).collect();
    Ok(configuration.write("endpoints.yaml", &slices)?)
}

/// Sends the pattern's first `length` bytes, and closes the sending side.
pub async fn send_pattern(mut to: OwnedWriteHalf, length: u64) -> Result<()> {
    for piece in payload::pieces(length) {
        to.write_all(piece).await?;
    }
    Ok(to.shutdown().await?)
}

/// Reads until the peer closes its sending side; returns the digest.
pub async fn read_digest(mut from: OwnedReadHalf) -> Result<BodyDigest> {
    let mut digest = BodyDigest::default();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(digest),
            count => digest.add(&buffer[..count]),
        }
    }
}

/// Sends these bytes and returns the echo.
pub async fn send_and_read_echo(stream: &mut TcpStream, bytes: &[u8]) -> Result<Vec<u8>> {
    stream.write_all(bytes).await?;
    let mut back = vec![0; bytes.len()];
    within("an echo", stream.read_exact(&mut back)).await??;
    Ok(back)
}

/// Waits for the end of the connection and returns how it ends; no byte may arrive before.
pub async fn wait_for_end(stream: &mut TcpStream) -> Result<SocketEnd> {
    let mut byte = [0];
    match within("an end", stream.read(&mut byte)).await? {
        Ok(0) => Ok(SocketEnd::Graceful),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(SocketEnd::Reset),
        Ok(_) => anyhow::bail!("unexpected byte: {byte:?}"),
        Err(error) => Err(error.into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketEnd {
    Graceful,
    Reset,
}

/// Closes the connection with a reset.
pub fn reset(stream: TcpStream) -> Result<()> {
    Ok(SockRef::from(&stream).set_linger(Some(Duration::ZERO))?)
}
