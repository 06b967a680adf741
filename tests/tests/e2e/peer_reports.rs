//! What replicas report to one another: three processes with the same endpoints.

/// Demand: each replica answers an autoscaler for all of them.
mod demand;
/// Refusals: an endpoint that is full gets less from all.
mod refusals;
/// Outages: an endpoint that is gone is checked by all.
mod outages;
/// Ejections: failures of what one replica has ejected count sooner at all.
mod ejections;
/// Load that xDS clients report.
mod xds_load;
/// A peer that reports what it likes.
mod lying_peer;

use std::net::SocketAddr;

use serde_json::Value;
use tests::configuration::SERVICE;
use tests::fixture::addresses;
use tests::{ConfigDirectory, Endpoint, Http1TestClient, Result, SheaveProcess, objects};

use crate::leased_slots::{loopback_addresses, metric, wait_for_peers};

/// Replicas with the same endpoints and a loopback address of their own each.
struct ReplicaGroup {
    configuration: ConfigDirectory,
    members: Vec<SocketAddr>,
    replicas: Vec<SheaveProcess>,
    /// Further arguments of each replica.
    arguments: &'static [&'static str],
}

impl ReplicaGroup {
    /// Starts three replicas with a BackendPolicy of this `spec`, and waits until each is connected to all others.
    async fn start(endpoints: &[Endpoint], spec: Value) -> Result<Self> {
        let policy = objects::backend_policy(SERVICE, spec);
        let configuration = ConfigDirectory::for_endpoints_with(&addresses(endpoints), &[policy])?;
        Self::start_with(configuration).await
    }

    /// Starts three replicas that serve xDS, with a BackendPolicy of this `spec`, and without an endpoint.
    async fn start_with_xds(spec: Value) -> Result<Self> {
        let policy = objects::backend_policy(SERVICE, spec);
        let configuration = ConfigDirectory::for_endpoints_with(&[], &[policy])?;
        Self::start_with_arguments(configuration, &["--xds", "127.0.0.1:0"]).await
    }

    /// Starts three replicas with this configuration, and waits until each is connected to all others.
    async fn start_with(configuration: ConfigDirectory) -> Result<Self> {
        Self::start_with_arguments(configuration, &[]).await
    }

    async fn start_with_arguments(
        configuration: ConfigDirectory,
        arguments: &'static [&'static str],
    ) -> Result<Self> {
        let (members, replicas) = (loopback_addresses(3)?, Vec::new());
        let mut group = Self { configuration, members, replicas, arguments };
        for replica in 0..3 {
            let replica = group.start_replica(replica).await?;
            group.replicas.push(replica);
        }
        for replica in &group.replicas {
            wait_for_peers(replica, 2.0).await?;
        }
        Ok(group)
    }

    async fn start_replica(&self, replica: usize) -> Result<SheaveProcess> {
        let list: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        let (list, me) = (list.join(","), self.members[replica].to_string());
        let mut arguments = vec!["--workers", "2", "--lease-slots", "--scaler", "127.0.0.1:0"];
        arguments.extend(["--replicas", &list, "--replica", &me]);
        arguments.extend(self.arguments);
        SheaveProcess::serve_with(&self.configuration, &arguments).await
    }

    /// Returns clients of one replica that have sent a request each and have no response yet.
    async fn begin_requests(&self, replica: usize, count: usize) -> Result<Vec<Http1TestClient>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut client = Http1TestClient::connect(self.replicas[replica].address()).await?;
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
            clients.push(client);
        }
        Ok(clients)
    }
}
