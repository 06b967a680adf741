//! The parts of a token (JWS compact serialization, RFC 7515 §7.1), before anything of it is believed.

use std::borrow::Cow;

use data_encoding::BASE64URL_NOPAD;
use gateway::jwks::JwtAlgorithm;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

use super::fault::TokenFault;

/// Maximum length of a token.
pub(super) const MAX_TOKEN: usize = 8 * 1024;
/// Maximum length of its header, encoded.
const MAX_HEADER: usize = 1024;
/// Maximum length of its signature, encoded: RSA with 4096 bits.
const MAX_SIGNATURE: usize = 683;

/// A token in its parts.
pub(super) struct SignedToken<'t> {
    /// Header and claims as they were signed.
    pub(super) signed_part: &'t [u8],
    header: Vec<u8>,
    /// The claims, as JSON.
    pub(super) claims: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

/// The parts of a token that decide whether it is accepted.
pub(super) struct ParsedToken {
    pub(super) algorithm: JwtAlgorithm,
    pub(super) key_id: Option<String>,
    pub(super) issuer: Option<String>,
    pub(super) audiences: Vec<String>,
    pub(super) expiry: Option<f64>,
    pub(super) not_before: Option<f64>,
}

#[derive(Deserialize)]
struct JoseHeader<'h> {
    #[serde(borrow)]
    alg: Cow<'h, str>,
    kid: Option<String>,
    #[serde(default)]
    crit: MemberPresence,
    /// RFC 7797: an unencoded payload, which needs `crit`.
    #[serde(default)]
    b64: MemberPresence,
}

/// True if the object has the member, whatever its value.
#[derive(Default)]
struct MemberPresence(bool);

impl<'de> Deserialize<'de> for MemberPresence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self(true))
    }
}

#[derive(Deserialize)]
struct RegisteredClaims {
    iss: Option<String>,
    aud: Option<AudienceClaim>,
    exp: Option<f64>,
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum AudienceClaim {
    One(String),
    Several(Vec<String>),
}

impl<'t> SignedToken<'t> {
    /// Takes a token apart and decodes the parts.
    pub(super) fn split(token: &'t [u8]) -> Result<Self, TokenFault> {
        let mut dots = token.iter().enumerate().filter(|(_, byte)| **byte == b'.');
        let (Some((first, _)), Some((second, _)), None) = (dots.next(), dots.next(), dots.next())
        else {
            return Err(TokenFault::Malformed);
        };
        let (header, claims) = (&token[..first], &token[first + 1..second]);
        let signature = &token[second + 1..];
        if header.len() > MAX_HEADER || signature.len() > MAX_SIGNATURE {
            return Err(TokenFault::Malformed);
        }
        let decode = |part| BASE64URL_NOPAD.decode(part).ok().ok_or(TokenFault::Malformed);
        Ok(Self {
            signed_part: &token[..second],
            header: decode(header)?,
            claims: decode(claims)?,
            signature: decode(signature)?,
        })
    }

    /// Reads header and registered claims.
    pub(super) fn parse(&self) -> Result<ParsedToken, TokenFault> {
        let JoseHeader { alg, kid, crit, b64 } = read(&self.header)?;
        if crit.0 || b64.0 {
            return Err(TokenFault::CriticalExtension);
        }
        let algorithm = JwtAlgorithm::parse(&alg).ok_or(TokenFault::Algorithm)?;
        let RegisteredClaims { iss, aud, exp, nbf } = read(&self.claims)?;
        let audiences = match aud {
            None => Vec::new(),
            Some(AudienceClaim::One(audience)) => vec![audience],
            Some(AudienceClaim::Several(audiences)) => audiences,
        };
        Ok(ParsedToken {
            algorithm,
            key_id: kid,
            issuer: iss,
            audiences,
            expiry: exp,
            not_before: nbf,
        })
    }
}

/// Reads an object. One that has a member twice is refused: another reader might take the other one.
fn read<'j, T: Deserialize<'j>>(json: &'j [u8]) -> Result<T, TokenFault> {
    serde_json::from_slice(json).ok().ok_or(TokenFault::Malformed)
}
