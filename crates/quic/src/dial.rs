//! Connections to endpoints.
//!
//! Each has a socket of its own, connected to its endpoint: so the kernel demultiplexes datagrams, and reports an
//! ECONNREFUSED if no server listens there. The connections of one worker share their buffers.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway::snapshot::CongestionControl;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, ConnectError, Endpoint, EndpointConfig};

use socket2::SockRef;

use crate::driver::{DriverRole, EndpointDriver};
use crate::driver_handle::DriverHandle;
use crate::keys::reset_key;
use crate::session::VERSION;
use crate::socket::{QuicSocket, SocketBuffers};
use crate::{QuicConnection, transport};

/// Endpoints open no bidirectional streams (RFC 9114 §6.1).
const BI_STREAMS: u32 = 0;

/// Opens connections from one worker.
#[derive(Clone)]
pub struct QuicDialer {
    pub(super) buffers: Rc<SocketBuffers>,
    pub(super) now: fn() -> Instant,
    config: OnceCell<Arc<EndpointConfig>>,
    drivers: Rc<RefCell<Vec<Weak<DriverHandle>>>>,
}

/// Settings of a connection to an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct DialSettings {
    /// The idle timeout: after this time without a packet from the endpoint the connection is closed.
    pub idle_timeout: Duration,
    /// The interval of PINGs to the endpoint; `None`: none are sent.
    pub keep_alive: Option<Duration>,
    /// The mark (`SO_MARK`) of the socket; `None`: it has none.
    pub mark: Option<u32>,
}

/// The reason why a connection to an endpoint cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("out of file descriptors")]
    OutOfDescriptors,
    #[error("cannot open a socket to the endpoint")]
    Socket(#[source] io::Error),
    #[error("unusable configuration of the connection")]
    UnusableConfig(#[source] ConnectError),
}

impl QuicDialer {
    /// Creates a dialer that reads the time from `now`.
    pub fn new(now: fn() -> Instant) -> Self {
        let (buffers, drivers) = (SocketBuffers::new(), Rc::default());
        Self { buffers, now, config: OnceCell::new(), drivers }
    }

    /// Returns the shared configuration, made at the first use, as its key is.
    fn config(&self) -> Arc<EndpointConfig> {
        let config = self.config.get_or_init(|| {
            let mut config = EndpointConfig::new(reset_key());
            config.supported_versions(vec![VERSION]);
            Arc::new(config)
        });
        Arc::clone(config)
    }

    /// Begins a connection to the endpoint at `address`, which has to prove that it is `server_name`.
    ///
    /// The caller bounds the time until the connection is established, and closes it if that takes longer.
    pub fn dial(
        &self,
        address: SocketAddr,
        server_name: &str,
        crypto: &Arc<QuicClientConfig>,
        settings: DialSettings,
    ) -> Result<QuicConnection, DialError> {
        let socket =
            connect(address, settings.mark).and_then(QuicSocket::new).map_err(socket_error)?;
        let whole = socket.never_fragments();
        let mut endpoint = Endpoint::new(self.config(), None, whole, None);
        let options = transport::TransportOptions {
            bi_streams: BI_STREAMS,
            idle_timeout: settings.idle_timeout,
            keep_alive: settings.keep_alive,
            // Connections to endpoints carry mostly requests, over short paths.
            congestion_control: CongestionControl::Cubic,
        };
        let mut config = ClientConfig::new(Arc::<QuicClientConfig>::clone(crypto));
        config.transport_config(options.config());
        let (handle, connection) = endpoint
            .connect((self.now)(), config, address, server_name)
            .map_err(DialError::UnusableConfig)?;
        let driver_handle = Rc::new(DriverHandle::new(None, self.now));
        let buffers = Rc::clone(&self.buffers);
        let mut port = EndpointDriver::new(
            endpoint,
            socket,
            Rc::clone(&driver_handle),
            buffers,
            DriverRole::Client,
        );
        let connection = QuicConnection(port.add(handle, connection));
        self.register_driver(&driver_handle);
        tokio::task::spawn_local(port.run());
        Ok(connection)
    }

    fn register_driver(&self, driver_handle: &Rc<DriverHandle>) {
        let ports = &mut *self.drivers.borrow_mut();
        ports.retain(|port| port.strong_count() > 0);
        ports.push(Rc::downgrade(driver_handle));
    }

    /// Closes all connections at once.
    pub fn close_all(&self) {
        self.drivers
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|driver_handle| driver_handle.close_all());
    }
}

fn connect(address: SocketAddr, mark: Option<u32>) -> io::Result<UdpSocket> {
    let ours: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((ours, 0))?;
    socket.set_nonblocking(true)?;
    if let Some(mark) = mark {
        SockRef::from(&socket).set_mark(mark)?;
    }
    socket.connect(address)?;
    Ok(socket)
}

fn socket_error(error: io::Error) -> DialError {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => DialError::OutOfDescriptors,
        _ => DialError::Socket(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_has_its_mark() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        assert_eq!(SockRef::from(&connect(address, None).unwrap()).mark().unwrap(), 0);
        // Marks need CAP_NET_ADMIN.
        let Ok(socket) = connect(address, Some(0x1001)) else { return };
        assert_eq!(SockRef::from(&socket).mark().unwrap(), 0x1001);
    }
}
