//! Frames: builds them with right checksums, takes them apart and checks the checksums.

use std::net::{IpAddr, SocketAddr};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

pub(crate) type MacAddress = [u8; 6];

/// MAC addresses of the uplink of this node and of what sends to it.
pub(crate) const NODE_MAC: MacAddress = [2, 0, 0, 0, 0, 1];
pub(crate) const ROUTER_MAC: MacAddress = [2, 0, 0, 0, 0, 0xfe];

/// A frame to build, with the parts that differ between tests.
#[derive(Clone, Debug)]
pub(crate) struct TestFrame {
    pub(crate) target_mac: MacAddress,
    pub(crate) source_mac: MacAddress,
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
    pub(crate) protocol: u8,
    /// What follows the ports in the header of TCP: flags and options.
    pub(crate) flags: u8,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) ip_options: Vec<u8>,
    /// Extension headers of IPv6: type and body without the first two bytes.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    pub(crate) dont_fragment: bool,
    /// Offset in bytes, and whether more fragments follow.
    pub(crate) fragment: Option<(u16, bool)>,
    pub(crate) ttl: u8,
    pub(crate) without_checksum: bool,
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl TestFrame {
    pub(crate) fn new(source: &str, target: &str, protocol: u8) -> Self {
        Self {
            target_mac: NODE_MAC,
            source_mac: ROUTER_MAC,
            source: address(source),
            target: address(target),
            protocol,
            flags: ACK,
            options: Vec::new(),
            payload: b"hello".to_vec(),
            ip_options: Vec::new(),
            extensions: Vec::new(),
            dont_fragment: true,
            fragment: None,
            ttl: 63,
            without_checksum: false,
        }
    }

    pub(crate) fn tcp(source: &str, target: &str) -> Self {
        Self::new(source, target, TCP)
    }

    pub(crate) fn syn(source: &str, target: &str) -> Self {
        Self { flags: SYN, payload: Vec::new(), ..Self::tcp(source, target) }
    }

    pub(crate) fn udp(source: &str, target: &str) -> Self {
        Self::new(source, target, UDP)
    }

    /// ICMP with type, code, the rest of the header, and a body. Ports do not matter.
    pub(crate) fn icmp(
        source: &str,
        target: &str,
        kind: u8,
        code: u8,
        rest: u32,
        body: &[u8],
    ) -> Self {
        let protocol = if address(target).is_ipv4() { ICMP } else { ICMPV6 };
        let payload = [&[kind, code, 0, 0][..], &rest.to_be_bytes(), body].concat();
        Self { payload, ..Self::new(source, target, protocol) }
    }

    pub(crate) fn with_payload(self, payload: impl Into<Vec<u8>>) -> Self {
        Self { payload: payload.into(), ..self }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let kind: u16 = if self.source.is_ipv4() { 0x0800 } else { 0x86dd };
        let mut bytes = [self.target_mac, self.source_mac].concat();
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.packet());
        bytes
    }

    /// Returns the packet without the Ethernet header.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let transport = self.transport();
        match (self.source.ip(), self.target.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                self.ipv4(source.octets(), target.octets(), &transport)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                self.ipv6(source.octets(), target.octets(), &transport)
            }
            _ => panic!("two IP versions"),
        }
    }

    fn ipv4(&self, source: [u8; 4], target: [u8; 4], transport: &[u8]) -> Vec<u8> {
        let header = 20 + self.ip_options.len();
        let (offset, more) = self.fragment.unwrap_or_default();
        let fragment =
            (offset / 8) | (u16::from(more) << 13) | (u16::from(self.dont_fragment) << 14);
        let mut ip = vec![0x40 | (header / 4) as u8, 0];
        ip.extend(((header + transport.len()) as u16).to_be_bytes());
        ip.extend([0x12, 0x34]);
        ip.extend(fragment.to_be_bytes());
        ip.extend([self.ttl, self.protocol, 0, 0]);
        ip.extend(source);
        ip.extend(target);
        ip.extend(&self.ip_options);
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum);
        [&ip, transport].concat()
    }

    fn ipv6(&self, source: [u8; 16], target: [u8; 16], transport: &[u8]) -> Vec<u8> {
        let mut extensions = self.extensions.clone();
        if let Some((offset, more)) = self.fragment {
            let word = offset | u16::from(more);
            let [high, low] = word.to_be_bytes();
            extensions.push((44, vec![high, low, 0, 0, 0x12, 0x34]));
        }
        let kinds: Vec<u8> = extensions.iter().map(|it| it.0).chain([self.protocol]).collect();
        let mut rest = Vec::new();
        for ((kind, body), next) in extensions.iter().zip(&kinds[1..]) {
            let length = if *kind == 44 { 0 } else { (body.len() + 2) / 8 - 1 };
            rest.extend([*next, length as u8]);
            rest.extend(body);
        }
        rest.extend(transport);
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend((rest.len() as u16).to_be_bytes());
        ip.extend([kinds[0], self.ttl]);
        ip.extend(source);
        ip.extend(target);
        [ip, rest].concat()
    }

    fn transport(&self) -> Vec<u8> {
        if self.fragment.is_some_and(|(offset, _)| offset > 0) {
            return self.payload.clone();
        }
        let mut bytes =
            [self.source.port().to_be_bytes(), self.target.port().to_be_bytes()].concat();
        let at = match self.protocol {
            TCP => {
                let words = 5 + self.options.len() / 4;
                bytes.extend([
                    0,
                    0,
                    0,
                    1,
                    0,
                    0,
                    0,
                    2,
                    (words as u8) << 4,
                    self.flags,
                    0xff,
                    0xff,
                    0,
                    0,
                    0,
                    0,
                ]);
                bytes.extend(&self.options);
                16
            }
            UDP => {
                bytes.extend((8 + self.payload.len() as u16).to_be_bytes());
                bytes.extend([0, 0]);
                6
            }
            _ => {
                bytes.clear();
                2
            }
        };
        bytes.extend(&self.payload);
        if !self.without_checksum && bytes.len() >= at + 2 {
            let pseudo =
                pseudo_header(self.source.ip(), self.target.ip(), self.protocol, bytes.len());
            let sum = checksum(&[pseudo, bytes.clone()].concat());
            bytes[at..at + 2].copy_from_slice(&sum);
        }
        bytes
    }
}

