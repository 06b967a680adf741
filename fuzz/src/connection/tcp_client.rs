//! The client of one script over TCP.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use super::fixture::Fixture;
use super::quiescence::{PATIENCE, Quiescence};
use super::script::Script;

/// A step of the client. After each the worker does all that it can do, so that steps are the pieces that it reads.
pub(super) enum TcpStep {
    /// `c`: sends these bytes. `f`: sends a frame of HTTP/2 with the type, the flags and the stream in the first bytes.
    Send(Vec<u8>),
    /// `h`: closes the sending side.
    HalfClose,
    /// `r`: resets the connection.
    Reset,
}

impl TcpStep {
    pub(super) fn parse(kind: u8, bytes: &[u8]) -> Option<Self> {
        match kind {
            b'c' => Some(Self::Send(bytes.to_vec())),
            b'f' => frame(bytes).map(Self::Send),
            b'h' => Some(Self::HalfClose),
            b'r' => Some(Self::Reset),
            _ => None,
        }
    }
}

impl Script<TcpStep> {
    /// Returns all bytes that the client sends.
    pub(super) fn client_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for step in &self.client {
            match step {
                TcpStep::Send(bytes) => all.extend_from_slice(bytes),
                TcpStep::HalfClose | TcpStep::Reset => break,
            }
        }
        all
    }
}

/// Returns a frame with the right length; `None` if its header is incomplete.
fn frame(bytes: &[u8]) -> Option<Vec<u8>> {
    let ([kind, flags, stream], payload) = bytes.split_first_chunk()?;
    let [.., high, middle, low] = u32::try_from(payload.len()).ok()?.to_be_bytes();
    Some([&[high, middle, low, *kind, *flags, 0, 0, 0, *stream], payload].concat())
}

/// Does the client's steps, after the bytes `start`. Returns the task that reads until the connection ends.
pub(super) async fn act(
    fixture: &Fixture,
    start: &[u8],
    script: &Script<TcpStep>,
) -> JoinHandle<()> {
    let stream = connect(fixture.source(script.is_trusted), fixture.address).await;
    let (reader, mut writer) = stream.into_split();
    let reading = spawn_local(read_all(reader, Rc::clone(&fixture.quiescence)));
    if !start.is_empty() {
        send(&mut writer, start, &fixture.quiescence).await;
    }
    for step in &script.client {
        match step {
            TcpStep::Send(bytes) => send(&mut writer, bytes, &fixture.quiescence).await,
            TcpStep::HalfClose => break,
            TcpStep::Reset => {
                drop(writer.as_ref().set_zero_linger());
                reading.abort();
                break;
            }
        }
    }
    // Closes the sending side; without a reader this is the reset.
    drop(writer);
    fixture.quiescence.settle().await;
    reading
}

async fn connect(source: SocketAddr, listener: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_nodelay(true).expect("an option of TCP");
    socket.bind(source).expect("an address of loopback");
    socket.connect(listener).await.expect("the listener accepts")
}

/// Sends bytes, and lets the worker do all that they make it do. The connection may have ended already.
async fn send(writer: &mut OwnedWriteHalf, bytes: &[u8], quiescence: &Quiescence) {
    drop(timeout(PATIENCE, writer.write_all(bytes)).await.expect("the worker reads"));
    quiescence.settle().await;
}

/// Reads until the connection ends.
async fn read_all(mut reader: OwnedReadHalf, quiescence: Rc<Quiescence>) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(1..) = reader.read(&mut bytes).await {
        quiescence.note_event();
    }
    quiescence.note_event();
}
