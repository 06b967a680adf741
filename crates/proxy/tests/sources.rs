//! Clients from outside of the networks that may connect to a listener are refused, and counted.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use gateway::Snapshot;
use gateway::snapshot::{
    Backend, BackendKey, BackendSettings, ClientSettings, EndpointSource, EndpointSpec, Listener,
    ListenerProtocol, Rule, RuleTarget, TransportProtocol, WeightedTarget,
};
use proxy::observe::MetricReading;
use proxy::{Proxy, ProxySettings, clock};

/// Time limit; no operation here takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns a Snapshot with one listener for clients of this network.
fn snapshot(transport: TransportProtocol, endpoint: SocketAddr, network: &str) -> Snapshot {
    let target = WeightedTarget { target: RuleTarget::Backend(0), weight: 1, filters: None };
    let rule = Arc::new(Rule {
        index: 0,
        name: "rule".into(),
        targets: vec![target],
        filters: None,
        request_timeout: None,
        attempt_timeout: None,
        retry: None,
        affinity: None,
    });
    let protocol = match transport {
        TransportProtocol::Tcp => ListenerProtocol::Tcp(Some(Arc::clone(&rule))),
        TransportProtocol::Udp => ListenerProtocol::Udp(Some(Arc::clone(&rule))),
    };
    let listener = Listener {
        address: ([127, 0, 0, 1], 0).into(),
        public_port: None,
        free_bind: false,
        name: "listener".into(),
        client: Arc::new(ClientSettings::default()),
        protocol,
        tls: None,
        http3: None,
        interception: None,
        consumer_routes: Default::default(),
        sources: Some(vec![network.parse().unwrap()].into()),
    };
    let key = BackendKey {
        namespace: "shop".into(),
        service: "db".into(),
        port: 5432,
        transport,
        node: None,
    };
    let backend = Backend {
        key,
        source: EndpointSource::Slices,
        endpoints: vec![EndpointSpec::new(endpoint)],
        elsewhere: Vec::new(),
        settings: BackendSettings::default(),
    };
    Snapshot {
        listeners: vec![listener],
        rules: vec![rule],
        backends: vec![backend],
        ..Snapshot::default()
    }
}

fn start(snapshot: &Snapshot) -> Proxy {
    let proxy = Proxy::start(ProxySettings {
        workers: NonZeroUsize::new(1).unwrap(),
        access_log: None,
        exemplars: false,
        traces: None,
        memory_limit: None,
        max_descriptors: None,
        affinity_key: None,
        interceptor: None,
        leases_slots: false,
    })
    .unwrap();
    assert!(proxy.apply(snapshot).is_empty());
    proxy
}

fn refused(proxy: &Proxy) -> u64 {
    let mut refused = 0;
    proxy.collect(&mut |sample| {
        if let ("sheave_listener_sources_refused", MetricReading::Count(count)) =
            (sample.metric.name, sample.value)
        {
            refused = count;
        }
    });
    refused
}

#[test]
fn connections_of_other_sources_are_closed_and_counted() {
    let endpoint = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = endpoint.local_addr().unwrap();
    thread::spawn(move || {
        for stream in endpoint.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || stream.write_all(b"hello"));
        }
    });
    let with_source = |network| snapshot(TransportProtocol::Tcp, address, network);
    let proxy = start(&with_source("192.0.2.0/24"));
    let ask = || {
        let mut stream = TcpStream::connect(proxy.listeners()[0].address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        // A refused connection ends, or is reset.
        drop(stream.read_to_string(&mut answer));
        answer
    };
    assert_eq!(ask(), "");
    assert_eq!(refused(&proxy), 1);
    // The same socket serves other networks.
    assert!(proxy.apply(&with_source("127.0.0.0/8")).is_empty());
    let begun = clock::now();
    while ask() != "hello" {
        assert!(clock::now().saturating_since(begun) < PATIENCE, "the new networks never apply");
    }
}

#[test]
fn datagrams_of_other_sources_are_dropped_and_counted() {
    let endpoint = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = endpoint.local_addr().unwrap();
    let with_source = |network| snapshot(TransportProtocol::Udp, address, network);
    let proxy = start(&with_source("192.0.2.0/24"));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(proxy.listeners()[0].address).unwrap();
    let begun = clock::now();
    client.send(b"refused").unwrap();
    while refused(&proxy) == 0 {
        assert!(clock::now().saturating_since(begun) < PATIENCE, "the datagram is never counted");
        thread::yield_now();
    }
    assert!(proxy.apply(&with_source("127.0.0.0/8")).is_empty());
    endpoint.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = [0; 16];
    loop {
        client.send(b"admitted").unwrap();
        if let Ok(length) = endpoint.recv(&mut buffer) {
            assert_eq!(&buffer[..length], b"admitted");
            return;
        }
        assert!(clock::now().saturating_since(begun) < PATIENCE, "the new networks never apply");
    }
}
