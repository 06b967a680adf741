//! Messages on streams of a real connection.

use std::future::poll_fn;

use codec::h3::frame::FramePart;
use codec::head::HttpVersion;

use super::*;
use crate::h3::fixture::{self, WINDOW, connect, framed, headers, run};

const LIMITS: HeadLimits = HeadLimits { head_bytes: 500, fields: 10, target_bytes: 100 };

/// A frame of an unknown type, which is ignored: the peer sees a new stream only with its first byte.
const NOTHING: &[u8] = &[0x21, 0x0];

/// A client's request as the server side sees it, and the client's side of it.
struct H3StreamFixture {
    message: H3Stream,
    state: Rc<H3ConnectionState>,
    send: quinn::SendStream,
    recv: quinn::RecvStream,
    /// Keeps the connection open as long as the streams are used.
    _connections: (quic::QuicConnection, quinn::Connection),
}

impl H3StreamFixture {
    /// Creates a stream on which the client has sent these bytes.
    async fn new(begun: &[u8]) -> Self {
        let (ours, theirs) = connect().await;
        let (mut send, recv) = theirs.open_bi().await.unwrap();
        send.write_all(begun).await.unwrap();
        let (sending, receiving) = poll_fn(|cx| ours.poll_accept_bi(cx)).await.unwrap();
        let state = Rc::new(H3ConnectionState::new());
        let message = H3Stream::from_client(sending, receiving, &state, LIMITS.head_bytes);
        Self { message, state, send, recv, _connections: (ours, theirs) }
    }

    /// Creates a stream whose request head has been read.
    async fn with_request(method: &str, fields: &[(&str, &str)]) -> Self {
        let mut test = Self::new(&fixture::request(method, fields)).await;
        test.message.request().await.unwrap();
        test
    }

    /// Returns the code of the reset that the client sees, if any.
    async fn reset(mut self) -> Option<u64> {
        drop(self.message);
        match self.recv.read_to_end(1_000_000).await {
            Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => {
                Some(code.into_inner())
            }
            _ => None,
        }
    }

    fn fault(&self) -> Option<H3ErrorCode> {
        self.state.connection_error(std::task::Waker::noop())
    }
}

impl H3Stream {
    async fn request(&mut self) -> Result<RequestHead, Failure> {
        let mut head = RequestHead::new();
        poll_fn(|cx| self.poll_request(cx, &LIMITS, || [b'k'; 24], &mut head)).await?;
        Ok(head)
    }

    async fn response(&mut self) -> Result<ResponseHead, Failure> {
        let (request, mut head) = (RequestHead::new(), ResponseHead::new());
        poll_fn(|cx| self.poll_response(cx, &request, &mut head)).await?;
        Ok(head)
    }

