//! Connections of `quinn` clients.

use quinn::{ConnectionError, VarInt};

use super::*;

/// Sends `bytes` on one stream and returns the response.
async fn ask(connection: &quinn::Connection, body: &[u8]) -> Vec<u8> {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let write = async {
        send.write_all(body).await.unwrap();
        send.finish().unwrap();
    };
    let (_, answer) = tokio::join!(write, recv.read_to_end(usize::MAX));
    answer.unwrap()
}

#[test]
fn stream_data_is_echoed() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        assert_eq!(ask(&connection, b"hello").await, b"hello");
        assert_eq!(fixture.handshakes("full"), 1);
        assert_eq!(fixture.bound.open(), 1);
    });
}

#[test]
fn dual_stack_address_accepts_ipv4_and_ipv6() {
    run(async {
        let address = free_address("[::]:0");
        let (client, identity) = (ClientSettings::default(), Identity::new("a.example.com", 0));
        let fixture = QuicFixture::at(address, 2, client, identity, bind);
        for (from, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
            let client = fixture.client_at(from);
            let to = SocketAddr::new(to.parse().unwrap(), address.port());
            let connection = client.connect(to, "a.example.com").unwrap().await.unwrap();
            assert_eq!(ask(&connection, b"hello").await, b"hello");
        }
    });
}

#[test]
fn bodies_larger_than_the_flow_control_window_pass_both_ways() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        let body = bytes(12 * 1024 * 1024);
        assert!(ask(&connection, &body).await == body);
    });
}

#[test]
fn many_concurrent_streams_are_served() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        let asked = (0..500u32).map(|number| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let body = number.to_be_bytes();
                assert_eq!(ask(&connection, &body).await, body);
            })
        });
        for asked in asked.collect::<Vec<_>>() {
            asked.await.unwrap();
        }
    });
}

#[test]
fn returning_client_resumes_its_session() {
    run(async {
        let fixture = QuicFixture::new(1);
        let client = fixture.client();
        for _ in 0..2 {
            let connection = client.connect(fixture.address, "a.example.com").unwrap();
            let connection = connection.await.unwrap();
            // When a response arrives, the session tickets have arrived too.
            ask(&connection, b"hello").await;
        }
        assert_eq!((fixture.handshakes("full"), fixture.handshakes("resumed")), (1, 1));
    });
}

#[test]
fn connection_survives_client_migration() {
    run(async {
        let fixture = QuicFixture::new(2);
        let (client, connection) = fixture.connect().await;
        for _ in 0..20 {
            client.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            assert_eq!(ask(&connection, b"still here").await, b"still here");
        }
        // The kernel knows the worker of the connection.
        assert_eq!(fixture.count(|quic| quic.handed_over.value()), 0);
    });
}

#[test]
fn workers_hand_over_misrouted_datagrams() {
    run(async {
        let (client, identity) = (ClientSettings::default(), Identity::new("a.example.com", 0));
        let fixture = QuicFixture::with(2, client, identity, bind_without_steering);
        let (client, connection) = fixture.connect().await;
        for _ in 0..40 {
            client.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            assert_eq!(ask(&connection, b"still here").await, b"still here");
        }
        assert!(fixture.count(|quic| quic.handed_over.value()) > 0);
        assert_eq!(fixture.count(|quic| quic.connections.value()), 1);
    });
}

#[test]
fn closed_connection_carries_an_error_code() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        send.write_all(b"!").await.unwrap();
        let ConnectionError::ApplicationClosed(closed) = connection.closed().await else {
            panic!("not closed by the server");
        };
        assert_eq!(closed.error_code, VarInt::from_u64(GOODBYE).unwrap());
        assert_eq!(&*closed.reason, b"as you wish");
    });
}

#[test]
fn dropped_stream_sends_stop_sending() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(b"hello").await.unwrap();
        // The server stops the stream, as it cannot echo any more.
        recv.stop(VarInt::from_u32(7)).unwrap();
        assert_eq!(send.stopped().await.unwrap(), Some(VarInt::from_u32(0x100)));
    });
}

#[test]
fn unknown_server_name_is_refused() {
    run(async {
        let fixture = QuicFixture::new(1);
        let client = fixture.client();
        let refused = client.connect(fixture.address, "b.example.com").unwrap().await;
        let Err(ConnectionError::ConnectionClosed(closed)) = refused else {
            panic!("not refused: {refused:?}");
        };
        assert_eq!(u64::from(closed.error_code), 0x100 + 112);
        assert_eq!(fixture.handshakes("unknown_name"), 1);
        assert_eq!(fixture.bound.open(), 0);
    });
}

#[test]
fn unknown_alpn_protocol_is_refused() {
    run(async {
        let fixture = QuicFixture::new(1);
        let config = QuicClientConfig::try_from(fixture.identity.client_config(b"doq")).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(config));
        let client = fixture.client();
        let refused = client.connect_with(config, fixture.address, "a.example.com").unwrap().await;
        assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "{refused:?}");
        assert_eq!(fixture.handshakes("no_common_parameters"), 1);
    });
}

#[test]
fn listener_enforces_its_connection_limit() {
    run(async {
        let settings = ClientSettings { max_connections: 1, ..ClientSettings::default() };
        let identity = Identity::new("a.example.com", 0);
        let fixture = QuicFixture::with(1, settings, identity, bind);
        let (_client, first) = fixture.connect().await;
        let client = fixture.client();
        let refused = client.connect(fixture.address, "a.example.com").unwrap().await;
        assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "{refused:?}");
        assert_eq!(ask(&first, b"hello").await, b"hello");
        assert_eq!(fixture.bound.counters[0].refused.value(), 1);
    });
}

#[test]
fn worker_exit_closes_client_connections() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        assert_eq!(ask(&connection, b"hello").await, b"hello");
        drop(fixture);
        let closed = connection.closed().await;
        assert!(matches!(closed, ConnectionError::ApplicationClosed(_)), "{closed:?}");
    });
}

#[test]
fn removed_listener_refuses_new_connections_and_can_be_restored() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        drop(fixture.workers[0].send(TestCommand::Unlisten));
        // Processed after the command above, as it passes through the same worker.
        assert_eq!(ask(&connection, b"still here").await, b"still here");
        let client = fixture.client();
        let refused = client.connect(fixture.address, "a.example.com").unwrap().await;
        assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "{refused:?}");
        fixture.listen();
        // This request is served too.
        assert_eq!(ask(&connection, b"still here").await, b"still here");
        let again = client.connect(fixture.address, "a.example.com").unwrap().await.unwrap();
        assert_eq!(ask(&again, b"hello").await, b"hello");
    });
}
