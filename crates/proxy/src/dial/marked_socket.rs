//! Sockets to endpoints, with the marks by which the node's rules know them.
//!
//! A mark is set before the socket is connected: the rules see only the first packet of a connection. If nothing is
//! intercepted, sockets have no mark.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::dial::connect::is_out_of_descriptors;
use crate::dial::pool::Endpoint;
use crate::interception::ClientMark;
use crate::resources::ResourceBudgets;

/// Returns the address to which a connection with a client's address goes: that of the client's IP version. All others
/// go to the address by which the endpoint is known.
pub(crate) fn address(endpoint: &Endpoint, client: Option<&Arc<ClientMark>>) -> SocketAddr {
    client.and_then(|client| address_for(endpoint, client.address)).unwrap_or(endpoint.address)
}

/// Returns the endpoint's address of this client's IP version; `None` if it has none.
pub(crate) fn address_for(endpoint: &Endpoint, client: IpAddr) -> Option<SocketAddr> {
    let is_of_version = |address: &SocketAddr| address.is_ipv4() == client.is_ipv4();
    Some(endpoint.address)
        .filter(is_of_version)
        .or_else(|| endpoint.data.other_address.get().filter(is_of_version))
}

/// Returns the mark of a new socket to the endpoint: the client's, or our own. `None`: it has no mark.
pub(crate) fn mark(endpoint: &Endpoint, client: Option<&Arc<ClientMark>>) -> Option<u32> {
    let interceptor = endpoint.data.interceptor.as_ref()?;
    Some(client.map_or_else(|| interceptor.own_mark(), |client| client.value))
}

/// Time for a connection to an endpoint's address in the other IP version, before the one by which it is known is used
/// (RFC 8305 §5, connection attempt delay).
const OTHER_ADDRESS_PATIENCE: Duration = Duration::from_millis(250);

/// Connects to an endpoint, with the address of the client whose mark is given.
///
/// A Pod may listen on one IP version alone. So if its address of the client's version does not answer, that is avoided
/// for a while, and this connection comes from the node.
pub(crate) async fn connect_endpoint(
    endpoint: &Endpoint,
    client: Option<&Arc<ClientMark>>,
) -> io::Result<TcpStream> {
    let address = address(endpoint, client);
    let connecting = connect_tcp(address, mark(endpoint, client));
    if address == endpoint.address {
        return connecting.await;
    }
    match timeout(OTHER_ADDRESS_PATIENCE, connecting).await {
        Ok(Err(error)) if is_out_of_descriptors(&error) => Err(error),
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(_)) | Err(_) => {
            endpoint.data.other_address.avoid();
            connect_tcp(endpoint.address, mark(endpoint, None)).await
        }
    }
}

/// Connects a TCP socket with this mark.
pub(crate) async fn connect_tcp(address: SocketAddr, mark: Option<u32>) -> io::Result<TcpStream> {
    let Some(mark) = mark else { return TcpStream::connect(address).await };
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    SockRef::from(&socket).set_mark(mark)?;
    socket.connect(address).await
}

/// Connects a non-blocking UDP socket with this mark.
pub(crate) fn connect_udp(address: SocketAddr, mark: Option<u32>) -> io::Result<UdpSocket> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    if let Some(mark) = mark {
        SockRef::from(&socket).set_mark(mark)?;
    }
    socket.connect(address)?;
    Ok(socket)
}

/// Keeps a client's mark in use, and counts a connection with it, as long as the connection is open.
pub(crate) struct MarkGuard {
    mark: Arc<ClientMark>,
    budgets: Arc<ResourceBudgets>,
}

impl MarkGuard {
    /// Creates the guard of a connection to the endpoint with this client's mark, if it has one.
    pub(crate) fn of(endpoint: &Endpoint, client: Option<&Arc<ClientMark>>) -> Option<Self> {
        let mark = Arc::clone(client?);
        let budgets = Arc::clone(&endpoint.data.budgets);
        budgets.descriptors.add_marked();
        Some(Self { mark, budgets })
    }

    pub(crate) fn mark(&self) -> &Arc<ClientMark> {
        &self.mark
    }
}

impl Drop for MarkGuard {
    fn drop(&mut self) {
        self.budgets.descriptors.remove_marked();
    }
}

/// True if connections with these marks may carry each other's requests.
pub(crate) fn is_same_mark(one: Option<&Arc<ClientMark>>, other: Option<&Arc<ClientMark>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Returns false if the process may not set marks: it needs CAP_NET_ADMIN.
    fn may_set_marks() -> bool {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let is_allowed = SockRef::from(&socket).set_mark(1).is_ok();
        if !is_allowed {
            eprintln!("skipped: marks need CAP_NET_ADMIN");
        }
        is_allowed
    }

    #[tokio::test]
    async fn sockets_have_their_mark_and_none_without_interception() {
        if !may_set_marks() {
            return;
        }
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((ip, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            for mark in [None, Some(0x1001)] {
                let tcp = connect_tcp(address, mark).await.unwrap();
                let udp = connect_udp(address, mark).unwrap();
                assert_eq!(SockRef::from(&tcp).mark().unwrap(), mark.unwrap_or(0));
                assert_eq!(SockRef::from(&udp).mark().unwrap(), mark.unwrap_or(0));
            }
        }
    }
}
