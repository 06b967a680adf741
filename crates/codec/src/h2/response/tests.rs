//! Tests of response heads: accepted and rejected heads, and a round trip.

use proptest::prelude::*;

use super::*;
use crate::h1::{BadFraming, BadSyntax, parse, write};
use crate::head::{BodyFraming, KnownFieldName, RequestMethod};

/// Fields by name and value.
type Pairs<'p> = &'p [(&'p str, &'p str)];

const LIMITS: HeadLimits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 0 };

fn parts(status: u16, fields: Pairs<'_>) -> Parts {
    let mut response = http::Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap().into_parts().0
}

fn request(method: RequestMethod, upgrade: bool) -> RequestHead {
    let mut request = RequestHead::new();
    (request.method, request.upgrade) = (method, upgrade);
    if upgrade {
        request.fields.append("Upgrade", "websocket");
    }
    request
}

/// The response as an HTTP/1.1 client receives it.
fn as_http1(parts: &Parts, is_whole: bool, request: &RequestHead) -> Result<String, BadResponse> {
    let mut head = ResponseHead::new();
    read(parts, is_whole, &LIMITS, request, &mut head)?;
    let framing =
        if head.framing == BodyFraming::Stream { BodyFraming::Chunked } else { head.framing };
    let mut out = Vec::new();
    write::response_head(&head, framing, HttpVersion::Http11, true, head.upgrade, &mut out);
    Ok(String::from_utf8(out).unwrap().replace("\r\n", "|"))
}

#[test]
fn response_heads_are_read_like_their_http1_form() {
    let (get, head, upgrade) = (
        request(RequestMethod::Get, false),
        request(RequestMethod::Head, false),
        request(RequestMethod::Get, true),
    );
    let cases: &[(u16, Pairs<'_>, bool, &RequestHead, &str)] = &[
        (200, &[("x", "1")], false, &get, "HTTP/1.1 200 OK|x: 1|Transfer-Encoding: chunked||"),
        (200, &[], true, &get, "HTTP/1.1 200 OK|Content-Length: 0||"),
        (200, &[("content-length", "5")], false, &get, "HTTP/1.1 200 OK|Content-Length: 5||"),
        (200, &[("content-length", "5")], true, &head, "HTTP/1.1 200 OK|Content-Length: 5||"),
        (200, &[], true, &head, "HTTP/1.1 200 OK||"),
        (204, &[], true, &get, "HTTP/1.1 204 No Content||"),
        (
            304,
            &[("content-length", "5")],
            true,
            &get,
            "HTTP/1.1 304 Not Modified|Content-Length: 5||",
        ),
        (103, &[("link", "</a>")], false, &get, "HTTP/1.1 103 Early Hints|link: </a>||"),
        (
            200,
            &[],
            false,
            &upgrade,
            "HTTP/1.1 101 Switching Protocols|Connection: upgrade|Upgrade: websocket||",
        ),
        (403, &[], true, &upgrade, "HTTP/1.1 403 Forbidden|Content-Length: 0||"),
    ];
    for (status, fields, is_whole, request, expected) in cases {
        let read = as_http1(&parts(*status, fields), *is_whole, request).unwrap();
        assert_eq!(read, *expected, "{status} {fields:?}");
    }
}

#[test]
fn ambiguous_responses_are_rejected() {
    let cases: &[(u16, Pairs<'_>, bool, BadResponse)] = &[
        (101, &[], false, BadResponse::Upgrade),
        (100, &[("content-length", "0")], false, BadResponse::InterimWithBody),
        (200, &[("content-length", "5")], true, BadFraming::LengthWithoutBody.into()),
        (200, &[("content-length", "x")], false, BadFraming::LengthNotANumber.into()),
        (200, &[("connection", "close")], false, BadFraming::ConnectionField.into()),
        (200, &[("transfer-encoding", "chunked")], false, BadFraming::ConnectionField.into()),
        (200, &[("x", "1 ")], false, BadSyntax::FieldValue.into()),
        (200, &[("x", "1"); 33], false, BadSyntax::TooManyFields.into()),
    ];
    for (status, fields, is_whole, expected) in cases {
        let read =
            as_http1(&parts(*status, fields), *is_whole, &request(RequestMethod::Get, false));
        assert_eq!(read, Err(*expected), "{status} {fields:?}");
    }
}

#[test]
fn switching_protocols_becomes_200_in_http2() {
    let mut head = ResponseHead::new();
    head.status = 101;
    for (name, value) in [("Upgrade", "websocket"), ("Sec-WebSocket-Accept", "a"), ("X", "1")] {
        head.fields.append(name, value);
    }
    let framing =
        ResponseFraming { upgrade: true, ..ResponseFraming::without_body(HttpVersion::Http2) };
    let (parts, ()) = write(&head, &framing).unwrap().into_parts();
    assert_eq!(parts.status, 200);
    assert_eq!(parts.headers.len(), 1);
    assert_eq!(parts.headers["x"], "1");
}

proptest! {
    #[test]
    fn response_head_round_trips(
        status in 200_u16..600,
        fields in prop::collection::vec(("x-[a-z0-9-]{1,8}", "([!-~]([ -~]{0,12}[!-~])?)?"), 0..5),
        length in prop::option::of(0_u64..100),
    ) {
        let mut text = format!("HTTP/1.1 {status} \r\n");
        for (name, value) in &fields {
            text += &format!("{name}: {value}\r\n");
        }
        match length {
            Some(length) => text += &format!("Content-Length: {length}\r\n\r\n"),
            None => text += "Transfer-Encoding: chunked\r\n\r\n",
        }
        let mut head = ResponseHead::new();
        let read_len = parse::response(text.as_bytes(), &LIMITS, RequestMethod::Get, &mut head);
        prop_assert_eq!(read_len, Ok(Some(text.len())));
        if head.framing == BodyFraming::Chunked {
            head.framing = BodyFraming::Stream;
        }
        let framing = ResponseFraming {
            version: HttpVersion::Http2,
            framing: head.framing,
            keep_alive: true,
            upgrade: false,
        };
        let (parts, ()) = write(&head, &framing).unwrap().into_parts();
        let mut back = ResponseHead::new();
        let is_whole = head.framing == BodyFraming::None;
        read(&parts, is_whole, &LIMITS, &request(RequestMethod::Get, false), &mut back).unwrap();
        prop_assert_eq!(back.status, head.status);
        prop_assert_eq!(back.framing, head.framing);
        prop_assert_eq!(back.length_of_absent_body, head.length_of_absent_body);
        let sorted = |head: &ResponseHead| {
            let others = head.fields.iter().filter(|(name, ..)| *name == KnownFieldName::Other);
            let mut fields: Vec<_> =
                others.map(|(_, text, value)| (text.to_vec(), value.to_vec())).collect();
            fields.sort();
            fields
        };
        prop_assert_eq!(sorted(&back), sorted(&head));
    }
}
