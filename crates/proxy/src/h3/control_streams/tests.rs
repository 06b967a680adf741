//! Tests of the control streams against a peer that sends valid and invalid bytes.

use std::future::poll_fn;

use super::*;
use crate::h3::fixture::{connect, framed, run};

/// Type of a control stream, followed by SETTINGS.
const CONTROL_STREAM: &[u8] = &[0x0, 0x4, 0x2, 0x8, 0x1];

async fn next(control_streams: &mut ControlStreams) -> Result<ControlStreamEvent, H3ErrorCode> {
    poll_fn(|cx| control_streams.poll(cx)).await
}

/// Bytes at the start of each stream, and true if the stream ends after them.
type Streams<'s> = &'s [(&'s [u8], bool)];

/// Returns the error code of the connection after the peer has opened these streams.
async fn fault(peer: PeerRole, streams: Streams<'_>) -> H3ErrorCode {
    let (ours, theirs) = connect().await;
    let mut control_streams = ControlStreams::new(&ours, peer, 1000);
    let mut open = Vec::new();
    for (bytes, is_ended) in streams {
        let mut stream = theirs.open_uni().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        if *is_ended {
            stream.finish().unwrap();
        }
        open.push(stream);
    }
    let code = loop {
        if let Err(code) = next(&mut control_streams).await {
            break code;
        }
    };
    let quinn::ConnectionError::ApplicationClosed(close) = theirs.closed().await else {
        panic!("expected a close by the application");
    };
    assert_eq!(close.error_code.into_inner(), code.0);
    code
}

#[test]
fn both_sides_exchange_settings_and_goaway() {
    run(async {
        let (ours, theirs) = connect().await;
        let mut control_streams = ControlStreams::new(&ours, PeerRole::Client, 70_000);
        let mut control = theirs.open_uni().await.unwrap();
        control.write_all(CONTROL_STREAM).await.unwrap();
        let settings = H3Settings { connect_protocol: true };
        assert_eq!(next(&mut control_streams).await, Ok(ControlStreamEvent::Settings(settings)));
        control.write_all(&framed(0x7, &[0x0])).await.unwrap();
        assert_eq!(next(&mut control_streams).await, Ok(ControlStreamEvent::GoAway(0)));

        control_streams.send_goaway(8);
        control.write_all(&framed(0x7, &[0x0])).await.unwrap();
        assert_eq!(next(&mut control_streams).await, Ok(ControlStreamEvent::GoAway(0)));
        let mut stream = theirs.accept_uni().await.unwrap();
        let mut stream_type = vec![0; 1];
        stream.read_exact(&mut stream_type).await.unwrap();
        assert_eq!(stream_type, [0x0], "the type of a control stream");
        let mut reader = ControlStreamReader::new(PeerRole::Endpoint);
        let mut received = Vec::new();
        while received.len() < 2 {
            let mut chunk = stream.read_chunk(1000, true).await.unwrap().unwrap().bytes;
            while let Some(frame) = reader.next(&mut chunk).unwrap() {
                received.push(frame);
            }
        }
        assert_eq!(received, [ControlFrame::Settings(settings), ControlFrame::GoAway(8)]);
    });
}

#[test]
fn control_stream_violations_close_the_connection() {
    let duplicate: Streams<'_> = &[(CONTROL_STREAM, false), (CONTROL_STREAM, false)];
    let cases: &[(PeerRole, Streams<'_>, H3ErrorCode)] = &[
        (PeerRole::Client, &[(CONTROL_STREAM, true)], H3ErrorCode::CLOSED_CRITICAL_STREAM),
        (PeerRole::Client, &[(&[0x2], true)], H3ErrorCode::CLOSED_CRITICAL_STREAM),
        (PeerRole::Client, &[(&[0x3], true)], H3ErrorCode::CLOSED_CRITICAL_STREAM),
        (PeerRole::Client, duplicate, H3ErrorCode::STREAM_CREATION_ERROR),
        (PeerRole::Client, &[(&[0x2], false), (&[0x2], false)], H3ErrorCode::STREAM_CREATION_ERROR),
        (PeerRole::Client, &[(&[0x1], false)], H3ErrorCode::STREAM_CREATION_ERROR),
        (PeerRole::Endpoint, &[(&[0x1], false)], H3ErrorCode::ID_ERROR),
        (PeerRole::Client, &[(&[0x0, 0x7, 0x1, 0x0], false)], H3ErrorCode::MISSING_SETTINGS),
        (PeerRole::Client, &[(&[0x0, 0x4, 0x2, 0x2, 0x0], false)], H3ErrorCode::SETTINGS_ERROR),
        (PeerRole::Client, &[(&[0x2, 0x21], false)], H3ErrorCode::ENCODER_STREAM_ERROR),
        (PeerRole::Client, &[(&[0x3, 0x80], false)], H3ErrorCode::DECODER_STREAM_ERROR),
    ];
    run(async {
        for (peer, streams, expected) in cases {
            assert_eq!(fault(*peer, streams).await, *expected, "{peer:?} {streams:x?}");
        }
    });
}

#[test]
fn unknown_unidirectional_streams_are_stopped_harmlessly() {
    run(async {
        let (ours, theirs) = connect().await;
        let mut control_streams = ControlStreams::new(&ours, PeerRole::Client, 1000);
        let mut unknown = theirs.open_uni().await.unwrap();
        unknown.write_all(&[0x40, 0x21, 1, 2, 3]).await.unwrap();
        let mut untyped = theirs.open_uni().await.unwrap();
        untyped.write_all(&[0x40]).await.unwrap();
        untyped.reset(0_u32.into()).unwrap();
        let stopped = async { unknown.stopped().await.unwrap().unwrap().into_inner() };
        tokio::select! {
            code = stopped => assert_eq!(code, H3ErrorCode::STREAM_CREATION_ERROR.0),
            event = next(&mut control_streams) => panic!("{event:?}"),
        }
        let mut control = theirs.open_uni().await.unwrap();
        control.write_all(CONTROL_STREAM).await.unwrap();
        assert!(matches!(next(&mut control_streams).await, Ok(ControlStreamEvent::Settings(_))));
    });
}

#[test]
fn connection_error_in_a_message_closes_the_connection() {
    run(async {
        let (ours, theirs) = connect().await;
        let mut control_streams = ControlStreams::new(&ours, PeerRole::Client, 1000);
        let state = Rc::clone(control_streams.connection_state());
        let raise_error = async { state.raise_connection_error(H3ErrorCode::DECOMPRESSION_FAILED) };
        let (ended, ()) = tokio::join!(next(&mut control_streams), raise_error);
        assert_eq!(ended, Err(H3ErrorCode::DECOMPRESSION_FAILED));
        assert!(matches!(theirs.closed().await, quinn::ConnectionError::ApplicationClosed(_)));
    });
}
