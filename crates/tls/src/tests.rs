//! TLS sessions between our own client and server.

/// Server certificates, and requirements on clients.
mod sites;
/// Session tickets of several replicas.
mod tickets;
/// Revocation of client certificates.
mod revocation;
/// Verification of endpoints.
mod trust;
/// Sessions without sockets.
mod sessions;
/// Sessions over sockets.
mod streams;

use std::sync::Arc;

use gateway::matching::HostPattern;
use gateway::snapshot::{
    BackendSettings, ClientCertificates, EndpointTls, ListenerTls, PrivateKey, SniRule,
    SubjectName, TlsCertificate, TlsPayload, TlsTermination, TrustAnchors,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::{Error, ServerConfig};

use super::*;

/// A certificate authority.
struct TestAuthority {
    der: Box<[u8]>,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = (**params.self_signed(&key).unwrap().der()).into();
        Self { der, issuer: Issuer::new(params, key) }
    }

    fn certificate(&self, names: &[&str]) -> Arc<TlsCertificate> {
        self.certificate_of(KeyPair::generate().unwrap(), names)
    }

    fn certificate_of(&self, key: KeyPair, names: &[&str]) -> Arc<TlsCertificate> {
        let name = |name: &&str| match name.split_once("://") {
            Some(_) => SanType::URI((*name).try_into().unwrap()),
            None => SanType::DnsName((*name).try_into().unwrap()),
        };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names.iter().map(name).collect();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Arc::new(TlsCertificate {
            name: names.join(" ").into(),
            chain: vec![(**signed.der()).into()],
            key: PrivateKey::Pkcs8(key.serialize_der().into()),
        })
    }

    fn clients(&self, required: bool) -> ClientCertificates {
        ClientCertificates {
            roots: vec![self.der.clone()],
            required,
            revocation: None,
            max_intermediates: None,
        }
    }

    /// Returns the endpoint TLS that requires a certificate of this authority for `names`, with our client
    /// certificate.
    fn trust(
        &self,
        name: &str,
        names: &[SubjectName],
        client: Option<&Arc<TlsCertificate>>,
    ) -> Arc<EndpointTlsContext> {
        let settings = BackendSettings {
            tls: Some(Arc::new(EndpointTls {
                server_name: name.into(),
                subject_names: names.to_vec(),
                roots: TrustAnchors::Given(vec![self.der.clone()]),
                client: client.cloned(),
            })),
            ..BackendSettings::default()
        };
        EndpointTlsFactory::default().context_for(&settings, None).unwrap()
    }
}

fn site(hosts: &str, certificates: &[&Arc<TlsCertificate>]) -> SniRule {
    site_for(hosts, certificates, None)
}

fn site_for(
    hosts: &str,
    certificates: &[&Arc<TlsCertificate>],
    clients: Option<ClientCertificates>,
) -> SniRule {
    let certificates = certificates.iter().map(|it| Arc::clone(it)).collect();
    SniRule {
        hosts: if hosts.is_empty() { HostPattern::Any } else { HostPattern::parse(hosts).unwrap() },
        terminate: Some(Arc::new(TlsTermination { certificates, clients })),
        payload: TlsPayload::Requests,
    }
}

fn sites(servers: &mut ServerTlsConfigs, sites: Vec<SniRule>) -> Arc<SniTable> {
    let tls = ListenerTls { sni_rules: sites };
    servers.sni_tables([Some(&tls)].into_iter()).remove(0).unwrap()
}

fn site_of<'s>(sites: &'s SniTable, name: &str) -> Option<&'s Arc<SniEntry>> {
    sites.find(Some(OwnedHostName::new(name.as_bytes()).borrowed()))
}

fn config(sites: &SniTable, name: &str) -> Arc<ServerConfig> {
    match &site_of(sites, name).unwrap().mode {
        ServerTlsMode::Terminate(decryption) => Arc::clone(&decryption.over_tcp),
        ServerTlsMode::PassThrough | ServerTlsMode::Refuse => panic!("{name} is not decrypted"),
    }
}

fn client_session(trust: &Arc<EndpointTlsContext>) -> TlsSession {
    let ConnectionSecurity::Tls(tls_config) = ConnectionSecurity::of_requests(Some(trust)) else {
        panic!("unusable")
    };
    TlsSession::client(Arc::clone(&tls_config.config), tls_config.name.clone()).unwrap()
}

/// Runs a handshake; returns the results of both sides.
fn run_handshake(
    client: &mut TlsSession,
    server: &mut TlsSession,
) -> (Result<(), Error>, Result<(), Error>) {
    let (mut client_result, mut server_result) = (Ok(()), Ok(()));
    for _ in 0..8 {
        client_result = client_result.and_then(|()| client.advance_handshake());
        server.receive_ciphertext(&std::mem::take(&mut client.outgoing));
        server_result = server_result.and_then(|()| server.advance_handshake());
        client.receive_ciphertext(&std::mem::take(&mut server.outgoing));
    }
    (client_result, server_result)
}

/// Completes a handshake that has to succeed.
fn connected_sessions(
    trust: &Arc<EndpointTlsContext>,
    config: Arc<ServerConfig>,
) -> (TlsSession, TlsSession) {
    let (mut client, mut server) = (client_session(trust), TlsSession::server(config).unwrap());
    assert_eq!(run_handshake(&mut client, &mut server), (Ok(()), Ok(())));
    assert!(!client.common_state().is_handshaking() && !server.common_state().is_handshaking());
    (client, server)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}
