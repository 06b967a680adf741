//! Questions and answers, usable and not.

use proptest::prelude::*;

use super::message::{BoolValue, HeaderValue, HttpStatus, QueryParameter, RpcStatus};
use super::*;
use crate::grpc::message::frame_message;
use crate::h1::{HeadLimits, parse};

const LIMITS: HeadLimits = HeadLimits { head_bytes: 4096, fields: 64, target_bytes: 1024 };

fn head(text: &str) -> RequestHead {
    let mut head = RequestHead::new();
    assert_eq!(parse::request(text.as_bytes(), &LIMITS, &mut head), Ok(Some(text.len())));
    head
}

fn asked(head: &RequestHead, body: Option<&[u8]>) -> HttpAttributes {
    let request = DescribedRequest {
        head,
        source: "[::ffff:10.0.0.1]:1234".parse().unwrap(),
        destination: "10.0.0.2:443".parse().ok(),
        server_name: Some(b"app.test"),
        scheme: "https",
        has_pseudo_fields: true,
        body,
    };
    let message = check_request(&request, |known, _| known != KnownFieldName::Host);
    let attributes = CheckRequest::decode(&*message).unwrap().attributes.unwrap();
    assert_eq!(attributes.source, Some(peer("10.0.0.1:1234".parse().unwrap())));
    assert_eq!(attributes.tls_session.unwrap().sni, "app.test");
    attributes.request.unwrap().http.unwrap()
}

