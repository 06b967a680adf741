//! A peer that reports what it likes: a member of the list that this test plays.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, ensure};
use prost::Message;
use serde_json::json;
use tests::keda::KedaClient;
use tests::{Endpoint, EndpointBehaviour, Result, eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::{ReplicaGroup, metric};

/// Frame as `crates/replica/src/wire.rs` has it.
#[derive(Clone, PartialEq, Message)]
struct PeerFrame {
    #[prost(message, optional, tag = "1")]
    hello: Option<PeerHello>,
    #[prost(message, optional, tag = "3")]
    demand: Option<PeerDemand>,
    #[prost(message, optional, tag = "4")]
    refusals: Option<PeerRefusals>,
    #[prost(message, optional, tag = "5")]
    outages: Option<PeerOutages>,
}

#[derive(Clone, PartialEq, Message)]
struct PeerHello {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(uint32, tag = "2")]
    oldest_version: u32,
    #[prost(message, optional, tag = "3")]
    from: Option<PeerIdentity>,
}

#[derive(Clone, PartialEq, Message)]
struct PeerIdentity {
    #[prost(message, optional, tag = "1")]
    member: Option<PeerAddress>,
    #[prost(uint64, tag = "2")]
    incarnation: u64,
}

#[derive(Clone, PartialEq, Message)]
struct PeerAddress {
    #[prost(bytes = "vec", tag = "1")]
    ip: Vec<u8>,
    #[prost(uint32, tag = "2")]
    port: u32,
}

#[derive(Clone, PartialEq, Message)]
struct PeerDemand {
    #[prost(message, repeated, tag = "1")]
    reports: Vec<PeerDemandReport>,
}

