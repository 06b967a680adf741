//! JSON Web Key Sets (RFC 7517): the public keys with which tokens of an issuer are verified.
//!
//! Keys for another use, and of types that are not known, are passed over, as RFC 7517 §5 says: an issuer may have more
//! keys than Sheave can use. A set that would make tokens easier to forge is an error as a whole.

/// URLs of key sets.
mod url;

use std::sync::Arc;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaPublicKeyComponents,
};
use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

pub use url::{JwksHost, JwksSubscription, JwksUrl};

/// Maximum size of a key set.
pub const MAX_KEY_SET_BYTES: usize = 256 * 1024;
/// Maximum number of keys of a set.
const MAX_KEYS: usize = 64;
/// Maximum length of the ID of a key.
const MAX_KEY_ID: usize = 256;
/// Lengths of the modulus of RSA in bytes: 2048 to 4096 bits. A longer one would make each token expensive.
const RSA_MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=512;
/// Maximum length of the exponent of RSA in bytes.
const MAX_RSA_EXPONENT_BYTES: usize = 4;

/// The keys of an issuer that can verify tokens; there is at least one. No two keys with the same ID verify tokens of the
/// same algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonWebKeySet {
    /// The keys.
    pub keys: Vec<JsonWebKey>,
}

/// The state of a key set that is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySetState {
    /// The last key set, unless it is too old.
    pub keys: Option<Arc<JsonWebKeySet>>,
    /// The reason why the last fetch failed.
    pub problem: Option<String>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonWebKey {
    /// Its ID (`kid`).
    pub id: Option<Box<str>>,
    /// The only algorithm that it is for; `None`: each one of its type.
    pub algorithm: Option<JwtAlgorithm>,
    /// The key itself.
    pub key: PublicKey,
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// RSA: modulus and exponent, big-endian, without zeros at the front.
    Rsa {
        /// The modulus.
        modulus: Box<[u8]>,
        /// The exponent.
        exponent: Box<[u8]>,
    },
    /// A point of P-256, uncompressed.
    P256(Box<[u8]>),
    /// A point of P-384, uncompressed.
    P384(Box<[u8]>),
    /// A point of Ed25519.
    Ed25519(Box<[u8]>),
}

/// An algorithm of signatures (RFC 7518 §3.1, RFC 8037 §3.1). There is no symmetric one: with such an algorithm, a
/// public key would be a secret key that everybody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the RFCs")]
pub enum JwtAlgorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl JwtAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// Returns the name, as `alg` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Parses a name. Names are compared with regard to case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

impl PublicKey {
    /// Returns the key, ready to verify signatures of an algorithm; `None`: it is not for this algorithm, or it is no
    /// valid key.
    pub fn prepare(&self, algorithm: JwtAlgorithm) -> Option<ParsedPublicKey> {
        let parameters = match algorithm {
            JwtAlgorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
            JwtAlgorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
            JwtAlgorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
            JwtAlgorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
            JwtAlgorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
            JwtAlgorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
            JwtAlgorithm::Es256 => {
                let Self::P256(point) = self else { return None };
                return ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).ok();
            }
            JwtAlgorithm::Es384 => {
                let Self::P384(point) = self else { return None };
                return ParsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).ok();
            }
            JwtAlgorithm::EdDsa => {
                let Self::Ed25519(point) = self else { return None };
                return ParsedPublicKey::new(&ED25519, point).ok();
            }
        };
        let Self::Rsa { modulus, exponent } = self else { return None };
        let components = RsaPublicKeyComponents { n: modulus, e: exponent };
        components.to_parsed_public_key(parameters).ok()
    }

    /// Returns an algorithm for which such a key can be.
    const fn example_algorithm(&self) -> JwtAlgorithm {
        match self {
            Self::Rsa { .. } => JwtAlgorithm::Rs256,
            Self::P256(_) => JwtAlgorithm::Es256,
            Self::P384(_) => JwtAlgorithm::Es384,
            Self::Ed25519(_) => JwtAlgorithm::EdDsa,
        }
    }

    const fn is_for(&self, algorithm: JwtAlgorithm) -> bool {
        match algorithm {
            JwtAlgorithm::Rs256
            | JwtAlgorithm::Rs384
            | JwtAlgorithm::Rs512
            | JwtAlgorithm::Ps256
            | JwtAlgorithm::Ps384
            | JwtAlgorithm::Ps512 => matches!(self, Self::Rsa { .. }),
            JwtAlgorithm::Es256 => matches!(self, Self::P256(_)),
            JwtAlgorithm::Es384 => matches!(self, Self::P384(_)),
            JwtAlgorithm::EdDsa => matches!(self, Self::Ed25519(_)),
        }
    }
}

impl JsonWebKey {
    /// True if the key may verify signatures of an algorithm.
    pub fn is_for(&self, algorithm: JwtAlgorithm) -> bool {
        self.algorithm.is_none_or(|it| it == algorithm) && self.key.is_for(algorithm)
    }
}

