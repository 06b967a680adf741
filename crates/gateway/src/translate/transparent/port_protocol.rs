//! The protocol of a port of a Service, by its appProtocol or its number.

use crate::objects::ServicePort;

/// Ports of protocols in which the server speaks first, so that a client's first bytes never come: FTP (RFC 959), SSH
/// (RFC 4253), SMTP (RFC 5321, 6409), POP3 (RFC 1939), NNTP (RFC 3977), IMAP (RFC 9051), MySQL (its manual, "Connection
/// Phase"), VNC (RFC 6143). On another port such a protocol is found by the client's silence.
const SERVER_FIRST_PORTS: [u16; 9] = [21, 22, 25, 110, 119, 143, 587, 3306, 5900];

/// The protocol of the connections to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PortProtocol {
    /// HTTP requests.
    Requests,
    /// The first bytes of a connection determine it.
    Detected,
    /// Connections, whatever they carry.
    Connections,
}

impl PortProtocol {
    pub(in super::super) fn of(port: &ServicePort) -> Self {
        match port.app_protocol.as_deref() {
            Some("http" | "http2" | "h2c" | "grpc" | "kubernetes.io/h2c" | "kubernetes.io/ws") => {
                Self::Requests
            }
            Some(_) => Self::Connections,
            None if SERVER_FIRST_PORTS.contains(&port.port) => Self::Connections,
            None => Self::Detected,
        }
    }

    /// True if routes of requests can attach.
    pub(super) const fn has_requests(self) -> bool {
        match self {
            Self::Requests | Self::Detected => true,
            Self::Connections => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(app_protocol: &str, port: u16) -> PortProtocol {
        let app_protocol = Some(app_protocol.to_owned()).filter(|it| !it.is_empty());
        PortProtocol::of(&ServicePort { port, app_protocol, ..Default::default() })
    }

    #[test]
    fn app_protocol_has_precedence_over_the_number() {
        for name in ["http", "grpc", "kubernetes.io/h2c", "kubernetes.io/ws"] {
            assert_eq!(protocol(name, 3306), PortProtocol::Requests, "{name}");
        }
        for name in ["tcp", "https", "tls", "mysql", "kubernetes.io/wss", "example.com/other"] {
            assert_eq!(protocol(name, 80), PortProtocol::Connections, "{name}");
        }
        assert_eq!(protocol("", 80), PortProtocol::Detected);
        assert_eq!(protocol("", 25), PortProtocol::Connections);
    }
}
