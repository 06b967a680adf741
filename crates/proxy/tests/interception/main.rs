//! Intercepted connections (transparent mode), with real sockets and an interceptor that is simulated.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

/// The proxy with its interceptor, and simple endpoints.
mod fixture;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use fixture::{
    GREETING, HttpEndpoint, NodeFixture, ONE, OTHER, OWN_MARK, PATIENCE, SERVICE, ServiceProtocol,
    ask, capped, connect, eventually, http2_endpoint, namespaces, read_answer,
};
use gateway::snapshot::{BackendSettings, EndpointSpec};

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: app\r\n\r\n";

/// Returns the first line of an answer: the endpoint's name, the number and the port of the connection.
fn connection_of(answer: &str) -> (String, u32, u16) {
    let mut words = answer.lines().next().unwrap().split(' ');
    let name = words.next().unwrap().to_owned();
    (name, words.next().unwrap().parse().unwrap(), words.next().unwrap().parse().unwrap())
}

/// Sends these bytes, and checks that the echo endpoint gets them.
fn check_forwarded(fixture: &NodeFixture, bytes: &[u8]) {
    let mut stream = fixture.connect(ONE);
    stream.write_all(bytes).unwrap();
    let mut expected = GREETING.to_vec();
    expected.extend_from_slice(bytes);
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, expected);
}

#[test]
fn a_request_reaches_the_endpoint_as_it_was_sent() {
    let fixture = NodeFixture::new();
    let sent = "GET //a/../%62?c=1 HTTP/1.1\r\nHost: app.default:8080\r\nX-Forwarded-For: 1.1.1.1\r\n\
        user_id: 7\r\nX-Real-IP: 2.2.2.2\r\nForwarded: for=3.3.3.3\r\nVia: 1.0 before\r\n\r\n";
    let answer = ask(&mut fixture.connect(ONE), sent);
    assert_eq!(answer.split_once('\n').unwrap().1, sent);
    assert_eq!(fixture.count("sheave_detected_protocols", "http1"), 1);
}

#[test]
fn address_of_the_client_is_appended_if_the_service_asks_for_it() {
    let mut fixture = NodeFixture::new();
    fixture.appends_forwarded_for = true;
    fixture.apply(ServiceProtocol::Detected);
    let mut client = fixture.connect(ONE);
    let answer = ask(&mut client, "GET / HTTP/1.1\r\nHost: app\r\n\r\n");
    let sent = format!("GET / HTTP/1.1\r\nHost: app\r\nX-Forwarded-For: {ONE}\r\n\r\n");
    assert_eq!(answer.split_once('\n').unwrap().1, sent, "and nothing else");
    let head =
        "GET / HTTP/1.1\r\nHost: app\r\nX-Forwarded-For: 1.1.1.1\r\nX-Real-IP: 2.2.2.2\r\n\r\n";
    let answer = ask(&mut client, head);
    assert!(answer.contains(&format!("X-Forwarded-For: 1.1.1.1, {ONE}\r\n")), "{answer}");
    assert!(answer.contains("X-Real-IP: 2.2.2.2\r\n"), "{answer}");
}

/// Sends two requests on one connection over HTTP/2, and returns their statuses.
fn ask_over_http2(fixture: &NodeFixture) -> Vec<u16> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = fixture.connect(ONE);
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(connection);
        let mut statuses = Vec::new();
        for _ in 0..2 {
            let request = http::Request::get("http://app/").body(()).unwrap();
            let mut requests = requests.clone().ready().await.unwrap();
            let (response, _) = requests.send_request(request, true).unwrap();
            statuses.push(response.await.unwrap().status().as_u16());
        }
        driver.abort();
        statuses
    })
}

#[test]
fn requests_are_routed_one_by_one_over_http2_too() {
    let fixture = NodeFixture::new();
    assert_eq!(ask_over_http2(&fixture), [200, 200]);
    assert_eq!(fixture.count("sheave_detected_protocols", "http2"), 1);
}