#[test]
fn question_describes_the_request() {
    let head = head(
        "POST /a?b=c HTTP/1.1\r\nHost: app.test:8443\r\nX-A: 1\r\nX-a: 2\r\nCookie: a=b\r\nCookie: c=d\r\n\
         X-Request-Id: id\r\nX-Bytes: \u{e4}\r\nContent-Length: 9\r\n\r\n",
    );
    let http = asked(&head, None);
    assert_eq!((&*http.method, &*http.path, &*http.host), ("POST", "/a?b=c", "app.test:8443"));
    assert_eq!((&*http.scheme, &*http.protocol, &*http.id), ("https", "HTTP/1.1", "id"));
    assert_eq!((http.size, &*http.body), (9, ""));
    for (name, value) in [
        (":authority", "app.test:8443"),
        (":method", "POST"),
        (":path", "/a?b=c"),
        (":scheme", "https"),
        ("x-a", "1,2"),
        ("cookie", "a=b; c=d"),
        ("x-bytes", "\u{e4}"),
    ] {
        assert_eq!(http.headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    let http = asked(&head, Some(b"text"));
    assert_eq!((http.size, &*http.body, &*http.raw_body), (4, "text", &b""[..]));
    let http = asked(&head, Some(b"a\xffb"));
    assert_eq!((&*http.body, &*http.raw_body), ("a\u{fffd}b", &b"a\xffb"[..]));
}

fn field(name: &str, value: &str) -> HeaderValueOption {
    let header =
        HeaderValue { key: name.to_owned(), value: value.to_owned(), raw_value: Vec::new() };
    HeaderValueOption { header: Some(header), append: None, append_action: 0 }
}

fn parsed_response(response: &CheckResponse) -> Option<AuthorizationAnswer> {
    parse_check_response(&frame_message(&response.encode_to_vec()))
}

fn with_status(code: i32) -> CheckResponse {
    CheckResponse { status: Some(RpcStatus { code }), ..CheckResponse::default() }
}

fn denied(code: i32, fields: Vec<HeaderValueOption>) -> CheckResponse {
    let (status, body) = (Some(HttpStatus { code }), "no".to_owned());
    let denied_response = Some(DeniedHttpResponse { status, headers: fields, body });
    CheckResponse { denied_response, ..with_status(7) }
}

fn allowed(fields: Vec<HeaderValueOption>) -> CheckResponse {
    let ok_response = Some(OkHttpResponse { headers: fields, ..OkHttpResponse::default() });
    CheckResponse { ok_response, ..with_status(0) }
}

#[test]
fn allowed_request_gets_the_changes() {
    let append = HeaderValueOption { append: Some(BoolValue { value: true }), ..field("a", "4") };
    let absent = HeaderValueOption { append_action: 1, ..field("b", "5") };
    let present = HeaderValueOption { append_action: 3, ..field("none", "6") };
    let fields =
        vec![field("X-User", " alice "), append, absent, present, field(":path", "/other")];
    let mut response = allowed(fields);
    let ok = response.ok_response.as_mut().unwrap();
    ok.headers_to_remove = vec!["X-Token".to_owned()];
    ok.response_headers_to_add = vec![field("Set-Cookie", "a=b")];
    ok.query_parameters_to_set =
        vec![QueryParameter { key: "q".to_owned(), value: "1".to_owned() }];
    let Some(AuthorizationAnswer::Allowed(changes)) = parsed_response(&response) else {
        panic!("it is allowed");
    };
    let mut head =
        head("GET / HTTP/1.1\r\nHost: a\r\nx-user: root\r\nX_User: root\r\nA: 1\r\nB: 2\r\n\r\n");
    changes.request_fields.iter().for_each(|it| it.apply(&mut head.fields));
    let fields =
        head.fields.iter().map(|(_, name, value)| format!("{}={}", text(name), text(value)));
    assert_eq!(fields.collect::<Vec<_>>(), ["Host=a", "A=1", "B=2", "X-User=alice", "a=4"]);
    assert_eq!(changes.removed_fields, ["X-Token"]);
    assert_eq!(changes.response_fields[0].action, FieldAction::Append);
    assert_eq!(changes.query.set, [("q".to_owned(), "1".to_owned())]);
}

#[test]
fn denied_request_gets_the_response() {
    let forbidden = AuthorizationAnswer::Denied(DeniedResponse::FORBIDDEN);
    assert_eq!(parsed_response(&with_status(7)), Some(forbidden.clone()));
    assert_eq!(parsed_response(&with_status(-1)), Some(forbidden.clone()));
    let contradiction = CheckResponse { status: Some(RpcStatus { code: 7 }), ..allowed(vec![]) };
    assert_eq!(parsed_response(&contradiction), Some(forbidden));
    for (code, status, body) in [(0, 403, "no"), (302, 302, "no"), (503, 503, "no"), (304, 304, "")]
    {
        let fields = vec![field("X-Why", "because")];
        let Some(AuthorizationAnswer::Denied(answer)) = parsed_response(&denied(code, fields))
        else {
            panic!("{code}");
        };
        assert_eq!((answer.status, &*answer.body), (status, body.as_bytes()));
        let mut head = ResponseHead::new();
        answer.write(&mut head, |name| name != b"Content-Length");
        assert_eq!((head.status, head.fields.get("x-why")), (status, Some(&b"because"[..])));
    }
    let status = Some(RpcStatus { code: 0 });
    let Some(AuthorizationAnswer::Denied(answer)) =
        parsed_response(&CheckResponse { status, ..denied(401, vec![]) })
    else {
        panic!("a response of denial denies");
    };
    assert_eq!(answer.status, 401);
}

#[test]
fn unusable_answer_is_none() {
    let many = (0..=MAX_CHANGES).map(|_| field("a", "b")).collect();
    let unknown = HeaderValueOption { append_action: 9, ..field("a", "b") };
    let mut both = allowed(vec![]);
    both.denied_response = denied(401, vec![]).denied_response;
    let mut error = allowed(vec![]);
    error.error_response = denied(503, vec![]).denied_response;
    for response in [
        CheckResponse::default(),
        both,
        error,
        denied(100, vec![]),
        denied(600, vec![]),
        denied(-200, vec![]),
        denied(403, vec![field("X", "a\r\nSet-Cookie: b")]),
        allowed(vec![field("X", "a\nb")]),
        allowed(vec![field("X", "a\0b")]),
        allowed(vec![field("X: y", "a")]),
        allowed(vec![field("", "a")]),
        allowed(vec![HeaderValueOption::default()]),
        allowed(vec![unknown]),
        allowed(many),
    ] {
        assert_eq!(parsed_response(&response), None, "{response:?}");
    }
    let ok = with_status(0).encode_to_vec();
    for body in
        [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\x02\x0a\0", b"\0\0\0\0\x03\x0a\0", b"\0\0\0\0\x01\xff"]
    {
        assert_eq!(parse_check_response(body), None, "{}", body.escape_ascii());
    }
    assert!(parse_check_response(&[&frame_message(&ok)[..], b"x"].concat()).is_none());
    assert!(parse_check_response(&frame_message(&ok)).is_some());
}

proptest! {
    #[test]
    fn arbitrary_answer_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _any = parse_check_response(&frame_message(&bytes));
        let _other = parse_check_response(&bytes);
    }
}
