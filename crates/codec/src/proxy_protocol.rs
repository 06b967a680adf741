//! The PROXY protocol, versions 1 and 2: the header that a proxy in front of us sends about its client, and the header
//! that we send to an endpoint.
//!
//! A header determines the client address, so it is parsed strictly: the first byte that cannot belong to a header is
//! an error, and nothing is repaired. Implements haproxy.org's `proxy-protocol.txt`, version of 2020/03/05. This module
//! knows only bytes and addresses; the caller decides which peers it trusts.

#![expect(
    clippy::indexing_slicing,
    reason = "positions are those of bytes that a search has found, or bounded by the length"
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest line of version 1 (§2.1), its CRLF included.
const MOST_V1: usize = 107;
/// Longest header of version 2: addresses need 52 bytes, the rest is TLVs of other proxies, which are skipped.
const MOST_BYTES: usize = 4096;

const PREFIX_V1: &[u8] = b"PROXY ";
const SIGNATURE_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length.
const FIXED_V2: usize = SIGNATURE_V2.len() + 4;

const VERSION_2_LOCAL: u8 = 0x20;
const VERSION_2_PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;
const TCP_OVER_4: u8 = 0x11;
const TCP_OVER_6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;

/// Information of a header about the connection that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// No client: the proxy connects on its own behalf, or the client is unknown. The connection's own addresses apply.
    Local,
    /// The connection is proxied for a client.
    Proxied(ProxiedAddresses),
}

/// The two ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxiedAddresses {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub destination: SocketAddr,
}

/// Reason to reject the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeaderError {
    /// The bytes begin like neither version.
    Missing,
    /// A line of version 1 that violates its grammar.
    Line,
    /// A header of version 2 with an unsupported version, command, family or length.
    Binary,
    /// The header exceeds its maximum length.
    TooLong,
}

impl ProxyHeaderError {
    /// Returns the error message.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing => "connection does not begin with a PROXY protocol header",
            Self::Line => "malformed PROXY protocol v1 header",
            Self::Binary => "malformed PROXY protocol v2 header",
            Self::TooLong => "PROXY protocol header too long",
        }
    }
}

/// Parses the header at the start of `bytes`, and returns it with its length; `None` if more bytes are needed.
///
/// # Errors
/// Returns an error as soon as no further byte can complete a valid header.
pub fn parse(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
    if begins(bytes, SIGNATURE_V2) {
        return parse_v2(bytes);
    }
    if begins(bytes, PREFIX_V1) {
        return parse_v1(bytes);
    }
    Err(ProxyHeaderError::Missing)
}

/// True if the bytes begin with all of `start`, or are a prefix of it.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    let common = bytes.len().min(start.len());
    bytes[..common] == start[..common]
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
    let within = &bytes[..bytes.len().min(MOST_V1)];
    let Some(end) = within.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < MOST_V1 { Ok(None) } else { Err(ProxyHeaderError::TooLong) };
    };
    let line =
        str::from_utf8(&bytes[PREFIX_V1.len()..end]).map_err(|_error| ProxyHeaderError::Line)?;
    let header = parse_line(line).ok_or(ProxyHeaderError::Line)?;
    Ok(Some((header, end + 2)))
}

/// Parses the line without `PROXY ` and its CRLF.
fn parse_line(line: &str) -> Option<ProxyHeader> {
    let mut words = line.split(' ');
    let (client, destination) = match words.next()? {
        // The rest of the line is to be ignored.
        "UNKNOWN" => return Some(ProxyHeader::Local),
        "TCP4" => (word_v4(words.next()?)?, word_v4(words.next()?)?),
        "TCP6" => (word_v6(words.next()?)?, word_v6(words.next()?)?),
        _ => return None,
    };
    let client = SocketAddr::new(client, port(words.next()?)?);
    let destination = SocketAddr::new(destination, port(words.next()?)?);
    words.next().is_none().then_some(ProxyHeader::Proxied(ProxiedAddresses { client, destination }))
}

fn word_v4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn word_v6(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// Parses a decimal number without sign and leading zero.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = text.len() == 1 || !text.starts_with('0');
    (plain && canonical).then(|| text.parse().ok()).flatten()
}