#[test]
fn endpoint_gets_the_protocol_of_its_client() {
    let settings = BackendSettings { protocol_is_assumed: true, ..BackendSettings::default() };
    let mut fixture = NodeFixture::with(settings, true);
    let answer = ask(&mut fixture.connect(ONE), REQUEST);
    assert!(answer.contains("GET / HTTP/1.1"), "{answer}");
    fixture.requests.address = http2_endpoint();
    fixture.apply(ServiceProtocol::Detected);
    assert_eq!(ask_over_http2(&fixture), [200, 200]);
}

#[test]
fn other_protocols_are_forwarded_with_their_first_bytes() {
    let fixture = NodeFixture::new();
    check_forwarded(&fixture, b"\x16\x03\x01\x00\x05hello");
    check_forwarded(&fixture, b"EHLO client\r\n");
    check_forwarded(&fixture, b"GET /key\r\n");
    assert_eq!(fixture.count("sheave_detected_protocols", "tls"), 1);
    assert_eq!(fixture.count("sheave_detected_protocols", "other"), 2);
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let fixture = NodeFixture::new();
    let mut stream = fixture.connect(ONE);
    let mut greeting = vec![0; GREETING.len()];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(greeting, GREETING);
    stream.write_all(b"GET").unwrap();
    let mut echo = [0; 3];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"GET");
    assert_eq!(fixture.count("sheave_detected_protocols", "server_first"), 1);
}

#[test]
fn requests_of_a_client_that_was_silent_are_routed_one_by_one() {
    let fixture = NodeFixture::new();
    // The endpoint for other connections does not speak either.
    fixture.apply(ServiceProtocol::SilentConnections);
    let mut stream = fixture.connect(ONE);
    eventually("the client is connected to an endpoint", || fixture.consumer.connections() == 1);
    assert_eq!(connection_of(&ask(&mut stream, REQUEST)).0, "default");
    assert_eq!(connection_of(&ask(&mut stream, REQUEST)).0, "default");
    assert_eq!(fixture.count("sheave_detected_protocols", "http1"), 1);
}

#[test]
fn bytes_that_trickle_are_detected() {
    let fixture = NodeFixture::new();
    let mut stream = fixture.connect(ONE);
    stream.set_nodelay(true).unwrap();
    for byte in REQUEST.as_bytes() {
        stream.write_all(&[*byte]).unwrap();
        thread::yield_now();
    }
    assert_eq!(connection_of(&read_answer(&mut stream)).0, "default");
}

#[test]
fn a_start_that_is_not_complete_in_time_is_forwarded() {
    let fixture = NodeFixture::new();
    check_forwarded(&fixture, b"GE");
    assert_eq!(fixture.count("sheave_detected_protocols", "slow"), 1);
}

#[test]
fn the_protocol_is_not_detected_again_on_another_worker() {
    let fixture = NodeFixture::new();
    fixture.apply(ServiceProtocol::SilentConnections);
    // Each second connection is on the same worker. Only these are busy, so one of them moves.
    let mut clients = [(); 4].map(|()| {
        let mut client = fixture.connect(ONE);
        ask(&mut client, REQUEST);
        client
    });
    eventually("a connection moves", || {
        ask(&mut clients[0], REQUEST);
        ask(&mut clients[2], REQUEST);
        fixture.count("sheave_worker_connections_moved", "") > 0
    });
    for client in &mut clients {
        ask(client, REQUEST);
    }
    assert_eq!(fixture.count("sheave_detected_protocols", ""), 4);
    assert_eq!(fixture.consumer.connections(), 0, "no client counts as silent");
}

