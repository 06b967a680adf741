//! Values of flags: each is parsed once into a type that admits valid values only; each error message names the valid
//! form.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;
use std::time::Duration;

use gateway::objects::{self, ListenFlag, ListenFlagProtocol, MaxInFlight};
use serde_json::{Map, Value};

/// Upper bound of `--workers`: more threads than any present machine has CPUs.
const MAX_WORKERS: usize = 1024;

/// Lower bound of `--memory-limit`: less than what an idle process may have would stop it from serving.
const MIN_MEMORY_LIMIT: u64 = 64 << 20;

const DNS_PORT: u16 = 53;

/// Upper bound of `--controller`: a manager of fields has at most 128 characters.
const MAX_CONTROLLER_BYTES: usize = 100;

/// Value of `--listen`: the protocol and the address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenUrl(pub(crate) ListenFlag);

/// Value of `--to`: an endpoint, or a DNS name that stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToAddress {
    Address(SocketAddr),
    Name(String, u16),
}

/// Value of `--admin` and `--scaler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminAddress {
    Off,
    At(SocketAddr),
}

/// Value of `--access-log`: the share of requests that are logged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LoggedShare {
    Nothing,
    Fraction(f64),
}

/// Value of `--memory-limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    Auto,
    Off,
    Bytes(u64),
}

/// Value of `--transparent-ports`: the ports from the first to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

/// Upper bound of the size of `--transparent-ports`: each port is tried at the start.
const MAX_PORTS: u16 = 100;

impl PortRange {
    /// Returns the ports in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl Default for PortRange {
    fn default() -> Self {
        Self { first: 15_100, last: 15_109 }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "write the first and the last port, as 15100-15109, at most {MAX_PORTS} of them"
            )
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or_else(invalid);
        let (first, last): (u16, u16) = (port(first)?, port(last)?);
        if first > last || last - first >= MAX_PORTS {
            return Err(invalid());
        }
        Ok(Self { first, last })
    }
}

/// Value of `--service-template`: the common fields of all managed Services in front of Gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceTemplate(pub(crate) Value);

impl FromStr for ListenUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("write the protocol too: http://{text}"));
        };
        let protocol = match scheme {
            "http" => ListenFlagProtocol::Http,
            "https" => ListenFlagProtocol::Https,
            "tcp" => ListenFlagProtocol::Tcp,
            "udp" => ListenFlagProtocol::Udp,
            _ => {
                let known = "use http://, https://, tcp:// or udp://";
                return Err(format!("unknown protocol {scheme}: {known}"));
            }
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = host_and_port(authority)?;
        match ip_or_all(host) {
            Some(ip) => Ok(Self(ListenFlag { protocol, address: SocketAddr::new(ip, port) })),
            None => Err(format!(
                "{host} is not an IP address: write {scheme}://127.0.0.1:{port} or \
                 {scheme}://:{port}"
            )),
        }
    }
}

impl FromStr for ToAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return Err("write ADDRESS:PORT without a protocol".to_owned());
        }
        let (host, port) = host_and_port(text)?;
        if port == 0 {
            return Err("no endpoint serves port 0".to_owned());
        }
        if let Some(address) = ip(host) {
            return Ok(Self::Address(SocketAddr::new(address, port)));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if host.is_empty() || !host.bytes().all(plain) {
            return Err("write ADDRESS:PORT or NAME:PORT".to_owned());
        }
        Ok(Self::Name(host.to_owned(), port))
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let (host, port) = host_and_port(text)?;
        match ip_or_all(host) {
            Some(address) => Ok(Self::At(SocketAddr::new(address, port))),
            None => Err("write an IP address and a port, as 127.0.0.1:9900, or `off`".to_owned()),
        }
    }
}

impl FromStr for LoggedShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => return Ok(Self::Nothing),
            "on" => return Ok(Self::Fraction(1.0)),
            _ => {}
        }
        match text.parse() {
            Ok(share) if share > 0.0 && share <= 1.0 => Ok(Self::Fraction(share)),
            Ok(_) | Err(_) => {
                Err("write `off`, `on`, or a share above 0 and up to 1, as 0.01".to_owned())
            }
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    /// Parses a number of bytes with a suffix of Kubernetes quantities, or none.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        let unit: u64 = match &text[digits.len()..] {
            "" => 1,
            "k" => 1000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            _ => 0,
        };
        match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
            Some(bytes) if bytes >= MIN_MEMORY_LIMIT => Ok(Self::Bytes(bytes)),
            Some(_) | None => {
                Err("write a size of at least 64Mi, such as 512Mi or 2G, or auto, or off"
                    .to_owned())
            }
        }
    }
}