/// Returns what the transport's checksum includes besides the transport.
fn pseudo_header(source: IpAddr, target: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    if protocol == ICMP {
        return Vec::new();
    }
    let octets = |ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut bytes = [octets(source), octets(target)].concat();
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes
}

/// Returns the Internet checksum (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words =
        bytes.chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(*it.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// A frame taken apart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ParsedFrame {
    pub(crate) target_mac: MacAddress,
    pub(crate) source_mac: MacAddress,
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
    pub(crate) protocol: u8,
    pub(crate) ttl: u8,
    /// From the transport's header on.
    pub(crate) transport: Vec<u8>,
}

impl ParsedFrame {
    /// Takes a frame apart. All checksums must be right.
    pub(crate) fn new(frame: &[u8]) -> Self {
        let mut seen = Self::of_packet(&frame[14..]);
        seen.target_mac.copy_from_slice(&frame[..6]);
        seen.source_mac.copy_from_slice(&frame[6..12]);
        seen
    }

    /// Takes a packet apart that may be cut off: only the sum of its IPv4 header must be right.
    pub(crate) fn of_quoted(packet: &[u8]) -> Self {
        Self::take_apart(packet).0
    }

    fn of_packet(packet: &[u8]) -> Self {
        let (seen, is_fragment) = Self::take_apart(packet);
        if !is_fragment {
            seen.check_transport();
        }
        seen
    }

    fn take_apart(packet: &[u8]) -> (Self, bool) {
        let is_ipv4 = packet[0] >> 4 == 4;
        let (source, target, protocol, ttl, at, is_later, is_fragment) = if is_ipv4 {
            let header = usize::from(packet[0] & 15) * 4;
            assert_eq!(checksum(&packet[..header]), [0, 0], "checksum of the IPv4 header");
            let fragment = u16::from_be_bytes([packet[6], packet[7]]);
            let ip = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
            (
                ip(12),
                ip(16),
                packet[9],
                packet[8],
                header,
                fragment & 0x1fff != 0,
                fragment & 0x3fff != 0,
            )
        } else {
            let (mut protocol, mut at, mut is_later, mut is_fragment) =
                (packet[6], 40, false, false);
            while [0, 43, 44, 60].contains(&protocol) {
                let is_this = protocol == 44;
                if is_this {
                    is_fragment = true;
                    is_later = packet[at + 2] != 0 || packet[at + 3] & 0xf8 != 0;
                }
                protocol = packet[at];
                at += if is_this { 8 } else { 8 + usize::from(packet[at + 1]) * 8 };
            }
            let ip = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
            (ip(8), ip(24), protocol, packet[7], at, is_later, is_fragment)
        };
        let transport = packet[at..].to_vec();
        let has_ports = (protocol == TCP || protocol == UDP) && !is_later;
        let port = |at: usize| {
            if has_ports { u16::from_be_bytes([transport[at], transport[at + 1]]) } else { 0 }
        };
        let (source, target) = (SocketAddr::new(source, port(0)), SocketAddr::new(target, port(2)));
        (
            Self {
                target_mac: [0; 6],
                source_mac: [0; 6],
                source,
                target,
                protocol,
                ttl,
                transport,
            },
            is_fragment,
        )
    }

    fn check_transport(&self) {
        let pseudo =
            pseudo_header(self.source.ip(), self.target.ip(), self.protocol, self.transport.len());
        if self.protocol == UDP && self.transport[6..8] == [0, 0] {
            return;
        }
        assert_eq!(
            checksum(&[pseudo, self.transport.clone()].concat()),
            [0, 0],
            "checksum of {self:?}"
        );
    }

    pub(crate) fn udp_checksum(&self) -> [u8; 2] {
        [self.transport[6], self.transport[7]]
    }
}
