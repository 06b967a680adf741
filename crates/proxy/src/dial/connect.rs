//! Opening a connection.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::clock;
use crate::dial::pool::{Connection, Endpoint};
use crate::failure::Failure;
use crate::stream::Stream;

/// Opens a connection to the endpoint, which begins with `header`; the caller bounds the time.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    worker: usize,
    header: &[u8],
) -> Result<Box<Connection>, Failure> {
    endpoint.data.counters[worker].connections.add(1);
    let mut stream = TcpStream::connect(endpoint.address).await.map_err(|error| why(&error))?;
    // Heads and small bodies leave in one write: there is nothing for Nagle's algorithm to gather.
    drop(stream.set_nodelay(true));
    stream.write_all(header).await.map_err(|error| why(&error))?;
    let mut connection = Box::new(Connection::new(Stream::Tcp(stream), worker, clock::now()));
    connection.written = header.len() as u64;
    Ok(connection)
}

fn why(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        _ if is_our_fault(error) => Failure::OutOfDescriptors,
        Some(libc::ETIMEDOUT) => Failure::ConnectTimeout,
        _ => Failure::ConnectFailed,
    }
}

/// There are no descriptors left, which says nothing of the endpoint.
pub(crate) fn is_our_fault(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
