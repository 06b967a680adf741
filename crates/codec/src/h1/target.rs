//! Request targets, authorities and Host (RFC 9112 §3.2 and §3.3).

#![expect(
    clippy::indexing_slicing,
    reason = "positions are those of bytes that a search has found"
)]

use std::net::Ipv6Addr;

use crate::head::{ByteSpan, HttpVersion, KnownFieldName, RequestHead, RequestMethod};

use super::error::BadRequest;
use super::syntax::{is_host_name, is_path, is_query};

/// Parses `target`, a slice of `text`, of which the head's fields hold a copy; and Host.
pub(super) fn read(head: &mut RequestHead, text: &[u8], target: &[u8]) -> Result<(), BadRequest> {
    let RequestTarget { authority, origin } = RequestTarget::split(head.method, target)?;
    let path_len = path_len(origin).ok_or(BadRequest::Target)?;
    (head.target, head.path) = if path_len > 0 {
        let target = ByteSpan::of(origin, text);
        (target, target.shorten(path_len))
    } else {
        // An empty path is sent as `/`, or as `*` if it means the whole server (RFC 9112 §3.2.4).
        let whole_server = head.method == RequestMethod::Options && origin.is_empty();
        let path = head.fields.store(if whole_server { b"*" } else { b"/" });
        head.fields.store(origin);
        (path.lengthen(origin.len()), path)
    };

    // Host must be present and valid, but the target's authority takes precedence (RFC 9112 §3.2.2).
    let host = host_field(head)?;
    (head.authority, head.host) = match authority {
        Some(authority) => {
            let host_len = host_len(authority).ok_or(BadRequest::Target)?;
            let authority = ByteSpan::of(authority, text);
            (authority, authority.shorten(host_len))
        }
        None => host,
    };
    Ok(())
}

/// A request target, split into its parts.
struct RequestTarget<'b> {
    /// Present in the absolute form only; never empty.
    authority: Option<&'b [u8]>,
    /// Path and query, or `*`. The absolute form may lack path, query or both.
    origin: &'b [u8],
}

impl<'b> RequestTarget<'b> {
    fn split(method: RequestMethod, target: &'b [u8]) -> Result<Self, BadRequest> {
        match method {
            RequestMethod::Connect => return Err(BadRequest::Connect),
            RequestMethod::Trace => return Err(BadRequest::Trace),
            RequestMethod::Get
            | RequestMethod::Head
            | RequestMethod::Post
            | RequestMethod::Put
            | RequestMethod::Delete
            | RequestMethod::Options
            | RequestMethod::Patch
            | RequestMethod::Other => {}
        }
        let is_asterisk = method == RequestMethod::Options && target == b"*";
        if target.starts_with(b"/") || is_asterisk {
            return Ok(Self { authority: None, origin: target });
        }
        let rest = after_scheme(target).ok_or(BadRequest::Target)?;
        let authority_len = rest.iter().position(|b| b"/?".contains(b)).unwrap_or(rest.len());
        let (authority, origin) = rest.split_at(authority_len);
        // RFC 9110 §4.2.1: there is no http URI without a host.
        if authority.is_empty() {
            return Err(BadRequest::Target);
        }
        Ok(Self { authority: Some(authority), origin })
    }
}

fn after_scheme(target: &[u8]) -> Option<&[u8]> {
    [b"http://".as_slice(), b"https://"].iter().find_map(|scheme| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// Returns the length of the path, if path and query contain only valid characters.
pub(crate) fn path_len(origin: &[u8]) -> Option<usize> {
    let path_len = memchr::memchr(b'?', origin).unwrap_or(origin.len());
    let (path, query) = origin.split_at(path_len);
    (is_path(path) && is_query(query)).then_some(path_len)
}

/// Returns authority and host of the Host field. HTTP/1.1 has exactly one Host, HTTP/1.0 at most one; it may be empty.
fn host_field(head: &RequestHead) -> Result<(ByteSpan, ByteSpan), BadRequest> {
    let mut hosts = head.fields.value_spans(KnownFieldName::Host);
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            let len = host_len(head.fields.text(host)).ok_or(BadRequest::Host)?;
            Ok((host, host.shorten(len)))
        }
        (Some(_), Some(_)) => Err(BadRequest::HostRepeated),
        (None, _) => match head.version {
            HttpVersion::Http11 | HttpVersion::Http2 | HttpVersion::Http3 => {
                Err(BadRequest::HostMissing)
            }
            HttpVersion::Http10 => Ok((ByteSpan::default(), ByteSpan::default())),
        },
    }
}

/// Returns the length of the host in `host [":" port]`; `None` for anything else, such as an authority with user
/// information.
pub(crate) fn host_len(authority: &[u8]) -> Option<usize> {
    let (host_len, host_is_good) = if authority.starts_with(b"[") {
        let end = memchr::memchr(b']', authority)?;
        (end + 1, is_ipv6(&authority[1..end]))
    } else {
        let end = memchr::memchr(b':', authority).unwrap_or(authority.len());
        (end, is_host_name(&authority[..end]))
    };
    let port_is_good = match &authority[host_len..] {
        [] => true,
        [b':', port @ ..] => host_len > 0 && is_port(port),
        _ => false,
    };
    (host_is_good && port_is_good).then_some(host_len)
}

fn is_ipv6(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// True for a port number. It may be empty (RFC 3986 §3.2.3) and may have leading zeros.
fn is_port(digits: &[u8]) -> bool {
    let number = digits.iter().try_fold(0_u16, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    number.is_some()
}