    async fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut bytes = [0; 10];
            let mut space = ReadBuf::new(&mut bytes);
            poll_fn(|cx| self.poll_read(cx, &mut space)).await?;
            if space.filled().is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(space.filled());
        }
    }

    /// Writes all bytes, in as many steps as needed.
    async fn write(&mut self, mut bytes: &[u8], is_last: bool) -> io::Result<()> {
        while !bytes.is_empty() {
            let (first, second) = bytes.split_at(bytes.len() / 3);
            let slices = [IoSlice::new(first), IoSlice::new(second)];
            let count = poll_fn(|cx| self.poll_write(cx, &slices, is_last)).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    async fn end(&mut self, trailers: Option<&FieldSection>) -> io::Result<()> {
        poll_fn(|cx| self.poll_end(cx, trailers)).await
    }

    /// Returns the encoded head of a response.
    fn head(&mut self, status: u16, framing: BodyFraming) -> Vec<u8> {
        let mut head = ResponseHead::new();
        head.status = status;
        let response_framing =
            ResponseFraming { framing, ..ResponseFraming::without_body(HttpVersion::Http3) };
        let mut out = Vec::new();
        self.put_head(&head, &response_framing, &mut out).unwrap();
        out
    }
}

/// Returns the statuses, the body and the trailers received on a stream.
async fn received(mut stream: quinn::RecvStream) -> (Vec<String>, Vec<u8>, Option<String>) {
    let bytes = stream.read_to_end(1_000_000).await.unwrap();
    let mut frames = H3FrameDecoder::new(FrameContext::Request, PeerRole::Endpoint, 1000);
    let mut input = Bytes::from(bytes);
    let (mut statuses, mut body, mut trailers) = (Vec::new(), Vec::new(), None);
    while let Some(piece) = frames.next(&mut input).unwrap() {
        match piece {
            FramePart::Data(data) => body.extend_from_slice(&data),
            FramePart::Whole(_, section) => {
                let mut section = codec::h3::qpack::FieldSectionDecoder::new(&section).unwrap();
                let line = section.next_line().unwrap().unwrap();
                let (mut name, mut value) = (Vec::new(), Vec::new());
                line.name.append_to(&mut name).unwrap();
                line.value.append_to(&mut value).unwrap();
                let value = String::from_utf8(value).unwrap();
                match &name[..] {
                    b":status" => statuses.push(value),
                    _ => trailers = Some(value),
                }
            }
            FramePart::TooLarge => panic!("head too large"),
        }
    }
    assert!(frames.is_at_boundary());
    (statuses, body, trailers)
}

#[test]
fn a_request_is_read_to_its_trailers() {
    run(async {
        let mut test = H3StreamFixture::new(NOTHING).await;
        let bytes = [
            fixture::request("POST", &[("content-length", "15")]),
            framed(0x0, b"fifteen "),
            framed(0x21, b"what"),
            framed(0x0, b""),
            framed(0x0, b"bytes.."),
            headers(&[("x", "1"), ("via", "2")]),
        ]
        .concat();
        let mut send = test.send;
        // The request arrives byte by byte.
        let writing = async {
            for byte in bytes {
                send.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            send.finish().unwrap();
        };
        let message = &mut test.message;
        let reading = async {
            let head = message.request().await.unwrap();
            (head.framing, message.read().await.unwrap(), message.take_trailers().unwrap())
        };
        let ((framing, body, trailers), ()) = tokio::join!(reading, writing);
        assert_eq!((framing, &body[..]), (BodyFraming::Length(15), &b"fifteen bytes.."[..]));
        assert_eq!(trailers.get("x"), Some(b"1".as_slice()));
        assert_eq!(trailers.get("via"), None);
    });
}

#[test]
fn request_with_fin_after_headers_has_no_body() {
    run(async {
        let mut test = H3StreamFixture::new(NOTHING).await;
        test.send.write_all(&fixture::request("GET", &[])).await.unwrap();
        test.send.finish().unwrap();
        assert_eq!(test.message.request().await.unwrap().framing, BodyFraming::None);
    });
}

#[test]
fn response_carries_interim_head_body_and_trailers() {
    run(async {
        let mut test = H3StreamFixture::with_request("GET", &[]).await;
        let message = &mut test.message;
        let interim = message.head(103, BodyFraming::None);
        message.write(&interim, false).await.unwrap();
        // Many times the flow-control window.
        let body: Vec<u8> = (0..10 * WINDOW).map(|number| number as u8).collect();
        let out = [&message.head(200, BodyFraming::Stream)[..], &body].concat();
        let mut trailers = FieldSection::new();
        trailers.append("x", "1");
        let sending = async {
            message.write(&out, false).await.unwrap();
            message.end(Some(&trailers)).await.unwrap();
        };
        let ((), (statuses, got, trailers)) = tokio::join!(sending, received(test.recv));
        assert_eq!(statuses, ["103", "200"]);
        assert!(got == body);
        assert_eq!(trailers.as_deref(), Some("1"));
    });
}

#[test]
fn last_data_frame_carries_fin() {
    run(async {
        let mut test = H3StreamFixture::with_request("GET", &[]).await;
        let out = [&test.message.head(200, BodyFraming::Stream)[..], b"all"].concat();
        test.message.write(&out, true).await.unwrap();
        let (statuses, body, trailers) = received(test.recv).await;
        assert_eq!((statuses, &body[..], trailers), (vec!["200".to_owned()], &b"all"[..], None));
        // The rest of the request is not needed.
        drop(test.message);
        assert_eq!(
            test.send.stopped().await.unwrap().map(u64::from),
            Some(H3ErrorCode::NO_ERROR.0)
        );
    });
}

#[test]
fn response_head_may_be_replaced_until_written() {
    run(async {
        let mut test = H3StreamFixture::with_request("GET", &[]).await;
        test.message.head(200, BodyFraming::Stream);
        let out = test.message.head(204, BodyFraming::None);
        test.message.write(&out, false).await.unwrap();
        let head = ResponseHead::new();
        let late = test.message.put_head(
            &head,
            &ResponseFraming::without_body(HttpVersion::Http3),
            &mut Vec::new(),
        );
        assert_eq!(late, Err(Failure::ClientGone));
        assert_eq!(received(test.recv).await.0, ["204"]);
    });
}

#[test]
fn truncated_response_resets_the_stream() {
    run(async {
        let mut test = H3StreamFixture::with_request("GET", &[]).await;
        let out = [&test.message.head(200, BodyFraming::Stream)[..], b"half"].concat();
        test.message.write(&out, false).await.unwrap();
        assert_eq!(test.reset().await, Some(H3ErrorCode::INTERNAL_ERROR.0));
        let test = H3StreamFixture::with_request("GET", &[]).await;
        assert_eq!(test.reset().await, Some(H3ErrorCode::INTERNAL_ERROR.0));
    });
}

#[test]
fn malformed_request_resets_only_its_stream() {
    let post = |length: &str, body: &[u8]| {
        [&fixture::request("POST", &[("content-length", length)])[..], &framed(0x0, body)].concat()
    };
    let cases = [
        (headers(&[(":method", "GET")]), H3ErrorCode::MESSAGE_ERROR),
        (NOTHING.to_vec(), H3ErrorCode::REQUEST_INCOMPLETE),
        (post("3", b"four"), H3ErrorCode::MESSAGE_ERROR),
        (post("5", b"four"), H3ErrorCode::MESSAGE_ERROR),
        (
            [fixture::request("POST", &[]), headers(&[(":path", "/")])].concat(),
            H3ErrorCode::MESSAGE_ERROR,
        ),
        (
            [fixture::request("POST", &[]), framed(0x1, &[0; 501])].concat(),
            H3ErrorCode::EXCESSIVE_LOAD,
        ),
    ];
    run(async {
        for (bytes, expected) in cases {
            let mut test = H3StreamFixture::new(&bytes).await;
            test.send.finish().unwrap();
            if test.message.request().await.is_ok() {
                assert!(test.message.read().await.is_err(), "{bytes:x?}");
                assert!(test.message.read().await.is_err(), "the error is repeated");
            }
            assert_eq!(test.fault(), None);
            assert_eq!(test.message.error(), Some(StreamError::Malformed), "{bytes:x?}");
            assert_eq!(test.reset().await, Some(expected.0), "{bytes:x?}");
        }
    });
}

#[test]
fn message_frame_violations_close_the_connection() {
    let request = fixture::request("POST", &[]);
    let begun = [&request[..], &[0x0, 0x5, 1]].concat();
    let cases = [
        (framed(0x0, b""), H3ErrorCode::FRAME_UNEXPECTED),
        (framed(0x4, b""), H3ErrorCode::FRAME_UNEXPECTED),
        (framed(0x5, b""), H3ErrorCode::FRAME_UNEXPECTED),
        (framed(0x1, &[0x2, 0x0]), H3ErrorCode::DECOMPRESSION_FAILED),
        (vec![0x1], H3ErrorCode::FRAME_ERROR),
        (begun, H3ErrorCode::FRAME_ERROR),
        (
            [&request[..], &headers(&[("x", "1")]), &framed(0x0, b"")].concat(),
            H3ErrorCode::FRAME_UNEXPECTED,
        ),
        (
            [&request[..], &headers(&[("x", "1")]), &headers(&[])].concat(),
            H3ErrorCode::FRAME_UNEXPECTED,
        ),
    ];
    run(async {
        for (bytes, expected) in cases {
            let mut test = H3StreamFixture::new(&bytes).await;
            test.send.finish().unwrap();
            if test.message.request().await.is_ok() {
                assert!(test.message.read().await.is_err(), "{bytes:x?}");
            }
            assert_eq!(test.fault(), Some(expected), "{bytes:x?}");
        }
    });
}

#[test]
fn oversized_request_head_is_answered_431() {
    run(async {
        for value in [450, 700] {
            let fields = [("x", &*"~".repeat(value))];
            let mut test = H3StreamFixture::new(&fixture::request("GET", &fields)).await;
            let refused = Failure::BadRequest(BadSyntax::TooLarge.into());
            assert_eq!(test.message.request().await.err(), Some(refused));
            let out = test.message.head(431, BodyFraming::None);
            test.message.write(&out, false).await.unwrap();
            assert_eq!(received(test.recv).await.0, ["431"]);
        }
    });
}

#[test]
fn stop_sending_is_detected_as_a_disconnect() {
    run(async {
        let mut test = H3StreamFixture::with_request("GET", &[]).await;
        let gone = poll_fn(|cx| Poll::Ready(test.message.poll_cancelled(cx))).await;
        assert!(gone.is_pending());
        test.recv.stop(0x10c_u32.into()).unwrap();
        poll_fn(|cx| test.message.poll_cancelled(cx)).await;
        assert_eq!(test.message.error(), Some(StreamError::Reset));
    });
}

/// Returns a request to an endpoint, and the endpoint's side of it, which has received the head.
async fn send_request(
    is_whole: bool,
) -> (H3Stream, Rc<H3ConnectionState>, quinn::SendStream, quinn::RecvStream, ConnectionPair) {
    let (ours, theirs) = connect().await;
    let (sending, receiving) = ours.open_bi().unwrap();
    let state = Rc::new(H3ConnectionState::new());
    let section = |section: &mut Vec<u8>| section.extend_from_slice(&[0, 0, 0xd1]);
    let mut message = H3Stream::to_endpoint(sending, receiving, &state, section, is_whole);
    let mut head = ResponseHead::new();
    let polled = poll_fn(|cx| {
        Poll::Ready(message.poll_response(cx, &RequestHead::new(), &mut head).is_pending())
    });
    assert!(polled.await);
    let (send, mut recv) = theirs.accept_bi().await.unwrap();
    let mut begun = [0; 6];
    recv.read_exact(&mut begun).await.unwrap();
    assert_eq!(begun, [0x1, 0x40, 0x3, 0, 0, 0xd1]);
    (message, state, send, recv, ConnectionPair(ours, theirs))
}

/// Both ends of the connection, which must live as long as the streams.
struct ConnectionPair(quic::QuicConnection, quinn::Connection);

#[test]
fn request_to_an_endpoint_gets_its_response() {
    run(async {
        let (mut message, _, mut send, mut recv, connections) = send_request(true).await;
        assert!(recv.read_to_end(100).await.unwrap().is_empty());
        let length = [(":status", "200"), ("content-length", "3")];
        let bytes =
            [headers(&[(":status", "103")]), headers(&length), framed(0x0, b"all")].concat();
        send.write_all(&bytes).await.unwrap();
        send.finish().unwrap();
        assert_eq!(message.response().await.unwrap().status, 103);
        let head = message.response().await.unwrap();
        assert_eq!((head.status, head.framing), (200, BodyFraming::Length(3)));
        assert_eq!(message.read().await.unwrap(), b"all");
        assert_eq!(message.error(), None);
        drop((message, connections));
    });
}

#[test]
fn request_body_and_trailers_reach_the_endpoint() {
    run(async {
        let (mut message, _, _send, recv, _connections) = send_request(false).await;
        let body = vec![7; 3 * WINDOW as usize];
        let mut trailers = FieldSection::new();
        trailers.append("x", "1");
        let sending = async {
            message.write(&body, false).await.unwrap();
            message.end(Some(&trailers)).await.unwrap();
        };
        let ((), (_, got, trailers)) = tokio::join!(sending, received(recv));
        assert!(got == body);
        assert_eq!(trailers.as_deref(), Some("1"));
    });
}

#[test]
fn reset_code_tells_rejected_from_processed_requests() {
    run(async {
        for (code, expected) in [
            (H3ErrorCode::REQUEST_REJECTED, StreamError::Refused),
            (H3ErrorCode::INTERNAL_ERROR, StreamError::Reset),
        ] {
            let (mut message, _, mut send, _recv, _connections) = send_request(true).await;
            send.reset(u32::try_from(code.0).unwrap().into()).unwrap();
            assert_eq!(message.response().await.err(), Some(Failure::EndpointClosed));
            assert_eq!(message.error(), Some(expected));
        }
        let (mut message, _, _send, _recv, ConnectionPair(_ours, theirs)) =
            send_request(true).await;
        theirs.close(0_u32.into(), b"");
        assert_eq!(message.response().await.err(), Some(Failure::EndpointClosed));
        assert_eq!(message.error(), Some(StreamError::Closed));
    });
}

#[test]
fn request_beyond_goaway_fails_as_unprocessed() {
    run(async {
        let (mut message, state, _send, _recv, _connections) = send_request(true).await;
        let leaving = async {
            tokio::task::yield_now().await;
            state.record_goaway(0);
        };
        let (answer, ()) = tokio::join!(message.response(), leaving);
        assert_eq!(answer.err(), Some(Failure::EndpointClosed));
        assert_eq!(message.error(), Some(StreamError::Unprocessed));
    });
}

#[test]
fn dropped_request_is_cancelled() {
    run(async {
        let (message, _, send, mut recv, _connections) = send_request(false).await;
        drop(message);
        let Err(quinn::ReadError::Reset(code)) = recv.read_chunk(1, true).await else {
            panic!("expected a reset");
        };
        assert_eq!(code.into_inner(), H3ErrorCode::REQUEST_CANCELLED.0);
        let stopped = send.stopped().await.unwrap().map(u64::from);
        assert_eq!(stopped, Some(H3ErrorCode::REQUEST_CANCELLED.0));
    });
}
