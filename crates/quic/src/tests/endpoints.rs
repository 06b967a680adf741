//! Connections to endpoints that run `quinn`'s server.

use gateway::snapshot::{PrivateKey, TlsCertificate};
use quinn_proto::crypto::rustls::QuicClientConfig as Crypto;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tls::EndpointTlsError;

use super::*;

const SETTINGS: DialSettings =
    DialSettings { idle_timeout: Duration::from_secs(30), keep_alive: None, mark: None };

/// Starts an endpoint that echoes each stream.
fn endpoint(identity: &Identity, streams: u32) -> quinn::Endpoint {
    let TlsCertificate { key: PrivateKey::Pkcs8(key), .. } = &*identity.certificate else {
        panic!("the key is not PKCS #8");
    };
    let key = PrivatePkcs8KeyDer::from(key.to_vec()).into();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config =
        builder.with_no_client_auth().with_single_cert(vec![identity.der()], key).unwrap();
    config.alpn_protocols = vec![b"h3".to_vec()];
    let config = quinn::crypto::rustls::QuicServerConfig::try_from(config).unwrap();
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(config));
    let mut transport = quinn::TransportConfig::default();
    transport.max_concurrent_bidi_streams(streams.into());
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            tokio::spawn(answer(incoming));
        }
    });
    endpoint
}

async fn answer(incoming: quinn::Incoming) {
    let Ok(connection) = incoming.await else { return };
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        tokio::spawn(async move {
            if let Ok(heard) = recv.read_to_end(usize::MAX).await
                && send.write_all(&heard).await.is_ok()
            {
                send.finish().unwrap();
            }
        });
    }
}

fn dial(address: SocketAddr, name: &str, identity: &Identity) -> Result<QuicConnection, DialError> {
    let crypto = Arc::new(Crypto::try_from(identity.client_config(b"h3")).unwrap());
    QuicDialer::new(now).dial(address, name, &crypto, SETTINGS)
}

async fn established(connection: &QuicConnection) -> Result<(), CloseReason> {
    poll_fn(|cx| connection.poll_established(cx)).await
}

#[test]
fn data_passes_to_and_from_an_endpoint() {
    run(async {
        let identity = Identity::new("a.example.com", 0);
        let endpoint = endpoint(&identity, 100);
        let address = endpoint.local_addr().unwrap();
        let connection = dial(address, "a.example.com", &identity).unwrap();
        established(&connection).await.unwrap();
        let body = bytes(5 * 1024 * 1024);
        let (mut send, mut recv) = connection.open_bi().unwrap();
        let writing = async {
            write(&mut send, &body).await.unwrap();
            send.finish();
        };
        let (_, heard) = tokio::join!(writing, read(&mut recv));
        assert!(heard.unwrap() == body);
        assert_eq!(connection.peer(), address);
    });
}

#[test]
fn stream_limit_of_the_endpoint_is_respected() {
    run(async {
        let identity = Identity::new("a.example.com", 0);
        let endpoint = endpoint(&identity, 2);
        let address = endpoint.local_addr().unwrap();
        let connection = dial(address, "a.example.com", &identity).unwrap();
        established(&connection).await.unwrap();
        let (mut first, _second) = (connection.open_bi().unwrap(), connection.open_bi().unwrap());
        assert!(connection.open_bi().is_none());
        write(&mut first.0, b"hello").await.unwrap();
        first.0.finish();
        assert_eq!(read(&mut first.1).await.unwrap(), b"hello");
        poll_fn(|cx| connection.poll_can_open_bi(cx)).await.unwrap();
        assert!(connection.open_bi().is_some());
    });
}

#[test]
fn endpoint_with_wrong_name_or_authority_is_rejected() {
    run(async {
        let identity = Identity::new("a.example.com", 0);
        let endpoint = endpoint(&identity, 1);
        let address = endpoint.local_addr().unwrap();
        let untrusted = Err(CloseReason::TlsFailed(EndpointTlsError::Certificate));
        let other = dial(address, "b.example.com", &identity).unwrap();
        assert_eq!(established(&other).await, untrusted);
        let stranger = Identity::new("a.example.com", 0);
        let connection = dial(address, "a.example.com", &stranger).unwrap();
        assert_eq!(established(&connection).await, untrusted);
    });
}

#[test]
fn unreachable_port_is_refused_at_once() {
    run(async {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let identity = Identity::new("a.example.com", 0);
        let connection = dial(free, "a.example.com", &identity).unwrap();
        assert_eq!(established(&connection).await, Err(CloseReason::Refused));
        assert_eq!(poll_fn(|cx| connection.poll_closed(cx)).await, CloseReason::Refused);
    });
}

#[test]
fn endpoint_close_code_is_reported() {
    run(async {
        let identity = Identity::new("a.example.com", 0);
        let endpoint = endpoint(&identity, 2);
        let address = endpoint.local_addr().unwrap();
        let connection = dial(address, "a.example.com", &identity).unwrap();
        established(&connection).await.unwrap();
        let (mut send, mut recv) = connection.open_bi().unwrap();
        write(&mut send, b"hello").await.unwrap();
        send.finish();
        // The endpoint learns that the handshake is complete before it can respond.
        assert_eq!(read(&mut recv).await.unwrap(), b"hello");
        let (_send, mut recv) = connection.open_bi().unwrap();
        endpoint.close(7u32.into(), b"enough");
        let closed = CloseReason::ByPeer { code: 7 };
        assert_eq!(read(&mut recv).await, Err(StreamEnd::Connection(closed)));
        assert_eq!(connection.closed(), Some(closed));
    });
}
