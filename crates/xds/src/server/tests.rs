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
use crate::status::ServerCounts;
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
struct TestStream<Q: VariantRequest> {
    requests: mpsc::Sender<Q>,
    responses: Streaming<Q::Response>,
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

    async fn open(&self, path: &'static str) -> Result<TestStream<DiscoveryRequest>, Status> {
        self.open_as(path).await
    }

    /// Opens a stream whose messages need not be those of the method.
    async fn open_as<Q: VariantRequest>(
        &self,
        path: &'static str,
    ) -> Result<TestStream<Q>, Status> {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = GrpcClient::new(self.channel.clone());
        client.ready().await.unwrap();
        let codec = ProstCodec::<Q, Q::Response>::default();
        let path = http::uri::PathAndQuery::from_static(path);
        let request = Request::new(ReceiverStream::new(receiver));
        let responses = client.streaming(request, path, codec).await?.into_inner();
        Ok(TestStream { requests, responses })
    }

    /// A client that does nothing wrong is served.
    async fn expect_served(&self) {
        let mut stream = self.open(STREAM_RESOURCES).await.unwrap();
        stream.send(ResourceType::Cluster, &["shop/web:80"], "", None).await;
        assert_eq!(stream.next().await.unwrap().resources.len(), 1);
    }

    async fn wait_for_counts(&self, wanted: impl Fn(&ServerCounts) -> bool) {
        let wait = async {
            while !wanted(&self.publisher.status().counts) {
                tokio::task::yield_now().await;
            }
        };
        timeout(BOUND, wait).await.expect("the counts");
    }
}

impl TestStream<DeltaDiscoveryRequest> {
    async fn subscribe(&self, kind: ResourceType, names: &[&str], nonce: &str) {
        let request = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }
}

impl TestStream<DiscoveryRequest> {
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
}

impl<Q: VariantRequest> TestStream<Q> {
    async fn next(&mut self) -> Result<Q::Response, Status> {
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
    fixture.expect_served().await;
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
    fixture.expect_served().await;
}

#[tokio::test]
async fn other_methods_are_unimplemented() {
    let fixture = ServerFixture::start().await;
    for path in [
        "/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources",
        "/envoy.service.discovery.v2.AggregatedDiscoveryService/DeltaAggregatedResources",
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/FetchResources",
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

#[tokio::test]
async fn incremental_client_gets_a_change_and_may_have_another_stream() {
    let fixture = ServerFixture::start().await;
    let mut stream = fixture.open_as::<DeltaDiscoveryRequest>(DELTA_RESOURCES).await.unwrap();
    let kind = ResourceType::ClusterLoadAssignment;
    stream.subscribe(kind, &["shop/web:80", "none"], "").await;
    let first = stream.next().await.unwrap();
    assert_eq!((first.resources.len(), first.removed_resources.len()), (1, 1));
    stream.subscribe(kind, &[], &first.nonce).await;
    let key = fixture.publisher.key_of("shop/web:80");
    fixture.publisher.set_endpoints(&key, &[EndpointSpec::new(([10, 0, 0, 9], 8080).into())]);
    let second = stream.next().await.unwrap();
    assert_eq!(second.resources[0].name, "shop/web:80");
    assert_ne!(first.resources[0].version, second.resources[0].version);
    fixture.expect_served().await;
    assert_eq!(fixture.publisher.status().counts.streams, 2);
}

#[tokio::test]
async fn client_that_never_acknowledges_is_disconnected() {
    let fixture = ServerFixture::start().await;
    let mut stream = fixture.open_as::<DeltaDiscoveryRequest>(DELTA_RESOURCES).await.unwrap();
    stream.subscribe(ResourceType::Cluster, &["*"], "").await;
    stream.next().await.unwrap();
    let key = fixture.publisher.key_of("shop/web:80");
    for last in 1..100 {
        let endpoint = EndpointSpec::new(([10, 0, 0, last], 8080).into());
        fixture.publisher.set_endpoints(&key, &[endpoint]);
    }
    tokio::time::pause();
    tokio::time::advance(ACKNOWLEDGE_TIMEOUT).await;
    tokio::time::resume();
    assert_eq!(stream.next().await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    let counts = fixture.publisher.status().counts;
    assert_eq!((counts.unacknowledged, counts.responses), (1, [1, 0, 0, 0]));
    fixture.expect_served().await;
}

#[tokio::test]
async fn types_of_xds_v2_are_counted_and_do_not_end_the_stream() {
    let fixture = ServerFixture::start().await;
    let mut stream = fixture.open(STREAM_RESOURCES).await.unwrap();
    for type_url in ["type.googleapis.com/envoy.api.v2.Cluster", ""] {
        let type_url = type_url.to_owned();
        let request = DiscoveryRequest { type_url, ..DiscoveryRequest::default() };
        stream.requests.send(request).await.unwrap();
    }
    stream.send(ResourceType::Cluster, &["shop/web:80"], "", None).await;
    assert_eq!(stream.next().await.unwrap().resources.len(), 1);
    assert_eq!(fixture.publisher.status().counts.unknown_types, 2);
}

#[tokio::test]
async fn messages_of_the_other_variant_harm_their_client_alone() {
    let fixture = ServerFixture::start().await;
    let stream = fixture.open(DELTA_RESOURCES).await.unwrap();
    stream.send(ResourceType::Cluster, &["*"], "", None).await;
    let other = fixture.open_as::<DeltaDiscoveryRequest>(STREAM_RESOURCES).await.unwrap();
    other.subscribe(ResourceType::Cluster, &["*"], "").await;
    fixture.expect_served().await;
    // The names of types are in different fields: a request is of no type, or is no message.
    let is_over = |counts: &ServerCounts| counts.unknown_types > 0;
    fixture.wait_for_counts(is_over).await;
    assert_eq!(fixture.publisher.status().counts.responses, [1, 0, 0, 0]);
}

#[tokio::test]
async fn flood_of_subscriptions_waits_while_others_are_served() {
    const FLOOD: usize = 200;
    let fixture = ServerFixture::start().await;
    let stream = fixture.open_as::<DeltaDiscoveryRequest>(DELTA_RESOURCES).await.unwrap();
    let names: Vec<String> = (0..crate::MAX_NAMES).map(|number| number.to_string()).collect();
    let requests = stream.requests.clone();
    let flood = tokio::spawn(async move {
        for _ in 0..FLOOD {
            let request = DeltaDiscoveryRequest {
                type_url: ResourceType::Cluster.type_url().to_owned(),
                resource_names_subscribe: names.clone(),
                ..DeltaDiscoveryRequest::default()
            };
            requests.send(request).await.unwrap();
        }
    });
    fixture.wait_for_counts(|counts| counts.requests > 0).await;
    for _ in 0..10 {
        fixture.expect_served().await;
    }
    // The rest waits in the client: it is not read.
    assert!(!flood.is_finished());
    assert!(fixture.publisher.status().counts.requests < FLOOD as u64);
    flood.abort();
}
