//! Tests of the control stream parser.

use super::*;
use crate::h3::frame;

/// Frames by type and payload.
type Pairs<'p> = &'p [(u64, &'p [u8])];

/// Parses a control stream of SETTINGS and then these frames.
fn parse(peer: PeerRole, frames: Pairs<'_>) -> Result<Vec<ControlFrame>, H3ErrorCode> {
    let mut bytes = vec![0x4, 0x0];
    for (kind, payload) in frames {
        varint::write(*kind, &mut bytes);
        varint::write(payload.len() as u64, &mut bytes);
        bytes.extend_from_slice(payload);
    }
    let mut control = ControlStreamReader::new(peer);
    let mut input = Bytes::from(bytes);
    let mut parsed = Vec::new();
    while let Some(next) = control.next(&mut input)? {
        parsed.push(next);
    }
    assert_eq!(parsed.remove(0), ControlFrame::Settings(H3Settings::default()));
    Ok(parsed)
}

#[test]
fn control_frames_are_read() {
    let client = parse(
        PeerRole::Client,
        &[(0x7, &[0x3]), (0xd, &[0x5]), (0x21, b"what"), (0xd, &[0x5]), (0xf0700, b"\x04u=1")],
    );
    let priority = ResponsePriority::parse(b"u=1");
    assert_eq!(client, Ok(vec![ControlFrame::GoAway(3), ControlFrame::Priority(4, priority)]));
    let endpoint = parse(PeerRole::Endpoint, &[(0x7, &[0x40, 0x80]), (0x7, &[0x8]), (0x7, &[0x8])]);
    assert_eq!(
        endpoint,
        Ok(vec![ControlFrame::GoAway(128), ControlFrame::GoAway(8), ControlFrame::GoAway(8)])
    );
}

#[test]
fn invalid_control_frames_are_connection_errors() {
    let cases: &[(PeerRole, Pairs<'_>, H3ErrorCode)] = &[
        (PeerRole::Endpoint, &[(0x7, &[0x1])], H3ErrorCode::ID_ERROR),
        (PeerRole::Endpoint, &[(0x7, &[0x4]), (0x7, &[0x8])], H3ErrorCode::ID_ERROR),
        (PeerRole::Client, &[(0x7, &[])], H3ErrorCode::FRAME_ERROR),
        (PeerRole::Client, &[(0x7, &[0x40])], H3ErrorCode::FRAME_ERROR),
        (PeerRole::Client, &[(0x7, &[0x4, 0x4])], H3ErrorCode::FRAME_ERROR),
        (PeerRole::Client, &[(0xd, &[0x4]), (0xd, &[0x3])], H3ErrorCode::ID_ERROR),
        (PeerRole::Client, &[(0xd, &[])], H3ErrorCode::FRAME_ERROR),
        (PeerRole::Client, &[(0x3, &[0x0])], H3ErrorCode::ID_ERROR),
        (PeerRole::Client, &[(0x3, &[])], H3ErrorCode::FRAME_ERROR),
        (PeerRole::Client, &[(0xf0700, b"")], H3ErrorCode::FRAME_ERROR),
        (PeerRole::Client, &[(0xf0700, b"\x02u=1")], H3ErrorCode::ID_ERROR),
        (PeerRole::Client, &[(0xf0701, b"\x00u=1")], H3ErrorCode::ID_ERROR),
        (PeerRole::Client, &[(0x4, &[])], H3ErrorCode::FRAME_UNEXPECTED),
        (PeerRole::Client, &[(0x7, &[7; PAYLOAD_BYTES + 1])], H3ErrorCode::EXCESSIVE_LOAD),
    ];
    for (peer, frames, expected) in cases {
        assert_eq!(parse(*peer, frames), Err(*expected), "{frames:x?}");
    }
}

#[test]
fn settings_and_goaway_round_trip() {
    let mut bytes = Vec::new();
    crate::h3::settings::write(PeerRole::Client, 70_000, &mut bytes);
    frame::write_goaway(128, &mut bytes);
    let mut input = Bytes::from(bytes);
    let mut control = ControlStreamReader::new(PeerRole::Endpoint);
    let settings = H3Settings { connect_protocol: true };
    assert_eq!(control.next(&mut input), Ok(Some(ControlFrame::Settings(settings))));
    assert_eq!(control.next(&mut input), Ok(Some(ControlFrame::GoAway(128))));
    assert_eq!(control.next(&mut input), Ok(None));
}

#[test]
fn unidirectional_stream_types_are_read() {
    let cases: &[(&[u8], UniStreamType, usize)] = &[
        (&[0x0], UniStreamType::Control, 1),
        (&[0x40, 0x1, 9], UniStreamType::Push, 2),
        (&[0x2], UniStreamType::Encoder, 1),
        (&[0x3], UniStreamType::Decoder, 1),
        (&[0x21], UniStreamType::Unknown, 1),
    ];
    for (bytes, kind, taken) in cases {
        assert_eq!(UniStreamType::read(bytes), Some((*kind, *taken)), "{bytes:x?}");
        assert_eq!(UniStreamType::read(&bytes[..taken - 1]), None, "{bytes:x?}");
    }
}
