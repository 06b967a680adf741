//! Properties of the codec, checked on generated messages and on mutated messages from the tables.

mod laws;
mod mutate;
mod table;

use codec::h1::write;
use codec::h3::qpack;
use codec::head::{BodyFraming, FieldSection, HttpVersion, RequestHead, RequestMethod};
use laws::End;
use mutate::Message;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Parts of the first bytes of connections.
const STARTS: [&str; 12] = [
    "",
    " ",
    "GET ",
    "GET /",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\n",
    " HTTP/1.1\r\n",
    " HTTP/",
    "\u{16}\u{3}\u{1}",
    "\r\n",
    "EHLO ",
    "\0",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn mutated_requests_keep_parser_invariants(
        Message(bytes) in mutate::mutated::<5>("strict-requests.tsv", 3),
        len in any::<Index>(),
    ) {
        laws::request(&bytes, len.index(bytes.len() + 1));
    }

    #[test]
    fn first_bytes_give_one_protocol_however_they_are_split(
        start in select(STARTS.to_vec()),
        word in "[!-~\u{e9}]{0,12}|[A-Za-z]{0,12}",
        // Around the length from which a target counts as one of HTTP.
        padding in select(vec![0, 1, 8190, 8191, 8192, 8200]),
        end in select(STARTS.to_vec()),
        len in any::<Index>(),
    ) {
        let bytes = [start.as_bytes(), word.as_bytes(), &vec![b'a'; padding], end.as_bytes()];
        let bytes = bytes.concat();
        laws::first_bytes(&bytes, len.index(bytes.len() + 1));
    }

    #[test]
    fn mutated_responses_keep_parser_invariants(
        Message(bytes) in mutate::mutated::<6>("strict-responses.tsv", 4),
        len in any::<Index>(),
        method in select(vec![RequestMethod::Get, RequestMethod::Head]),
    ) {
        laws::response(&bytes, len.index(bytes.len() + 1), method);
    }

    #[test]
    fn mutated_chunked_bodies_keep_decoder_invariants(
        Message(bytes) in mutate::mutated::<6>("strict-chunked.tsv", 4),
        step in 1..20_usize,
    ) {
        laws::chunked(&bytes, step);
    }

    #[test]
    fn mutated_proxy_headers_keep_parser_invariants(
        Message(bytes) in mutate::mutated::<4>("strict-proxy-headers.tsv", 2),
        len in any::<Index>(),
    ) {
        laws::proxy_header(&bytes, len.index(bytes.len() + 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_h3_frames_keep_reader_invariants(frames in vec(frame(), 0..8), lost in 0..5_usize, step in 1..20_usize) {
        let mut bytes = frames.concat();
        bytes.truncate(bytes.len().saturating_sub(lost));
        laws::h3::frames(&bytes, step);
        // The same frames after SETTINGS, as on a control stream.
        laws::h3::frames(&[&[0x4, 0x2, 0x8, 0x1], &bytes[..]].concat(), step);
    }

    #[test]
    fn random_field_sections_keep_qpack_invariants(
        lines in vec(line(), 0..8),
        corruption in prop::option::weighted(0.3, (any::<Index>(), any::<u8>())),
    ) {
        let mut section = Vec::new();
        qpack::begin(&mut section);
        for (name, value) in &lines {
            qpack::write(name.as_bytes(), value.as_bytes(), &mut section);
        }
        if let Some((place, byte)) = corruption {
            let place = place.index(section.len());
            section[place] = byte;
        }
        laws::h3::section(&section);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_paths_have_one_normal_form(pieces in vec(path_piece(), 0..12)) {
        laws::path::normal_form(pieces.concat().as_bytes());
    }
}

/// Generates what is special in a path, or could become it.
fn path_piece() -> impl Strategy<Value = &'static str> {
    select(vec![
        "/",
        "/",
        ".",
        "..",
        "a",
        "6",
        "e",
        "%",
        "%%",
        "%2",
        "%2e",
        "%2E",
        "%61",
        "%36",
        "%2f",
        "%5C",
        "%7e",
        "%20",
        "/../",
        "/./",
        "long-segment",
    ])
}

/// Generates a short frame, of a known or unknown type.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = select(vec![0x0, 0x1, 0x1, 0x3, 0x4, 0x7, 0xd, 0x21, 0x40]);
    (kind, vec(any::<u8>(), 0..40)).prop_map(|(kind, payload)| {
        let kind = if kind == 0x40 { vec![0x80, 0x0f, 0x07, 0x00] } else { vec![kind] };
        [kind, vec![payload.len() as u8], payload].concat()
    })
}

/// Generates a field that is valid or invalid in a message.
fn line() -> impl Strategy<Value = (String, String)> {
    let pseudo = select(vec![
        (":method", "GET"),
        (":method", "POST"),
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "a.example"),
        (":path", "/a?b"),
        (":status", "200"),
        (":status", "103"),
    ]);
    let known = select(vec![
        ("content-length", "0"),
        ("content-length", "7"),
        ("cookie", "a=1"),
        ("host", "a.example"),
        ("te", "trailers"),
        ("expect", "100-continue"),
        ("sec-websocket-key", "a"),
        ("connection", "close"),
    ]);
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    prop_oneof![
        6 => pseudo.prop_map(owned),
        2 => known.prop_map(owned),
        1 => ("[a-z:-]{1,10}", "[ -~\t]{0,20}"),
    ]
}

proptest! {
    #[test]
    fn generated_requests_parse_to_their_parts(request in request()) {
        let mut head = RequestHead::new();
        let bytes = request.bytes();
        let taken = codec::h1::parse::request(&bytes, &laws::LIMITS, &mut head);
        prop_assert_eq!(taken, Ok(Some(bytes.len())));
        prop_assert_eq!(head.method_bytes(), request.method.as_bytes());
        prop_assert_eq!(head.version, HttpVersion::Http11);
        prop_assert_eq!(head.target(), request.target.as_bytes());
        prop_assert_eq!(head.path(), request.target.split('?').next().unwrap().as_bytes());
        let authority = format!("{}{}", request.host, request.port);
        prop_assert_eq!(head.authority(), authority.as_bytes());
        prop_assert_eq!(head.host(), request.host.as_bytes());
        prop_assert_eq!(head.framing, request.framing);
        for (name, value) in &request.fields {
            let mut fields = head.fields.iter();
            let found = fields.any(|(_, is, text)| is == name.as_bytes() && text == value.as_bytes());
            prop_assert!(found, "no {}: {}", name, value);
        }
    }

    #[test]
    fn generated_chunks_round_trip(
        chunks in vec(vec(any::<u8>(), 1..70), 0..8),
        trailers in vec(("x-[a-z]{1,8}", "[!-~]{1,8}"), 0..4),
        step in 1..100_usize,
    ) {
        let mut written = Vec::new();
        for chunk in &chunks {
            write::chunk_header(chunk.len(), &mut written);
            written.extend_from_slice(chunk);
            write::chunk_end(&mut written);
        }
        let mut fields = FieldSection::new();
        for (name, value) in &trailers {
            fields.append(name, value);
        }
        write::last_chunk(&fields, &mut written);

        let read = laws::decode(&written, step);
        prop_assert_eq!(read.data, chunks.concat());
        prop_assert_eq!(read.end, End::Complete(written.len()));
        let expected: Vec<_> = trailers.into_iter().map(|(n, v)| (n.into_bytes(), v.into_bytes())).collect();
        prop_assert_eq!(read.trailers, expected);
    }
}

/// A request as a well-behaved client would send it.
#[derive(Debug)]
struct Request {
    method: String,
    target: String,
    host: String,
    port: &'static str,
    fields: Vec<(String, String)>,
    framing: BodyFraming,
}

impl Request {
    fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.fields {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("Host: {}{}\r\n", self.host, self.port);
        match self.framing {
            BodyFraming::None | BodyFraming::UntilClose | BodyFraming::Stream => {}
            BodyFraming::Length(length) => text += &format!("content-length: {length}\r\n"),
            BodyFraming::Chunked => text += "transfer-encoding: chunked\r\n",
        }
        (text + "\r\n").into_bytes()
    }
}

fn request() -> impl Strategy<Value = Request> {
    let framing = prop_oneof![
        Just(BodyFraming::None),
        (0..=i64::MAX as u64).prop_map(BodyFraming::Length),
        Just(BodyFraming::Chunked),
    ];
    let host =
        prop_oneof!["[a-z0-9.-]{1,20}", Just("[::1]".to_owned()), Just("[2001:db8::9]".to_owned())];
    (
        "(GET|HEAD|POST|PUT|DELETE|PATCH|X-[A-Z]{1,5})",
        r"/[a-zA-Z0-9/._~%-]{0,30}(\?[a-z0-9=&?/]{0,20})?",
        host,
        select(vec!["", ":", ":80", ":65535"]),
        vec(("x-[a-zA-Z0-9-]{1,10}", "([!-~]([ -~]{0,20}[!-~])?)?"), 0..8),
        framing,
    )
        .prop_map(|(method, target, host, port, fields, framing)| Request {
            method,
            target,
            host,
            port,
            fields,
            framing,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_texts_keep_the_laws_of_grpc_and_fields(
        text in "([0-9]{1,9}[HMSmun]|[A-Za-z0-9+/]{0,12}={0,2}|(a=[0-9];? ?){0,3}|(TEXT|JSON|BIN) [ -~]{0,30})",
        bytes in vec(any::<u8>(), 0..40),
        step in 1..9_usize,
    ) {
        for bytes in [text.as_bytes(), &bytes] {
            laws::grpc::timeout(bytes);
            laws::grpc::call_status(bytes);
            laws::grpc::health_check(bytes);
            laws::grpc::authorization(bytes);
            laws::grpc::web(bytes, step);
            laws::grpc::load_report(bytes);
            laws::fields::value(bytes);
            laws::h2::frames(bytes, step, step);
        }
    }

    #[test]
    fn random_h2_heads_have_one_meaning(lines in vec(line(), 0..8)) {
        let text: String = lines.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        laws::h2::head(text.as_bytes());
        let request = format!(":method:GET\n:scheme:http\n:authority:a\n:path:/\n{text}");
        laws::h2::head(request.as_bytes());
    }
}
