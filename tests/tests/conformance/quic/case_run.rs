//! One case with one client.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use aws_lc_rs::digest::{Context as Digest, SHA256};
use data_encoding::HEXLOWER;
use tests::http3::initial_datagrams;
use tests::payload::pieces;
use tests::udp_relay::{LineRecord, UdpRelay};
use tests::{Result, ServeStep, SheaveProcess, within};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::interval;

use super::QuicClient;
use super::cases::InteropCase;
use crate::http3::ConformanceFixture;

/// Name in the listener's certificate that clients ask for.
const NAME: &str = "localhost";
/// Clients of a flood that Sheave answers by Retry: more than a worker serves before it does.
const FLOOD_CLIENTS: usize = 400;
const FLOOD_INTERVAL: Duration = Duration::from_millis(50);
const FLOOD_BURST: usize = 40;

/// Facts about a case that has run, for its check.
pub(super) struct CaseEvidence {
    pub(super) record: LineRecord,
    /// Facts that only the client can observe.
    pub(super) facts: Vec<String>,
    /// Number of full handshakes, and of resumed ones.
    pub(super) full_handshakes: f64,
    pub(super) resumed_handshakes: f64,
    /// Number of requests that the endpoint was told came early (RFC 8470).
    pub(super) early_requests: usize,
    /// Lengths of the request bodies.
    pub(super) uploads: Vec<u64>,
}

/// One case with one client.
pub(super) struct CaseRun {
    case: InteropCase,
}

impl CaseRun {
    pub(super) fn new(case: InteropCase) -> Self {
        Self { case }
    }

    /// Runs it and checks the result. Returns false if the client cannot do it.
    pub(super) async fn run(mut self, client: QuicClient) -> Result<bool> {
        let steps = vec![ServeStep::ReadBody, ServeStep::AnswerPattern(self.case.body_bytes)];
        let site = ConformanceFixture::with(steps, std::mem::take(&mut self.case.options)).await?;
        let relay = UdpRelay::start(site.sheave.address(), self.case.conditions.clone()).await?;
        let flood =
            if self.case.needs_flood { Some(HandshakeFlood::start(&site).await?) } else { None };
        let Some(output) = client.run(self.arguments(&site, relay.address)).await? else {
            return Ok(false);
        };
        drop(flood);
        self.check_responses(&output)?;
        let evidence = evidence(&site, relay.record(), &output).await?;
        (self.case.check)(&evidence).with_context(|| format!("{:?}", evidence.record))?;
        Ok(true)
    }

    fn arguments(&self, site: &ConformanceFixture, address: SocketAddr) -> Vec<OsString> {
        let InteropCase { name, connections, requests, .. } = &self.case;
        vec![
            (*name).into(),
            address.to_string().into(),
            site.authority.clone().into(),
            connections.to_string().into(),
            requests.to_string().into(),
        ]
    }

    /// Every request must have the whole body.
    fn check_responses(&self, output: &str) -> Result {
        let length = self.case.body_bytes;
        let expected = format!("response 200 {length} {}", digest_of_pattern(length));
        let mut responses = output.lines().filter(|line| line.starts_with("response "));
        let wrong = responses.clone().find(|line| **line != expected);
        ensure!(wrong.is_none(), "{wrong:?}, not {expected}");
        let count = responses.by_ref().count() as u64;
        ensure!(count >= self.case.connections * self.case.requests, "{count} responses");
        Ok(())
    }
}

async fn evidence(
    site: &ConformanceFixture,
    record: LineRecord,
    output: &str,
) -> Result<CaseEvidence> {
    let full_handshakes = handshakes(&site.sheave, "full").await?;
    let resumed_handshakes = handshakes(&site.sheave, "resumed").await?;
    let facts = output.lines().filter_map(|line| line.strip_prefix("fact "));
    let requests = site.endpoint.requests();
    let early = requests.iter().filter(|seen| seen.head.has_field("early-data"));
    let uploads = requests.iter().filter_map(|seen| Some(seen.body.as_ref()?.length));
    Ok(CaseEvidence {
        record,
        facts: facts.map(str::to_owned).collect(),
        full_handshakes,
        resumed_handshakes,
        early_requests: early.count(),
        uploads: uploads.collect(),
    })
}

async fn handshakes(sheave: &SheaveProcess, outcome: &str) -> Result<f64> {
    let label = format!("outcome=\"{outcome}\"");
    let samples = sheave.metric_samples("sheave_tls_handshakes_total").await?;
    Ok(samples.iter().filter(|(labels, _)| labels.contains(&label)).map(|(_, count)| count).sum())
}

fn digest_of_pattern(length: u64) -> String {
    let mut digest = Digest::new(&SHA256);
    pieces(length).for_each(|piece| digest.update(piece));
    HEXLOWER.encode(digest.finish().as_ref())
}

/// Clients that begin handshakes and send nothing more, until it is dropped.
struct HandshakeFlood(JoinHandle<Result>);

impl HandshakeFlood {
    /// Starts the flood, and waits until Sheave answers it by Retry.
    async fn start(site: &ConformanceFixture) -> Result<Self> {
        let datagrams = initial_datagrams(&site.tls_options, NAME, FLOOD_CLIENTS)?;
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
        socket.connect(site.sheave.address()).await?;
        let flood = Self(tokio::spawn(send_again_and_again(Arc::clone(&socket), datagrams)));
        let retried = async {
            let mut answer = vec![0; 2000];
            loop {
                let length = socket.recv(&mut answer).await?;
                let kinds = tests::udp_relay::packet_kinds(&answer[..length]);
                if kinds.contains(&tests::udp_relay::PacketKind::Retry) {
                    return anyhow::Ok(());
                }
            }
        };
        within("a Retry", retried).await??;
        Ok(flood)
    }
}

impl Drop for HandshakeFlood {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn send_again_and_again(socket: Arc<UdpSocket>, datagrams: Vec<Vec<u8>>) -> Result {
    let mut ticks = interval(FLOOD_INTERVAL);
    loop {
        for burst in datagrams.chunks(FLOOD_BURST) {
            ticks.tick().await;
            for datagram in burst {
                socket.send(datagram).await?;
            }
        }
    }
}
