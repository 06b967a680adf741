//! Reports of a client over a socket.

use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::client::Grpc as GrpcClient;
use tonic::transport::{Endpoint, Server};

use super::*;
use crate::load::{LoadStatus, MAX_REPORTED_CLUSTERS};
use crate::message::{ClusterStats, LocalityStats};
use crate::table::ResourcePublisher;
use crate::translate::tests::snapshot;

/// Longer than anything takes.
const BOUND: Duration = Duration::from_secs(60);

/// A server, and a client that reports to it.
struct ReportFixture {
    publisher: ResourcePublisher,
    requests: mpsc::Sender<LoadStatsRequest>,
    responses: Streaming<LoadStatsResponse>,
}

impl ReportFixture {
    async fn start() -> Self {
        let publisher = ResourcePublisher::default();
        publisher.publish(
            &snapshot(include_str!("../../../testdata/services.in.yaml")),
            "cluster.local",
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder().add_service(publisher.load_service());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = GrpcClient::new(channel.connect().await.unwrap());
        client.ready().await.unwrap();
        let codec = ProstCodec::<LoadStatsRequest, LoadStatsResponse>::default();
        let path = http::uri::PathAndQuery::from_static(STREAM_LOAD);
        let (requests, receiver) = mpsc::channel(16);
        requests.send(LoadStatsRequest::default()).await.unwrap();
        let request = Request::new(ReceiverStream::new(receiver));
        let responses = client.streaming(request, path, codec).await.unwrap().into_inner();
        Self { publisher, requests, responses }
    }

    async fn next(&mut self) -> Result<Option<LoadStatsResponse>, Status> {
        timeout(BOUND, self.responses.message()).await.expect("an answer")
    }

    async fn report(&self, cluster: &str, in_progress: u64) {
        let locality = LocalityStats {
            total_requests_in_progress: in_progress,
            total_issued_requests: 10,
            ..LocalityStats::default()
        };
        let stats = ClusterStats {
            cluster_name: cluster.to_owned(),
            locality_stats: vec![locality],
            total_dropped_requests: 0,
        };
        let request = LoadStatsRequest { node: None, cluster_stats: vec![stats] };
        self.requests.send(request).await.unwrap();
    }

    async fn wait_until(&self, is_reached: impl Fn(&LoadStatus) -> bool) {
        while !is_reached(&self.publisher.load()) {
            tokio::task::yield_now().await;
        }
    }
}

fn in_progress(status: &LoadStatus) -> u64 {
    status.clusters.iter().map(|(_, load)| load.in_progress).sum()
}

#[tokio::test]
async fn report_counts_until_the_client_goes() {
    let mut fixture = ReportFixture::start().await;
    let settings = fixture.next().await.unwrap().expect("the settings");
    assert!(settings.send_all_clusters);
    assert_eq!(settings.load_reporting_interval, Some(REPORT_INTERVAL.into()));
    fixture.report("shop/web:80", 5).await;
    fixture.wait_until(|status| in_progress(status) == 5).await;
    assert_eq!(fixture.publisher.load().clients, 1);
    let ReportFixture { publisher, requests, responses } = fixture;
    drop((requests, responses));
    while in_progress(&publisher.load()) > 0 || publisher.load().clients > 0 {
        tokio::task::yield_now().await;
    }
    let issued: u64 = publisher.load().clusters.iter().map(|(_, load)| load.issued).sum();
    assert_eq!(issued, 10);
}

#[tokio::test]
async fn silent_client_counts_for_two_intervals() {
    let mut fixture = ReportFixture::start().await;
    fixture.next().await.unwrap();
    tokio::time::pause();
    fixture.report("shop/web:80", 5).await;
    tokio::time::advance(MIN_REPORT_SPACING).await;
    fixture.wait_until(|status| in_progress(status) == 5).await;
    tokio::time::advance(REPORT_LIFETIME - Duration::from_millis(1)).await;
    assert_eq!(in_progress(&fixture.publisher.load()), 5);
    tokio::time::advance(Duration::from_millis(2)).await;
    fixture.wait_until(|status| in_progress(status) == 0).await;
    assert_eq!(fixture.publisher.load().clients, 1);
}

#[tokio::test]
async fn report_beyond_a_limit_ends_the_stream() {
    let mut fixture = ReportFixture::start().await;
    fixture.next().await.unwrap();
    let cluster_stats = vec![ClusterStats::default(); MAX_REPORTED_CLUSTERS + 1];
    let request = LoadStatsRequest { node: None, cluster_stats };
    fixture.requests.send(request).await.unwrap();
    let status = fixture.next().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    fixture.wait_until(|status| status.clients == 0 && status.refused_reports == 1).await;
}

#[tokio::test]
async fn closing_ends_reports() {
    let mut fixture = ReportFixture::start().await;
    fixture.next().await.unwrap();
    fixture.report("shop/web:80", 5).await;
    fixture.wait_until(|status| in_progress(status) == 5).await;
    fixture.publisher.close();
    assert_eq!(fixture.next().await.unwrap_err().code(), tonic::Code::Unavailable);
    fixture.wait_until(|status| in_progress(status) == 0).await;
}
