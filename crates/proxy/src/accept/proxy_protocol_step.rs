//! Who the client is, where a proxy before us says so in a PROXY protocol header.
//!
//! Whether a header is read is decided by who connects, never by what was sent: else a client could pass for another.

use std::future::poll_fn;
use std::time::Duration;

use gateway::snapshot::ProxyProtocol;

use crate::accept::client::{ClientConnection, ReadOutcome};
use crate::buffer::BUFFER_BYTES;
use crate::failure::Failure;
use crate::proxy_protocol::{self, ProxyHeader};
use crate::worker::Worker;

/// What a connection has to begin with.
pub(crate) enum ProxyProtocolStep {
    /// A header, within so long from when it was accepted.
    ReadHeader(Duration),
    /// A header, and whoever has connected may not say one.
    RejectUntrusted,
}

/// What the listener's policy wants of a connection from there before it is served; `None`: nothing.
pub(crate) fn required_step(
    worker: &Worker,
    client: &ClientConnection,
) -> Option<ProxyProtocolStep> {
    let live = worker.config();
    let settings = &client.listener(&live)?.client;
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

/// Hears who the client is.
pub(crate) async fn read_header(
    worker: &Worker,
    client: &mut ClientConnection,
    introduction: ProxyProtocolStep,
) -> Result<(), Failure> {
    let ProxyProtocolStep::ReadHeader(patience) = introduction else {
        return Err(Failure::UntrustedProxy);
    };
    client.deadline.set(client.accepted + patience);
    let mut buffer = worker.scratch.buffer_pool.take();
    let header = loop {
        match poll_fn(|cx| client.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await {
            ReadOutcome::Data => {}
            // Whoever only looks whether we are there has done nothing wrong.
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