#[test]
fn malformed_http_is_answered_in_http() {
    let fixture = NodeFixture::new();
    let mut stream = fixture.connect(ONE);
    stream.write_all(b"GET / HTTP/1.1\r\nno field\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

/// True if the peer has reset the connection.
fn is_reset(stream: &mut TcpStream) -> bool {
    let result = stream.write_all(REQUEST.as_bytes()).and_then(|()| stream.read(&mut [0; 1]));
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

#[test]
fn a_connection_to_an_unknown_address_is_reset() {
    let fixture = NodeFixture::new();
    assert!(is_reset(&mut connect(ONE, fixture.unknown).unwrap()));
    let counts = fixture.proxy.interception_counts();
    assert_eq!((counts.accepted, counts.unknown), (1, 1));
    // The other Service is not affected.
    ask(&mut fixture.connect(ONE), REQUEST);
    let counts = fixture.proxy.interception_counts();
    assert_eq!((counts.accepted, counts.unknown), (2, 1));
    let before = counts.worker_ticks;
    eventually("all workers tick", || {
        let ticks = fixture.proxy.interception_counts().worker_ticks;
        ticks.len() == 2 && ticks.iter().zip(&before).all(|(now, before)| now > before)
    });
}

/// Checks that each of two clients has connections of its own, in turn, and that their marks are given back.
fn check_clients_are_kept_apart(settings: BackendSettings) {
    let fixture = NodeFixture::with(settings, true);
    // With the second client, the connection of the first one is older than the other.
    let mut clients = [fixture.connect(ONE), fixture.connect(OTHER)];
    let mut seen = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        for (client, seen) in clients.iter_mut().zip(&mut seen) {
            seen.push(connection_of(&ask(client, REQUEST)).1);
        }
    }
    assert!(seen[0].iter().all(|number| !seen[1].contains(number)), "{seen:?}");
    // Two workers may have opened a connection each.
    assert!(fixture.requests.connections() <= 4, "{seen:?}");
    assert_eq!(fixture.interceptor.marks_in_use(), 2);
    drop(clients);
    let key = fixture.proxy.backend_keys().remove(0);
    assert!(fixture.proxy.set_endpoints(&key, &[]));
    eventually("no mark is in use", || fixture.interceptor.marks_in_use() == 0);
}

#[test]
fn connections_are_not_shared_by_clients() {
    check_clients_are_kept_apart(BackendSettings::default());
}

#[test]
fn connections_of_slots_are_not_shared_by_clients() {
    check_clients_are_kept_apart(capped(2));
}

#[test]
fn a_single_slot_has_one_connection_at_a_time() {
    let fixture = NodeFixture::with(capped(1), true);
    let mut clients = [fixture.connect(ONE), fixture.connect(OTHER)];
    for turn in 0..3 {
        for (index, client) in clients.iter_mut().enumerate() {
            let (_, number, _) = connection_of(&ask(client, REQUEST));
            assert_eq!(number, 2 * turn + u32::try_from(index).unwrap(), "a new one for each");
        }
    }
}

#[test]
fn without_a_mark_connections_come_from_the_node_and_are_shared() {
    let fixture = NodeFixture::with(capped(1), false);
    for client in [ONE, OTHER] {
        assert_eq!(connection_of(&ask(&mut fixture.connect(client), REQUEST)).1, 0);
    }
    assert_eq!(fixture.count("sheave_client_marks_unavailable", ""), 2);
}

#[test]
fn an_endpoint_that_is_the_client_is_reached_from_the_node() {
    let fixture = NodeFixture::with(capped(1), true);
    let local = match fixture.requests.address.ip() {
        std::net::IpAddr::V4(address) => address,
        std::net::IpAddr::V6(_) => unreachable!("the endpoint has an IPv4 address"),
    };
    let (_, _, port) = connection_of(&ask(&mut fixture.connect(local), REQUEST));
    assert!(mark_of(port).is_none_or(|mark| mark == OWN_MARK));
}

#[test]
fn endpoint_with_two_addresses_is_reached_at_that_of_the_clients_ip_version() {
    for (has_marks, expected) in [(true, "default"), (false, "ipv6")] {
        let fixture = NodeFixture::with(capped(1), has_marks);
        let ipv6 = HttpEndpoint::start_at("ipv6", Ipv6Addr::LOCALHOST.into());
        let both = EndpointSpec {
            other_address: Some(fixture.requests.address),
            ..EndpointSpec::new(ipv6.address)
        };
        let key = fixture.proxy.backend_keys().remove(0);
        assert!(fixture.proxy.set_endpoints(&key, &[both]));
        let answer = ask(&mut fixture.connect(ONE), REQUEST);
        assert_eq!(connection_of(&answer).0, expected, "the client has an IPv4 address");
    }
}

#[test]
fn endpoint_that_listens_on_one_ip_version_serves_clients_of_both() {
    let fixture = NodeFixture::with(capped(1), true);
    let ipv6 = HttpEndpoint::start_at("ipv6", Ipv6Addr::LOCALHOST.into());
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let both = EndpointSpec { other_address: Some(closed), ..EndpointSpec::new(ipv6.address) };
    let key = fixture.proxy.backend_keys().remove(0);
    assert!(fixture.proxy.set_endpoints(&key, &[both]));
    for client in [ONE, OTHER, ONE] {
        let (name, _, port) = connection_of(&ask(&mut fixture.connect(client), REQUEST));
        assert_eq!(name, "ipv6");
        assert!(mark_of(port).is_none_or(|mark| mark == OWN_MARK));
    }
}

#[test]
fn after_the_stop_open_connections_go_on_and_new_ones_are_refused() {
    let fixture = NodeFixture::new();
    let mut open = fixture.connect(ONE);
    ask(&mut open, REQUEST);
    fixture.proxy.stop_intercepted();
    eventually("the socket is closed", || {
        // A connection that is accepted meanwhile is served.
        connect(ONE, fixture.intercepted).is_err()
    });
    ask(&mut open, REQUEST);
    drop(open);
    assert!(fixture.proxy.drain(PATIENCE));
}

#[test]
fn removal_of_the_service_closes_idle_connections() {
    let fixture = NodeFixture::new();
    let mut stream = fixture.connect(ONE);
    ask(&mut stream, REQUEST);
    let mut forwarded = fixture.connect(ONE);
    forwarded.write_all(b"\0").unwrap();
    let mut echo = vec![0; GREETING.len() + 1];
    forwarded.read_exact(&mut echo).unwrap();
    fixture.apply(ServiceProtocol::Removed);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    // A connection that is forwarded goes on.
    forwarded.write_all(b"\0").unwrap();
    forwarded.read_exact(&mut [0; 1]).unwrap();
    assert!(is_reset(&mut fixture.connect(ONE)));
    // The Service returns, at the index that has become free.
    fixture.apply(ServiceProtocol::Http);
    ask(&mut fixture.connect(ONE), REQUEST);
    assert_eq!(fixture.proxy.listeners()[0].address, SERVICE);
}

#[test]
fn clients_of_a_namespace_use_its_routes() {
    let fixture = NodeFixture::new();
    let (mut one, mut other) = (fixture.connect(ONE), fixture.connect(OTHER));
    assert_eq!(connection_of(&ask(&mut one, REQUEST)).0, "default");
    fixture.proxy.set_client_namespaces(namespaces(&[(ONE, "consumer"), (OTHER, "elsewhere")]));
    assert_eq!(connection_of(&ask(&mut one, REQUEST)).0, "consumer");
    assert_eq!(connection_of(&ask(&mut other, REQUEST)).0, "default");
    fixture.proxy.set_client_namespaces(namespaces(&[]));
    assert_eq!(connection_of(&ask(&mut one, REQUEST)).0, "default");
}

#[test]
fn connections_to_endpoints_have_the_mark_of_their_client() {
    let fixture = NodeFixture::new();
    // One after the other: marks are given in this order. The clients stay, and so do their marks.
    let clients = [ONE, OTHER].map(|address| {
        let mut client = fixture.connect(address);
        let (_, _, port) = connection_of(&ask(&mut client, REQUEST));
        (client, port)
    });
    let marks = clients.each_ref().map(|(_, port)| mark_of(*port));
    if marks.contains(&None) {
        eprintln!("skipped: marks of sockets cannot be read without root and `ss`");
        return;
    }
    assert_eq!(marks, [Some(OWN_MARK + 1), Some(OWN_MARK + 2)]);
}

/// Returns the mark of the socket with this local port, as the kernel knows it; `None` if it cannot be read.
fn mark_of(port: u16) -> Option<u32> {
    let filter = format!("sport = :{port}");
    let output = Command::new("ss").args(["-Htne", &filter]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (_, mark) = text.split_once("fwmark:0x")?;
    let digits: String = mark.chars().take_while(char::is_ascii_hexdigit).collect();
    u32::from_str_radix(&digits, 16).ok()
}
