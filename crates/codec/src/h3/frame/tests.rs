//! Tests of the frame parser: a table of rejected frames, and input in pieces of any size.

use proptest::prelude::*;

use super::*;

const MOST: usize = 64;

/// Parses the pieces; adjacent parts of DATA are joined.
fn read(
    place: FrameContext,
    peer: PeerRole,
    pieces: &[&[u8]],
) -> (Vec<FramePart>, Result<bool, H3ErrorCode>) {
    let mut frames = H3FrameDecoder::new(place, peer, MOST);
    let mut found = Vec::new();
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        loop {
            match frames.next(&mut input) {
                Ok(Some(FramePart::Data(more))) => add_data(&mut found, &more),
                Ok(Some(piece)) => found.push(piece),
                Ok(None) => break,
                Err(code) => return (found, Err(code)),
            }
        }
        assert!(input.is_empty(), "all input is consumed");
    }
    (found, Ok(frames.is_at_boundary()))
}

fn add_data(found: &mut Vec<FramePart>, more: &Bytes) {
    match found.last_mut() {
        Some(FramePart::Data(data)) => *data = [&data[..], more].concat().into(),
        _ => found.push(FramePart::Data(more.clone())),
    }
}

/// A frame of this type with a payload of this length.
fn frame(kind: u64, length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write(kind, &mut out, |out| out.resize(out.len() + length, 7));
    out
}

fn whole(kind: H3FrameType, length: usize) -> FramePart {
    FramePart::Whole(kind, vec![7; length].into())
}

#[test]
fn message_is_split_into_headers_and_data_frames() {
    let bytes =
        [frame(HEADERS, 3), frame(0x21, 100), frame(DATA, 5), frame(DATA, 0), frame(DATA, 200)]
            .concat();
    let bytes = [bytes, frame(HEADERS, 64), frame(HEADERS, 65), frame(HEADERS, 0)].concat();
    let expected = vec![
        whole(H3FrameType::Headers, 3),
        FramePart::Data(vec![7; 205].into()),
        whole(H3FrameType::Headers, 64),
        FramePart::TooLarge,
        whole(H3FrameType::Headers, 0),
    ];
    assert_eq!(read(FrameContext::Request, PeerRole::Client, &[&bytes]), (expected, Ok(true)));
}

#[test]
fn stream_may_end_only_at_a_frame_boundary() {
    let bytes = [frame(HEADERS, 3), frame(DATA, 70)].concat();
    for length in 0..=bytes.len() {
        let (_, ended) = read(FrameContext::Request, PeerRole::Client, &[&bytes[..length]]);
        let is_between = [0, 6, bytes.len()].contains(&length);
        assert_eq!(ended, Ok(is_between), "{length}");
    }
}

/// RFC 9114 §7.2, RFC 9218 §7.2.
#[test]
fn frame_types_are_allowed_only_on_their_streams() {
    let settings = frame(SETTINGS, 0);
    let unexpected = Err(H3ErrorCode::FRAME_UNEXPECTED);
    let fine = Ok(true);
    // Columns: a client's request, an endpoint's response, and the control streams of both.
    let cases = [
        (DATA, [fine, fine, unexpected, unexpected]),
        (HEADERS, [fine, fine, unexpected, unexpected]),
        (0x2, [unexpected; 4]),
        (0x3, [unexpected, unexpected, fine, fine]),
        (SETTINGS, [unexpected; 4]),
        (0x5, [unexpected, Err(H3ErrorCode::ID_ERROR), unexpected, unexpected]),
        (0x6, [unexpected; 4]),
        (GOAWAY, [unexpected, unexpected, fine, fine]),
        (0x8, [unexpected; 4]),
        (0x9, [unexpected; 4]),
        (0xd, [unexpected, unexpected, fine, unexpected]),
        (0x21, [fine; 4]),
        (0xf0700, [unexpected, unexpected, fine, unexpected]),
        (0xf0701, [unexpected, unexpected, fine, unexpected]),
        (varint::MAX, [fine; 4]),
    ];
    let places = [
        (FrameContext::Request, PeerRole::Client),
        (FrameContext::Request, PeerRole::Endpoint),
        (FrameContext::Control, PeerRole::Client),
        (FrameContext::Control, PeerRole::Endpoint),
    ];
    for (kind, expected) in cases {
        for ((place, peer), expected) in places.into_iter().zip(expected) {
            let before = if place == FrameContext::Control { &settings[..] } else { &[] };
            let (_, ended) = read(place, peer, &[before, &frame(kind, 1)]);
            assert_eq!(ended, expected, "{kind:x} in {place:?} of {peer:?}");
        }
    }
}

#[test]
fn control_stream_must_begin_with_settings() {
    for kind in [DATA, HEADERS, GOAWAY, 0x21] {
        let (_, ended) = read(FrameContext::Control, PeerRole::Client, &[&frame(kind, 1)]);
        assert_eq!(ended, Err(H3ErrorCode::MISSING_SETTINGS), "{kind:x}");
    }
}

#[test]
fn buffered_frame_payload_is_bounded() {
    let (_, ended) = read(FrameContext::Control, PeerRole::Client, &[&frame(SETTINGS, MOST + 1)]);
    assert_eq!(ended, Err(H3ErrorCode::EXCESSIVE_LOAD));
    let endless =
        [vec![0x1], EncodedVarint::new(varint::MAX).as_bytes().to_vec(), vec![7; 1000]].concat();
    assert_eq!(
        read(FrameContext::Request, PeerRole::Client, &[&endless]),
        (vec![FramePart::TooLarge], Ok(false))
    );
}

#[test]
fn frame_length_uses_the_shortest_encoding() {
    for length in [0, 63, 64, 16_383, 16_384, 70_000] {
        let out = frame(DATA, length);
        let (kind, read_length, taken) = header(&out).unwrap();
        assert_eq!((kind, read_length, out.len()), (DATA, length as u64, taken + length));
        let begun = DataHeader::new(length as u64);
        let read = header(begun.as_bytes()).map(|(_, read_length, _)| read_length);
        assert_eq!(read, (length > 0).then_some(length as u64));
    }
}

proptest! {
    #[test]
    fn frames_are_parsed_alike_across_read_boundaries(
        frames in prop::collection::vec(
            (prop::sample::select(vec![DATA, DATA, HEADERS, 0x21, 0x3, varint::MAX]), 0_usize..100),
            0..8,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        lost in 0_usize..10,
    ) {
        let mut bytes: Vec<u8> =
            frames.iter().flat_map(|(kind, length)| frame(*kind, *length)).collect();
        bytes.truncate(bytes.len().saturating_sub(lost));
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        let whole = read(FrameContext::Request, PeerRole::Client, &[&bytes]);
        prop_assert_eq!(read(FrameContext::Request, PeerRole::Client, &pieces), whole);
    }
}
