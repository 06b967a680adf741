//! The self-signed certificate of `--listen https://` without `--cert`: created at the start for this machine, trusted
//! by no client.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use gateway::{ApiObject, ObjectOrigin, objects};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustix::system::uname;
use time::OffsetDateTime;

/// Longest validity that browsers accept.
const VALIDITY_PERIOD: Duration = Duration::from_secs(397 * 24 * 3600);

/// Allowance for clients with slow clocks.
const CLOCK_SKEW_ALLOWANCE: Duration = Duration::from_secs(24 * 3600);

/// Returns a Secret with a certificate for the names of this machine.
pub(crate) fn secret(now: SystemTime) -> anyhow::Result<ApiObject> {
    let names = names();
    let key = KeyPair::generate().context("cannot make a key")?;
    let mut params = CertificateParams::new(names.clone()).context("cannot name this machine")?;
    params.not_before = OffsetDateTime::from(now - CLOCK_SKEW_ALLOWANCE);
    params.not_after = OffsetDateTime::from(now + VALIDITY_PERIOD);
    params.distinguished_name.push(DnType::CommonName, "sheave, self-signed");
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    let certificate = params.self_signed(&key).context("cannot sign a certificate")?;
    tracing::warn!(
        names = names.join(" "),
        "no --cert is given: https uses a self-signed certificate, which clients do not trust"
    );
    let origin = ObjectOrigin { file: Arc::from("self-signed"), document: 0 };
    let (chain, key) = (certificate.pem().into_bytes(), key.serialize_pem().into_bytes());
    Ok(objects::certificate(1, origin, chain, key))
}

/// Returns the host name, if a certificate can hold it, and the loopback names.
fn names() -> Vec<String> {
    let host = uname().nodename().to_string_lossy().to_lowercase();
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let host = (!host.is_empty() && host.bytes().all(is_inner)).then_some(host);
    let always = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let others = host.into_iter().filter(|host| !always.contains(host));
    others.chain(always.clone()).collect()
}

#[cfg(test)]
mod tests {
    use gateway::TranslationSettings;
    use gateway::objects::{ListenFlag, ListenFlagProtocol, ShorthandFlags, shorthand};

    use super::*;

    #[test]
    fn self_signed_certificate_serves_https_and_is_valid_for_a_year() {
        let now = proxy::clock::wall();
        let address = "127.0.0.1:0".parse().unwrap();
        let listen = vec![ListenFlag { protocol: ListenFlagProtocol::Https, address }];
        let flags =
            ShorthandFlags { listen, to: vec![address], certificates: 1, ..Default::default() };
        let mut objects = shorthand(&flags);
        objects.push(secret(now).unwrap());
        let translation = gateway::translate(&objects, &TranslationSettings::default());
        // No server listens on port 0, which does not matter for the certificate.
        assert_eq!(translation.problems, []);
        assert!(translation.snapshot.listeners[0].tls.is_some());
        let day = 24 * 3600;
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let [dated] = &translation.certificate_validities.into_iter().collect::<Vec<_>>()[..]
        else {
            panic!()
        };
        assert_eq!(dated.problem(seconds + 390 * day), None);
        assert!(dated.problem(seconds + 400 * day).is_some());
    }
}
