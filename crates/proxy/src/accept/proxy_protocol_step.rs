//! Client address from the PROXY protocol header of a trusted proxy.
//!
//! The peer's address decides if a header is read, never the bytes that it sends: otherwise a
//! client could impersonate another.

use std::future::poll_fn;
use std::time::Duration;

use codec::proxy_protocol::{self, ProxyHeader};
use gateway::snapshot::ProxyProtocol;

use crate::accept::client::{ClientConnection, ReadOutcome};
use crate::buffer::BUFFER_BYTES;
use crate::failure::Failure;
use crate::worker::Worker;

/// Required start of a connection.
pub(crate) enum ProxyProtocolStep {
    /// A header must arrive within this time after the accept.
    ReadHeader(Duration),
    /// A header is required, but the peer is not a trusted proxy.
    RejectUntrusted,
}

/// Returns the step that the listener's policy requires before this connection is served; `None` if
/// it requires none.
pub(crate) fn required_step(
    worker: &Worker,
    client: &ClientConnection,
) -> Option<ProxyProtocolStep> {
    let active_config = worker.config();
    let settings = &client.listener(&active_config)?.client;
    let expected = || client.origin.is_trusted(settings);
    match settings.proxy_protocol {
        ProxyProtocol::Off => None,
        ProxyProtocol::FromTrusted => {
            expected().then_some(ProxyProtocolStep::ReadHeader(settings.head_timeout))
        }
        ProxyProtocol::Required if expected() => {
            Some(ProxyProtocolStep::ReadHeader(settings.head_timeout))
        }
        ProxyProtocol::Required => Some(ProxyProtocolStep::RejectUntrusted),
    }
}

/// Reads the header and takes over the client address in it.
pub(crate) async fn read_header(
    worker: &Worker,
    client: &mut ClientConnection,
    step: ProxyProtocolStep,
) -> Result<(), Failure> {
    let ProxyProtocolStep::ReadHeader(timeout) = step else {
        return Err(Failure::UntrustedProxy);
    };
    client.deadline.set(client.accepted + timeout);
    let mut buffer = worker.scratch.buffer_pool.take();
    let header = loop {
        match poll_fn(|cx| client.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await {
            ReadOutcome::Data => {}
            // A peer that only checks that the port is open has done nothing wrong.
            ReadOutcome::Closed => break Err(Failure::ClientGone),
            ReadOutcome::TimedOut => break Err(Failure::ProxyHeaderTimeout),
        }
        match proxy_protocol::parse(buffer.unread()) {
            Ok(Some((header, length))) => {
                buffer.consume(length);
                break Ok(header);
            }
            Ok(None) => {}
            Err(bad) => break Err(Failure::BadProxyHeader(bad)),
        }
    };
    client.buffer = Some(buffer);
    worker.scratch.buffer_pool.reclaim(&mut client.buffer);
    if let ProxyHeader::Proxied(addresses) = header? {
        client.set_proxied_addresses(addresses);
    }
    Ok(())
}