impl JsonWebKeySet {
    /// Parses a key set. Messages have nothing of it but its structure.
    ///
    /// # Errors
    /// If no key can verify tokens, if a key has a secret part, or if two keys cannot be told apart.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_KEY_SET_BYTES {
            return Err(format!("must have at most {} KiB", MAX_KEY_SET_BYTES / 1024));
        }
        let set: KeySetDocument = serde_json::from_slice(text)
            .map_err(|error| format!("is no JSON Web Key Set (line {})", error.line()))?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("must have at most {MAX_KEYS} keys"));
        }
        let mut keys: Vec<JsonWebKey> = Vec::new();
        let mut unusable = None;
        for (number, document) in set.keys.into_iter().enumerate() {
            let key = match read_key(document) {
                Ok(key) => key,
                Err(KeyFault::Secret) => {
                    return Err(format!("keys[{number}] has the secret part of a key"));
                }
                Err(KeyFault::Unusable(reason)) => {
                    unusable.get_or_insert((number, reason));
                    continue;
                }
            };
            let overlaps =
                |algorithm| keys.iter().any(|it| it.id == key.id && it.is_for(algorithm));
            let is_second =
                |algorithm: &JwtAlgorithm| key.is_for(*algorithm) && overlaps(*algorithm);
            // Of two keys without an ID, neither can be chosen; a token with an ID chooses another one.
            if key.id.is_some() && JwtAlgorithm::ALL.iter().any(is_second) {
                return Err(format!("keys[{number}] has the `kid` of another key"));
            }
            keys.push(key);
        }
        match unusable {
            _ if !keys.is_empty() => {
                // Servers that take turns may order them differently.
                keys.sort_by(|a, b| a.id.cmp(&b.id));
                Ok(Self { keys })
            }
            Some((number, reason)) => Err(format!("has no usable key: keys[{number}] {reason}")),
            None => Err("has no key".to_owned()),
        }
    }
}

