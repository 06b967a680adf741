//! Unsolicited traffic: garbage, floods, and clients with unvalidated addresses.

use std::net::UdpSocket;

use quinn_proto::{ClientConfig, Endpoint, EndpointConfig};

use super::*;

/// Time without a datagram after which a test assumes that none follows.
const SILENCE: Duration = Duration::from_millis(300);
/// Time limit for a response that has to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the first datagrams of `count` client handshakes.
fn first_datagrams(fixture: &QuicFixture, count: usize) -> Vec<Vec<u8>> {
    let config = fixture.identity.client_config(b"h3");
    let config = QuicClientConfig::try_from(config).unwrap();
    let config = ClientConfig::new(Arc::new(config));
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let first = |_| {
        let now = now();
        let connected = endpoint.connect(now, config.clone(), fixture.address, "a.example.com");
        let (_, mut connection) = connected.unwrap();
        let mut datagram = Vec::new();
        drop(connection.poll_transmit(now, 1, &mut datagram).unwrap());
        datagram
    };
    (0..count).map(first).collect()
}

/// Receives until no datagram arrives for `patience`, and after the first one for [`SILENCE`].
fn receive_until_silent(socket: &UdpSocket, patience: Duration) -> Vec<Vec<u8>> {
    socket.set_read_timeout(Some(patience)).unwrap();
    let (mut received, mut room) = (Vec::new(), [0; 65_536]);
    while let Ok(count) = socket.recv(&mut room) {
        received.push(room[..count].to_vec());
        socket.set_read_timeout(Some(SILENCE)).unwrap();
    }
    received
}

#[test]
fn garbage_datagrams_are_dropped_counted_and_harmless() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_client, connection) = fixture.connect().await;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let initial = first_datagrams(&fixture, 1).remove(0);
        let mut sent = 0;
        for length in [0, 1, 5, 6, 7, 20, 21, 40, 200, 1199] {
            socket.send_to(&initial[..length], fixture.address).unwrap();
            socket.send_to(&vec![0x55; length], fixture.address).unwrap();
            socket.send_to(&vec![0xff; length], fixture.address).unwrap();
            sent += 3;
        }
        // Datagrams that are sent later are processed later.
        for _ in 0..3 {
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            send.write_all(b"still here").await.unwrap();
            send.finish().unwrap();
            assert_eq!(recv.read_to_end(64).await.unwrap(), b"still here");
        }
        let dropped =
            fixture.count(|quic| quic.dropped[DatagramDropReason::Unknown as usize].value());
        assert!((sent - 3..=sent).contains(&dropped), "{dropped} of {sent}");
        assert_eq!(fixture.count(|quic| quic.connections.value()), 1);
    });
}

#[test]
fn unknown_version_gets_version_negotiation() {
    let fixture = QuicFixture::new(1);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut initial = first_datagrams(&fixture, 1).remove(0);
    initial[1..5].copy_from_slice(&[0x1a, 0x2a, 0x3a, 0x4a]);
    socket.send_to(&initial, fixture.address).unwrap();
    let received = receive_until_silent(&socket, PATIENCE);
    let [answer] = received.as_slice() else { panic!("{} answers", received.len()) };
    assert_eq!(answer[1..5], [0; 4]);
    assert!(answer.ends_with(&[0, 0, 0, 1]), "{answer:?}");
    // This is too short to get a response.
    socket.send_to(&initial[..1199], fixture.address).unwrap();
    assert!(receive_until_silent(&socket, SILENCE).is_empty());
}

#[test]
fn amplification_is_limited_to_three_times_before_address_validation() {
    let identity = Identity::new("a.example.com", 200);
    let fixture = QuicFixture::with(1, ClientSettings::default(), identity, bind);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let initial = first_datagrams(&fixture, 1).remove(0);
    socket.send_to(&initial, fixture.address).unwrap();
    let received: usize = receive_until_silent(&socket, PATIENCE).iter().map(Vec::len).sum();
    assert!(received > initial.len(), "{received} bytes");
    assert!(received <= 3 * initial.len(), "{received} bytes for {}", initial.len());
}

#[test]
fn amplification_limit_is_not_exceeded_by_part_of_a_datagram() {
    let identity = Identity::new("a.example.com", 200);
    let fixture = QuicFixture::with(1, ClientSettings::default(), identity, bind);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut initial = first_datagrams(&fixture, 1).remove(0);
    // Room for three datagrams of 1,200 bytes, and for some of a fourth.
    initial.resize(1300, 0);
    socket.send_to(&initial, fixture.address).unwrap();
    let received: usize = receive_until_silent(&socket, PATIENCE).iter().map(Vec::len).sum();
    assert!((2 * initial.len()..=3 * initial.len()).contains(&received), "{received} bytes");
}

#[test]
fn flood_triggers_address_validation_by_retry() {
    run(async {
        let fixture = QuicFixture::new(1);
        let (_before, connection) = fixture.connect().await;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (number, datagram) in first_datagrams(&fixture, 400).iter().enumerate() {
            socket.send_to(datagram, fixture.address).unwrap();
            // Do not exceed the socket's receive buffer.
            if number % 50 == 0 {
                let (mut send, mut recv) = connection.open_bi().await.unwrap();
                send.write_all(b"hello").await.unwrap();
                send.finish().unwrap();
                assert_eq!(recv.read_to_end(64).await.unwrap(), b"hello");
            }
        }
        let (_client, after) = fixture.connect().await;
        assert!(after.close_reason().is_none());
        assert!(fixture.count(|quic| quic.retries.value()) > 0);
    });
}
