//! The fields that a proxy adds to a request: the client's address, the scheme, the hops, and a request ID.
//!
//! Existing fields of this kind are kept only if the peer is a trusted proxy; otherwise they are removed.

use std::net::{IpAddr, SocketAddr};

use balance::Rng;
use codec::head::{
    FieldSection, HttpVersion, KnownFieldName, PreparedFieldLine, PreparedFields, RequestHead, list,
};
use gateway::snapshot::{ClientSettings, UrlScheme};

/// The proxy's pseudonym in `Via` and `Proxy-Status` (RFC 9110 §7.6.3, RFC 9209 §2).
pub(crate) const PSEUDONYM: &str = "sheave";

/// Returns the `Via` of a message that was received with this version.
pub(crate) fn via(version: HttpVersion) -> &'static PreparedFieldLine {
    static BY_HTTP1: PreparedFieldLine =
        PreparedFieldLine::fixed(KnownFieldName::Via, "Via: 1.1 sheave\r\n");
    static BY_HTTP2: PreparedFieldLine =
        PreparedFieldLine::fixed(KnownFieldName::Via, "Via: 2 sheave\r\n");
    static BY_HTTP3: PreparedFieldLine =
        PreparedFieldLine::fixed(KnownFieldName::Via, "Via: 3 sheave\r\n");
    match version {
        HttpVersion::Http10 | HttpVersion::Http11 => &BY_HTTP1,
        HttpVersion::Http2 => &BY_HTTP2,
        HttpVersion::Http3 => &BY_HTTP3,
    }
}

/// The origin of the requests of a connection.
pub(crate) struct RequestOrigin {
    address: IpAddr,
    address_text: Box<str>,
    /// `X-Real-IP`, `X-Forwarded-For` and `X-Forwarded-Proto` of a request that has none of them.
    fields: PreparedFields,
    /// Scheme with which the request was received.
    pub(crate) scheme: UrlScheme,
}

impl RequestOrigin {
    pub(crate) fn new(peer: SocketAddr, scheme: UrlScheme) -> Self {
        // An IPv4 client of a dual-stack socket is shown with its IPv4 address.
        let address = peer.ip().to_canonical();
        let address_text = address.to_string().into_boxed_str();
        let fields = PreparedFields::new(&[
            (KnownFieldName::XRealIp, &address_text),
            (KnownFieldName::XForwardedFor, &address_text),
            (KnownFieldName::XForwardedProto, scheme.text()),
        ]);
        Self { address, address_text, fields, scheme }
    }

    /// Returns the peer's address as text.
    pub(crate) fn address_text(&self) -> &str {
        &self.address_text
    }

    /// Returns the client's address according to trusted proxies: the last entry of `X-Forwarded-For` that is not a
    /// trusted proxy. `None`: there is none.
    pub(crate) fn named_client(
        &self,
        fields: &FieldSection,
        settings: &ClientSettings,
    ) -> Option<IpAddr> {
        if !self.is_trusted(settings) {
            return None;
        }
        let mut named = None;
        for element in fields.values(KnownFieldName::XForwardedFor).flat_map(list) {
            match parse_address(element) {
                Some(address) if is_trusted(address, settings) => {}
                untrusted => named = untrusted,
            }
        }
        named
    }

    /// Returns the client's address: the one that trusted proxies report, else the peer's.
    pub(crate) fn client(&self, fields: &FieldSection, settings: &ClientSettings) -> IpAddr {
        self.named_client(fields, settings).unwrap_or(self.address)
    }

    /// True if the peer is a trusted proxy.
    pub(crate) fn is_trusted(&self, settings: &ClientSettings) -> bool {
        is_trusted(self.address, settings)
    }
}

fn is_trusted(address: IpAddr, settings: &ClientSettings) -> bool {
    settings.trusted_proxies.iter().any(|block| block.contains(&address))
}

/// Parses an element of `X-Forwarded-For`; some proxies write the port too.
fn parse_address(element: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(element).ok()?;
    let with_port = || text.parse::<SocketAddr>().map(|address| address.ip());
    Some(text.parse().or_else(|_| with_port()).ok()?.to_canonical())
}