#[derive(Clone, PartialEq, Message)]
struct PeerDemandReport {
    #[prost(fixed64, tag = "1")]
    backend: u64,
    #[prost(uint64, repeated, tag = "2")]
    demand_milli: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct PeerRefusals {
    #[prost(message, repeated, tag = "1")]
    reports: Vec<PeerRefusal>,
}

#[derive(Clone, PartialEq, Message)]
struct PeerRefusal {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<PeerAddress>,
    #[prost(uint32, tag = "2")]
    limit: u32,
    #[prost(uint64, tag = "3")]
    remaining_millis: u64,
}

#[derive(Clone, PartialEq, Message)]
struct PeerOutages {
    #[prost(message, repeated, tag = "1")]
    outages: Vec<PeerOutage>,
    #[prost(message, repeated, tag = "2")]
    ejected: Vec<PeerOutage>,
}

#[derive(Clone, PartialEq, Message)]
struct PeerOutage {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<PeerAddress>,
}

impl PeerOutage {
    fn of(endpoint: &SocketAddr) -> Self {
        Self { endpoint: Some((*endpoint).into()) }
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Self { ip, port: u32::from(address.port()) }
    }
}

/// Connection of the lying peer to one replica.
pub(super) struct LyingPeer(TcpStream);

impl LyingPeer {
    /// Takes the place of a replica that has ended.
    pub(super) async fn connect(me: SocketAddr, to: SocketAddr) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(me.ip(), 0))?;
        let mut peer = Self(within("a replica", socket.connect(to)).await??);
        // A later incarnation than that of the replica that has ended.
        let from = PeerIdentity { member: Some(me.into()), incarnation: u64::MAX };
        let hello = PeerHello { version: 1, oldest_version: 1, from: Some(from) };
        peer.send(PeerFrame { hello: Some(hello), ..PeerFrame::default() }).await?;
        let length = within("the reply", peer.0.read_u32()).await??;
        let mut reply = vec![0; length as usize];
        peer.0.read_exact(&mut reply).await?;
        ensure!(PeerFrame::decode(&*reply)?.hello.is_some(), "the replica introduces itself");
        Ok(peer)
    }

    async fn send(&mut self, frame: PeerFrame) -> Result {
        let bytes = frame.encode_to_vec();
        self.0.write_u32(bytes.len().try_into()?).await?;
        self.0.write_all(&bytes).await.context("the connection is open")
    }

    /// Reports these numbers for the present and each window, of each kind.
    async fn report(&mut self, backend: u64, milli: u64, numbers: usize) -> Result {
        let report = PeerDemandReport { backend, demand_milli: vec![milli; numbers] };
        let demand = PeerDemand { reports: vec![report] };
        self.send(PeerFrame { demand: Some(demand), ..PeerFrame::default() }).await
    }

    /// Reports that endpoints cannot be reached.
    pub(super) async fn report_outages(&mut self, endpoints: &[SocketAddr]) -> Result {
        let outages = endpoints.iter().map(PeerOutage::of).collect();
        let outages = Some(PeerOutages { outages, ..PeerOutages::default() });
        self.send(PeerFrame { outages, ..PeerFrame::default() }).await
    }

    /// Reports that endpoints are ejected.
    pub(super) async fn report_ejections(&mut self, endpoints: &[SocketAddr]) -> Result {
        let ejected = endpoints.iter().map(PeerOutage::of).collect();
        let outages = Some(PeerOutages { ejected, ..PeerOutages::default() });
        self.send(PeerFrame { outages, ..PeerFrame::default() }).await
    }

    /// Reports that an endpoint refuses.
    async fn refuse(&mut self, endpoint: SocketAddr, limit: u32, seconds: u64) -> Result {
        let endpoint = Some(endpoint.into());
        let report = PeerRefusal { endpoint, limit, remaining_millis: seconds * 1_000 };
        let refusals = Some(PeerRefusals { reports: vec![report] });
        self.send(PeerFrame { refusals, ..PeerFrame::default() }).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_reports_are_refused_and_counted() -> Result {
    let endpoints = [Endpoint::start(EndpointBehaviour::ok()).await?];
    let mut group = ReplicaGroup::start(&endpoints, json!({})).await?;
    drop(group.replicas.pop());
    let (honest, me) = (&group.replicas[0], group.members[2]);
    let mut peer = LyingPeer::connect(me, group.members[0]).await?;
    let refused = async |reason: &str| {
        let reason = format!("\"{reason}\"");
        let observe = async || metric(honest, "sheave_replica_refusals_total", &reason).await;
        eventually("the refusal is counted", observe, |it| *it >= 1.0).await
    };
    peer.report(7, 4_000, 24).await?;
    refused("report_unknown_backend").await?;
    peer.report(7, u64::MAX, 24).await?;
    refused("report_absurd").await?;
    peer.report(7, 4_000, 5).await?;
    refused("absurd").await?;
    // All of that over one connection, which is still open, and nothing of it counts.
    peer.report(7, 4_000, 24).await?;
    let observe =
        async || metric(honest, "sheave_replica_refusals_total", "report_unknown_backend").await;
    eventually("the next report", observe, |it| *it == 2.0).await?;
    let mut keda = KedaClient::connect(honest, &[("service", "app"), ("target", "4")]).await?;
    ensure!(keda.demand().await? == 0.0 && !keda.is_active().await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_refusals_lower_no_limit() -> Result {
    let endpoints = [Endpoint::start(EndpointBehaviour::ok()).await?];
    let mut group = ReplicaGroup::start(&endpoints, json!({})).await?;
    drop(group.replicas.pop());
    let (honest, me) = (&group.replicas[0], group.members[2]);
    let mut peer = LyingPeer::connect(me, group.members[0]).await?;
    let refused = async |reason: &str, times: f64| {
        let observe = async || metric(honest, "sheave_replica_refusals_total", reason).await;
        eventually("the refusal is counted", observe, |it| *it == times).await
    };
    let endpoint = endpoints[0].address;
    peer.refuse(endpoint, 0, 1).await?;
    peer.refuse(endpoint, 1, 3600).await?;
    refused("report_absurd", 2.0).await?;
    peer.refuse("192.0.2.1:80".parse()?, 1, 1).await?;
    refused("report_unknown_endpoint", 1.0).await?;
    ensure!(honest.metric_samples("sheave_endpoint_limit").await?.is_empty());
    // A possible one lowers it, and ends.
    peer.refuse(endpoint, 1, 4).await?;
    let limits = async || honest.metric_samples("sheave_endpoint_limit").await;
    eventually("a reduced limit", limits, |it| it.len() == 1).await?;
    eventually("the limit is restored", limits, Vec::is_empty).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_that_ignores_refusals_ignores_those_of_peers() -> Result {
    let endpoints = [Endpoint::start(EndpointBehaviour::ok()).await?];
    let mut group = ReplicaGroup::start(&endpoints, json!({ "heedRefusals": "None" })).await?;
    drop(group.replicas.pop());
    let (replica, me) = (&group.replicas[0], group.members[2]);
    let mut peer = LyingPeer::connect(me, group.members[0]).await?;
    peer.refuse(endpoints[0].address, 1, 30).await?;
    // The next one shows that the first has been read.
    peer.refuse("192.0.2.1:80".parse()?, 1, 30).await?;
    let refusals =
        async || metric(replica, "sheave_replica_refusals_total", "report_unknown_endpoint").await;
    eventually("the next report", refusals, |it| *it == 1.0).await?;
    ensure!(replica.metric_samples("sheave_endpoint_limit").await?.is_empty());
    ensure!(metric(replica, "sheave_replica_reports_total", "\"refusal\"").await? == 0.0);
    Ok(())
}
