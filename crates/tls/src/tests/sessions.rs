//! Sessions without sockets, with any read boundaries, and with arbitrary bytes.

use tokio::io::ReadBuf;

use super::*;

/// Pseudorandom numbers (splitmix64).
struct Rng(u64);

impl Rng {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[test]
fn failed_handshake_is_detected_across_any_read_boundaries() {
    let (ours, others) = (TestAuthority::new(), TestAuthority::new());
    let sites = sites(
        &mut ServerTlsConfigs::default(),
        vec![site("", &[&ours.certificate(&["a.example.com"])])],
    );
    let trust = others.trust("a.example.com", &[], None);
    let mut parts = 1;
    loop {
        let mut client = client_session(&trust);
        let mut server = TlsSession::server(config(&sites, "a.example.com")).unwrap();
        client.advance_handshake().unwrap();
        server.receive_ciphertext(&std::mem::take(&mut client.outgoing));
        server.advance_handshake().unwrap();
        let flight = std::mem::take(&mut server.outgoing);
        let result = flight.chunks(flight.len().div_ceil(parts)).find_map(|part| {
            client.receive_ciphertext(part);
            client.advance_handshake().err()
        });
        let error = result.expect("the client does not trust the authority");
        assert_eq!(EndpointTlsError::from(&error), EndpointTlsError::Certificate);
        assert!(!client.outgoing.is_empty(), "there is an alert");
        assert_eq!(client.advance_handshake(), Err(error.clone()));
        assert_eq!(
            (client.encrypt(b"x"), client.encrypt_close_notify()),
            (Err(error.clone()), Err(error))
        );
        if parts == flight.len() {
            break;
        }
        parts = (parts * 2).min(flight.len());
    }
}

#[test]
fn handshake_succeeds_across_any_read_boundaries() {
    let authority = TestAuthority::new();
    // The certificates take several records because of the number of names.
    let names: Vec<_> = (0..2000).map(|name| format!("{name}.example.com")).collect();
    let names: Vec<_> = ["a.example.com"].into_iter().chain(names.iter().map(|it| &**it)).collect();
    let (shown, client) = (authority.certificate(&names), authority.certificate(&names));
    let site = site_for("", &[&shown], Some(authority.clients(true)));
    let sites = sites(&mut ServerTlsConfigs::default(), vec![site]);
    let trust = authority.trust("a.example.com", &[], Some(&client));
    for size in [1, 3, 100, 4096, usize::MAX] {
        let mut client = client_session(&trust);
        let mut server = TlsSession::server(config(&sites, "a.example.com")).unwrap();
        let (mut sent, mut received) = (false, Vec::new());
        while received.len() < 40_000 {
            client.advance_handshake().unwrap();
            if !client.common_state().is_handshaking() && !std::mem::replace(&mut sent, true) {
                client.encrypt(&bytes(40_000)).unwrap();
            }
            for part in std::mem::take(&mut client.outgoing).chunks(size) {
                server.receive_ciphertext(part);
                let mut room = [0; 100];
                let mut space = ReadBuf::new(&mut room);
                server.decrypt(&mut space).unwrap();
                received.extend_from_slice(space.filled());
                while !server.plaintext.is_empty() {
                    space.clear();
                    server.plaintext.read(&mut space);
                    received.extend_from_slice(space.filled());
                }
            }
            for part in std::mem::take(&mut server.outgoing).chunks(size) {
                client.receive_ciphertext(part);
                client.advance_handshake().unwrap();
            }
        }
        assert!(received == bytes(40_000), "{size}");
    }
}

/// Arbitrary bytes from a peer cause an error at worst.
#[test]
fn arbitrary_bytes_never_panic_a_session() {
    let authority = TestAuthority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let site = site_for("", &[&certificate], Some(authority.clients(false)));
    let sites = sites(&mut ServerTlsConfigs::default(), vec![site]);
    let trust = authority.trust("a.example.com", &[], Some(&certificate));
    for seed in 0..500 {
        let mut rng = Rng(seed);
        let mut client = client_session(&trust);
        let mut server = TlsSession::server(config(&sites, "a.example.com")).unwrap();
        for _ in 0..4 {
            drop(client.advance_handshake());
            drop(client.encrypt(&bytes(100)));
            pass_on(&mut rng, &mut client, &mut server);
            drop(server.advance_handshake());
            drop(server.encrypt(&bytes(100)));
            pass_on(&mut rng, &mut server, &mut client);
        }
        drop((client.encrypt_close_notify(), server.encrypt_close_notify()));
    }
}

/// Passes on the output of a session in pieces, sometimes with a changed bit.
fn pass_on(rng: &mut Rng, from: &mut TlsSession, to: &mut TlsSession) {
    let mut output = std::mem::take(&mut from.outgoing);
    let at = |rng: &mut Rng, below: usize| (rng.next_u64() % below as u64) as usize;
    if !output.is_empty() && at(rng, 4) == 0 {
        let place = at(rng, output.len());
        output[place] ^= 1 << at(rng, 8);
    }
    for part in output.chunks(1 + at(rng, 2000)) {
        to.receive_ciphertext(part);
        drop(to.advance_handshake());
    }
}

#[test]
fn client_hello_is_parsed_only_when_complete() {
    let authority = TestAuthority::new();
    let mut client = client_session(&authority.trust("a.example.com", &[], None));
    client.advance_handshake().unwrap();
    let output = client.outgoing;
    for part in 0..output.len() {
        assert_eq!(
            ClientHelloParse::parse(&output[..part]),
            ClientHelloParse::Incomplete,
            "{part}"
        );
    }
    assert_eq!(
        ClientHelloParse::parse(&output),
        ClientHelloParse::Complete(Some(OwnedHostName::new(b"a.example.com")))
    );
    assert_eq!(ClientHelloParse::parse(b"GET / HTTP/1.1\r\n"), ClientHelloParse::PlainHttp);
    assert!(matches!(
        ClientHelloParse::parse(b"\x16\x03\x01\x00\x04\x02\0\0\0"),
        ClientHelloParse::Invalid(..)
    ));
    assert!(matches!(
        ClientHelloParse::parse(b"\x00\x01\x02\x00\x01\x00"),
        ClientHelloParse::Invalid(..)
    ));
}

/// Some clients send a trailing dot, though RFC 6066 §3 forbids it.
#[test]
fn server_name_is_normalized() {
    let authority = TestAuthority::new();
    let (sent, asked) = (b"a.example.comx", b"A.Example.Com.");
    let mut client = client_session(&authority.trust("a.example.comx", &[], None));
    client.advance_handshake().unwrap();
    let mut output = client.outgoing;
    let place = output.windows(sent.len()).position(|window| window == sent).unwrap();
    output[place..place + sent.len()].copy_from_slice(asked);
    let normal = Some(OwnedHostName::new(b"a.example.com"));
    assert_eq!(ClientHelloParse::parse(&output), ClientHelloParse::Complete(normal.clone()));
    // QUIC carries the same message without its record.
    assert_eq!(ClientHelloParse::parse_message(&output[5..]), ClientHelloParse::Complete(normal));
}
