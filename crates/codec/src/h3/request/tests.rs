//! Tests of request heads: a table of accepted and rejected heads, and a round trip.

use proptest::prelude::*;

use super::*;
use crate::h1::{BadFraming, BadSyntax, write};
use crate::head::RequestMethod;

/// Fields by name and value, including the pseudo-header fields.
type Pairs<'p> = &'p [(&'p str, &'p str)];

const LIMITS: HeadLimits = HeadLimits { head_bytes: 500, fields: 6, target_bytes: 40 };
const KEY: WebSocketKey = *b"dGhlIHNhbXBsZSBub25jZQ==";

/// Pseudo-header fields of most requests.
const GET: Pairs<'_> =
    &[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
const POST: Pairs<'_> =
    &[(":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
const CONNECT: Pairs<'_> = &[
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":authority", "a"),
    (":path", "/chat"),
];

fn section(pairs: Pairs<'_>) -> Vec<u8> {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    for (name, value) in pairs {
        qpack::write(name.as_bytes(), value.as_bytes(), &mut section);
    }
    section
}

fn address() -> SocketAddr {
    ([10, 0, 0, 1], 80).into()
}

fn read_pairs(
    pairs: Pairs<'_>,
    is_whole: bool,
) -> Result<RequestHead, FieldSectionError<BadRequest>> {
    let mut head = RequestHead::new();
    read(&section(pairs), is_whole, &LIMITS, || KEY, &mut head).map(|()| head)
}

/// The head as an HTTP/1.1 endpoint receives it.
fn as_http1(head: &RequestHead) -> String {
    let mut out = Vec::new();
    let framing =
        if head.framing == BodyFraming::Stream { BodyFraming::Chunked } else { head.framing };
    write::request_head(head, framing, head.upgrade, &mut out);
    String::from_utf8(out).unwrap().replace("\r\n", "|")
}

#[test]
fn request_heads_are_read_like_their_http1_form() {
    let cases: &[(Pairs<'_>, Pairs<'_>, bool, &str)] = &[
        (
            &[
                (":path", "/x?y"),
                (":method", "GET"),
                (":authority", "a.example:84"),
                (":scheme", "https"),
            ],
            &[("x", "1"), ("te", "trailers")],
            true,
            "GET /x?y HTTP/1.1|Host: a.example:84|x: 1|TE: trailers|Connection: TE||",
        ),
        (
            &[(":method", "GET"), (":scheme", "https"), (":path", "/")],
            &[("host", "a.example"), ("cookie", "a=1"), ("x", "1"), ("cookie", "b=2")],
            true,
            "GET / HTTP/1.1|Host: a.example|x: 1|cookie: a=1; b=2||",
        ),
        (
            &[(":method", "OPTIONS"), (":scheme", "https"), (":authority", "a"), (":path", "*")],
            &[],
            true,
            "OPTIONS * HTTP/1.1|Host: a||",
        ),
        (
            &[(":method", "BREW"), (":scheme", "https"), (":authority", "[::1]"), (":path", "/")],
            &[],
            true,
            "BREW / HTTP/1.1|Host: [::1]||",
        ),
        (POST, &[("host", "A")], true, "POST / HTTP/1.1|Host: a|Content-Length: 0||"),
        (
            POST,
            &[("content-length", "7"), ("expect", "100-continue")],
            false,
            "POST / HTTP/1.1|Host: a|expect: 100-continue|Content-Length: 7||",
        ),
        (
            GET,
            &[("expect", "100-continue"), ("trailer", "x")],
            false,
            "GET / HTTP/1.1|Host: a|expect: 100-continue|trailer: x|Transfer-Encoding: chunked||",
        ),
        (GET, &[("expect", "100-continue")], true, "GET / HTTP/1.1|Host: a||"),
        (
            CONNECT,
            &[("sec-websocket-version", "13")],
            false,
            "GET /chat HTTP/1.1|Host: a|sec-websocket-version: 13|\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==|Connection: upgrade|Upgrade: websocket||",
        ),
    ];
    for (pseudo, fields, is_whole, expected) in cases {
        let head = read_pairs(&[*pseudo, fields].concat(), *is_whole).unwrap();
        assert_eq!(as_http1(&head), *expected, "{pseudo:?} {fields:?}");
        assert_eq!((head.version, head.keep_alive), (HttpVersion::Http3, true));
    }
}

