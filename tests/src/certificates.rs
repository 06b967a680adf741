//! Certificate authorities and the certificates that they issue.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

/// Certificate authority.
pub struct CertificateAuthority {
    pub pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate with its key.
#[derive(Debug)]
pub struct IssuedCertificate {
    pub certificate_pem: String,
    pub key_pem: String,
    public_key: Vec<u8>,
    serial: SerialNumber,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl CertificateAuthority {
    /// Creates an authority; clients trust it only if they are told to.
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("keys can be made");
        let params = authority_params(&key);
        let certificate = params.self_signed(&key).expect("the parameters are in order");
        let der = certificate.der().clone();
        Self { pem: certificate.pem(), der, issuer: Issuer::new(params, key) }
    }

    /// Creates an intermediate authority, which clients trust if they trust this one.
    pub fn certify_intermediate(&self) -> Self {
        let key = KeyPair::generate().expect("keys can be made");
        let mut params = authority_params(&key);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are right");
        let der = certificate.der().clone();
        Self { pem: certificate.pem(), der, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate like [`CertificateAuthority::issue`], with the extensions and the life
    /// that public authorities give it.
    #[expect(clippy::disallowed_methods, reason = "the certificate is valid today")]
    pub fn issue_for_90_days(&self, names: &[&str]) -> IssuedCertificate {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let mut params = params(names);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        let yesterday = rcgen::date_time_ymd(1970, 1, 1) + since_epoch - DAY;
        (params.not_before, params.not_after) = (yesterday, yesterday + 90 * DAY);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        self.sign(&params)
    }

    /// Issues a certificate for these names: host names, wildcards, IP addresses.
    pub fn issue(&self, names: &[&str]) -> IssuedCertificate {
        self.sign(&params(names))
    }

    /// Issues a certificate for this URI, such as the SPIFFE ID of a workload.
    pub fn issue_for_uri(&self, uri: &str) -> IssuedCertificate {
        let mut params = params(&[]);
        params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("ASCII"))];
        self.sign(&params)
    }

    /// Issues a certificate like [`CertificateAuthority::issue`] that has expired.
    pub fn issue_expired(&self, names: &[&str]) -> IssuedCertificate {
        let mut params = params(names);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> IssuedCertificate {
        let key = KeyPair::generate().expect("keys can be made");
        let mut params = params.clone();
        // A leading 1 keeps the number positive and free of zeros.
        let serial = SerialNumber::from([&[1][..], &key.public_key_raw()[1..16]].concat());
        params.serial_number = Some(serial.clone());
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are right");
        IssuedCertificate {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            public_key: key.subject_public_key_info(),
            serial,
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).expect("PKCS #8"),
        }
    }

    /// Returns a root store with this authority alone.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).expect("an authority can be trusted");
        roots
    }

    /// Returns a ConfigMap with the authority's list of revoked certificates, in PEM.
    pub fn revocation_list(&self, name: &str, revoked: &[&IssuedCertificate]) -> Value {
        let entry = |identity: &&IssuedCertificate| RevokedCertParams {
            serial_number: identity.serial.clone(),
            revocation_time: rcgen::date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 1, 1),
            next_update: rcgen::date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("the parameters are right");
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name },
            "data": { "ca.crl": list.pem().expect("PEM of a list") },
        })
    }

    /// Returns a ConfigMap with the authority's certificate.
    pub fn config_map(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name },
            "data": { "ca.crt": self.pem },
        })
    }
}

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl IssuedCertificate {
    /// Returns a Secret with the certificate and its key.
    pub fn secret(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": name },
            "type": "kubernetes.io/tls",
            "stringData": { "tls.crt": self.certificate_pem, "tls.key": self.key_pem },
        })
    }

    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    pub fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    /// Returns the SHA-256 of the public key, in the format that browsers take for pinning.
    pub fn pin(&self) -> String {
        BASE64.encode(digest(&SHA256, &self.public_key).as_ref())
    }
}

/// Returns the parameters of an authority with this key. Each authority needs a name of its own:
/// otherwise a chain could be tried with the wrong one.
fn authority_params(key: &KeyPair) -> CertificateParams {
    let mut params = params(&[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, key_name(key));
    params
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).expect("names are ASCII")
}

fn key_name(key: &KeyPair) -> String {
    let bytes = &key.public_key_raw()[1..9];
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
