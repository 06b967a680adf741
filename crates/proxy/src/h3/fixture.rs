//! Connections over loopback to an independent QUIC implementation (quinn), which sends the bytes that a test chooses.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use codec::h3::{frame, qpack, varint};
use quic::{DialSettings, QuicConnection, QuicDialer};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::version::TLS13;

use crate::clock;

/// Server name of the certificate.
const NAME: &str = "a.example.com";
/// Concurrent streams that either side may open.
const STREAMS: u32 = 16;
/// Flow-control window of each stream at the peer.
pub(super) const WINDOW: u32 = 10_000;

/// Runs a test, with a time limit.
pub(super) fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default());
    runtime.unwrap().block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("test timed out");
    });
}

/// Returns our end and the peer's end of a connection. Either side may open streams.
pub(super) async fn connect() -> (QuicConnection, quinn::Connection) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());

    let tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let tls = tls.with_protocol_versions(&[&TLS13]).unwrap().with_no_client_auth();
    let tls = tls.with_single_cert(vec![certificate.clone()], key).unwrap();
    let tls = QuicServerConfig::try_from(tls).unwrap();
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(WINDOW.into()).max_concurrent_bidi_streams(STREAMS.into());
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(tls));
    server.transport_config(Arc::new(transport));
    let theirs = quinn::Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let tls = rustls::ClientConfig::builder_with_provider(provider);
    let tls = tls.with_protocol_versions(&[&TLS13]).unwrap();
    let tls = tls.with_root_certificates(roots).with_no_client_auth();
    let tls = Arc::new(QuicClientConfig::try_from(tls).unwrap());
    let settings =
        DialSettings { idle_timeout: Duration::from_secs(60), keep_alive: None, mark: None };
    let dialer = QuicDialer::new(clock::quic_now);
    let ours = dialer.dial(theirs.local_addr().unwrap(), NAME, &tls, settings).unwrap();
    ours.set_max_concurrent_bi(STREAMS);
    let established = poll_fn(|cx| ours.poll_established(cx));
    let accepted = async { theirs.accept().await.unwrap().await.unwrap() };
    let (established, accepted) = tokio::join!(established, accepted);
    established.unwrap();
    (ours, accepted)
}

/// Returns a frame of this type with this payload.
pub(super) fn framed(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(kind, &mut out);
    varint::write(payload.len() as u64, &mut out);
    out.extend_from_slice(payload);
    out
}

/// Returns a HEADERS frame with these field lines.
pub(super) fn headers(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_headers(&mut out, |section| {
        qpack::begin(section);
        for (name, value) in lines {
            qpack::write(name.as_bytes(), value.as_bytes(), section);
        }
    });
    out
}

/// Returns the HEADERS frame of a request.
pub(super) fn request(method: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let lines = [(":method", method), (":scheme", "https"), (":authority", NAME), (":path", "/")];
    headers(&[&lines[..], more].concat())
}
