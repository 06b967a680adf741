//! Sessions with ourselves: who is let in, what is shown, what is resumed, and that bytes arrive as they were sent.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use gateway::matching::HostPattern;
use gateway::snapshot::{
    BackendSettings, Carried, Certificate, ClientCertificates, EndpointProtocol, EndpointTls,
    ListenerTls, PrivateKey, Roots, SubjectName, TlsSite, TlsTerms,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::{Error, HandshakeKind, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// An authority of a test.
struct Authority {
    der: Box<[u8]>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = (**params.self_signed(&key).unwrap().der()).into();
        Self { der, issuer: Issuer::new(params, key) }
    }

    fn certificate(&self, names: &[&str]) -> Arc<Certificate> {
        self.certificate_of(KeyPair::generate().unwrap(), names)
    }

    fn certificate_of(&self, key: KeyPair, names: &[&str]) -> Arc<Certificate> {
        let name = |name: &&str| match name.split_once("://") {
            Some(_) => SanType::URI((*name).try_into().unwrap()),
            None => SanType::DnsName((*name).try_into().unwrap()),
        };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names.iter().map(name).collect();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Arc::new(Certificate {
            name: names.join(" ").into(),
            chain: vec![(**signed.der()).into()],
            key: PrivateKey::Pkcs8(key.serialize_der().into()),
        })
    }

    fn clients(&self, required: bool) -> ClientCertificates {
        ClientCertificates { roots: vec![self.der.clone()], required }
    }

    /// What we ask of endpoints, and show them.
    fn trust(
        &self,
        name: &str,
        names: &[SubjectName],
        client: Option<&Arc<Certificate>>,
    ) -> Arc<Trust> {
        let settings = BackendSettings {
            tls: Some(Arc::new(EndpointTls {
                server_name: name.into(),
                subject_names: names.to_vec(),
                roots: Roots::Given(vec![self.der.clone()]),
                client: client.cloned(),
            })),
            ..BackendSettings::default()
        };
        Trusts::new().of(&settings, None).unwrap()
    }
}

fn site(hosts: &str, certificates: &[&Arc<Certificate>]) -> TlsSite {
    site_for(hosts, certificates, None)
}

fn site_for(
    hosts: &str,
    certificates: &[&Arc<Certificate>],
    clients: Option<ClientCertificates>,
) -> TlsSite {
    let certificates = certificates.iter().map(|it| Arc::clone(it)).collect();
    TlsSite {
        hosts: if hosts.is_empty() { HostPattern::Any } else { HostPattern::parse(hosts).unwrap() },
        terminate: Some(Arc::new(TlsTerms { certificates, clients })),
        carries: Carried::Requests,
    }
}

fn sites(servers: &mut Servers, sites: Vec<TlsSite>) -> Arc<Sites> {
    let tls = ListenerTls { sites };
    servers.sites([Some(&tls)].into_iter()).remove(0).unwrap()
}

fn config(sites: &Sites, name: &str) -> Arc<ServerConfig> {
    match &sites.find(Some(name)).unwrap().treatment {
        Treatment::Decrypt(config) => Arc::clone(config),
        Treatment::PassThrough | Treatment::Refuse => panic!("{name} is not decrypted"),
    }
}

fn client_session(trust: &Arc<Trust>) -> Session {
    let Security::Tls(secret) = Security::of_requests(Some(trust)) else { panic!("unusable") };
    Session::client(Arc::clone(&secret.config), secret.name.clone()).unwrap()
}

/// What both say of the handshake.
fn shake(client: &mut Session, server: &mut Session) -> (Result<(), Error>, Result<(), Error>) {
    let (mut of_client, mut of_server) = (Ok(()), Ok(()));
    for _ in 0..8 {
        of_client = of_client.and_then(|()| client.shake());
        server.hear(&std::mem::take(&mut client.outgoing));
        of_server = of_server.and_then(|()| server.shake());
        client.hear(&std::mem::take(&mut server.outgoing));
    }
    (of_client, of_server)
}

/// A whole handshake between two who want it.
fn meet(trust: &Arc<Trust>, config: Arc<ServerConfig>) -> (Session, Session) {
    let (mut client, mut server) = (client_session(trust), Session::server(config).unwrap());
    assert_eq!(shake(&mut client, &mut server), (Ok(()), Ok(())));
    assert!(!client.settled().is_handshaking() && !server.settled().is_handshaking());
    (client, server)
}

fn shown(client: &Session) -> &[u8] {
    &client.settled().peer_certificates().unwrap()[0]
}

#[test]
fn the_name_that_is_asked_for_decides_what_is_shown() {
    let authority = Authority::new();
    let exact = authority.certificate(&["a.example.com"]);
    let wildcard = authority.certificate(&["*.example.com"]);
    let default = authority.certificate(&["b.example.org"]);
    let sites = sites(
        &mut Servers::new(),
        vec![
            site("a.example.com", &[&exact]),
            site("*.example.com", &[&wildcard]),
            site("", &[&default]),
        ],
    );
    for (name, certificate) in
        [("a.example.com", &exact), ("b.example.com", &wildcard), ("b.example.org", &default)]
    {
        let (client, _) = meet(&authority.trust(name, &[], None), config(&sites, name));
        assert_eq!(shown(&client), &*certificate.chain[0], "{name}");
        assert_eq!(client.settled().alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    assert!(sites.find(None).is_some());
}

#[test]
fn of_several_certificates_the_first_that_fits_is_shown() {
    let authority = Authority::new();
    let first = authority.certificate(&["a.example.com"]);
    let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let second = authority.certificate_of(rsa, &["b.example.com"]);
    let sites = sites(&mut Servers::new(), vec![site("", &[&first, &second])]);
    for (name, certificate) in [("a.example.com", &first), ("b.example.com", &second)] {
        let (client, _) = meet(&authority.trust(name, &[], None), config(&sites, name));
        assert_eq!(shown(&client), &*certificate.chain[0], "{name}");
    }
}

#[test]
fn one_bad_site_leaves_the_others_alone() {
    let authority = Authority::new();
    let good = authority.certificate(&["a.example.com"]);
    let mixed = Certificate { key: good.key.clone(), ..(*authority.certificate(&["b"])).clone() };
    let sites = sites(
        &mut Servers::new(),
        vec![site("a.example.com", &[&good]), site("b.example.com", &[&Arc::new(mixed)])],
    );
    meet(&authority.trust("a.example.com", &[], None), config(&sites, "a.example.com"));
    let bad = sites.find(Some("b.example.com")).unwrap();
    assert!(matches!(bad.treatment, Treatment::Refuse));
    assert!(sites.find(Some("c.example.com")).is_none() && sites.find(None).is_none());
}

#[test]
fn a_request_for_another_site_is_misdirected() {
    let authority = Authority::new();
    let certificate = authority.certificate(&["*.example.com"]);
    let sites = sites(
        &mut Servers::new(),
        vec![site("a.example.com", &[&certificate]), site("*.example.com", &[&certificate])],
    );
    for (name, host, misdirected) in [
        ("a.example.com", "A.example.com", false),
        ("a.example.com", "b.example.com", true),
        ("b.example.com", "c.example.com", false),
        ("b.example.com", "a.example.com.", true),
        // Nobody's: there is no route, which is all there is to say.
        ("a.example.com", "example.org", false),
    ] {
        assert_eq!(sites.is_misdirected(Some(name), host.as_bytes()), misdirected, "{name} {host}");
    }
}

#[test]
fn clients_show_what_is_asked_of_them() {
    let (ours, others) = (Authority::new(), Authority::new());
    let server = ours.certificate(&["a.example.com"]);
    let (known, stranger) = (ours.certificate(&["client"]), others.certificate(&["client"]));
    let attempt = |client: Option<&Arc<Certificate>>, required: bool| {
        let site = site_for("", &[&server], Some(ours.clients(required)));
        let sites = sites(&mut Servers::new(), vec![site]);
        let mut session = Session::server(config(&sites, "a.example.com")).unwrap();
        let trust = ours.trust("a.example.com", &[], client);
        shake(&mut client_session(&trust), &mut session).1.map_err(|error| Unsecured::from(&error))
    };
    assert_eq!(attempt(Some(&known), true), Ok(()));
    assert_eq!(attempt(None, true), Err(Unsecured::ClientCertificate));
    assert_eq!(attempt(Some(&stranger), true), Err(Unsecured::ClientCertificate));
    for client in [Some(&known), None, Some(&stranger)] {
        assert_eq!(attempt(client, false), Ok(()));
    }
}

#[test]
fn a_session_is_resumed_after_certificates_have_changed() {
    let authority = Authority::new();
    let mut servers = Servers::new();
    let trust = authority.trust("a.example.com", &[], None);
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
        let certificate = authority.certificate(&["a.example.com"]);
        let sites = sites(&mut servers, vec![site("", &[&certificate])]);
        let (client, _) = meet(&trust, config(&sites, "a.example.com"));
        assert_eq!(client.settled().handshake_kind(), Some(kind));
    }
}

#[test]
fn what_has_not_changed_is_used_again() {
    let authority = Authority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let mut servers = Servers::new();
    let mut put = || {
        let again = Arc::new(Certificate::clone(&certificate));
        config(&sites(&mut servers, vec![site("", &[&again])]), "a.example.com")
    };
    assert!(Arc::ptr_eq(&put(), &put()));
}

#[test]
fn a_ticket_does_not_stand_for_a_client_certificate() {
    let authority = Authority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let open = site("a.example.com", &[&certificate]);
    let closed = site_for("a.example.com", &[&certificate], Some(authority.clients(true)));
    let mut servers = Servers::new();
    let [open, closed] = [open, closed].map(|site| ListenerTls { sites: vec![site] });
    let listeners = servers.sites([Some(&open), Some(&closed)].into_iter());
    let [open, closed] = [0, 1].map(|at: usize| listeners[at].clone().unwrap());
    let trust = authority.trust("a.example.com", &[], None);
    meet(&trust, config(&open, "a.example.com"));
    let mut session = Session::server(config(&closed, "a.example.com")).unwrap();
    assert!(shake(&mut client_session(&trust), &mut session).1.is_err());
}

#[test]
fn endpoints_are_whom_they_have_to_be() {
    let (ours, others) = (Authority::new(), Authority::new());
    let endpoint = ours.certificate(&["a.example.com", "*.b.example.com", "spiffe://cluster/a"]);
    let dns = |name: &str| SubjectName::Dns(name.into());
    let uri = |name: &str| SubjectName::Uri(name.into());
    let sites = sites(&mut Servers::new(), vec![site("", &[&endpoint])]);
    let attempt = |authority: &Authority, name: &str, names: &[SubjectName]| {
        let mut client = client_session(&authority.trust(name, names, None));
        let mut server = Session::server(config(&sites, "any")).unwrap();
        shake(&mut client, &mut server).0.map_err(|error| Untrusted::from(&error))
    };
    let refused = Err(Untrusted::Certificate);
    assert_eq!(attempt(&ours, "a.example.com", &[]), Ok(()));
    assert_eq!(attempt(&ours, "c.example.com", &[]), refused);
    assert_eq!(attempt(&others, "a.example.com", &[]), refused);
    assert_eq!(attempt(&ours, "c.example.com", &[uri("spiffe://cluster/a")]), Ok(()));
    assert_eq!(attempt(&ours, "a.example.com", &[uri("spiffe://cluster/b")]), refused);
    assert_eq!(attempt(&ours, "c", &[dns("x"), dns("c.b.example.com")]), Ok(()));
    assert_eq!(attempt(&ours, "c", &[dns("*.b.example.com")]), Ok(()));
    assert_eq!(attempt(&ours, "c", &[dns("*.example.com")]), refused);
    assert_eq!(attempt(&others, "c", &[uri("spiffe://cluster/a")]), refused);
}

#[test]
fn a_handshake_fails_however_its_bytes_come() {
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
fn what_has_to_be_secured_and_cannot_is_impossible() {
    let authority = Authority::new();
    let trust = authority.trust("not a name", &[], None);
    assert!(matches!(Security::of_requests(Some(&trust)), Security::Impossible));
    assert!(matches!(Security::of_connections(None), Security::Plain));
}

#[test]
fn a_policy_makes_new_trust_only_where_it_has_changed() {
    let authority = Authority::new();
    let trusts = Trusts::new();
    let mut settings = BackendSettings::default();
    assert!(trusts.of(&settings, None).is_none());
    let asked = EndpointTls {
        server_name: "a.example.com".into(),
        subject_names: Vec::new(),
        roots: Roots::Given(vec![authority.der]),
        client: None,
    };
    settings.tls = Some(Arc::new(asked.clone()));
    let first = trusts.of(&settings, None).unwrap();
    settings.tls = Some(Arc::new(asked));
    let second = trusts.of(&settings, Some(&first)).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    settings.protocol = EndpointProtocol::Http2;
    assert!(!Arc::ptr_eq(&first, &trusts.of(&settings, Some(&first)).unwrap()));
}

#[test]
fn a_hello_is_known_when_it_is_whole() {
    let authority = Authority::new();
    let mut client = client_session(&authority.trust("a.example.com", &[], None));
    client.shake().unwrap();
    let said = client.outgoing;
    for part in 0..said.len() {
        assert_eq!(Hello::parse(&said[..part]), Hello::Unfinished, "{part}");
    }
    assert_eq!(Hello::parse(&said), Hello::Greets(Some("a.example.com".into())));
    assert_eq!(Hello::parse(b"GET / HTTP/1.1\r\n"), Hello::PlainHttp);
    assert!(matches!(Hello::parse(b"\x16\x03\x01\x00\x04\x02\0\0\0"), Hello::Bad(..)));
    assert!(matches!(Hello::parse(b"\x00\x01\x02\x00\x01\x00"), Hello::Bad(..)));
}

/// Both ends of a connection, the handshake done.
async fn connected() -> (TlsStream, TlsStream) {
    let authority = Authority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let sites = sites(&mut Servers::new(), vec![site("", &[&certificate])]);
    let trust = authority.trust("a.example.com", &[], None);
    let (mut client, mut server) = meet(&trust, config(&sites, "a.example.com"));
    // What the handshake has left to be read, tickets, has been read.
    client.shake().unwrap();
    server.shake().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (theirs, ours) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (
        TlsStream::new(theirs.unwrap(), Box::new(client)),
        TlsStream::new(ours.unwrap().0, Box::new(server)),
    )
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}

#[tokio::test]
async fn bytes_arrive_as_they_were_sent() {
    for count in [1, 100, 16 * 1024, 64 * 1024 + 1, 3 * 1024 * 1024] {
        let (mut client, mut server) = connected().await;
        let sent = bytes(count);
        let mut received = Vec::new();
        let send = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(send, server.read_to_end(&mut received));
        assert_eq!(read.unwrap(), count);
        assert!(received == sent, "{count}");
        assert!(client.session.outgoing.capacity() == 0 && server.session.plain.is_empty());
        assert_eq!(server.session.incoming.bytes.capacity(), 0);
    }
}

#[tokio::test]
async fn a_small_reader_gets_all_of_a_large_record() {
    let (mut client, mut server) = connected().await;
    let sent = bytes(16 * 1024);
    client.write_all(&sent).await.unwrap();
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let mut part = [0; 1000];
        let count = server.read(&mut part).await.unwrap();
        received.extend_from_slice(&part[..count]);
    }
    assert!(received == sent);
    // Nothing is left that a look would find.
    let ready = poll_fn(|cx| Poll::Ready(server.poll_read_ready(cx).is_ready()));
    assert!(!ready.await || server.is_quiet());
}

#[tokio::test]
async fn what_is_reported_as_written_is_with_the_kernel() {
    let (mut client, mut server) = connected().await;
    let sent = bytes(8 * 1024 * 1024);
    let mut written = 0;
    // Until the kernel takes no more: nobody reads.
    while written < sent.len() {
        let once =
            poll_fn(|cx| Poll::Ready(Pin::new(&mut client).poll_write(cx, &sent[written..])));
        match once.await {
            Poll::Ready(count) => written += count.unwrap(),
            Poll::Pending => break,
        }
    }
    assert!(written > 0 && written < sent.len());
    let (rest, mut received) = (&sent[written..], vec![0; sent.len()]);
    let (wrote, read) = tokio::join!(client.write_all(rest), server.read_exact(&mut received));
    wrote.unwrap();
    read.unwrap();
    assert!(received == sent);
}

#[tokio::test]
async fn slices_leave_together() {
    let (mut client, mut server) = connected().await;
    let (head, body) = (bytes(100), bytes(5000));
    let slices = [&head, &body].map(|part| std::io::IoSlice::new(part));
    let count = poll_fn(|cx| Pin::new(&mut client).poll_write_vectored(cx, &slices)).await.unwrap();
    assert_eq!(count, 5100);
    let mut received = [0; 5100];
    assert_eq!(server.read(&mut received).await.unwrap(), 5100);
    assert!(received[..100] == head && received[100..] == body);
}

#[tokio::test]
async fn an_end_without_a_word_is_an_error() {
    let (client, mut server) = connected().await;
    drop(client);
    let error = server.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn an_idle_connection_is_open_until_something_comes() {
    let (mut client, mut server) = connected().await;
    assert!(client.is_quiet() && server.is_quiet());
    client.write_all(b"x").await.unwrap();
    server.socket.readable().await.unwrap();
    assert!(!server.is_quiet());
    let (mut client, mut server) = connected().await;
    client.shutdown().await.unwrap();
    server.socket.readable().await.unwrap();
    assert!(!server.is_quiet());
}
