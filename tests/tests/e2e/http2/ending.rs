//! Connections close without losing requests: first a warning, then the identifier of the last
//! processed stream.

use anyhow::{Context, ensure};
use rustix::process::Signal;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::{Endpoint, EndpointBehaviour, Result};

use super::fixture::Http2Fixture;

/// Largest stream identifier of a GOAWAY: a warning that excludes no stream.
const WARNING: u32 = (1 << 31) - 1;

fn last_stream(goaway: &RawHttp2Frame) -> u32 {
    u32::from_be_bytes(goaway.payload[..4].try_into().expect("eight bytes and more")) & WARNING
}

/// The first GOAWAY excludes no stream: streams already on their way are served. The second names
/// the last of them.
#[tokio::test]
async fn drain_sends_a_warning_goaway_before_the_final_one() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    let mut site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    let mut wire = RawHttp2Connection::connect(site.sheave.address(), &[]).await?;
    wire.write(&RawHttp2Frame::get(1)).await?;
    endpoint.wait_for_counts("the first request", |counts| counts.in_flight == 1).await?;
    site.sheave.signal(Signal::TERM)?;

    let first = wire.reader.next_of_kind(frames::GOAWAY).await?.context("a warning")?;
    assert_eq!((last_stream(&first), first.reason()), (WARNING, Some(frames::NO_ERROR)));
    // Sent by a client that has not read the warning yet.
    wire.write(&RawHttp2Frame::get(3)).await?;
    endpoint.wait_for_counts("the second request", |counts| counts.in_flight == 2).await?;
    endpoint.open_gate(2);
    let mut ended = 0;
    let mut last = None;
    while let Some(frame) = wire.reader.next_frame().await? {
        match frame.kind {
            // The acknowledgement of a PING tells Sheave that the warning has arrived.
            frames::PING if frame.flags & frames::ACK == 0 => {
                wire.write(&RawHttp2Frame::new(frames::PING, frames::ACK, 0, frame.payload))
                    .await?;
            }
            frames::GOAWAY => last = Some(last_stream(&frame)),
            frames::DATA | frames::HEADERS => ended += u32::from(frame.flags & frames::END_STREAM),
            _ => {}
        }
    }
    assert_eq!((ended, last), (2, Some(3)));
    ensure!(site.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}
