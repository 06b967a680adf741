//! Protocol Buffers messages of the health check, and gRPC message framing.

use bytes::{BufMut, Bytes, BytesMut};

/// Value of `HealthCheckResponse.status` (grpc.health.v1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingStatus {
    /// UNKNOWN, or a value that grpc.health.v1 does not define.
    Unknown,
    Serving,
    NotServing,
    ServiceUnknown,
}

/// Returns an uncompressed, length-prefixed message.
pub fn frame_message(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}

/// `HealthCheckRequest { string service = 1; }`. An empty field is omitted.
pub fn health_check_request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(key(1, LENGTH_DELIMITED));
        put_varint(service.len() as u64, &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    message
}

/// Parses a frame with `HealthCheckResponse { ServingStatus status = 1; }`; `None` if it is malformed.
pub fn parse_health_check_response(body: &[u8]) -> Option<ServingStatus> {
    let (&[compressed, a, b, c, d], message) = body.split_first_chunk()?;
    if compressed != 0 || u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return None;
    }
    Some(match status(message)? {
        // A value of 0 is omitted on the wire; it means UNKNOWN.
        0 => ServingStatus::Unknown,
        1 => ServingStatus::Serving,
        2 => ServingStatus::NotServing,
        3 => ServingStatus::ServiceUnknown,
        _ => ServingStatus::Unknown,
    })
}

const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const LENGTH_DELIMITED: u8 = 2;
const FIXED_32: u8 = 5;

const fn key(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

/// Returns the last value of field 1, and skips other fields; `None` if the bytes are not a message.
fn status(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        let skipped = match (tag & 7) as u8 {
            VARINT => {
                let value = take_varint(&mut message)?;
                if tag == u64::from(key(1, VARINT)) {
                    status = value;
                }
                0
            }
            FIXED_64 => 8,
            LENGTH_DELIMITED => usize::try_from(take_varint(&mut message)?).ok()?,
            FIXED_32 => 4,
            _ => return None,
        };
        message = message.get(skipped..)?;
    }
    Some(status)
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put_varint(mut value: u64, message: &mut Vec<u8>) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn health_check_request_names_the_service() {
        assert_eq!(health_check_request(""), b"");
        assert_eq!(health_check_request("a.B"), b"\x0a\x03a.B");
        let long = "x".repeat(200);
        assert_eq!(&health_check_request(&long)[..3], b"\x0a\xc8\x01");
        assert_eq!(&frame_message(b"abc")[..], b"\0\0\0\0\x03abc");
    }

    #[test]
    fn health_check_response_is_read_from_the_first_field() {
        for (message, health) in [
            (&b"\x08\x01"[..], Some(ServingStatus::Serving)),
            (b"\x08\x02", Some(ServingStatus::NotServing)),
            (b"\x08\x03", Some(ServingStatus::ServiceUnknown)),
            (b"", Some(ServingStatus::Unknown)),
            (b"\x08\x00", Some(ServingStatus::Unknown)),
            (b"\x08\x09", Some(ServingStatus::Unknown)),
            (b"\x12\x01x\x08\x01", Some(ServingStatus::Serving)),
            (b"\x08\x02\x15abcd\x19abcdefgh\x08\x01", Some(ServingStatus::Serving)),
            (b"\x08", None),
            (b"\x12\x05x", None),
            (b"\x0b", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(
                parse_health_check_response(&frame_message(message)),
                health,
                "{}",
                message.escape_ascii()
            );
        }
        for body in [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\x02\x08\x01", b"\0\0\0\0\x03\x08\x01"] {
            assert_eq!(parse_health_check_response(body), None, "{}", body.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_health_response_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _any = parse_health_check_response(&frame_message(&bytes));
            let _other = parse_health_check_response(&bytes);
        }
    }
}
