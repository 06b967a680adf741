//! What becomes of control streams.

use super::*;
use crate::h3::frame;

/// Frames by type and payload.
type Pairs<'p> = &'p [(u64, &'p [u8])];

/// A control stream of SETTINGS and then these frames.
fn said(peer: Peer, frames: Pairs<'_>) -> Result<Vec<Said>, Code> {
    let mut bytes = vec![0x4, 0x0];
    for (kind, payload) in frames {
        varint::write(*kind, &mut bytes);
        varint::write(payload.len() as u64, &mut bytes);
        bytes.extend_from_slice(payload);
    }
    let mut control = Control::new(peer);
    let mut input = Bytes::from(bytes);
    let mut said = Vec::new();
    while let Some(next) = control.next(&mut input)? {
        said.push(next);
    }
    assert_eq!(said.remove(0), Said::Settings(Settings::default()));
    Ok(said)
}

#[test]
fn control_frames_are_read() {
    let client = said(
        Peer::Client,
        &[(0x7, &[0x3]), (0xd, &[0x5]), (0x21, b"what"), (0xd, &[0x5]), (0xf0700, b"\x04u=1")],
    );
    let priority = Priority::parse(b"u=1");
    assert_eq!(client, Ok(vec![Said::GoAway(3), Said::Priority(4, priority)]));
    let endpoint = said(Peer::Endpoint, &[(0x7, &[0x40, 0x80]), (0x7, &[0x8]), (0x7, &[0x8])]);
    assert_eq!(endpoint, Ok(vec![Said::GoAway(128), Said::GoAway(8), Said::GoAway(8)]));
}

#[test]
fn invalid_control_frames_are_connection_errors() {
    let cases: &[(Peer, Pairs<'_>, Code)] = &[
        (Peer::Endpoint, &[(0x7, &[0x1])], Code::ID_ERROR),
        (Peer::Endpoint, &[(0x7, &[0x4]), (0x7, &[0x8])], Code::ID_ERROR),
        (Peer::Client, &[(0x7, &[])], Code::FRAME_ERROR),
        (Peer::Client, &[(0x7, &[0x40])], Code::FRAME_ERROR),
        (Peer::Client, &[(0x7, &[0x4, 0x4])], Code::FRAME_ERROR),
        (Peer::Client, &[(0xd, &[0x4]), (0xd, &[0x3])], Code::ID_ERROR),
        (Peer::Client, &[(0xd, &[])], Code::FRAME_ERROR),
        (Peer::Client, &[(0x3, &[0x0])], Code::ID_ERROR),
        (Peer::Client, &[(0x3, &[])], Code::FRAME_ERROR),
        (Peer::Client, &[(0xf0700, b"")], Code::FRAME_ERROR),
        (Peer::Client, &[(0xf0700, b"\x02u=1")], Code::ID_ERROR),
        (Peer::Client, &[(0xf0701, b"\x00u=1")], Code::ID_ERROR),
        (Peer::Client, &[(0x4, &[])], Code::FRAME_UNEXPECTED),
        (Peer::Client, &[(0x7, &[7; PAYLOAD_BYTES + 1])], Code::EXCESSIVE_LOAD),
    ];
    for (peer, frames, expected) in cases {
        assert_eq!(said(*peer, frames), Err(*expected), "{frames:x?}");
    }
}

#[test]
fn settings_and_goaway_round_trip() {
    let mut bytes = Vec::new();
    crate::h3::settings::write(Peer::Client, 70_000, &mut bytes);
    frame::write_goaway(128, &mut bytes);
    let mut input = Bytes::from(bytes);
    let mut control = Control::new(Peer::Endpoint);
    let settings = Settings { connect_protocol: true };
    assert_eq!(control.next(&mut input), Ok(Some(Said::Settings(settings))));
    assert_eq!(control.next(&mut input), Ok(Some(Said::GoAway(128))));
    assert_eq!(control.next(&mut input), Ok(None));
}

#[test]
fn unidirectional_stream_types_are_read() {
    let cases: &[(&[u8], StreamKind, usize)] = &[
        (&[0x0], StreamKind::Control, 1),
        (&[0x40, 0x1, 9], StreamKind::Push, 2),
        (&[0x2], StreamKind::Encoder, 1),
        (&[0x3], StreamKind::Decoder, 1),
        (&[0x21], StreamKind::Unknown, 1),
    ];
    for (bytes, kind, taken) in cases {
        assert_eq!(StreamKind::read(bytes), Some((*kind, *taken)), "{bytes:x?}");
        assert_eq!(StreamKind::read(&bytes[..taken - 1]), None, "{bytes:x?}");
    }
}
