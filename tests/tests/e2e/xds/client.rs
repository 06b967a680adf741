//! A client of xDS that speaks the protocol by hand, so that it can do what libraries do not.

use std::time::Duration;

use anyhow::Context;
use prost::Message;
use tests::{Result, SheaveProcess, within};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::interval;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

const STREAM_RESOURCES: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const STREAM_LOAD: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";

/// Interval of reports, below the one that the server asks for.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Message)]
struct ClientNode {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct DiscoveryRequest {
    #[prost(message, optional, tag = "2")]
    node: Option<ClientNode>,
    #[prost(string, repeated, tag = "3")]
    resource_names: Vec<String>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    response_nonce: String,
    #[prost(message, optional, tag = "6")]
    error_detail: Option<ErrorDetail>,
}

#[derive(Clone, PartialEq, Message)]
struct ErrorDetail {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct DiscoveryResponse {
    #[prost(message, repeated, tag = "2")]
    resources: Vec<AnyResource>,
    #[prost(string, tag = "5")]
    nonce: String,
}

/// A resource of any type; its value is not read.
#[derive(Clone, PartialEq, Message)]
struct AnyResource {
    #[prost(string, tag = "1")]
    type_url: String,
}

#[derive(Clone, PartialEq, Message)]
struct LoadStatsRequest {
    #[prost(message, optional, tag = "1")]
    node: Option<ClientNode>,
    #[prost(message, repeated, tag = "2")]
    cluster_stats: Vec<ClusterStats>,
}

#[derive(Clone, PartialEq, Message)]
struct ClusterStats {
    #[prost(string, tag = "1")]
    cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    upstream_locality_stats: Vec<LocalityStats>,
}

#[derive(Clone, PartialEq, Message)]
struct LocalityStats {
    #[prost(uint64, tag = "3")]
    total_requests_in_progress: u64,
    #[prost(uint64, tag = "8")]
    total_issued_requests: u64,
}

#[derive(Clone, PartialEq, Message)]
struct LoadStatsResponse {
    #[prost(bool, tag = "4")]
    send_all_clusters: bool,
}

async fn open<Q, A>(
    sheave: &SheaveProcess,
    path: &'static str,
) -> Result<(mpsc::Sender<Q>, Streaming<A>)>
where
    Q: Message + Send + 'static,
    A: Message + Default + Send + 'static,
{
    let address = sheave.xds.context("started with --xds")?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let mut client: Grpc<Channel> = Grpc::new(within("xDS", endpoint.connect()).await??);
    client.ready().await?;
    let (requests, receiver) = mpsc::channel(4);
    let request = Request::new(ReceiverStream::new(receiver));
    let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
    let responses = within("the stream", client.streaming(request, path, codec)).await??;
    Ok((requests, responses.into_inner()))
}

fn node() -> Option<ClientNode> {
    Some(ClientNode { id: "test".to_owned() })
}

/// A stream of resources, with a subscription to some of them.
pub(crate) struct DiscoveryStream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
    last: DiscoveryRequest,
}

impl DiscoveryStream {
    pub(crate) async fn open(
        sheave: &SheaveProcess,
        type_url: &str,
        resource_names: Vec<String>,
    ) -> Result<Self> {
        let (requests, responses) = open(sheave, STREAM_RESOURCES).await?;
        let last = DiscoveryRequest {
            node: node(),
            resource_names,
            type_url: type_url.to_owned(),
            ..DiscoveryRequest::default()
        };
        requests.send(last.clone()).await?;
        Ok(Self { requests, responses, last })
    }

    /// Waits for the next response. Returns the number of its resources.
    pub(crate) async fn next(&mut self) -> Result<usize> {
        let response = within("a response", self.responses.message()).await??;
        let response = response.context("the stream goes on")?;
        self.last.response_nonce = response.nonce;
        Ok(response.resources.len())
    }

    /// Rejects the last response with these words.
    pub(crate) async fn reject(&self, words: &str) -> Result {
        let error_detail = Some(ErrorDetail { code: 3, message: words.to_owned() });
        Ok(self.requests.send(DiscoveryRequest { error_detail, ..self.last.clone() }).await?)
    }

    /// Accepts the last response.
    pub(crate) async fn accept(&self) -> Result {
        Ok(self.requests.send(self.last.clone()).await?)
    }
}

/// A client that has requests in progress, and reports them until it is dropped.
pub(crate) struct LoadReporter(JoinHandle<()>);

impl LoadReporter {
    pub(crate) async fn start(
        sheave: &SheaveProcess,
        cluster: &str,
        in_progress: u64,
    ) -> Result<Self> {
        let (requests, mut responses) =
            open::<LoadStatsRequest, LoadStatsResponse>(sheave, STREAM_LOAD).await?;
        requests.send(LoadStatsRequest { node: node(), cluster_stats: Vec::new() }).await?;
        let settings = within("the settings of reports", responses.message()).await??;
        anyhow::ensure!(settings.is_some_and(|it| it.send_all_clusters));
        let stats = ClusterStats {
            cluster_name: cluster.to_owned(),
            upstream_locality_stats: vec![LocalityStats {
                total_requests_in_progress: in_progress,
                total_issued_requests: 1,
            }],
        };
        let report = LoadStatsRequest { node: None, cluster_stats: vec![stats] };
        let reporting = tokio::spawn(async move {
            let mut ticks = interval(REPORT_INTERVAL);
            loop {
                ticks.tick().await;
                if requests.send(report.clone()).await.is_err() {
                    return;
                }
                // The stream ends if its responses are dropped.
                let _open = &responses;
            }
        });
        Ok(Self(reporting))
    }
}

impl Drop for LoadReporter {
    fn drop(&mut self) {
        self.0.abort();
    }
}