/// Removes the fields in which only a trusted proxy may describe the client, and names with an underscore, unless the
/// policy keeps them. Called before routing, so that no route, hash key or priority depends on them.
pub(crate) fn remove_untrusted_fields(
    fields: &mut FieldSection,
    origin: &RequestOrigin,
    settings: &ClientSettings,
) {
    if origin.is_trusted(settings) {
        return;
    }
    fields.remove_all([
        KnownFieldName::Forwarded,
        KnownFieldName::XForwardedFor,
        KnownFieldName::XForwardedProto,
        KnownFieldName::XForwardedHost,
        KnownFieldName::XForwardedPort,
        KnownFieldName::XRequestId,
        KnownFieldName::XRealIp,
    ]);
    if !settings.keeps_proxy_fields {
        fields.remove(KnownFieldName::ProxyClaim);
    }
    if !settings.keeps_underscores {
        fields.remove(KnownFieldName::WithUnderscore);
    }
}

/// Adds `X-Forwarded-*`, `Forwarded`, `X-Real-IP`, `X-Request-Id` and `Via`. Those of an untrusted peer have been
/// removed.
pub(crate) fn add_forwarding_fields(
    request: &mut RequestHead,
    origin: &RequestOrigin,
    settings: &ClientSettings,
    rng: &mut Rng,
) {
    add_client_fields(&mut request.fields, origin, settings);
    if !request.fields.has(KnownFieldName::XForwardedHost) {
        request.add_authority(KnownFieldName::XForwardedHost);
    }
    // A proxy before us uses RFC 7239: append to `Forwarded`, in addition to the older fields.
    if request.fields.has(KnownFieldName::Forwarded) {
        request.fields.add(KnownFieldName::Forwarded, forwarded_element(origin));
    }
    ensure_request_id(request, rng);
    request.fields.add_prepared(via(request.version));
}

/// Gives the request an ID, unless it has one of a trusted proxy.
pub(crate) fn ensure_request_id(request: &mut RequestHead, rng: &mut Rng) {
    if !request.fields.has(KnownFieldName::XRequestId) {
        request.fields.add_whole_line(KnownFieldName::XRequestId, &request_id_line(rng));
    }
}

/// Adds the fields that describe the client and its scheme. Most requests have none of them.
fn add_client_fields(fields: &mut FieldSection, origin: &RequestOrigin, settings: &ClientSettings) {
    let names =
        [KnownFieldName::XRealIp, KnownFieldName::XForwardedFor, KnownFieldName::XForwardedProto];
    if !fields.has_any(names) {
        return fields.add_all_prepared(&origin.fields);
    }
    set_real_ip(fields, origin, settings);
    append_forwarded_for(fields, origin);
    if !fields.has(KnownFieldName::XForwardedProto) {
        fields.add(KnownFieldName::XForwardedProto, origin.scheme.text());
    }
}

/// Sets `X-Real-IP` to the client's address. A trusted proxy's value stays only if the proxy names no client in
/// `X-Forwarded-For`: some load balancers add to that field and pass on the `X-Real-IP` that the client wrote.
fn set_real_ip(fields: &mut FieldSection, origin: &RequestOrigin, settings: &ClientSettings) {
    match origin.named_client(fields, settings) {
        Some(address) => {
            fields.remove(KnownFieldName::XRealIp);
            fields.add(KnownFieldName::XRealIp, address.to_string());
        }
        None if fields.has(KnownFieldName::XRealIp) => {}
        None => fields.add(KnownFieldName::XRealIp, origin.address_text()),
    }
}

/// Appends the peer's address, and merges all hops into one field: many servers read only the first or the last field
/// line.
pub(crate) fn append_forwarded_for(fields: &mut FieldSection, origin: &RequestOrigin) {
    if !fields.has(KnownFieldName::XForwardedFor) {
        return fields.add(KnownFieldName::XForwardedFor, origin.address_text());
    }
    let before: Vec<&[u8]> = fields.values(KnownFieldName::XForwardedFor).collect();
    let mut all = before.join(&b", "[..]);
    all.extend_from_slice(b", ");
    all.extend_from_slice(origin.address_text().as_bytes());
    fields.remove(KnownFieldName::XForwardedFor);
    fields.add(KnownFieldName::XForwardedFor, all);
}