#[derive(Deserialize)]
struct KeySetDocument {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct KeyDocument {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    d: Option<IgnoredAny>,
}

/// The reason why a key is not used.
enum KeyFault {
    /// It is no public key for signatures that are known here.
    Unusable(&'static str),
    /// The secret part is there too: tokens of the issuer can be forged.
    Secret,
}

fn read_key(document: Value) -> Result<JsonWebKey, KeyFault> {
    let unusable = KeyFault::Unusable;
    let document: KeyDocument =
        serde_json::from_value(document).ok().ok_or_else(|| unusable("is no JSON Web Key"))?;
    if document.d.is_some() {
        return Err(KeyFault::Secret);
    }
    let verifies = |operations: &Vec<String>| operations.iter().any(|it| it == "verify");
    if document.usage.as_ref().is_some_and(|usage| usage != "sig")
        || document.key_ops.as_ref().is_some_and(|operations| !verifies(operations))
    {
        return Err(unusable("is not for signatures"));
    }
    let kid_fits = |id: &String| !id.is_empty() && id.len() <= MAX_KEY_ID;
    if !document.kid.as_ref().is_none_or(kid_fits) {
        return Err(unusable("has a `kid` that is empty or longer than 256 bytes"));
    }
    let algorithm = match document.alg.as_deref() {
        Some(name) => {
            Some(JwtAlgorithm::parse(name).ok_or_else(|| unusable("has an unknown `alg`"))?)
        }
        None => None,
    };
    let bytes = |text: &Option<String>| {
        let text = text.as_ref()?;
        BASE64URL_NOPAD.decode(text.trim_end_matches('=').as_bytes()).ok()
    };
    let curve = document.crv.as_deref();
    let invalid = || unusable("is no valid key");
    let key = match (&*document.kty, curve) {
        ("RSA", _) => {
            let number = |text| {
                let bytes = bytes(text)?;
                let start = bytes.iter().position(|byte| *byte != 0)?;
                Some(Box::<[u8]>::from(&bytes[start..]))
            };
            let (modulus, exponent) =
                number(&document.n).zip(number(&document.e)).ok_or_else(invalid)?;
            if !RSA_MODULUS_BYTES.contains(&modulus.len())
                || exponent.len() > MAX_RSA_EXPONENT_BYTES
            {
                return Err(unusable("must have 2048 to 4096 bits"));
            }
            PublicKey::Rsa { modulus, exponent }
        }
        ("EC", Some(curve @ ("P-256" | "P-384"))) => {
            let size = if curve == "P-256" { 32 } else { 48 };
            let coordinate = |text| bytes(text).filter(|it| it.len() == size);
            let (x, y) =
                coordinate(&document.x).zip(coordinate(&document.y)).ok_or_else(invalid)?;
            let point = [&[4][..], &x, &y].concat().into();
            if size == 32 { PublicKey::P256(point) } else { PublicKey::P384(point) }
        }
        ("OKP", Some("Ed25519")) => {
            let point = bytes(&document.x).filter(|it| it.len() == 32).ok_or_else(invalid)?;
            PublicKey::Ed25519(point.into())
        }
        ("oct", _) => return Err(unusable("is symmetric")),
        _ => return Err(unusable("has a type or curve that is not supported")),
    };
    if key.prepare(key.example_algorithm()).is_none() {
        return Err(invalid());
    }
    let key = JsonWebKey { id: document.kid.map(Into::into), algorithm, key };
    if algorithm.is_some_and(|algorithm| !key.is_for(algorithm)) {
        return Err(unusable("has an `alg` of another type of key"));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// RFC 7517 §A.1: the public keys, and RFC 8037 §A.2.
    fn keys() -> [Value; 3] {
        [
            json!({ "kty": "EC", "crv": "P-256", "kid": "1",
                "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
                "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM" }),
            json!({ "kty": "RSA", "kid": "2011-04-29", "alg": "RS256", "e": "AQAB",
                "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tS\
                      oc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65\
                      YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyr\
                      dkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzK\
                      nqDKgw" }),
            json!({ "kty": "OKP", "crv": "Ed25519", "kid": "ed",
                "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }),
        ]
    }

    fn parse(keys: &[Value]) -> Result<JsonWebKeySet, String> {
        JsonWebKeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    fn changed(number: usize, field: &str, value: Value) -> Value {
        let mut key = keys()[number].clone();
        key[field] = value;
        key
    }

    #[test]
    fn keys_of_each_type_are_read() {
        let set = parse(&keys()).unwrap();
        assert_eq!(set.keys.len(), 3);
        let [ec, rsa, ed] = &set.keys[..] else { panic!("{set:?}") };
        assert!(ec.is_for(JwtAlgorithm::Es256) && !ec.is_for(JwtAlgorithm::Es384));
        assert!(rsa.is_for(JwtAlgorithm::Rs256) && !rsa.is_for(JwtAlgorithm::Ps256));
        assert!(ed.is_for(JwtAlgorithm::EdDsa) && !ed.is_for(JwtAlgorithm::Es256));
        let mut any = rsa.clone();
        any.algorithm = None;
        for (key, algorithms) in [(ec, 1), (&any, 6), (ed, 1)] {
            let usable = |it: &&JwtAlgorithm| key.is_for(**it) && key.key.prepare(**it).is_some();
            assert_eq!(JwtAlgorithm::ALL.iter().filter(usable).count(), algorithms);
        }
    }

    #[test]
    fn keys_that_cannot_verify_tokens_are_passed_over() {
        for (number, field, value, reason) in [
            (0, "use", json!("enc"), "is not for signatures"),
            (0, "key_ops", json!(["sign"]), "is not for signatures"),
            (0, "crv", json!("secp256k1"), "has a type or curve that is not supported"),
            (0, "kty", json!("oct"), "is symmetric"),
            (0, "kty", json!(7), "is no JSON Web Key"),
            (0, "alg", json!("HS256"), "has an unknown `alg`"),
            (0, "alg", json!("RS256"), "has an `alg` of another type of key"),
            (0, "kid", json!(""), "has a `kid` that is empty or longer than 256 bytes"),
            // No point of the curve.
            (0, "y", json!("4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyA"), "is no valid key"),
            (0, "y", Value::Null, "is no valid key"),
            (1, "n", json!("0vx7"), "must have 2048 to 4096 bits"),
            (1, "e", json!("AQABAQAB"), "must have 2048 to 4096 bits"),
            (2, "x", json!("11qY"), "is no valid key"),
        ] {
            let bad = changed(number, field, value);
            let other = keys()[(number + 1) % 3].clone();
            assert_eq!(parse(&[bad.clone(), other]).unwrap().keys.len(), 1, "{bad}");
            let message = format!("has no usable key: keys[0] {reason}");
            assert_eq!(parse(&[bad]), Err(message));
        }
    }

    #[test]
    fn sets_that_make_forging_easier_are_errors() {
        let twice = |field, value| parse(&[keys()[1].clone(), changed(1, field, value)]);
        assert_eq!(
            twice("alg", json!("RS256")),
            Err("keys[1] has the `kid` of another key".into())
        );
        assert!(twice("alg", json!("PS256")).is_ok());
        assert!(twice("kid", json!("other")).is_ok());
        let secret = parse(&[keys()[1].clone(), changed(0, "d", json!("870MB6gf"))]);
        assert_eq!(secret, Err("keys[1] has the secret part of a key".into()));
        let many = vec![changed(0, "kid", Value::Null); MAX_KEYS + 1];
        assert_eq!(parse(&many), Err("must have at most 64 keys".into()));
        assert_eq!(parse(&[]), Err("has no key".into()));
        let long = vec![b' '; MAX_KEY_SET_BYTES + 1];
        assert_eq!(JsonWebKeySet::parse(&long), Err("must have at most 256 KiB".into()));
        for text in ["", "{}", "[]", "{\"keys\": 1}", "\u{0}", "<html>"] {
            let message = JsonWebKeySet::parse(text.as_bytes()).unwrap_err();
            assert!(message.starts_with("is no JSON Web Key Set"), "{message}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in ".{0,200}", x in "[A-Za-z0-9_-]{0,60}", kty in "EC|RSA|OKP|oct") {
            JsonWebKeySet::parse(text.as_bytes()).ok();
            let key = json!({ "kty": kty, "crv": "P-256", "x": x, "y": x, "n": x, "e": x });
            parse(&[key]).ok();
        }
    }
}
