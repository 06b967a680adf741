//! Tests of response heads: accepted and rejected heads, and a round trip.

use proptest::prelude::*;

use super::*;
use crate::h1::{BadFraming, BadSyntax, parse, write};
use crate::head::{BodyFraming, KnownFieldName, RequestMethod};

/// Fields by name and value, including the pseudo-header fields.
type Pairs<'p> = &'p [(&'p str, &'p str)];

const LIMITS: HeadLimits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 0 };

fn section(pairs: Pairs<'_>) -> Vec<u8> {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    for (name, value) in pairs {
        qpack::write(name.as_bytes(), value.as_bytes(), &mut section);
    }
    section
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
fn as_http1(
    pairs: Pairs<'_>,
    is_whole: bool,
    request: &RequestHead,
) -> Result<String, FieldSectionError<BadResponse>> {
    let mut head = ResponseHead::new();
    read(&section(pairs), is_whole, &LIMITS, request, &mut head)?;
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
    let length = ("content-length", "5");
    let cases: &[(&str, Pairs<'_>, bool, &RequestHead, &str)] = &[
        ("200", &[("x", "1")], false, &get, "HTTP/1.1 200 OK|x: 1|Transfer-Encoding: chunked||"),
        ("200", &[], true, &get, "HTTP/1.1 200 OK|Content-Length: 0||"),
        ("200", &[length], false, &get, "HTTP/1.1 200 OK|Content-Length: 5||"),
        ("200", &[length], true, &head, "HTTP/1.1 200 OK|Content-Length: 5||"),
        ("200", &[], true, &head, "HTTP/1.1 200 OK||"),
        ("204", &[], true, &get, "HTTP/1.1 204 No Content||"),
        ("304", &[length], true, &get, "HTTP/1.1 304 Not Modified|Content-Length: 5||"),
        ("103", &[("link", "</a>")], false, &get, "HTTP/1.1 103 Early Hints|link: </a>||"),
        ("999", &[], true, &get, "HTTP/1.1 999 |Content-Length: 0||"),
        (
            "200",
            &[],
            false,
            &upgrade,
            "HTTP/1.1 101 Switching Protocols|Connection: upgrade|Upgrade: websocket||",
        ),
        ("403", &[], true, &upgrade, "HTTP/1.1 403 Forbidden|Content-Length: 0||"),
    ];
    for (status, fields, is_whole, request, expected) in cases {
        let read = as_http1(&[&[(":status", *status)], *fields].concat(), *is_whole, request);
        assert_eq!(read.as_deref(), Ok(*expected), "{status} {fields:?}");
    }
}

#[test]
fn malformed_or_ambiguous_responses_are_rejected() {
    let ok = (":status", "200");
    let cases: &[(Pairs<'_>, bool, FieldSectionError<BadResponse>)] = &[
        (&[], true, FieldSectionError::Malformed),
        (&[(":status", "")], true, FieldSectionError::Malformed),
        (&[(":status", "20")], true, FieldSectionError::Malformed),
        (&[(":status", "2000")], true, FieldSectionError::Malformed),
        (&[(":status", "099")], true, FieldSectionError::Malformed),
        (&[(":status", "2x0")], true, FieldSectionError::Malformed),
        (&[ok, (":path", "/")], true, FieldSectionError::Malformed),
        (&[ok, ok], true, FieldSectionError::Malformed),
        (&[(":status", "101")], false, FieldSectionError::Refused(BadResponse::Upgrade)),
        (
            &[(":status", "100"), ("content-length", "0")],
            false,
            FieldSectionError::Refused(BadResponse::InterimWithBody),
        ),
        (
            &[ok, ("content-length", "5")],
            true,
            FieldSectionError::Refused(BadFraming::LengthWithoutBody.into()),
        ),
        (
            &[ok, ("content-length", "x")],
            false,
            FieldSectionError::Refused(BadFraming::LengthNotANumber.into()),
        ),
        (
            &[ok, ("connection", "close")],
            false,
            FieldSectionError::Refused(BadFraming::ConnectionField.into()),
        ),
        (&[ok, ("x", "1 ")], false, FieldSectionError::Refused(BadSyntax::FieldValue.into())),
    ];
    for (pairs, is_whole, expected) in cases {
        let read = as_http1(pairs, *is_whole, &request(RequestMethod::Get, false));
        assert_eq!(read, Err(*expected), "{pairs:?}");
    }
    let many = [&[ok][..], &[("x", "1"); 33]].concat();
    let read = as_http1(&many, false, &request(RequestMethod::Get, false));
    assert_eq!(read, Err(FieldSectionError::Refused(BadSyntax::TooManyFields.into())));
}

#[test]
fn switching_protocols_becomes_200_in_http3() {
    let mut head = ResponseHead::new();
    head.status = 101;
    for (name, value) in [("Upgrade", "websocket"), ("Sec-WebSocket-Accept", "a"), ("X", "1")] {
        head.fields.append(name, value);
    }
    let framing =
        ResponseFraming { upgrade: true, ..ResponseFraming::without_body(HttpVersion::Http3) };
    let mut written = Vec::new();
    write(&head, &framing, &mut written);
    assert_eq!(written, section(&[(":status", "200"), ("x", "1")]));
}

proptest! {
    #[test]
    fn response_head_round_trips(
        status in 200_u16..1000,
        fields in prop::collection::vec(("[xX]-[a-zA-Z0-9-]{1,8}", "([!-~]([ -~]{0,12}[!-~])?)?"), 0..5),
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
            version: HttpVersion::Http3,
            framing: head.framing,
            keep_alive: true,
            upgrade: false,
        };
        let mut written = Vec::new();
        write(&head, &framing, &mut written);
        let mut back = ResponseHead::new();
        let is_whole = head.framing == BodyFraming::None;
        read(&written, is_whole, &LIMITS, &request(RequestMethod::Get, false), &mut back).unwrap();
        prop_assert_eq!(back.status, head.status);
        prop_assert_eq!(back.framing, head.framing);
        prop_assert_eq!(back.length_of_absent_body, head.length_of_absent_body);
        let others = |head: &ResponseHead| -> Vec<_> {
            let others = head.fields.iter().filter(|(name, ..)| *name == KnownFieldName::Other);
            others.map(|(_, text, value)| (text.to_ascii_lowercase(), value.to_vec())).collect()
        };
        prop_assert_eq!(others(&back), others(&head));
    }
}