fn parse_v2(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
    let fixed = &bytes[SIGNATURE_V2.len().min(bytes.len())..];
    let is_local = match fixed.first() {
        None => return Ok(None),
        Some(&VERSION_2_LOCAL) => true,
        Some(&VERSION_2_PROXY) => false,
        Some(_) => return Err(ProxyHeaderError::Binary),
    };
    let [_, family, high, low, rest @ ..] = fixed else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if FIXED_V2 + length > MOST_BYTES {
        return Err(ProxyHeaderError::TooLong);
    }
    let taken = FIXED_V2 + length;
    let header = match (is_local, *family) {
        (true, _) | (false, UNSPECIFIED | UNIX_STREAM) => Some(ProxyHeader::Local),
        (false, TCP_OVER_4) if length >= 12 => addresses_v4(rest),
        (false, TCP_OVER_6) if length >= 36 => addresses_v6(rest),
        (false, _) => return Err(ProxyHeaderError::Binary),
    };
    Ok(header.filter(|_| rest.len() >= length).map(|header| (header, taken)))
}

fn addresses_v4(bytes: &[u8]) -> Option<ProxyHeader> {
    let (client, rest) = bytes.split_first_chunk::<4>()?;
    let (destination, rest) = rest.split_first_chunk::<4>()?;
    with_ports(Ipv4Addr::from(*client).into(), Ipv4Addr::from(*destination).into(), rest)
}

fn addresses_v6(bytes: &[u8]) -> Option<ProxyHeader> {
    let (client, rest) = bytes.split_first_chunk::<16>()?;
    let (destination, rest) = rest.split_first_chunk::<16>()?;
    with_ports(Ipv6Addr::from(*client).into(), Ipv6Addr::from(*destination).into(), rest)
}

fn with_ports(client: IpAddr, destination: IpAddr, rest: &[u8]) -> Option<ProxyHeader> {
    let (ports, _) = rest.split_first_chunk::<4>()?;
    let client = SocketAddr::new(client, u16::from_be_bytes([ports[0], ports[1]]));
    let destination = SocketAddr::new(destination, u16::from_be_bytes([ports[2], ports[3]]));
    Some(ProxyHeader::Proxied(ProxiedAddresses { client, destination }))
}

/// Appends the header to `out`, in version 1.
pub fn write_v1(header: &ProxyHeader, out: &mut Vec<u8>) {
    let ProxyHeader::Proxied(addresses) = header else {
        return out.extend_from_slice(b"PROXY UNKNOWN\r\n");
    };
    let family = match addresses.ips() {
        AddressPair::V4 { client, destination } => format!("TCP4 {client} {destination}"),
        AddressPair::V6 { client, destination } => format!("TCP6 {client} {destination}"),
    };
    let (client, destination) = (addresses.client.port(), addresses.destination.port());
    out.extend_from_slice(format!("PROXY {family} {client} {destination}\r\n").as_bytes());
}

/// Appends the header to `out`, in version 2.
pub fn write_v2(header: &ProxyHeader, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE_V2);
    let ProxyHeader::Proxied(addresses) = header else {
        return out.extend_from_slice(&[VERSION_2_LOCAL, UNSPECIFIED, 0, 0]);
    };
    match addresses.ips() {
        AddressPair::V4 { client, destination } => {
            out.extend_from_slice(&[VERSION_2_PROXY, TCP_OVER_4, 0, 12]);
            out.extend_from_slice(&client.octets());
            out.extend_from_slice(&destination.octets());
        }
        AddressPair::V6 { client, destination } => {
            out.extend_from_slice(&[VERSION_2_PROXY, TCP_OVER_6, 0, 36]);
            out.extend_from_slice(&client.octets());
            out.extend_from_slice(&destination.octets());
        }
    }
    out.extend_from_slice(&addresses.client.port().to_be_bytes());
    out.extend_from_slice(&addresses.destination.port().to_be_bytes());
}

/// Both addresses in the one address family of a header.
enum AddressPair {
    V4 { client: Ipv4Addr, destination: Ipv4Addr },
    V6 { client: Ipv6Addr, destination: Ipv6Addr },
}

impl ProxiedAddresses {
    /// Returns both addresses in one family. A dual-stack socket reports IPv4 addresses as IPv4-mapped; they count as
    /// IPv4.
    fn ips(&self) -> AddressPair {
        let mapped = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        match (self.client.ip().to_canonical(), self.destination.ip().to_canonical()) {
            (IpAddr::V4(client), IpAddr::V4(destination)) => {
                AddressPair::V4 { client, destination }
            }
            (client, destination) => {
                AddressPair::V6 { client: mapped(client), destination: mapped(destination) }
            }
        }
    }
}
