//! The server, with a client that speaks the protocol over a socket.

use std::time::Duration;

use gateway::snapshot::EndpointSpec;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::client::Grpc as GrpcClient;
use tonic::transport::{Channel, Endpoint, Server};

use super::*;
use crate::message::{ClusterLoadAssignment, RpcStatus};
use crate::table::ResourcePublisher;
use crate::translate::tests::snapshot;
use prost::Message;

/// Longer than anything takes.
const BOUND: Duration = Duration::from_secs(60);

/// A server and a connection to it.
struct ServerFixture {
    publisher: ResourcePublisher,
    channel: Channel,
}

/// One stream of a client.
struct TestStream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl ServerFixture {
    async fn start() -> Self {
        let publisher = ResourcePublisher::default();
        publisher
            .publish(&snapshot(include_str!("../../testdata/services.in.yaml")), "cluster.local");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder().add_service(publisher.service());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self { publisher, channel: channel.connect().await.unwrap() }
    }

    async fn open(&self, path: &'static str) -> Result<TestStream, Status> {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = GrpcClient::new(self.channel.clone());
        client.ready().await.unwrap();
        let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
        let path = http::uri::PathAndQuery::from_static(path);
        let request = Request::new(ReceiverStream::new(receiver));
        let responses = client.streaming(request, path, codec).await?.into_inner();
        Ok(TestStream { requests, responses })
    }
}

impl TestStream {
    async fn send(&self, kind: ResourceType, names: &[&str], nonce: &str, error: Option<&str>) {
        let error = error.map(|it| RpcStatus { code: 3, message: it.to_owned() });
        let request = DiscoveryRequest {
            resource_names: names.iter().map(ToString::to_string).collect(),
            type_url: kind.type_url().to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: error,
            ..DiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }

    async fn next(&mut self) -> Result<DiscoveryResponse, Status> {
        let next = timeout(BOUND, self.responses.message()).await.expect("a response");
        next.map(|it| it.expect("the stream goes on"))
    }
}

#[tokio::test]
async fn change_reaches_a_client_that_has_acknowledged() {
    let fixture = ServerFixture::start().await;
    let mut stream = fixture.open(STREAM_RESOURCES).await.unwrap();
    let kind = ResourceType::ClusterLoadAssignment;
    stream.send(kind, &["shop/web:80"], "", None).await;
    let first = stream.next().await.unwrap();
    stream.send(kind, &["shop/web:80"], &first.nonce, None).await;
    let key = fixture.publisher.key_of("shop/web:80");
    let endpoint = EndpointSpec::new(([10, 0, 0, 9], 8080).into());
    fixture.publisher.set_endpoints(&key, &[endpoint]);
    let second = stream.next().await.unwrap();
    let assignment = ClusterLoadAssignment::decode(second.resources[0].value.clone()).unwrap();
    assert_eq!(assignment.endpoints[0].lb_endpoints.len(), 1);
    assert_ne!(first.nonce, second.nonce);
    assert_eq!(fixture.publisher.status().clients, 1);
}

#[tokio::test]
async fn client_that_rejects_everything_is_counted_and_quoted() {
    let fixture = ServerFixture::start().await;
    let mut stream = fixture.open(STREAM_RESOURCES).await.unwrap();
    let kind = ResourceType::Listener;
    stream.send(kind, &["web.shop:80"], "", None).await;
    let first = stream.next().await.unwrap();
    let names = ["web.shop:80", "idle.shop:80"];
    stream.send(kind, &names, &first.nonce, Some("no\tthanks")).await;
    let second = stream.next().await.unwrap();
    stream.send(kind, &names, &second.nonce, Some("no\tthanks")).await;
    while fixture.publisher.status().rejections.first().is_none_or(|it| it.count < 2) {
        tokio::task::yield_now().await;
    }
    // Another client is served while this one rejects.
    let mut other = fixture.open(STREAM_RESOURCES).await.unwrap();
    other.send(ResourceType::Cluster, &["shop/web:80"], "", None).await;
    assert_eq!(other.next().await.unwrap().resources.len(), 1);
    let status = fixture.publisher.status();
    assert_eq!(status.rejections.len(), 1, "{status:?}");
    assert_eq!(status.rejections[0].message, "no thanks");
}

#[tokio::test]
async fn flood_of_names_ends_the_stream_of_its_client_alone() {
    let fixture = ServerFixture::start().await;
    let mut stream = fixture.open(STREAM_RESOURCES).await.unwrap();
    let names = vec!["a"; crate::MAX_NAMES + 1];
    stream.send(ResourceType::Cluster, &names, "", None).await;
    assert_eq!(stream.next().await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert_eq!(fixture.publisher.status().counts.exceeded_limits, 1);
    let mut other = fixture.open(STREAM_RESOURCES).await.unwrap();
    other.send(ResourceType::Cluster, &["shop/web:80"], "", None).await;
    assert_eq!(other.next().await.unwrap().resources.len(), 1);
}

#[tokio::test]
async fn other_methods_are_unimplemented() {
    let fixture = ServerFixture::start().await;
    for path in [
        "/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources",
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
    ] {
        let status = fixture.open(path).await.err().expect("an error");
        assert_eq!(status.code(), tonic::Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn closing_ends_all_streams_and_gives_their_places_back() {
    let fixture = ServerFixture::start().await;
    let mut stream = fixture.open(STREAM_RESOURCES).await.unwrap();
    stream.send(ResourceType::Cluster, &["shop/web:80"], "", None).await;
    stream.next().await.unwrap();
    fixture.publisher.close();
    assert_eq!(stream.next().await.unwrap_err().code(), tonic::Code::Unavailable);
    while fixture.publisher.status().clients > 0 {
        tokio::task::yield_now().await;
    }
}