/// Parses `--service-template`.
pub(super) fn service_template(text: &str) -> Result<ServiceTemplate, String> {
    let example = r#"write a Service without ports, as {"spec":{"selector":{"app":"sheave"}}}"#;
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {example}"))?;
    let fields = value.as_object().ok_or(example)?;
    if let Some(field) = fields.keys().find(|field| !["metadata", "spec"].contains(&&***field)) {
        return Err(format!("unknown field {field}: {example}"));
    }
    let selector = value.pointer("/spec/selector").and_then(Value::as_object);
    if selector.is_none_or(Map::is_empty) || value.pointer("/spec/ports").is_some() {
        return Err(example.to_owned());
    }
    Ok(ServiceTemplate(value))
}

/// Parses `--controller`. Fields of Kubernetes that carry the name, and names made of it, allow no more characters.
pub(super) fn controller(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_inner = |c: char| is_end(c) || c == '-' || c == '.';
        part.starts_with(is_end) && part.ends_with(is_end) && part.chars().all(is_inner)
    };
    let is_name =
        text.split_once('/').is_some_and(|(domain, name)| is_part(domain) && is_part(name));
    if is_name && text.len() <= MAX_CONTROLLER_BYTES {
        return Ok(text.to_owned());
    }
    Err("write a domain and a name in lower case, as example.com/edge".to_owned())
}

/// Parses `--workers`.
pub(super) fn workers(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse::<NonZeroUsize>() {
        Ok(workers) if workers.get() <= MAX_WORKERS => Ok(workers),
        Ok(_) | Err(_) => Err(format!("write a number from 1 to {MAX_WORKERS}")),
    }
}

/// Parses `--admin` of the commands that query the admin API.
pub(super) fn admin_api(text: &str) -> Result<SocketAddr, String> {
    match text.parse()? {
        AdminAddress::At(address) => Ok(address),
        AdminAddress::Off => Err("write an IP address and a port, as 127.0.0.1:9900".to_owned()),
    }
}

/// Parses `--admin-host`.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let is_name =
        |it: &str| it.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_.".contains(&it));
    match !text.is_empty() && is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("write a host name without a port, as sheave.example".to_owned()),
    }
}

/// Parses `--dns`.
pub(super) fn name_server(text: &str) -> Result<SocketAddr, String> {
    if let Some(address) = ip(text) {
        return Ok(SocketAddr::new(address, DNS_PORT));
    }
    text.parse().map_err(|_error| "write an IP address, as 10.0.0.10, or 10.0.0.10:53".to_owned())
}

/// Parses `--replica`. With `--peers`, a replica is identified by its pod's address, without a
/// port.
pub(super) fn own_replica(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_or_else(|_error| replica(text), |address| Ok(SocketAddr::new(address, 0)))
}

/// Parses an entry of `--replicas`.
pub(super) fn replica(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = host_and_port(text)?;
    let address = ip(host).ok_or("write an IP address and a port, as 10.0.0.7:8080")?;
    Ok(SocketAddr::new(address, port))
}

/// Parses `--max-in-flight`.
pub(super) fn max_in_flight(text: &str) -> Result<MaxInFlight, String> {
    if text == MaxInFlight::AUTO {
        return Ok(MaxInFlight::Auto);
    }
    let number = text.parse::<NonZeroU32>().map(|number| MaxInFlight::Number(number.get()));
    number.map_err(|_error| {
        "write a number from 1 on, or auto, or leave the flag out for no limit".to_owned()
    })
}

/// Parses a duration in the format of Gateway API (GEP-2257).
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match objects::Duration::parse(text) {
        Some(objects::Duration(duration)) => Ok(duration),
        None => Err("write a duration such as 5s, 100ms or 1h30m".to_owned()),
    }
}

/// Parses a duration above zero.
/// Parses a share from 0 to 1.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a share from 0 to 1, such as 0.01".to_owned())
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("write a duration above 0, such as 100ms".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses a number of lines per second, as many as a terminal shows.
pub(super) fn line_rate(text: &str) -> Result<NonZeroU32, String> {
    let rate = text.parse().ok().filter(|rate: &NonZeroU32| rate.get() <= 1000);
    rate.ok_or_else(|| "write a number from 1 to 1000".to_owned())
}

/// Splits `[::1]:80`, `127.0.0.1:80`, `name:80` or `:80` into host and port.
fn host_and_port(text: &str) -> Result<(&str, u16), String> {
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("write the port too: {text}:8080"));
    };
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err("write an IPv6 address in brackets, as [::1]:8080".to_owned());
    }
    let port = port
        .parse()
        .map_err(|_error| format!("`{port}` is not a port: write a number up to 65535"))?;
    Ok((host, port))
}

/// Parses an IP address; an empty host means all addresses, IPv4 and IPv6.
fn ip_or_all(host: &str) -> Option<IpAddr> {
    if host.is_empty() { Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) } else { ip(host) }
}

fn ip(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    }
}
