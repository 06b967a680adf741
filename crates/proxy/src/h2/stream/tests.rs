//! Messages over in-memory connections, with an `h2` client as the peer.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::time::Duration;

use ::h2::{client, server};
use codec::head::{BodyFraming, HttpVersion};
use http::{Request, Response};
use tokio::task::{spawn_local, yield_now};

use super::*;

/// A client's request as the server side sees it, and the client's side of it.
struct H2StreamFixture {
    message: H2Stream,
    response: ResponseFuture,
    body: SendStream<Bytes>,
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default());
    runtime.unwrap().block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("test timed out");
    });
}

impl H2StreamFixture {
    /// Creates a client with a window of `window` bytes for each response.
    async fn new(window: u32) -> Self {
        let (ours, theirs) = tokio::io::duplex(1024 * 1024);
        let mut builder = client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(1024 * 1024);
        let (incoming, outgoing) =
            tokio::join!(server::handshake(ours), builder.handshake::<_, Bytes>(theirs));
        let (mut requests, outgoing) = outgoing.unwrap();
        let mut incoming = incoming.unwrap();
        spawn_local(outgoing);
        let (response, body) = requests.send_request(Request::new(()), false).unwrap();
        let (request, respond) = incoming.accept().await.unwrap().unwrap();
        spawn_local(async move { poll_fn(|cx| incoming.poll_closed(cx)).await });
        let message = H2Stream::from_client(
            request.into_body(),
            respond,
            ScheduledResponse::new(&Rc::default()),
        );
        Self { message, response, body }
    }

    fn begin_response(&mut self) {
        let mut head = ResponseHead::new();
        head.status = 200;
        let framing = ResponseFraming {
            framing: BodyFraming::Stream,
            ..ResponseFraming::without_body(HttpVersion::Http2)
        };
        self.message.put_head(&head, &framing).unwrap();
    }
}

impl H2Stream {
    async fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = [0; 10];
        let mut space = ReadBuf::new(&mut bytes);
        poll_fn(|cx| self.poll_read(cx, &mut space)).await?;
        Ok(space.filled().to_vec())
    }

    /// Tries to write `bytes`; returns how many were accepted, if any were accepted immediately.
    async fn write(&mut self, bytes: &[u8], is_last: bool) -> Option<usize> {
        let slices = [IoSlice::new(bytes)];
        let written = poll_fn(|cx| Poll::Ready(self.poll_write(cx, &slices, is_last))).await;
        match written {
            Poll::Ready(written) => Some(written.unwrap()),
            Poll::Pending => None,
        }
    }
}

#[test]
fn a_body_is_read_to_its_trailers() {
    run(async {
        let H2StreamFixture { mut message, mut body, .. } = H2StreamFixture::new(100).await;
        body.send_data("fifteen bytes..".into(), false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x", "1".parse().unwrap());
        body.send_trailers(trailers).unwrap();
        assert_eq!(message.read().await.unwrap(), b"fifteen by");
        assert_eq!(message.read().await.unwrap(), b"tes..");
        assert_eq!(message.read().await.unwrap(), b"");
        assert_eq!(message.take_trailers().unwrap().get("x"), Some(b"1".as_slice()));
    });
}

#[test]
fn writes_are_bounded_by_the_flow_control_window() {
    run(async {
        let mut fixture = H2StreamFixture::new(10).await;
        fixture.begin_response();
        assert_eq!(fixture.message.write(&[7; 25], true).await, Some(10));
        assert_eq!(fixture.message.write(&[7; 15], true).await, None);
        let mut body = fixture.response.await.unwrap().into_body();
        let first = body.data().await.unwrap().unwrap();
        body.flow_control().release_capacity(first.len()).unwrap();
        let more = loop {
            if let Some(count) = fixture.message.write(&[7; 15], true).await {
                break count;
            }
            yield_now().await;
        };
        assert_eq!((first.len(), more), (10, 10));
        assert!(!body.is_end_stream());
    });
}

#[test]
fn last_data_frame_carries_end_stream() {
    run(async {
        let mut fixture = H2StreamFixture::new(100).await;
        fixture.begin_response();
        assert_eq!(fixture.message.write(b"all", true).await, Some(3));
        let mut body = fixture.response.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "all");
        assert!(body.is_end_stream());
    });
}

#[test]
fn truncated_response_resets_the_stream() {
    run(async {
        let mut fixture = H2StreamFixture::new(100).await;
        fixture.begin_response();
        assert_eq!(fixture.message.write(b"half", false).await, Some(4));
        let mut body = fixture.response.await.map(Response::into_body).unwrap();
        drop(fixture.message);
        let mut data = body.data().await.unwrap();
        while data.is_ok() {
            data = body.data().await.expect("a truncated body must not end cleanly");
        }
        assert_eq!(data.unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
    });
}

#[test]
fn client_reset_is_detected_as_a_disconnect() {
    run(async {
        let H2StreamFixture { mut message, mut body, .. } = H2StreamFixture::new(100).await;
        let gone = poll_fn(|cx| Poll::Ready(message.poll_cancelled(cx))).await;
        assert!(gone.is_pending());
        body.send_reset(Reason::CANCEL);
        poll_fn(|cx| message.poll_cancelled(cx)).await;
        assert_eq!(message.error(), Some(StreamError::Reset));
    });
}

#[test]
fn response_waiting_to_be_scheduled_notices_a_client_reset() {
    run(async {
        let mut fixture = H2StreamFixture::new(1024 * 1024).await;
        fixture.begin_response();
        // Nothing reports the first write as written, so no other write may proceed.
        assert_eq!(fixture.message.write(&[7; 65_536], false).await, Some(65_536));
        assert_eq!(fixture.message.write(b"more", false).await, None);
        fixture.body.send_reset(Reason::CANCEL);
        let slices = [IoSlice::new(b"more")];
        let written = poll_fn(|cx| fixture.message.poll_write(cx, &slices, false)).await;
        assert!(written.is_err() && fixture.message.error().is_some());
    });
}