fn forwarded_element(origin: &RequestOrigin) -> String {
    let scheme = origin.scheme.text();
    match origin.address {
        IpAddr::V4(address) => format!("for={address};proto={scheme}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\";proto={scheme}"),
    }
}

/// Returns a line with 128 random bits in hexadecimal, in the format of a trace ID in `traceparent`.
fn request_id_line(rng: &mut Rng) -> [u8; REQUEST_ID_LINE.len()] {
    let mut line = *REQUEST_ID_LINE;
    let (_, id) = line.split_at_mut("X-Request-Id: ".len());
    for half in id.as_chunks_mut::<16>().0 {
        let bits = rng.next_u64();
        let (first, second) = half.split_at_mut(8);
        // Random digits have no order.
        first.copy_from_slice(&hexadecimal_digits(bits & EACH_LOW_HALF).to_ne_bytes());
        second.copy_from_slice(&hexadecimal_digits(bits >> 4 & EACH_LOW_HALF).to_ne_bytes());
    }
    line
}

const REQUEST_ID_LINE: &[u8; 48] = b"X-Request-Id: 00000000000000000000000000000000\r\n";

/// The lower four bits of each byte of a word.
const EACH_LOW_HALF: u64 = u64::from_ne_bytes([0x0f; 8]);

/// Returns the hexadecimal digit of each byte of a word; each is below 16.
const fn hexadecimal_digits(values: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    // From 10 on, 6 more carry into the upper half of the byte.
    let letters = (values + 6 * ONES) >> 4 & ONES;
    let to_letter = b'a' - b'0' - 10;
    values + b'0' as u64 * ONES + letters * to_letter as u64
}

#[cfg(test)]
mod tests {
    use codec::h1::{HeadLimits, parse};

    use super::*;

