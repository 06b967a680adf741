//! Sessions without sockets, however their bytes come, and whatever bytes come.

use balance::Rng;
use tokio::io::ReadBuf;

use super::*;

#[test]
fn failed_handshake_is_detected_across_any_read_boundaries() {
    let (ours, others) = (Authority::new(), Authority::new());
    let sites =
        sites(&mut Servers::new(), vec![site("", &[&ours.certificate(&["a.example.com"])])]);
    let trust = others.trust("a.example.com", &[], None);
    let mut parts = 1;
    loop {
        let mut client = client_session(&trust);
        let mut server = Session::server(config(&sites, "a.example.com")).unwrap();
        client.shake().unwrap();
        server.hear(&std::mem::take(&mut client.outgoing));
        server.shake().unwrap();
        let flight = std::mem::take(&mut server.outgoing);
        let heard = flight.chunks(flight.len().div_ceil(parts)).find_map(|part| {
            client.hear(part);
            client.shake().err()
        });
        let error = heard.expect("nobody vouches for it");
        assert_eq!(Untrusted::from(&error), Untrusted::Certificate);
        assert!(!client.outgoing.is_empty(), "there is an alert");
        assert_eq!(client.shake(), Err(error.clone()));
        assert_eq!((client.seal(b"x"), client.seal_end()), (Err(error.clone()), Err(error)));
        if parts == flight.len() {
            break;
        }
        parts = (parts * 2).min(flight.len());
    }
}

#[test]
fn handshake_succeeds_across_any_read_boundaries() {
    let authority = Authority::new();
    // So many names that the certificates take several records.
    let names: Vec<_> = (0..2000).map(|name| format!("{name}.example.com")).collect();
    let names: Vec<_> = ["a.example.com"].into_iter().chain(names.iter().map(|it| &**it)).collect();
    let (shown, client) = (authority.certificate(&names), authority.certificate(&names));
    let site = site_for("", &[&shown], Some(authority.clients(true)));
    let sites = sites(&mut Servers::new(), vec![site]);
    let trust = authority.trust("a.example.com", &[], Some(&client));
    for size in [1, 3, 100, 4096, usize::MAX] {
        let mut client = client_session(&trust);
        let mut server = Session::server(config(&sites, "a.example.com")).unwrap();
        let (mut sent, mut received) = (false, Vec::new());
        while received.len() < 40_000 {
            client.shake().unwrap();
            if !client.settled().is_handshaking() && !std::mem::replace(&mut sent, true) {
                client.seal(&bytes(40_000)).unwrap();
            }
            for part in std::mem::take(&mut client.outgoing).chunks(size) {
                server.hear(part);
                let mut room = [0; 100];
                let mut space = ReadBuf::new(&mut room);
                server.open(&mut space).unwrap();
                received.extend_from_slice(space.filled());
                while !server.plain.is_empty() {
                    space.clear();
                    server.plain.read(&mut space);
                    received.extend_from_slice(space.filled());
                }
            }
            for part in std::mem::take(&mut server.outgoing).chunks(size) {
                client.hear(part);
                client.shake().unwrap();
            }
        }
        assert!(received == bytes(40_000), "{size}");
    }
}

/// Whatever a peer sends: an error is the worst that comes of it.
#[test]
fn arbitrary_bytes_never_panic_a_session() {
    let authority = Authority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let site = site_for("", &[&certificate], Some(authority.clients(false)));
    let sites = sites(&mut Servers::new(), vec![site]);
    let trust = authority.trust("a.example.com", &[], Some(&certificate));
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut client = client_session(&trust);
        let mut server = Session::server(config(&sites, "a.example.com")).unwrap();
        for _ in 0..4 {
            drop(client.shake());
            drop(client.seal(&bytes(100)));
            pass_on(&mut rng, &mut client, &mut server);
            drop(server.shake());
            drop(server.seal(&bytes(100)));
            pass_on(&mut rng, &mut server, &mut client);
        }
        drop((client.seal_end(), server.seal_end()));
    }
}

/// What one has to say, in pieces, now and then with a byte changed.
fn pass_on(rng: &mut Rng, from: &mut Session, to: &mut Session) {
    let mut said = std::mem::take(&mut from.outgoing);
    let at = |rng: &mut Rng, below: usize| (rng.next_u64() % below as u64) as usize;
    if !said.is_empty() && at(rng, 4) == 0 {
        let place = at(rng, said.len());
        said[place] ^= 1 << at(rng, 8);
    }
    for part in said.chunks(1 + at(rng, 2000)) {
        to.hear(part);
        drop(to.shake());
    }
}

#[test]
fn client_hello_is_parsed_only_when_complete() {
    let authority = Authority::new();
    let mut client = client_session(&authority.trust("a.example.com", &[], None));
    client.shake().unwrap();
    let said = client.outgoing;
    for part in 0..said.len() {
        assert_eq!(Hello::parse(&said[..part]), Hello::Unfinished, "{part}");
    }
    assert_eq!(Hello::parse(&said), Hello::Greets(Some(OwnedHostName::new(b"a.example.com"))));
    assert_eq!(Hello::parse(b"GET / HTTP/1.1\r\n"), Hello::PlainHttp);
    assert!(matches!(Hello::parse(b"\x16\x03\x01\x00\x04\x02\0\0\0"), Hello::Bad(..)));
    assert!(matches!(Hello::parse(b"\x00\x01\x02\x00\x01\x00"), Hello::Bad(..)));
}

/// As some clients write it, though RFC 6066 §3 has no dot at the end of a name.
#[test]
fn server_name_is_normalized() {
    let authority = Authority::new();
    let (sent, asked) = (b"a.example.comx", b"A.Example.Com.");
    let mut client = client_session(&authority.trust("a.example.comx", &[], None));
    client.shake().unwrap();
    let mut said = client.outgoing;
    let place = said.windows(sent.len()).position(|window| window == sent).unwrap();
    said[place..place + sent.len()].copy_from_slice(asked);
    let normal = Some(OwnedHostName::new(b"a.example.com"));
    assert_eq!(Hello::parse(&said), Hello::Greets(normal.clone()));
    // QUIC carries the same message without its record.
    assert_eq!(Hello::of_message(&said[5..]), Hello::Greets(normal));
}
