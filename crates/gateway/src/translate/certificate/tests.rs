//! Tests reading of certificates and the error messages. The golden files show the errors as statuses of objects.

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::*;
use crate::objects::{ObjectMeta, SecretText};

/// 2026-01-01.
const NOW: u64 = 1_767_225_600;
const DAY: u64 = 86_400;

fn secret(values: &[(&str, &str)]) -> TypedObject<SecretSpec> {
    let value =
        |(name, value): &(&str, &str)| ((*name).to_owned(), SecretText((*value).to_owned()));
    TypedObject {
        origin: crate::ObjectOrigin::default(),
        metadata: ObjectMeta::named("default", "shop"),
        spec: SecretSpec { string_data: values.iter().map(value).collect(), ..Default::default() },
    }
}

/// Returns PEM of a certificate that is valid in these years, and of its key.
fn certificate_for(from: i32, to: i32) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["shop.example".to_owned()]).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn read(
    chain: &str,
    key: &str,
) -> Result<(Arc<TlsCertificate>, Option<CertificateValidity>), String> {
    let read = of_secret(&secret(&[(CHAIN, chain), (KEY, key)]));
    read.map_err(|bad| format!("{} {}", bad.field, bad.message))
}

#[test]
fn certificate_chain_is_read_despite_text_between_certificates() {
    let (leaf, key) = certificate_for(2020, 2030);
    let (issuer, _) = certificate_for(2020, 2030);
    let chain = format!("subject=shop\n{leaf}\nissuer\n{issuer}");
    let (certificate, _) = read(&chain, &format!("comment\n{key}")).unwrap();
    assert_eq!(certificate.chain.len(), 2);
    assert_eq!(&*certificate.name, "Secret default/shop");
    assert!(matches!(certificate.key, PrivateKey::Pkcs8(_)));
    // The key must belong to the first certificate of the chain.
    let error = read(&format!("{issuer}{leaf}"), &key).unwrap_err();
    assert_eq!(error, "data.tls.key is not the key of the certificate in tls.crt");
}

#[test]
fn expired_and_not_yet_valid_certificates_are_reported() {
    let problem = |from, to, now| {
        let (chain, key) = certificate_for(from, to);
        let (_, validity) = read(&chain, &key).unwrap();
        validity.unwrap().problem(now).map(|problem| problem.to_string())
    };
    assert_eq!(problem(2025, 2027, NOW), None);
    let expired = problem(2025, 2026, NOW + 3 * DAY).unwrap();
    let place = ": Secret default/shop: data.tls.crt: ";
    assert_eq!(expired, format!("{place}the certificate expired 3 days ago"));
    let early = problem(2026, 2027, NOW - 3600).unwrap();
    assert_eq!(early, format!("{place}the certificate is not valid for another 1 hour"));
}

#[test]
fn errors_and_debug_output_contain_no_key_material() {
    let (chain, key) = certificate_for(2020, 2030);
    let cut = &key[..key.len() - 20];
    for (chain, key) in [(cut, cut), (&chain, cut), (&key, &key), (&chain, "-----BEGIN A")] {
        let error = read(chain, key).unwrap_err();
        let lines = || chain.lines().chain(key.lines()).filter(|line| line.len() > 20);
        assert!(lines().all(|line| !error.contains(line)), "{error}");
    }
    let (certificate, _) = read(&chain, &key).unwrap();
    assert!(format!("{certificate:?}").contains("key: PrivateKey }"), "{certificate:?}");
}