/// RFC 9114 §4.1.2 and §4.3.1, RFC 9220.
#[test]
fn invalid_pseudo_headers_are_malformed() {
    let missing = |name: &str| -> Vec<_> {
        GET.iter().copied().filter(|(other, _)| *other != name).collect()
    };
    let replaced = |name: &'static str, value: &'static str| -> Vec<_> {
        let replace = |&(other, old)| (other, if other == name { value } else { old });
        GET.iter().map(replace).collect()
    };
    let cases = [
        vec![],
        missing(":method"),
        missing(":scheme"),
        missing(":path"),
        replaced(":method", ""),
        replaced(":method", "A B"),
        replaced(":scheme", ""),
        replaced(":authority", ""),
        replaced(":path", ""),
        [GET, &[(":status", "200")]].concat(),
        [GET, &[(":protocol", "websocket")]].concat(),
        [&missing(":authority")[..], &[("host", "")]].concat(),
        // A plain CONNECT has only an authority.
        vec![(":method", "CONNECT")],
        vec![(":method", "CONNECT"), (":authority", "a"), (":path", "/")],
        vec![(":method", "CONNECT"), (":authority", "a"), (":scheme", "https")],
        // An extended CONNECT has all pseudo-header fields.
        vec![(":method", "CONNECT"), (":protocol", "websocket"), (":authority", "a")],
    ];
    for pairs in cases {
        let read = read_pairs(&pairs, true).map(|head| as_http1(&head));
        assert_eq!(read, Err(FieldSectionError::Malformed), "{pairs:?}");
    }
}

#[test]
fn ambiguous_requests_are_rejected() {
    let long = "/".repeat(41);
    let large = "~".repeat(500);
    let to = |path| -> Vec<_> {
        let replace = |&(name, old)| (name, if name == ":path" { path } else { old });
        GET.iter().map(replace).collect()
    };
    let (no_host, of_user) =
        ([GET[0], GET[1], GET[3]], [GET[0], GET[1], (":authority", "u@a"), GET[3]]);
    let cases: &[(Pairs<'_>, Pairs<'_>, bool, BadRequest)] = &[
        (&no_host, &[], true, BadRequest::HostMissing),
        (&no_host, &[("host", "a"), ("host", "a")], true, BadRequest::HostRepeated),
        (&no_host, &[("host", "a,b")], true, BadRequest::Host),
        (GET, &[("host", "b")], true, BadRequest::HostDiffers),
        (GET, &[("host", "a:80")], true, BadRequest::HostDiffers),
        (&of_user, &[], true, BadRequest::Target),
        (&to("*"), &[], true, BadRequest::Target),
        (&to("a"), &[], true, BadRequest::Target),
        (&to("https://a/"), &[], true, BadRequest::Target),
        (&to("/\""), &[], true, BadRequest::Target),
        (&to("/a b"), &[], true, BadRequest::Target),
        (&to("/#a"), &[], true, BadRequest::Target),
        (&to("/\u{e4}"), &[], true, BadRequest::Target),
        (&to(&long), &[], true, BadRequest::TargetTooLong),
        (GET, &[("x", &large)], true, BadSyntax::TooLarge.into()),
        (GET, &[("x", "1"); 7], true, BadSyntax::TooManyFields.into()),
        (GET, &[("x", " 1")], true, BadSyntax::FieldValue.into()),
        (GET, &[("connection", "x")], true, BadFraming::ConnectionField.into()),
        (GET, &[("keep-alive", "1")], true, BadFraming::ConnectionField.into()),
        (GET, &[("upgrade", "x")], true, BadFraming::ConnectionField.into()),
        (GET, &[("te", "gzip")], true, BadFraming::ConnectionField.into()),
        (POST, &[("transfer-encoding", "chunked")], false, BadFraming::ConnectionField.into()),
        (POST, &[("content-length", "1")], true, BadFraming::LengthWithoutBody.into()),
        (
            POST,
            &[("content-length", "1"), ("content-length", "1")],
            false,
            BadFraming::LengthRepeated.into(),
        ),
        (POST, &[("content-length", "+1")], false, BadFraming::LengthNotANumber.into()),
        (POST, &[("expect", "more")], false, BadRequest::Expectation),
        (&[(":method", "CONNECT"), (":authority", "a:443")], &[], false, BadRequest::Connect),
        (
            &[
                (":method", "CONNECT"),
                (":protocol", "connect-udp"),
                (":scheme", "https"),
                (":authority", "a"),
                (":path", "/"),
            ],
            &[],
            false,
            BadRequest::Connect,
        ),
    ];
    for (pseudo, fields, is_whole, expected) in cases {
        let read = read_pairs(&[*pseudo, fields].concat(), *is_whole).map(|head| as_http1(&head));
        assert_eq!(read, Err(FieldSectionError::Refused(*expected)), "{pseudo:?} {fields:?}");
    }
}

