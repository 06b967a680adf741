//! Private keys with their certificates, and the choice of one for a client.

use std::sync::Arc;

use gateway::snapshot::{PrivateKey, TlsCertificate};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
    ServerName,
};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, SignatureScheme};

/// Parses a key and its chain, ready to sign.
pub(super) fn certified_key(
    certificate: &TlsCertificate,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Error> {
    let chain = certificate.chain.iter().map(|der| CertificateDer::from(der.to_vec())).collect();
    let der = certificate.key.der().to_vec();
    let key = match certificate.key {
        PrivateKey::Pkcs8(_) => PrivateKeyDer::from(PrivatePkcs8KeyDer::from(der)),
        PrivateKey::Pkcs1(_) => PrivatePkcs1KeyDer::from(der).into(),
        PrivateKey::Sec1(_) => PrivateSec1KeyDer::from(der).into(),
    };
    CertifiedKey::from_der(chain, key, provider)
}

/// The certificates of one SNI entry; each client gets the one that fits best.
#[derive(Debug)]
pub(super) struct CertificateResolver(Vec<Arc<CertifiedKey>>);

impl CertificateResolver {
    /// Keeps the usable ones of `certificates`; fails if none is.
    pub(super) fn new(
        certificates: &[Arc<TlsCertificate>],
        provider: &CryptoProvider,
    ) -> Result<Self, Error> {
        let mut usable = Vec::new();
        let mut result = Err(Error::NoCertificatesPresented);
        for certificate in certificates {
            match certified_key(certificate, provider) {
                Ok(key) => usable.push(Arc::new(key)),
                Err(error) => {
                    let name = &*certificate.name;
                    tracing::error!(certificate = name, %error, "the certificate cannot be used");
                    result = Err(error);
                }
            }
        }
        if usable.is_empty() { result } else { Ok(Self(usable)) }
    }

    /// Returns the first that fits the name and that the client can verify; else the first that it can verify; else
    /// the first.
    fn choose(
        &self,
        name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<&Arc<CertifiedKey>> {
        let [only] = self.0.as_slice() else {
            let name = name.and_then(|name| ServerName::try_from(name).ok());
            let mut verifiable =
                self.0.iter().filter(|key| key.key.choose_scheme(schemes).is_some());
            let fits =
                |key: &&Arc<CertifiedKey>| name.as_ref().is_some_and(|name| is_for(key, name));
            let first = verifiable.clone().next().or_else(|| self.0.first());
            return verifiable.find(fits).or(first);
        };
        Some(only)
    }
}

fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let certificate = key.cert.first().map(ParsedCertificate::try_from);
    certificate.is_some_and(|parsed| {
        parsed.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
    })
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.server_name(), hello.signature_schemes()).map(Arc::clone)
    }
}
