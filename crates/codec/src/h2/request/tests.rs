//! Tests of request heads: a table of accepted and rejected heads, and a round trip.

use proptest::prelude::*;

use super::*;
use crate::h1::{BadFraming, write};
use crate::head::KnownFieldName;

/// Fields by name and value.
type Pairs<'p> = &'p [(&'p str, &'p str)];

const LIMITS: HeadLimits = HeadLimits { head_bytes: 500, fields: 6, target_bytes: 40 };
const KEY: WebSocketKey = *b"dGhlIHNhbXBsZSBub25jZQ==";

/// A request by its target and fields; a field `:protocol` makes it an extended CONNECT.
fn parts<'p>(method: &str, uri: &str, fields: Pairs<'p>) -> (Parts, Option<&'p str>) {
    let mut request = http::Request::builder().method(method).uri(uri);
    let mut protocol = None;
    for (name, value) in fields {
        if *name == ":protocol" {
            protocol = Some(*value);
        } else {
            request = request.header(*name, *value);
        }
    }
    (request.body(()).unwrap().into_parts().0, protocol)
}

fn address() -> SocketAddr {
    ([10, 0, 0, 1], 80).into()
}

fn read_parts(
    (parts, protocol): &(Parts, Option<&str>),
    is_whole: bool,
) -> Result<RequestHead, BadRequest> {
    let mut head = RequestHead::new();
    read(parts, *protocol, is_whole, &LIMITS, || KEY, &mut head).map(|()| head)
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
    let cases: &[(&str, &str, Pairs<'_>, bool, &str)] = &[
        (
            "GET",
            "https://a.example:8443/x?y",
            &[("x", "1"), ("te", "trailers")],
            true,
            "GET /x?y HTTP/1.1|Host: a.example:8443|x: 1|TE: trailers|Connection: TE||",
        ),
        (
            "GET",
            "/",
            &[
                ("cookie", ""),
                ("cookie", "a=1"),
                ("x", "1"),
                ("cookie", "b=2"),
                ("host", "a.example"),
            ],
            true,
            "GET / HTTP/1.1|Host: a.example|cookie: a=1; b=2|x: 1||",
        ),
        ("OPTIONS", "*", &[("host", "a")], true, "OPTIONS * HTTP/1.1|Host: a||"),
        ("BREW", "http://[::1]/", &[], true, "BREW / HTTP/1.1|Host: [::1]||"),
        (
            "POST",
            "http://a/",
            &[("host", "A")],
            true,
            "POST / HTTP/1.1|Host: a|Content-Length: 0||",
        ),
        (
            "POST",
            "http://a/",
            &[("content-length", "7"), ("expect", "100-continue")],
            false,
            "POST / HTTP/1.1|Host: a|expect: 100-continue|Content-Length: 7||",
        ),
        (
            "GET",
            "http://a/",
            &[("expect", "100-continue"), ("trailer", "x")],
            false,
            "GET / HTTP/1.1|Host: a|expect: 100-continue|trailer: x|Transfer-Encoding: chunked||",
        ),
        ("GET", "http://a/", &[("expect", "100-continue")], true, "GET / HTTP/1.1|Host: a||"),
        (
            "CONNECT",
            "http://a/chat",
            &[(":protocol", "websocket"), ("sec-websocket-version", "13")],
            false,
            "GET /chat HTTP/1.1|Host: a|sec-websocket-version: 13|\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==|Connection: upgrade|Upgrade: websocket||",
        ),
    ];
    for (method, uri, fields, is_whole, expected) in cases {
        let head = read_parts(&parts(method, uri, fields), *is_whole).unwrap();
        assert_eq!(as_http1(&head), *expected, "{method} {uri} {fields:?}");
        assert_eq!((head.version, head.keep_alive), (HttpVersion::Http2, true));
    }
}

#[test]
fn ambiguous_requests_are_rejected() {
    let long = "a".repeat(41);
    let large = "a".repeat(500);
    let cases: &[(&str, &str, Pairs<'_>, bool, BadRequest)] = &[
        ("GET", "/", &[], true, BadRequest::HostMissing),
        ("GET", "/", &[("host", "a"), ("host", "a")], true, BadRequest::HostRepeated),
        ("GET", "/", &[("host", "a,b")], true, BadRequest::Host),
        ("GET", "http://a/", &[("host", "b")], true, BadRequest::HostDiffers),
        ("GET", "http://a/", &[("host", "a:80")], true, BadRequest::HostDiffers),
        ("GET", "http://u@a/", &[], true, BadRequest::Target),
        ("GET", "*", &[("host", "a")], true, BadRequest::Target),
        ("GET", "http://a/\"", &[], true, BadRequest::Target),
        ("GET", "http://a/%00\u{e4}", &[], true, BadRequest::Target),
        ("GET", &format!("/{long}"), &[("host", "a")], true, BadRequest::TargetTooLong),
        ("GET", "http://a/", &[("x", &large)], true, BadSyntax::TooLarge.into()),
        ("GET", "http://a/", &[("x", "1"); 7], true, BadSyntax::TooManyFields.into()),
        ("GET", "http://a/", &[("x", " 1")], true, BadSyntax::FieldValue.into()),
        ("GET", "http://a/", &[("x", "1\t")], true, BadSyntax::FieldValue.into()),
        ("GET", "http://a/", &[("connection", "x")], true, BadFraming::ConnectionField.into()),
        ("GET", "http://a/", &[("keep-alive", "1")], true, BadFraming::ConnectionField.into()),
        ("GET", "http://a/", &[("upgrade", "x")], true, BadFraming::ConnectionField.into()),
        ("GET", "http://a/", &[("te", "gzip")], true, BadFraming::ConnectionField.into()),
        (
            "POST",
            "http://a/",
            &[("transfer-encoding", "chunked")],
            false,
            BadFraming::ConnectionField.into(),
        ),
        (
            "POST",
            "http://a/",
            &[("content-length", "1")],
            true,
            BadFraming::LengthWithoutBody.into(),
        ),
        (
            "POST",
            "http://a/",
            &[("content-length", "1"), ("content-length", "1")],
            false,
            BadFraming::LengthRepeated.into(),
        ),
        (
            "POST",
            "http://a/",
            &[("content-length", "+1")],
            false,
            BadFraming::LengthNotANumber.into(),
        ),
        ("POST", "http://a/", &[("expect", "more")], false, BadRequest::Expectation),
        ("CONNECT", "http://a/", &[(":protocol", "connect-udp")], false, BadRequest::Connect),
        ("CONNECT", "a:443", &[], false, BadRequest::Connect),
    ];
    for (method, uri, fields, is_whole, expected) in cases {
        let read = read_parts(&parts(method, uri, fields), *is_whole).map(|head| as_http1(&head));
        assert_eq!(read, Err(*expected), "{method} {uri} {fields:?}");
    }
}

#[test]
fn request_without_host_gets_the_endpoint_address_as_authority() {
    let mut head = RequestHead::new();
    let bytes = b"GET /a HTTP/1.0\r\n\r\n";
    crate::h1::parse::request(bytes, &LIMITS, &mut head).unwrap();
    let request = write(&head, BodyFraming::None, Scheme::HTTPS, address()).unwrap();
    assert_eq!(request.uri(), "https://10.0.0.1:80/a");
}

prop_compose! {
    fn any_request()(
        method in prop::sample::select(vec!["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "LOCK"]),
        path in "/[a-z0-9/._~!$&'()*+,;=:@-]{0,15}",
        query in prop::option::of("[a-z0-9/?=&._~-]{0,10}"),
        host in "[a-z][a-z0-9.-]{0,12}",
        port in prop::option::of(any::<u16>()),
        fields in prop::collection::vec(("x-[a-z0-9-]{1,8}", "([!-~]([ -~]{0,12}[!-~])?)?"), 0..5),
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
        let request = write(&head, head.framing, Scheme::HTTP, address()).unwrap();
        let is_whole = head.framing.is_empty();
        let (parts, ()) = request.into_parts();
        let mut back = RequestHead::new();
        let limits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 64 };
        read(&parts, None, is_whole, &limits, || KEY, &mut back).unwrap();
        prop_assert_eq!(back.method_bytes(), head.method_bytes());
        prop_assert_eq!(back.target(), head.target());
        prop_assert_eq!(back.path(), head.path());
        prop_assert_eq!(back.authority(), head.authority());
        prop_assert_eq!(back.host(), head.host());
        prop_assert_eq!(back.te_trailers, head.te_trailers);
        prop_assert!(
            back.framing == head.framing || back.framing.is_empty() && head.framing.is_empty()
        );
        let sorted = |head: &RequestHead| {
            let others = head.fields.iter().filter(|(name, ..)| *name == KnownFieldName::Other);
            let mut fields: Vec<_> =
                others.map(|(_, text, value)| (text.to_vec(), value.to_vec())).collect();
            fields.sort();
            fields
        };
        prop_assert_eq!(sorted(&back), sorted(&head), "{}", text);
    }
}
