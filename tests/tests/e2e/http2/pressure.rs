//! Memory cost of a slow reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tests::{Result, http2, payload};

use super::fixture::Http2Fixture;
use crate::multiplexed::fixture::MultiplexedFixture;
use crate::multiplexed::pressure::read_slowly;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_of_a_large_response_from_http2_uses_little_memory() -> Result {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = sent.clone();
    let endpoint = http2::Http2TestEndpoint::start(move |mut call| {
        let sent = counted.clone();
        async move {
            let mut sending = call.respond.send_response(http2::status(200), false)?;
            for piece in payload::pieces(Http2Fixture::MEMORY.response) {
                http2::send(&mut sending, Bytes::from_static(piece)).await?;
                sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            }
            sending.send_data(Bytes::new(), true)
        }
    })
    .await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    read_slowly(site, || sent.load(Ordering::Relaxed)).await
}
