//! Tests of verifiers with tokens of keys that are made for them.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384,
    RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use aws_lc_rs::{hmac, rsa};
use data_encoding::BASE64URL_NOPAD;
use gateway::snapshot::{ClaimField, CredentialSource};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The time of these tests, in seconds since 1970.
const NOW: f64 = 1_800_000_000.;

/// A private key of an issuer.
enum SigningKey {
    Ec(EcdsaKeyPair, &'static str),
    Ed(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl SigningKey {
    fn ec(algorithm: &'static EcdsaSigningAlgorithm, curve: &'static str) -> Self {
        Self::Ec(EcdsaKeyPair::generate(algorithm).unwrap(), curve)
    }

    fn p256() -> Self {
        Self::ec(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256")
    }

    fn jwk(&self, id: Option<&str>) -> Value {
        let text = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let mut key = match self {
            Self::Ec(pair, curve) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({ "kty": "EC", "crv": curve, "x": text(x), "y": text(y) })
            }
            Self::Ed(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref()) })
            }
            Self::Rsa(pair) => {
                // RFC 8017 §A.1.1: a sequence of modulus and exponent, in DER, of 2048 bits and 65537.
                let der = pair.public_key().as_ref();
                let (modulus, exponent) = (&der[9..265], &der[267..]);
                json!({ "kty": "RSA", "n": text(modulus), "e": text(exponent) })
            }
        };
        if let Some(id) = id {
            key["kid"] = json!(id);
        }
        key
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Ec(pair, _) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let padding: &dyn RsaEncoding = match algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> Vec<u8> {
        self.token_of(&header.to_string(), &claims.to_string())
    }

    fn token_of(&self, header: &str, claims: &str) -> Vec<u8> {
        let text = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let signed = format!("{}.{}", text(header.as_bytes()), text(claims.as_bytes()));
        let algorithm = serde_json::from_str::<Value>(header).unwrap_or_default();
        let algorithm = algorithm["alg"].as_str().unwrap_or_default().to_owned();
        let signature = self.sign(&algorithm, signed.as_bytes());
        format!("{signed}.{}", text(&signature)).into_bytes()
    }
}

fn key_set(keys: &[Value]) -> Arc<JsonWebKeySet> {
    Arc::new(JsonWebKeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap())
}

fn issuer(name: &str, keys: Option<Arc<JsonWebKeySet>>) -> JwtIssuer {
    JwtIssuer {
        name: name.into(),
        audiences: vec!["shop".into(), "office".into()],
        keys,
        subscription: None,
        clock_skew: Duration::from_secs(60),
        claims: vec![ClaimField { claim: "sub".into(), field: "x-user".into() }],
    }
}

fn verifier(issuers: Vec<JwtIssuer>) -> JwtVerifier {
    let settings = JwtSettings {
        policy: "default/tokens".into(),
        issuers,
        sources: vec![CredentialSource::Header("authorization".into())],
        claim_fields: vec!["x-user".into()],
        forwards_token: true,
    };
    JwtVerifier::new(&Arc::new(settings), None, 1)
}

fn verify(
    verifier: &JwtVerifier,
    token: &[u8],
    now: f64,
) -> Result<Arc<VerifiedToken>, TokenFault> {
    verifier.verify(token, 0, now, &KeySetRefresh::default(), Time::ZERO)
}

fn claims() -> Value {
    json!({ "iss": "https://a.test", "aud": "shop", "exp": NOW + 100., "sub": "ann" })
}

fn changed(mut value: Value, member: &str, to: Value) -> Value {
    value[member] = to;
    value
}

fn without(mut value: Value, member: &str) -> Value {
    value.as_object_mut().unwrap().remove(member);
    value
}

#[test]
fn tokens_of_each_algorithm_are_accepted_and_changed_ones_are_not() {
    let rsa = RsaKeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let keys = [
        SigningKey::p256(),
        SigningKey::ec(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384"),
        SigningKey::Ed(Ed25519KeyPair::generate().unwrap()),
        SigningKey::Rsa(Box::new(rsa)),
    ];
    let jwks: Vec<_> =
        keys.iter().zip(["a", "b", "c", "d"]).map(|(key, id)| key.jwk(Some(id))).collect();
    let verifier = verifier(vec![issuer("https://a.test", Some(key_set(&jwks)))]);
    for (number, id, algorithm) in [
        (0, "a", "ES256"),
        (1, "b", "ES384"),
        (2, "c", "EdDSA"),
        (3, "d", "RS256"),
        (3, "d", "RS384"),
        (3, "d", "RS512"),
        (3, "d", "PS256"),
        (3, "d", "PS384"),
        (3, "d", "PS512"),
    ] {
        let header = json!({ "alg": algorithm, "kid": id, "typ": "JWT" });
        let token = keys[number].token(&header, &claims());
        let verified =
            verify(&verifier, &token, NOW).unwrap_or_else(|fault| panic!("{algorithm}: {fault:?}"));
        assert_eq!(*verified.fields, [(0, "ann".into())]);
        // A token without `kid` is of the only key for its algorithm.
        let header = json!({ "alg": algorithm });
        assert!(verify(&verifier, &keys[number].token(&header, &claims()), NOW).is_ok());
        let signature = token.iter().rposition(|byte| *byte == b'.').unwrap() + 1;
        for position in [signature - 10, signature, signature + 30] {
            let mut token = token.clone();
            token[position] = if token[position] == b'A' { b'B' } else { b'A' };
            assert!(verify(&verifier, &token, NOW).is_err(), "{algorithm} {position}");
        }
        let other = keys[(number + 1) % 4].sign(algorithm, &token[..signature - 1]);
        let other = BASE64URL_NOPAD.encode(&other).into_bytes();
        let forged = [&token[..signature], &other].concat();
        assert_eq!(verify(&verifier, &forged, NOW).err(), Some(TokenFault::Signature));
    }
}

#[test]
fn tokens_are_refused_with_the_reason() {
    let (key, other) = (SigningKey::p256(), SigningKey::p256());
    let keys = key_set(&[key.jwk(Some("a")), other.jwk(Some("b"))]);
    let verifier =
        verifier(vec![issuer("https://a.test", Some(keys)), issuer("https://down.test", None)]);
    let header = || json!({ "alg": "ES256", "kid": "a" });
    let with = |member: &str, value: Value| key.token(&header(), &changed(claims(), member, value));
    let by = |member: &str, value: Value| key.token(&changed(header(), member, value), &claims());
    for (token, fault) in [
        (with("iss", json!("https://b.test")), TokenFault::Issuer),
        (with("iss", json!("https://a.test/")), TokenFault::Issuer),
        (with("iss", json!(["https://a.test"])), TokenFault::Malformed),
        (key.token(&header(), &without(claims(), "iss")), TokenFault::Issuer),
        (with("iss", json!("https://down.test")), TokenFault::KeysUnavailable),
        (with("aud", json!("bank")), TokenFault::Audience),
        (with("aud", json!([])), TokenFault::Audience),
        (key.token(&header(), &without(claims(), "aud")), TokenFault::Audience),
        (key.token(&header(), &without(claims(), "exp")), TokenFault::NoExpiry),
        (with("exp", json!(null)), TokenFault::NoExpiry),
        (with("exp", json!("1900000000")), TokenFault::Malformed),
        (with("exp", json!(NOW - 60.)), TokenFault::Expired),
        (with("exp", json!(-1)), TokenFault::Expired),
        (with("nbf", json!(NOW + 61.)), TokenFault::NotYetValid),
        (by("alg", json!("none")), TokenFault::Algorithm),
        (by("alg", json!("None")), TokenFault::Algorithm),
        (by("alg", json!("HS256")), TokenFault::Algorithm),
        (by("alg", json!("es256")), TokenFault::Algorithm),
        (by("alg", json!("RS256")), TokenFault::UnknownKey),
        (by("alg", json!(null)), TokenFault::Malformed),
        (by("kid", json!("c")), TokenFault::UnknownKey),
        (by("kid", json!("b")), TokenFault::Signature),
        (by("kid", json!(7)), TokenFault::Malformed),
        (by("crit", json!(["exp"])), TokenFault::CriticalExtension),
        (by("crit", json!(null)), TokenFault::CriticalExtension),
        (by("b64", json!(false)), TokenFault::CriticalExtension),
        (key.token(&without(header(), "kid"), &claims()), TokenFault::AmbiguousKey),
        // A key that the token itself brings is not believed.
        (
            other.token(&changed(header(), "jwk", other.jwk(Some("a"))), &claims()),
            TokenFault::Signature,
        ),
        (key.token_of("{\"alg\":\"ES256\",\"alg\":\"ES256\"}", "{}"), TokenFault::Malformed),
        (key.token_of("[]", "{}"), TokenFault::Malformed),
        (key.token_of(&header().to_string(), "null"), TokenFault::Malformed),
        (with("x", json!("x".repeat(token::MAX_TOKEN))), TokenFault::TooLong),
        (by("x", json!("x".repeat(1024))), TokenFault::Malformed),
        (b"a.b".to_vec(), TokenFault::Malformed),
        (b"..".to_vec(), TokenFault::Malformed),
        (b"e30.e30.".to_vec(), TokenFault::Malformed),
        (b"eyJhbGciOiJub25lIn0.e30.".to_vec(), TokenFault::Algorithm),
        (b"a.b.c.d.e".to_vec(), TokenFault::Malformed),
    ] {
        let text = String::from_utf8_lossy(&token).into_owned();
        assert_eq!(verify(&verifier, &token, NOW).err(), Some(fault), "{text}");
    }
    for claims in [
        changed(claims(), "aud", json!(["bank", "office"])),
        changed(claims(), "exp", json!(NOW - 59.)),
        changed(claims(), "nbf", json!(NOW + 59.)),
        changed(claims(), "exp", json!(NOW + 0.5)),
    ] {
        assert!(verify(&verifier, &key.token(&header(), &claims), NOW).is_ok(), "{claims}");
    }
    let refused: u64 = verifier.counters[0].verified.value();
    assert_eq!(refused, 4);
}

#[test]
fn the_public_key_is_no_secret_of_an_hmac() {
    let key = SigningKey::p256();
    let jwk = key.jwk(Some("a"));
    let verifier =
        verifier(vec![issuer("https://a.test", Some(key_set(std::slice::from_ref(&jwk))))]);
    let SigningKey::Ec(pair, _) = &key else { unreachable!() };
    let text = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
    let header = json!({ "alg": "HS256", "kid": "a" }).to_string();
    let signed = format!("{}.{}", text(header.as_bytes()), text(claims().to_string().as_bytes()));
    for secret in [pair.public_key().as_ref(), jwk.to_string().as_bytes()] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        let token = format!("{signed}.{}", text(tag.as_ref()));
        assert_eq!(verify(&verifier, token.as_bytes(), NOW).err(), Some(TokenFault::Algorithm));
    }
}

#[test]
fn a_remembered_token_still_expires_and_wrong_ones_are_not_remembered() {
    let key = SigningKey::p256();
    let verifier = verifier(vec![issuer("https://a.test", Some(key_set(&[key.jwk(None)])))]);
    let token = key.token(&json!({ "alg": "ES256" }), &changed(claims(), "nbf", json!(NOW)));
    let counts = || {
        let counters = &verifier.counters[0];
        (counters.verified.value(), counters.remembered.value())
    };
    assert!(verify(&verifier, &token, NOW).is_ok());
    assert!(verify(&verifier, &token, NOW + 159.).is_ok());
    assert_eq!(counts(), (1, 1));
    assert_eq!(verify(&verifier, &token, NOW + 160.).err(), Some(TokenFault::Expired));
    assert_eq!(verify(&verifier, &token, NOW - 61.).err(), Some(TokenFault::NotYetValid));
    assert_eq!(verify(&verifier, &token, f64::NEG_INFINITY).err(), Some(TokenFault::NotYetValid));
    let forged = SigningKey::p256().token(&json!({ "alg": "ES256" }), &claims());
    for _ in 0..2 {
        assert_eq!(verify(&verifier, &forged, NOW).err(), Some(TokenFault::Signature));
    }
    assert_eq!(counts(), (1, 1));
}

#[test]
fn keys_of_another_issuer_verify_nothing() {
    let (key, other) = (SigningKey::p256(), SigningKey::p256());
    let verifier = verifier(vec![
        issuer("https://a.test", Some(key_set(&[key.jwk(None)]))),
        issuer("https://b.test", Some(key_set(&[other.jwk(None)]))),
    ]);
    let header = json!({ "alg": "ES256" });
    let of_b = changed(claims(), "iss", json!("https://b.test"));
    assert!(verify(&verifier, &other.token(&header, &of_b), NOW).is_ok());
    assert_eq!(
        verify(&verifier, &other.token(&header, &claims()), NOW).err(),
        Some(TokenFault::Signature)
    );
}

#[test]
fn unknown_keys_ask_for_the_key_set_again_once_a_second() {
    let key = SigningKey::p256();
    let subscription = JwksSubscription {
        url: gateway::jwks::JwksUrl::parse("https://a.test/keys").unwrap(),
        refresh_interval: Duration::from_mins(5),
        max_age: Duration::from_hours(24),
        is_filtered: true,
    };
    let mut of_url = issuer("https://a.test", Some(key_set(&[key.jwk(Some("a"))])));
    of_url.subscription = Some(Arc::new(subscription));
    let verifier = verifier(vec![of_url]);
    let refresh = KeySetRefresh::default();
    let waiting = |kid: &str, seconds| {
        let token = key.token(&json!({ "alg": "ES256", "kid": kid }), &claims());
        let now = Time::ZERO + Duration::from_secs(seconds);
        drop(verifier.verify(&token, 0, NOW, &refresh, now));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(refresh.asked()).poll(&mut context).is_ready()
    };
    assert!(!waiting("a", 10));
    assert!(waiting("b", 10));
    assert!(!waiting("b", 10) && !waiting("c", 10));
    assert!(waiting("b", 11));
}

proptest! {
    #[test]
    fn no_token_is_a_panic(token in "[ -~]{0,100}", header in ".{0,40}", claims in ".{0,40}") {
        let key = SigningKey::p256();
        let verifier = verifier(vec![issuer("https://a.test", Some(key_set(&[key.jwk(None)])))]);
        prop_assert!(verify(&verifier, token.as_bytes(), NOW).is_err());
        prop_assert!(verify(&verifier, &key.token_of(&header, &claims), NOW).is_err());
    }
}
