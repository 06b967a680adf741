//! First flights of clients that send nothing more.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use quinn_proto::{Endpoint, EndpointConfig};
use tokio::time::Instant;

use crate::tls::TlsClientOptions;

/// Returns the first flight of many clients for the host `name`: each a whole ClientHello, in one datagram or two.
pub fn initial_datagrams(
    options: &TlsClientOptions,
    name: &str,
    clients: usize,
) -> Result<Vec<Vec<u8>>> {
    let mut quic = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let config = options.quic_config()?;
    let now = Instant::now().into_std();
    // The bytes do not depend on the server's address.
    let server = SocketAddr::from(([127, 0, 0, 1], 443));
    let mut datagrams = Vec::new();
    for _ in 0..clients {
        let (_, mut connection) = quic.connect(now, config.clone(), server, name)?;
        loop {
            let mut datagram = Vec::new();
            if connection.poll_transmit(now, 1, &mut datagram).is_none() {
                break;
            }
            datagrams.push(datagram);
        }
    }
    Ok(datagrams)
}
