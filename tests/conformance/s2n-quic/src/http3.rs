//! HTTP/3 on the wire (RFC 9114), as far as the cases need it: one kind of request, and responses of status 200.

use anyhow::{Context, Result};

/// Start of a control stream: its type, and SETTINGS without settings.
pub(crate) const CONTROL_STREAM: &[u8] = &[0x00, SETTINGS, 0x00];

const DATA: u8 = 0x00;
const HEADERS: u8 = 0x01;
const SETTINGS: u8 = 0x04;
/// Start of a field section without the dynamic table (RFC 9204 §4.5.1).
const SECTION: [u8; 2] = [0, 0];
/// Entries of the static table (RFC 9204, appendix A): `:path: /`, `:method: GET`, `:method: POST`, `:scheme: https`
/// and `:status: 200`.
const PATH: u8 = 0xc0 | 1;
const GET: u8 = 0xc0 | 17;
const POST: u8 = 0xc0 | 20;
const HTTPS: u8 = 0xc0 | 23;
const STATUS_200: u8 = 0xc0 | 25;
/// Fields with a name of the static table and a literal value: `:authority` and `content-length`.
const AUTHORITY: u8 = 0x50;
const CONTENT_LENGTH: u8 = 0x50 | 4;

/// Returns a request for `/`: a GET, or a POST if there is a body.
pub(crate) fn request(authority: &str, body: &[u8]) -> Vec<u8> {
    let method = if body.is_empty() { GET } else { POST };
    let mut section = [&SECTION[..], &[method, HTTPS, PATH]].concat();
    push_literal(&mut section, AUTHORITY, authority);
    if !body.is_empty() {
        push_literal(&mut section, CONTENT_LENGTH, &body.len().to_string());
    }
    let mut bytes = frame(HEADERS, &section);
    if !body.is_empty() {
        bytes.extend(frame(DATA, body));
    }
    bytes
}

/// Appends a field with a literal value of up to 126 bytes.
fn push_literal(section: &mut Vec<u8>, name: u8, value: &str) {
    section.extend([name, value.len() as u8]);
    section.extend_from_slice(value.as_bytes());
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    // A length of four bytes (RFC 9000 §16).
    let length = 0x8000_0000 | payload.len() as u32;
    [&[kind][..], &length.to_be_bytes(), payload].concat()
}

/// Returns whether the status is 200, and the body.
pub(crate) fn response(mut bytes: &[u8]) -> Result<(bool, Vec<u8>)> {
    let (mut status_is_ok, mut body) = (false, Vec::new());
    while !bytes.is_empty() {
        let kind = take_integer(&mut bytes)?;
        let length = take_integer(&mut bytes)?;
        let (payload, rest) = bytes.split_at_checked(length).context("a truncated frame")?;
        bytes = rest;
        if kind == usize::from(HEADERS) {
            // The status is the first field; what follows the body are trailers.
            status_is_ok |= payload.starts_with(&[0, 0, STATUS_200]);
        } else if kind == usize::from(DATA) {
            body.extend_from_slice(payload);
        }
    }
    Ok((status_is_ok, body))
}

/// Reads a variable-length integer (RFC 9000 §16).
fn take_integer(bytes: &mut &[u8]) -> Result<usize> {
    let first = *bytes.first().context("a truncated integer")?;
    let (taken, rest) = bytes.split_at_checked(1 << (first >> 6)).context("a truncated integer")?;
    *bytes = rest;
    let value = taken.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    Ok(usize::try_from(value & (u64::MAX >> (66 - 8 * taken.len())))?)
}
