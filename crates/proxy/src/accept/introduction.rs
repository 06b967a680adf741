//! Who the client is, where a proxy before us says so in a PROXY protocol header.
//!
//! Whether a header is read is decided by who connects, never by what was sent: else a client could pass for another.

use std::future::poll_fn;
use std::time::Duration;

use gateway::snapshot::ProxyProtocol;

use crate::accept::client::{Client, Filled};
use crate::buffer::BUFFER_BYTES;
use crate::failure::Failure;
use crate::proxy_protocol::{self, Header};
use crate::worker::Worker;

/// What a connection has to begin with.
pub(crate) enum Introduction {
    /// A header, within so long from when it was accepted.
    Header(Duration),
    /// A header, and whoever has connected may not say one.
    Impossible,
}

/// What the listener's policy wants of a connection from there before it is served; `None`: nothing.
pub(crate) fn due(worker: &Worker, client: &Client) -> Option<Introduction> {
    let live = worker.live();
    let settings = &client.listener(&live)?.client;
    let expected = || client.origin.is_trusted(settings);
    match settings.proxy_protocol {
        ProxyProtocol::Off => None,
        ProxyProtocol::FromTrusted => {
            expected().then_some(Introduction::Header(settings.head_timeout))
        }
        ProxyProtocol::Required if expected() => Some(Introduction::Header(settings.head_timeout)),
        ProxyProtocol::Required => Some(Introduction::Impossible),
    }
}

/// Hears who the client is.
pub(crate) async fn hear(
    worker: &Worker,
    client: &mut Client,
    introduction: Introduction,
) -> Result<(), Failure> {
    let Introduction::Header(patience) = introduction else {
        return Err(Failure::UntrustedProxy);
    };
    client.deadline.set(client.accepted + patience);
    let mut buffer = worker.scratch.stock.take();
    let header = loop {
        match poll_fn(|cx| client.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await {
            Filled::Some => {}
            // Whoever only looks whether we are there has done nothing wrong.
            Filled::Gone => break Err(Failure::ClientGone),
            Filled::Late => break Err(Failure::ProxyHeaderTimeout),
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
    worker.scratch.stock.reclaim(&mut client.buffer);
    if let Header::Proxied(addresses) = header? {
        client.introduced(addresses);
    }
    Ok(())
}
