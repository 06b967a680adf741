//! Tests of the tables `tests/data/strict-*.tsv`: each line, also truncated at every length.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod laws;
mod table;

use std::fmt::Write as _;

use codec::h1::{BadRequest, HeadLimits, parse, write};
use codec::head::{BodyFraming, FieldSection, RequestHead, RequestMethod, ResponseHead};
use codec::path::PathRules;
use laws::End;
use table::{path, rows, unescape};

const LIMITS: HeadLimits = HeadLimits { head_bytes: 32_768, fields: 100, target_bytes: 8192 };

#[test]
fn requests_are_parsed_per_table() {
    check("strict-requests.tsv", |[_, _, _, bytes, why]| {
        let (status, connection, body) = read_request(bytes);
        [status, connection, body, bytes.into(), why.into()]
    });
}

#[test]
fn responses_are_parsed_per_table() {
    check("strict-responses.tsv", |[_, _, _, method, bytes, why]| {
        let (status, connection, body) = read_response(method, bytes);
        [status, connection, body, method.into(), bytes.into(), why.into()]
    });
}

#[test]
fn chunked_bodies_are_decoded_per_table() {
    check("strict-chunked.tsv", |[_, _, _, _, bytes, why]| {
        let [status, data, trailers, rest] = read_chunked(bytes);
        [status, data, trailers, rest, bytes.into(), why.into()]
    });
}

/// Compares the forwarded requests with a reviewed record; `UPDATE_EXPECT=1` rewrites it.
#[test]
fn accepted_requests_are_forwarded_as_recorded() {
    let mut recorded =
        String::from("# Accepted requests and their forwarded form; see strict-requests.tsv.\n");
    for row in rows::<5>("strict-requests.tsv") {
        let [status, _, _, bytes, _] = row.each_ref().map(String::as_str);
        let mut head = RequestHead::new();
        if status != "pass" || bytes.contains("\\{") {
            continue;
        }
        let input = unescape(bytes);
        let taken = parse::request(&input, &LIMITS, &mut head).unwrap().unwrap();
        head.normalise_path(PathRules::default()).unwrap();
        let mut out = Vec::new();
        write::request_head(&head, head.framing, head.upgrade, &mut out);
        writeln!(recorded, "\nfrom {}\nto   {}", escape(&input[..taken]), escape(&out)).unwrap();
    }
    expect("strict-forwarded.txt", &recorded);
}

fn read_request(bytes: &str) -> (String, String, String) {
    let bytes = unescape(bytes);
    let read = |bytes: &[u8]| {
        let mut head = RequestHead::new();
        let taken = parse_request(bytes, &mut head);
        (taken, head)
    };
    let (taken, head) = read(&bytes);
    for len in 0..bytes.len() {
        let (early, _) = read(&bytes[..len]);
        assert!(early == Ok(None) || early == taken, "{len} bytes give {early:?}, all {taken:?}");
    }
    match taken {
        Ok(None) => ("wait".into(), "-".into(), "-".into()),
        Ok(Some(_)) => ("pass".into(), connection(head.keep_alive), body(head.framing)),
        Err(bad) => (bad.status().to_string(), "close".into(), "-".into()),
    }
}

/// Parses a request, and normalises its path.
fn parse_request(bytes: &[u8], head: &mut RequestHead) -> Result<Option<usize>, BadRequest> {
    let taken = parse::request(bytes, &LIMITS, head)?;
    if taken.is_some() {
        head.normalise_path(PathRules::default())?;
    }
    Ok(taken)
}

fn read_response(method: &str, bytes: &str) -> (String, String, String) {
    let method = RequestMethod::recognise(method.as_bytes());
    let bytes = unescape(bytes);
    let read = |bytes: &[u8]| {
        let mut head = ResponseHead::new();
        let taken = parse::response(bytes, &LIMITS, method, &mut head);
        (taken, head)
    };
    let (taken, head) = read(&bytes);
    for len in 0..bytes.len() {
        let (early, _) = read(&bytes[..len]);
        assert!(early == Ok(None) || early == taken, "{len} bytes give {early:?}, all {taken:?}");
    }
    match taken {
        Ok(None) => ("wait".into(), "-".into(), "-".into()),
        Ok(Some(_)) => ("pass".into(), connection(head.keep_alive), body(head.framing)),
        Err(_) => ("bad".into(), "close".into(), "-".into()),
    }
}

/// Returns status, data, trailers and rest, which must not depend on the step size.
fn read_chunked(bytes: &str) -> [String; 4] {
    let bytes = unescape(bytes);
    let read = laws::decode(&bytes, bytes.len());
    for step in 1..bytes.len().min(64) {
        assert_eq!(laws::decode(&bytes, step), read, "in steps of {step}");
    }
    let data = escape(&read.data);
    match read.end {
        End::Complete(taken) => {
            ["pass".into(), data, trailers(&read.trailers), escape(&bytes[taken..])]
        }
        End::Incomplete => ["wait".into(), data, String::new(), String::new()],
        End::Bad(bad) => [bad.status().to_string(), "-".into(), "-".into(), "-".into()],
    }
}

/// Returns the trailers as written.
fn trailers(trailers: &[(Vec<u8>, Vec<u8>)]) -> String {
    let mut fields = FieldSection::new();
    for (name, value) in trailers {
        fields.append(name, value);
    }
    let mut out = Vec::new();
    write::last_chunk(&fields, &mut out);
    let lines = out.strip_prefix(b"0\r\n").and_then(|lines| lines.strip_suffix(b"\r\n")).unwrap();
    escape(lines).replace("\\r\\n", ", ").trim_end_matches(", ").into()
}

fn connection(keep_alive: bool) -> String {
    if keep_alive { "keep".into() } else { "close".into() }
}

fn body(framing: BodyFraming) -> String {
    match framing {
        BodyFraming::None => "none".into(),
        BodyFraming::Length(length) => format!("length {length}"),
        BodyFraming::Chunked => "chunked".into(),
        BodyFraming::UntilClose => "close".into(),
        BodyFraming::Stream => "stream".into(),
    }
}

/// Compares each row with the result of `read`, and reports all differences.
fn check<const N: usize>(table: &str, read: impl Fn([&str; N]) -> [String; N]) {
    let mut differences = String::new();
    for row in rows::<N>(table) {
        let actual = read(row.each_ref().map(String::as_str));
        // The table writes long values as repetitions.
        let same = actual
            .iter()
            .zip(&row)
            .all(|(actual, expected)| actual == expected || escape(&unescape(expected)) == *actual);
        if !same {
            writeln!(differences, "expected {row:?}\nactual   {actual:?}").unwrap();
        }
    }
    assert!(differences.is_empty(), "{table}:\n{differences}");
}

fn expect(file: &str, text: &str) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path(file), text).unwrap();
    }
    let recorded = std::fs::read_to_string(path(file)).unwrap_or_default();
    assert!(recorded == text, "{file} differs; UPDATE_EXPECT=1 rewrites it");
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => write!(text, "\\x{byte:02x}").unwrap(),
        }
    }
    text
}
