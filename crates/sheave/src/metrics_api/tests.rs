//! Tests of the API over TLS, as the API server's proxy and others connect.

use std::sync::Arc;

use kube::FrontProxySettings;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use super::*;

const NAME: &str = "sheave-metrics-api.sheave-system.svc";
const PROXY: &str = "front-proxy-client";
const DISCOVERY: &str = "/apis/external.metrics.k8s.io/v1beta1";
const VALUE: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/sheave_demand";

/// An authority and its certificates.
struct TestAuthority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Returns chain and key, in PEM.
    fn issue(&self, common_name: &str) -> (String, String) {
        self.issue_for(common_name, (1975, 4096))
    }

    /// Returns chain and key of a certificate that is valid from and until the beginning of a year.
    fn issue_for(&self, common_name: &str, years: (i32, i32)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// A server that trusts the proxies of an authority, and asks no API server.
struct TestServer {
    address: SocketAddr,
    authority: TestAuthority,
}

impl TestServer {
    async fn start() -> Self {
        let authority = TestAuthority::new();
        let settings = FrontProxySettings {
            authorities: authority.pem.clone(),
            allowed_names: vec![PROXY.to_owned()],
            user_fields: vec!["X-Remote-User".to_owned()],
            group_fields: vec!["X-Remote-Group".to_owned()],
            extra_prefixes: vec!["X-Remote-Extra-".to_owned()],
        };
        let (chain, key) = authority.issue("server");
        let config = tls_listener::config(&chain, &key, &settings.authorities).unwrap();
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.address;
        let (_, settings) = watch::channel(Some(Arc::new(settings)));
        let (_, configs) = watch::channel(Some(config));
        let groups = vec![ApiGroup::External, ApiGroup::Custom];
        let app = router(settings, groups, Router::new().route(VALUE, get(async || "4")));
        let app = app.into_make_service_with_connect_info::<PeerIdentity>();
        let listener = TlsListener::new(listener, configs);
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        Self { address, authority }
    }

    /// Sends a request with these fields, and with a certificate if there is one; returns the response.
    async fn ask(&self, path: &str, fields: &str, identity: Option<(String, String)>) -> String {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.authority.pem.as_bytes()).unwrap();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
        let mut response = Vec::new();
        // A certificate that is not trusted fails here, after the client's side of the handshake.
        if stream.write_all(request.as_bytes()).await.is_ok() {
            drop(stream.read_to_end(&mut response).await);
        }
        String::from_utf8(response).unwrap()
    }
}

const USER: &str = "x-remote-user: hpa\r\n";

fn is_refused(response: &str) -> bool {
    response.starts_with("HTTP/1.1 401 ") && response.contains("only the API server's proxy")
}

#[tokio::test]
async fn only_the_proxy_of_the_api_server_is_served() {
    let server = TestServer::start().await;
    let proxy = server.authority.issue(PROXY);
    for (path, text) in [(DISCOVERY, "sheave_demand"), (VALUE, "4")] {
        let served = server.ask(path, USER, Some(proxy.clone())).await;
        assert!(served.starts_with("HTTP/1.1 200 ") && served.contains(text), "{served}");
        let kubelet = server.authority.issue("kubelet");
        for (fields, identity) in [(USER, None), (USER, Some(kubelet)), ("", Some(proxy.clone()))] {
            let response = server.ask(path, fields, identity).await;
            assert!(is_refused(&response), "{response}");
        }
        // A certificate of another authority ends the handshake.
        let stranger = TestAuthority::new().issue(PROXY);
        assert_eq!(server.ask(path, USER, Some(stranger)).await, "");
    }
}

#[tokio::test]
async fn each_api_describes_itself() {
    let server = TestServer::start().await;
    let proxy = server.authority.issue(PROXY);
    for (path, text) in [
        ("/apis", "v1beta2"),
        ("/apis/external.metrics.k8s.io", "external.metrics.k8s.io/v1beta1"),
        ("/apis/external.metrics.k8s.io/v1beta1", "sheave_requests_per_second"),
        ("/apis/custom.metrics.k8s.io", "custom.metrics.k8s.io/v1beta2"),
        ("/apis/custom.metrics.k8s.io/v1beta2", "services/sheave_demand"),
    ] {
        let served = server.ask(path, USER, Some(proxy.clone())).await;
        assert!(served.starts_with("HTTP/1.1 200 ") && served.contains(text), "{served}");
    }
}

#[tokio::test]
async fn certificate_out_of_its_time_is_named_in_the_response() {
    let server = TestServer::start().await;
    for (years, reason) in [((1975, 2001), "has expired"), ((3000, 4096), "is not valid yet")] {
        let proxy = server.authority.issue_for(PROXY, years);
        let response = server.ask(VALUE, USER, Some(proxy.clone())).await;
        assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
        assert!(response.contains("certificate of the API server's proxy"), "{response}");
        assert!(response.contains(reason) && response.contains("clock"), "{response}");
        // The API stays available: otherwise autoscalers would not see the reason.
        let described = server.ask(DISCOVERY, USER, Some(proxy)).await;
        assert!(described.starts_with("HTTP/1.1 200 "), "{described}");
        // The time is no way past the authority.
        let stranger = TestAuthority::new().issue_for(PROXY, years);
        assert_eq!(server.ask(DISCOVERY, USER, Some(stranger)).await, "");
    }
}

#[tokio::test]
async fn probes_are_open_and_other_paths_do_not_exist() {
    let server = TestServer::start().await;
    assert!(server.ask("/readyz", "", None).await.starts_with("HTTP/1.1 200 "));
    let proxy = server.authority.issue(PROXY);
    let missing = server.ask("/openapi/v3", USER, Some(proxy)).await;
    assert!(missing.starts_with("HTTP/1.1 404 ") && missing.contains("NotFound"), "{missing}");
}
