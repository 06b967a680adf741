//! Revocation lists of an operator's ConfigMap: their parser, and the handshakes of clients that they apply to.
//!
//! The first byte says what follows: PEM as it is (`p`), a list in DER (`d`), or the content of a list, which the
//! authority signs (`t`). The bits of the second byte are the settings of the policy.

use std::sync::Arc;

use gateway::objects::{ApiObject, read};
use gateway::snapshot::Snapshot;
use gateway::{ObjectOrigin, TranslationSettings, translate};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationList,
    CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, SigningKey, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use serde_json::{Value, json};
use tls::{ServerTlsConfigs, ServerTlsMode};
use x509_cert::certificate::Rfc5280;
use x509_cert::crl::CertificateList;
use x509_cert::der::{Decode, Encode};

/// Serial number of the client's certificate.
const CLIENT_SERIAL: u8 = 7;
/// Name of the server's certificate.
const SERVER_NAME: &str = "a";
/// Passes of bytes from one side to the other in which any handshake ends.
const PASSES: usize = 4;
/// ECDSA with SHA-256, as the algorithm of a signature (RFC 5758 §3.2).
const ECDSA_SHA256: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

thread_local! {
    static FIXTURE: RevocationFixture = RevocationFixture::checked();
}

/// An authority, a server with a certificate of it, and a client.
struct RevocationFixture {
    authority: CertifiedIssuer<'static, KeyPair>,
    /// All objects except the policy and its lists.
    objects: Vec<ApiObject>,
    client: Arc<ClientConfig>,
}

/// Settings of the policy.
struct PolicySettings {
    only_end_entity: bool,
    accepts_unknown: bool,
    accepts_expired: bool,
}

/// A listener without its lists accepts no client; one with them rejects the certificates on them.
pub fn lists(bytes: &[u8]) {
    let [kind, settings, rest @ ..] = bytes else { return };
    let settings = PolicySettings {
        only_end_entity: settings & 1 != 0,
        accepts_unknown: settings & 2 != 0,
        accepts_expired: settings & 4 != 0,
    };
    FIXTURE.with(|fixture| match kind {
        b'p' => fixture.check(&String::from_utf8_lossy(rest), &settings, None),
        b'd' => fixture.check(&encode_pem(rest), &settings, None),
        b't' => {
            let list = fixture.sign(rest);
            fixture.check(&encode_pem(&list), &settings, Some(&list));
        }
        _ => {}
    });
}

fn encode_pem(list: &[u8]) -> String {
    pem::encode(&pem::Pem::new("X509 CRL", list))
}

impl RevocationFixture {
    fn new() -> Self {
        let key = || KeyPair::generate().expect("a key");
        let mut params = certificate_params("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, key()).expect("a certificate");
        let (server_key, client_key) = (key(), key());
        let server = certificate_params(SERVER_NAME).signed_by(&server_key, &authority);
        let mut params = certificate_params("client");
        params.serial_number = Some(SerialNumber::from(vec![CLIENT_SERIAL]));
        let client = params.signed_by(&client_key, &authority).expect("a certificate");
        let client = client_config(&authority, client.der().clone(), &client_key);
        let objects = [
            gateway(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "authority"},
                "data": {"ca.crt": authority.pem()}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "server"},
            "stringData": {
                "tls.crt": server.expect("a certificate").pem(),
                "tls.key": server_key.serialize_pem(),
            }}),
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
                "metadata": {"name": "sheave"}, "spec": {"controllerName": "sheave.dev/gateway"}}),
        ];
        Self { authority, objects: read_objects(&objects), client }
    }

    /// Returns a fixture in which a list decides: without the client it is accepted, with it rejected.
    fn checked() -> Self {
        let fixture = Self::new();
        let settings = PolicySettings {
            only_end_entity: false,
            accepts_unknown: false,
            accepts_expired: false,
        };
        for revoked in [&[][..], &[CLIENT_SERIAL]] {
            let list = fixture.list(revoked).pem().expect("a list");
            let server = server_config(&fixture.translate(&list, &settings));
            let is_accepted = is_accepted(&fixture.client, server.expect("the list is read"));
            assert_eq!(is_accepted, revoked.is_empty());
        }
        fixture
    }

    /// Returns a list of the authority with these serial numbers.
    fn list(&self, serials: &[u8]) -> CertificateRevocationList {
        let entry = |serial: &u8| RevokedCertParams {
            serial_number: SerialNumber::from(vec![*serial]),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(vec![1]),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.authority).expect("a list")
    }

    /// Returns a list with this content and a valid signature.
    fn sign(&self, content: &[u8]) -> Vec<u8> {
        let content = element(SEQUENCE, content);
        let signature = self.authority.key().sign(&content).expect("a signature");
        // No bit of the last byte is unused.
        let signature = element(BIT_STRING, &[&[0], &signature[..]].concat());
        element(SEQUENCE, &[&content, ECDSA_SHA256, &signature].concat())
    }

    fn check(&self, text: &str, settings: &PolicySettings, signed: Option<&[u8]>) {
        let snapshot = self.translate(text, settings);
        let Some(server) = server_config(&snapshot) else { return };
        let is_accepted = is_accepted(&self.client, server);
        let Some(list) = signed else {
            // The authority has not signed the list, so it says nothing about the client.
            assert!(!is_accepted || settings.accepts_unknown, "accepted by a list of no authority");
            return;
        };
        if is_accepted && !settings.accepts_unknown {
            self.assert_lacks_client(list);
        }
    }

    fn translate(&self, text: &str, settings: &PolicySettings) -> Snapshot {
        let mut objects = self.objects.clone();
        objects.extend(read_objects(&[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "revoked"},
                "data": {"ca.crl": text}}),
            policy(settings),
        ]));
        translate(&objects, &TranslationSettings::default()).snapshot
    }

    /// Asserts that another parser finds the authority's name in the list, and not the client's serial number.
    fn assert_lacks_client(&self, list: &[u8]) {
        let Ok(list) = CertificateList::<Rfc5280>::from_der(list) else {
            return;
        };
        let content = list.tbs_cert_list;
        let authority = x509_cert::Certificate::from_der(self.authority.der());
        let authority = authority.expect("a certificate");
        let subject = authority.tbs_certificate().subject().to_der().expect("a name");
        assert_eq!(content.issuer.to_der().expect("a name"), subject, "another authority");
        for entry in content.revoked_certificates.iter().flatten() {
            let serial = entry.serial_number.as_bytes();
            assert_ne!(serial, [CLIENT_SERIAL], "a revoked client is accepted");
        }
    }
}