#[test]
fn request_without_host_gets_the_endpoint_address_as_authority() {
    let mut head = RequestHead::new();
    let bytes = b"GET /a HTTP/1.0\r\n\r\n";
    crate::h1::parse::request(bytes, &LIMITS, &mut head).unwrap();
    let mut section = Vec::new();
    write(&head, BodyFraming::None, address(), &mut section);
    let mut back = RequestHead::new();
    read(&section, true, &LIMITS, || KEY, &mut back).unwrap();
    assert_eq!(as_http1(&back), "GET /a HTTP/1.1|Host: 10.0.0.1:80||");
}

#[test]
fn websocket_upgrade_becomes_extended_connect() {
    let head = read_pairs(CONNECT, false).unwrap();
    let mut section = Vec::new();
    write(&head, BodyFraming::None, address(), &mut section);
    let mut back = RequestHead::new();
    read(&section, false, &LIMITS, || [b'A'; 24], &mut back).unwrap();
    // The key is generated anew each time.
    assert_eq!(back.fields.get("sec-websocket-key"), Some([b'A'; 24].as_slice()));
    assert_eq!(back.fields.iter().count(), head.fields.iter().count());
    assert!(back.upgrade && back.method == RequestMethod::Get);
}

prop_compose! {
    fn any_request()(
        method in prop::sample::select(vec!["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "LOCK"]),
        path in "/[a-z0-9/._~!$&'()*+,;=:@-]{0,15}",
        query in prop::option::of("[a-z0-9/?=&._~-]{0,10}"),
        host in "[a-z][a-z0-9.-]{0,12}",
        port in prop::option::of(any::<u16>()),
        fields in prop::collection::vec(("[xX]-[a-zA-Z0-9-]{1,8}", "([!-~]([ -~]{0,12}[!-~])?)?"), 0..5),
        te in any::<bool>(),
        body in prop::sample::select(vec![
            BodyFraming::None, BodyFraming::Length(0), BodyFraming::Length(12), BodyFraming::Stream,
        ]),
    ) -> (RequestHead, String) {
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let mut text = format!("{method} {path}{query} HTTP/1.1\r\nHost: {host}{port}\r\n");
        for (name, value) in &fields {
            text += &format!("{name}: {value}\r\n");
        }
        if te {
            text += "TE: trailers\r\nConnection: TE\r\n";
        }
        text += "\r\n";
        let limits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 64 };
        let mut head = RequestHead::new();
        let length = crate::h1::parse::request(text.as_bytes(), &limits, &mut head);
        assert_eq!(length, Ok(Some(text.len())), "{text}");
        head.framing = body;
        (head, text)
    }
}

proptest! {
    #[test]
    fn request_head_round_trips((head, text) in any_request()) {
        let mut section = Vec::new();
        write(&head, head.framing, address(), &mut section);
        let is_whole = head.framing.is_empty();
        let mut back = RequestHead::new();
        let limits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 64 };
        read(&section, is_whole, &limits, || KEY, &mut back).unwrap();
        prop_assert_eq!(back.method_bytes(), head.method_bytes());
        prop_assert_eq!(back.target(), head.target());
        prop_assert_eq!(back.path(), head.path());
        prop_assert_eq!(back.authority(), head.authority());
        prop_assert_eq!(back.host(), head.host());
        prop_assert_eq!(back.te_trailers, head.te_trailers);
        prop_assert!(
            back.framing == head.framing || back.framing.is_empty() && head.framing.is_empty()
        );
        let others = |head: &RequestHead| -> Vec<_> {
            let others = head.fields.iter().filter(|(name, ..)| *name == KnownFieldName::Other);
            others.map(|(_, text, value)| (text.to_ascii_lowercase(), value.to_vec())).collect()
        };
        prop_assert_eq!(others(&back), others(&head), "{}", text);
    }
}