    fn request(head: &str) -> RequestHead {
        let limits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 1024 };
        let mut request = RequestHead::new();
        let text = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{head}\r\n");
        assert_eq!(parse::request(text.as_bytes(), &limits, &mut request), Ok(Some(text.len())));
        request
    }

    fn trusting(trusted: &[&str]) -> ClientSettings {
        let trusted = trusted.iter().map(|block| block.parse().unwrap()).collect();
        ClientSettings { trusted_proxies: trusted, ..ClientSettings::default() }
    }

    /// Returns the fields of the request after `client` has sent it and forwarding fields have been added.
    fn described(head: &str, client: &str, trusted: &[&str]) -> Vec<String> {
        let mut request = request(head);
        let settings = trusting(trusted);
        let origin = RequestOrigin::new(client.parse().unwrap(), UrlScheme::Http);
        remove_untrusted_fields(&mut request.fields, &origin, &settings);
        add_forwarding_fields(&mut request, &origin, &settings, &mut Rng::new(1));
        let fields = request.fields.iter().filter(|(name, ..)| *name != KnownFieldName::Host);
        fields
            .map(|(_, name, value)| {
                format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            })
            .collect()
    }

    #[test]
    fn request_id_has_every_digit() {
        let words = [*b"\0\x01\x02\x03\x04\x05\x06\x07", *b"\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"];
        let digits = words.map(|word| hexadecimal_digits(u64::from_ne_bytes(word)).to_ne_bytes());
        assert_eq!(digits.as_flattened(), b"0123456789abcdef");
        let mut rng = Rng::new(7);
        let lines = [(); 64].map(|()| request_id_line(&mut rng));
        for line in &lines {
            let id = line.strip_prefix(b"X-Request-Id: ").unwrap().strip_suffix(b"\r\n").unwrap();
            let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
            assert!(id.len() == 32 && id.iter().all(is_digit), "{id:?}");
        }
        for place in "X-Request-Id: ".len()..46 {
            assert!(lines.iter().any(|line| line[place] != lines[0][place]), "digit {place}");
        }
    }

    #[test]
    fn client_address_is_the_last_untrusted_forwarded_for_entry() {
        let named = |head: &str, peer: &str| {
            let request = request(head);
            let origin = RequestOrigin::new(peer.parse().unwrap(), UrlScheme::Http);
            let address = origin.named_client(&request.fields, &trusting(&["10.0.0.0/8"]));
            address.map(|address| address.to_string())
        };
        let (proxy, stranger) = ("10.0.0.1:80", "192.0.2.7:80");
        let chain = "X-Forwarded-For: 1.1.1.1, 192.0.2.1\r\nX-Forwarded-For: 10.0.0.2\r\n";
        assert_eq!(named(chain, proxy).as_deref(), Some("192.0.2.1"));
        assert_eq!(named(chain, stranger), None);
        let with_port = "X-Forwarded-For: [2001:db8::1]:4000\r\n";
        assert_eq!(named(with_port, proxy).as_deref(), Some("2001:db8::1"));
        assert_eq!(named("X-Forwarded-For: 1.1.1.1, unknown, 10.0.0.2\r\n", proxy), None);
        assert_eq!(named("", proxy), None);
    }

    const CLAIMS: &str = "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\n\
        Forwarded: for=1.1.1.1\r\nX-Request-Id: mine\r\nVia: 1.0 before\r\nX-Real-IP: 6.6.6.6\r\n\
        X_Real_IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\nuser_id: 7\r\n";

    #[test]
    fn forwarding_fields_of_an_untrusted_peer_are_replaced() {
        let fields = described(CLAIMS, "192.0.2.7:80", &["10.0.0.0/8"]);
        assert_eq!(
            fields[..5],
            [
                "Via: 1.0 before",
                "X-Real-IP: 192.0.2.7",
                "X-Forwarded-For: 192.0.2.7",
                "X-Forwarded-Proto: http",
                "X-Forwarded-Host: a.example",
            ]
        );
        assert_eq!(fields[5].len(), "X-Request-Id: ".len() + 32);
        assert_eq!(fields[6..], ["Via: 1.1 sheave"]);
    }

    #[test]
    fn forwarding_fields_of_a_trusted_proxy_are_extended() {
        assert_eq!(
            described(CLAIMS, "[::ffff:10.1.2.3]:80", &["10.0.0.0/8"]),
            [
                "X-Forwarded-Proto: https",
                "Forwarded: for=1.1.1.1",
                "X-Request-Id: mine",
                "Via: 1.0 before",
                "X_Real_IP: 6.6.6.6",
                "True-Client-IP: 6.6.6.6",
                "user_id: 7",
                "X-Real-IP: 1.1.1.1",
                "X-Forwarded-For: 1.1.1.1, 10.1.2.3",
                "X-Forwarded-Host: a.example",
                "Forwarded: for=10.1.2.3;proto=http",
                "Via: 1.1 sheave",
            ]
        );
    }

    #[test]
    fn real_ip_of_a_trusted_proxy_is_kept_if_it_names_no_other_client() {
        let kept = described("x-real-ip: 1.1.1.1\r\n", "10.1.2.3:80", &["10.0.0.0/8"]);
        assert!(kept.contains(&"x-real-ip: 1.1.1.1".to_owned()), "{kept:?}");
        let set = described("", "10.1.2.3:80", &["10.0.0.0/8"]);
        assert!(set.contains(&"X-Real-IP: 10.1.2.3".to_owned()), "{set:?}");
    }

    #[test]
    fn policy_keeps_fields_of_untrusted_peers() {
        let mut request = request(CLAIMS);
        let origin = RequestOrigin::new("192.0.2.7:80".parse().unwrap(), UrlScheme::Http);
        let settings = ClientSettings { keeps_underscores: true, ..ClientSettings::default() };
        remove_untrusted_fields(&mut request.fields, &origin, &settings);
        assert_eq!(request.fields.get("user_id"), Some(b"7".as_slice()));
        assert_eq!(request.fields.get("x_real_ip"), None, "the same as X-Real-IP for CGI");
        let mut request = self::request(CLAIMS);
        let settings = ClientSettings { keeps_proxy_fields: true, ..ClientSettings::default() };
        remove_untrusted_fields(&mut request.fields, &origin, &settings);
        assert_eq!(request.fields.get("true-client-ip"), Some(b"6.6.6.6".as_slice()));
        assert_eq!(request.fields.get("x-real-ip"), None);
        assert_eq!(request.fields.get("user_id"), None);
    }

    #[test]
    fn ipv6_address_is_quoted_in_forwarded() {
        let fields = described("Forwarded: for=x\r\n", "[2001:db8::1]:80", &["2001:db8::/32"]);
        assert!(fields.contains(&"Forwarded: for=\"[2001:db8::1]\";proto=http".to_owned()));
    }
}