fn certificate_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn client_config(
    authority: &CertifiedIssuer<'_, KeyPair>,
    certificate: CertificateDer<'static>,
    key: &KeyPair,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key);
    let mut config = config.expect("a certificate with its key");
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

fn gateway() -> Value {
    let authority = json!([{"kind": "ConfigMap", "name": "authority"}]);
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
    "metadata": {"name": "edge"},
    "spec": {
        "gatewayClassName": "sheave",
        "addresses": [{"value": "127.0.0.1"}],
        "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": authority}}}},
        "listeners": [{"name": "https", "port": 443, "protocol": "HTTPS",
            "tls": {"certificateRefs": [{"name": "server"}]}}],
    }})
}

fn policy(settings: &PolicySettings) -> Value {
    let fallback = |accepts: bool| if accepts { "Accept" } else { "Reject" };
    let depth = if settings.only_end_entity { "EndEntity" } else { "Chain" };
    json!({"apiVersion": "sheave.dev/v1alpha1", "kind": "ClientPolicy",
    "metadata": {"name": "edge"},
    "spec": {
        "targetRefs": [{"kind": "Gateway", "name": "edge"}],
        "revocation": {
            "crlRefs": [{"kind": "ConfigMap", "name": "revoked"}],
            "depth": depth,
            "unknownStatus": fallback(settings.accepts_unknown),
            "expiredLists": fallback(settings.accepts_expired),
        },
    }})
}

/// Reads objects as the API server gives them: YAML could not have all characters in a text.
fn read_objects(objects: &[Value]) -> Vec<ApiObject> {
    let read_object = |value: &Value| {
        let origin = ObjectOrigin { file: "cluster".into(), document: 1 };
        let (objects, problems) = read(value.clone(), origin);
        assert!(problems.is_empty(), "{problems:?}");
        objects
    };
    objects.iter().flat_map(read_object).collect()
}

/// Returns the configuration of the only listener; `None`: the listener is not served.
fn server_config(snapshot: &Snapshot) -> Option<Arc<ServerConfig>> {
    let listener = snapshot.listeners.first()?;
    let tls = listener.tls.as_deref().expect("the listener has TLS");
    for rule in &tls.sni_rules {
        let clients = rule.terminate.as_ref().and_then(|terms| terms.clients.as_ref());
        let check = clients.expect("clients are verified").revocation.as_ref();
        assert!(!check.expect("revocation is checked").lists.is_empty());
    }
    let tables = ServerTlsConfigs::default().sni_tables([Some(tls)].into_iter());
    let table = tables[0].as_ref().expect("the listener has TLS");
    match &table.find(None)?.mode {
        ServerTlsMode::Terminate(config) => Some(Arc::clone(&config.over_tcp)),
        ServerTlsMode::PassThrough | ServerTlsMode::Refuse => {
            panic!("TLS cannot use a list that translation accepts")
        }
    }
}

/// Returns the result of a handshake.
fn is_accepted(client: &Arc<ClientConfig>, server: Arc<ServerConfig>) -> bool {
    let name = SERVER_NAME.try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::clone(client), name).expect("a session");
    let mut server = ServerConnection::new(server).expect("a session");
    for _ in 0..PASSES {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        client.write_tls(&mut to_server).expect("memory takes bytes");
        server.read_tls(&mut &to_server[..]).expect("memory gives bytes");
        if server.process_new_packets().is_err() {
            return false;
        }
        server.write_tls(&mut to_client).expect("memory takes bytes");
        client.read_tls(&mut &to_client[..]).expect("memory gives bytes");
        client.process_new_packets().expect("the server has its certificate");
    }
    assert!(!server.is_handshaking(), "the handshake does not end");
    true
}

/// Returns an element of DER (X.690 §8.1) with a length of four bytes or of one.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("a short list").to_be_bytes();
    let zeros = length.iter().take_while(|&&byte| byte == 0).count().min(3);
    let short = [0x80 | (4 - zeros as u8)];
    let prefix = if content.len() < 0x80 { &[][..] } else { &short };
    [&[tag], prefix, &length[zeros..], content].concat()
}
