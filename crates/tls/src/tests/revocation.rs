//! Revocation of client certificates: which certificates a list rejects, and sessions from before it.

use gateway::snapshot::RevocationCheck;
use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

use super::*;

/// Serial number of the client certificate in these tests.
const CLIENT: u64 = 7;

/// An authority below another one, and a client of it.
struct RevocationFixture {
    root: TestAuthority,
    intermediate: TestAuthority,
    client: Arc<TlsCertificate>,
}

fn certificate_params(serial: u64) -> CertificateParams {
    let mut params = CertificateParams::new(vec![format!("{serial}.example.com")]).unwrap();
    params.serial_number = Some(SerialNumber::from(serial));
    params.distinguished_name.push(rcgen::DnType::CommonName, serial.to_string());
    params
}

impl RevocationFixture {
    fn new() -> Self {
        let root = TestAuthority::new();
        let (key, mut params) = (KeyPair::generate().unwrap(), certificate_params(100));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let of_intermediate = params.signed_by(&key, &root.issuer).unwrap();
        let intermediate = TestAuthority {
            der: (**of_intermediate.der()).into(),
            issuer: Issuer::new(params, key),
        };
        let key = KeyPair::generate().unwrap();
        let leaf = certificate_params(CLIENT).signed_by(&key, &intermediate.issuer).unwrap();
        let client = Arc::new(TlsCertificate {
            name: "client".into(),
            chain: vec![(**leaf.der()).into(), intermediate.der.clone()],
            key: PrivateKey::Pkcs8(key.serialize_der().into()),
        });
        Self { root, intermediate, client }
    }

    /// Returns the result of a handshake with this check.
    fn attempt(&self, check: RevocationCheck) -> Result<(), ClientTlsError> {
        self.attempt_again(check, &mut ServerTlsConfigs::default(), &self.trust())
    }

    fn trust(&self) -> Arc<EndpointTlsContext> {
        self.root.trust("a.example.com", &[], Some(&self.client))
    }

    fn attempt_again(
        &self,
        check: RevocationCheck,
        servers: &mut ServerTlsConfigs,
        trust: &Arc<EndpointTlsContext>,
    ) -> Result<(), ClientTlsError> {
        let clients =
            ClientCertificates { revocation: Some(Arc::new(check)), ..self.root.clients(true) };
        // The same for each attempt, so that sessions could be resumed.
        let server = self.root.certificate(&["a.example.com"]);
        let sites = sites(servers, vec![site_for("", &[&server], Some(clients))]);
        let mut session = TlsSession::server(config(&sites, "a.example.com")).unwrap();
        let result = run_handshake(&mut client_session(trust), &mut session).1;
        result.map_err(|error| ClientTlsError::from(&error))
    }
}

/// Returns the list of an authority in DER.
fn list(authority: &TestAuthority, revoked: &[u64], next_update: i32) -> Box<[u8]> {
    let entry = |serial: &u64| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: rcgen::date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2024, 1, 1),
        next_update: rcgen::date_time_ymd(next_update, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    (**params.signed_by(&authority.issuer).unwrap().der()).into()
}

fn strict(lists: Vec<Box<[u8]>>) -> RevocationCheck {
    RevocationCheck {
        lists,
        only_end_entity: false,
        accepts_unknown: false,
        accepts_expired: false,
    }
}

const FUTURE: i32 = 4000;
const PAST: i32 = 2025;
const REJECTED: Result<(), ClientTlsError> = Err(ClientTlsError::ClientCertificate);

#[test]
fn certificate_on_a_list_is_rejected_anywhere_in_the_chain() {
    let it = RevocationFixture::new();
    let lists = |of_root: &[u64], of_intermediate: &[u64]| {
        let of_intermediate = list(&it.intermediate, of_intermediate, FUTURE);
        strict(vec![list(&it.root, of_root, FUTURE), of_intermediate])
    };
    assert_eq!(it.attempt(lists(&[], &[])), Ok(()));
    assert_eq!(it.attempt(lists(&[CLIENT], &[100])), Ok(()), "numbers of other authorities");
    assert_eq!(it.attempt(lists(&[], &[CLIENT])), REJECTED);
    assert_eq!(it.attempt(lists(&[100], &[])), REJECTED, "the intermediate authority");
    let only_end_entity = RevocationCheck { only_end_entity: true, ..lists(&[100], &[]) };
    assert_eq!(it.attempt(only_end_entity), Ok(()));
}

#[test]
fn unknown_status_and_expired_lists_are_rejected_unless_accepted() {
    let it = RevocationFixture::new();
    // A list counts for the authority of its name.
    let (key, params) = (KeyPair::generate().unwrap(), certificate_params(200));
    let other = TestAuthority { der: Box::default(), issuer: Issuer::new(params, key) };
    let other = strict(vec![list(&other, &[], FUTURE)]);
    assert_eq!(it.attempt(other.clone()), REJECTED);
    assert_eq!(it.attempt(RevocationCheck { accepts_unknown: true, ..other }), Ok(()));
    let lists = |revoked: &[u64]| {
        strict(vec![list(&it.root, &[], PAST), list(&it.intermediate, revoked, PAST)])
    };
    assert_eq!(it.attempt(lists(&[])), REJECTED);
    let accepted = RevocationCheck { accepts_expired: true, ..lists(&[]) };
    assert_eq!(it.attempt(accepted), Ok(()));
    let revoked = RevocationCheck { accepts_expired: true, ..lists(&[CLIENT]) };
    assert_eq!(it.attempt(revoked), REJECTED);
}

#[test]
fn session_from_before_a_new_list_is_not_resumed() {
    let it = RevocationFixture::new();
    let lists = |revoked: &[u64]| {
        strict(vec![list(&it.root, &[], FUTURE), list(&it.intermediate, revoked, FUTURE)])
    };
    let (mut servers, trust) = (ServerTlsConfigs::default(), it.trust());
    assert_eq!(it.attempt_again(lists(&[]), &mut servers, &trust), Ok(()));
    assert_eq!(it.attempt_again(lists(&[CLIENT]), &mut servers, &trust), REJECTED);
}

#[test]
fn check_without_a_list_is_refused() {
    let it = RevocationFixture::new();
    let clients = ClientCertificates {
        revocation: Some(Arc::new(strict(Vec::new()))),
        ..it.root.clients(true)
    };
    let server = it.root.certificate(&["a.example.com"]);
    let site = site_for("a.example.com", &[&server], Some(clients));
    let sites = sites(&mut ServerTlsConfigs::default(), vec![site]);
    let entry = site_of(&sites, "a.example.com").unwrap();
    assert!(matches!(entry.mode, ServerTlsMode::Refuse));
}
