//! Credentials of a request, as the SecurityPolicy of its rule requires them.
//!
//! A request passes with a name and a password of a user, the key of a client and the token of an issuer, if they are
//! required, or is answered with 401. The check comes after what a filter answers: a redirect to HTTPS must not ask for a
//! password over HTTP, and a browser sends no credentials with a CORS preflight request.

use std::net::IpAddr;
use std::time::Duration;

use codec::head::{FieldSection, KnownFieldName, ResponseHead};
use data_encoding::BASE64_NOPAD;
use gateway::snapshot::{BasicAuthSettings, SecuritySettings};
use zeroize::Zeroizing;

use crate::accept::client::WaitInterrupt;
use crate::active_config::ActiveConfig;
use crate::address_share::network;
use crate::clock;
use crate::context::RequestContext;
use crate::failure::Failure;

/// Places of credentials in a request.
mod source;
/// Keys of clients.
pub(crate) mod api_key;
/// Tokens of issuers.
pub(crate) mod jwt;
/// Hashes of passwords.
mod password;
/// Verification of passwords, off the workers.
pub(crate) mod verifier;

use jwt::fault::TokenFault;
use verifier::VerificationStart;

/// Maximum length of a name and a password together.
const MAX_CREDENTIALS: usize = 1024;
/// Maximum time that a request waits for the verification of its password.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which a client may try again if too many passwords wait to be verified.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// True if requests need credentials by these settings.
pub(crate) fn are_required(security: &SecuritySettings) -> bool {
    security.basic_auth.is_some() || security.api_keys.is_some() || security.jwt.is_some()
}

/// Adds what tells the client which credentials are required (RFC 9110 §11.6.1). `refused` is the reason if the request
/// has a token that is not accepted.
pub(crate) fn challenge(
    security: &SecuritySettings,
    refused: Option<TokenFault>,
    response: &mut ResponseHead,
) {
    if let Some(basic) = &security.basic_auth {
        response.fields.append("WWW-Authenticate", &*basic.challenge);
    }
    if let Some(keys) = &security.api_keys {
        response.fields.append("WWW-Authenticate", api_key::challenge(keys));
    }
    if security.jwt.is_some() {
        // RFC 6750 §3: without a token there is no error.
        let challenge = refused.map_or_else(
            || "Bearer".to_owned(),
            |fault| {
                let reason = fault.reason();
                format!("Bearer error=\"invalid_token\", error_description=\"{reason}\"")
            },
        );
        response.fields.append("WWW-Authenticate", challenge);
    }
}

/// Checks the credentials of the request, and changes what the endpoint gets of them.
pub(crate) async fn check(
    context: &mut RequestContext<'_>,
    active_config: &ActiveConfig,
    security: &SecuritySettings,
    address: IpAddr,
) -> Result<(), Failure> {
    // An application could take a trailer for a field that tells of the client.
    context.exchange.upload.drop_trailers();
    if security.api_keys.is_some() {
        let table = active_config.api_keys.get(&security.policy);
        let table = table.ok_or(Failure::SecurityPolicyInvalid)?;
        table.check(&mut context.exchange.request)?;
    }
    if security.jwt.is_some() {
        let verifier = active_config.jwt.get(&security.policy);
        let verifier = verifier.ok_or(Failure::SecurityPolicyInvalid)?;
        let (worker, now) = (context.worker, context.record.started);
        let refresh = &worker.shared.key_set_refresh;
        verifier.check(&mut context.exchange.request, worker.index, refresh, now)?;
    }
    let Some(basic) = &security.basic_auth else { return Ok(()) };
    let credentials = BasicCredentials::of(&context.exchange.request.fields);
    let credentials = credentials.ok_or(Failure::Unauthenticated)?;
    let user = credentials.user().ok_or(Failure::Unauthenticated)?;
    let verifier = &context.worker.shared.password_verifier;
    let known = basic.hash_of(user);
    // The answer for a name that is not known takes as long as for one that is.
    let hash = known.unwrap_or_else(|| verifier.decoy(&basic.users, user));
    let is_right = match verifier.start(hash, credentials.password(), network(address))? {
        VerificationStart::Known => true,
        VerificationStart::Pending(verdict) => {
            let until = clock::now() + PATIENCE;
            let worker = context.worker;
            match context.client.wait_until(worker, until, verdict).await {
                // A thread that ended without a verdict leaves the password unverified.
                Ok(verdict) => verdict.ok().ok_or(Failure::CredentialOverload)?,
                Err(WaitInterrupt::ClientGone) => return Err(Failure::ClientGone),
                Err(WaitInterrupt::OutOfMemory) => return Err(Failure::OutOfMemory),
                Err(WaitInterrupt::Deadline) => return Err(Failure::CredentialOverload),
            }
        }
    };
    if !(is_right & known.is_some()) {
        return Err(Failure::Unauthenticated);
    }
    forward(basic, user, &mut context.exchange.request.fields);
    Ok(())
}

/// Changes the fields that tell the endpoint about the user.
fn forward(basic: &BasicAuthSettings, user: &str, fields: &mut FieldSection) {
    if !basic.forwards_credentials {
        fields.remove_named(b"authorization");
    }
    if let Some(name) = &basic.username_header {
        fields.remove_spellings(name.as_bytes());
        fields.append(&**name, user);
    }
}

/// A name and a password (RFC 7617 §2).
struct BasicCredentials {
    text: Zeroizing<Vec<u8>>,
    /// Position of the first `:`.
    colon: usize,
}

impl BasicCredentials {
    /// Returns the credentials of a request; `None` if it has none, or more than one.
    fn of(fields: &FieldSection) -> Option<Self> {
        let is_named = |name: &[u8]| name.eq_ignore_ascii_case(b"authorization");
        let mut values = fields.iter().filter(|(_, name, _)| is_named(name));
        let (_, _, value) = values.next()?;
        // The endpoint might take another one than we do.
        if values.next().is_some() {
            return None;
        }
        Self::parse(value)
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let (scheme, rest) = value.split_at_checked(5)?;
        let text = rest.strip_prefix(b" ")?.trim_ascii();
        if !scheme.eq_ignore_ascii_case(b"basic") || text.len() > MAX_CREDENTIALS * 4 / 3 + 4 {
            return None;
        }
        // Some clients leave out the padding.
        let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
        let text = &text[..text.len() - padding.min(2)];
        let text = Zeroizing::new(BASE64_NOPAD.decode(text).ok()?);
        // Libraries of C end a password at NUL.
        if text.len() > MAX_CREDENTIALS || text.contains(&0) {
            return None;
        }
        let colon = text.iter().position(|byte| *byte == b':')?;
        Some(Self { text, colon })
    }

    /// Returns the name, if it can be that of a user.
    fn user(&self) -> Option<&str> {
        let user = str::from_utf8(&self.text[..self.colon]).ok()?;
        user.chars().all(|char| !char.is_control()).then_some(user)
    }

    fn password(&self) -> &[u8] {
        &self.text[self.colon + 1..]
    }
}

/// Adds the time after which a client may try again.
pub(crate) fn describe_overload(response: &mut ResponseHead) {
    response.fields.add(KnownFieldName::RetryAfter, RETRY_AFTER.as_secs().to_string());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(value: &str) -> Option<(String, Vec<u8>)> {
        let parsed = BasicCredentials::parse(value.as_bytes())?;
        Some((parsed.user()?.to_owned(), parsed.password().to_vec()))
    }

    #[test]
    fn credentials_are_parsed_or_refused_as_a_whole() {
        let ann = Some(("ann".to_owned(), b"a:b".to_vec()));
        assert_eq!(parse("Basic YW5uOmE6Yg=="), ann);
        assert_eq!(parse("bAsIC   YW5uOmE6Yg"), ann);
        let nul = format!("Basic {}", BASE64_NOPAD.encode(b"ann:a\0b"));
        let control = format!("Basic {}", BASE64_NOPAD.encode(b"an\rn:a"));
        let long = format!("Basic {}", BASE64_NOPAD.encode(&[b':'; MAX_CREDENTIALS + 1]));
        for value in [
            "",
            "Basic",
            "Basic ",
            "Basic YW5u",
            "Basic YW5uOmE6Yg===",
            "Basic YW5u OmE6Yg==",
            "BasicYW5uOmE6Yg==",
            "Bearer YW5uOmE6Yg==",
            &nul,
            &control,
            &long,
        ] {
            assert_eq!(parse(value), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn encoded_credentials_are_read_back_and_no_text_is_a_panic(
            user in "[^:\\p{C}]{0,20}",
            password in "[^\\x00]{0,20}",
            text in ".{0,60}",
        ) {
            let encoded = BASE64_NOPAD.encode(format!("{user}:{password}").as_bytes());
            let expected = Some((user, password.into_bytes()));
            prop_assert_eq!(parse(&format!("Basic {encoded}")), expected);
            if let Some(parsed) = BasicCredentials::parse(text.as_bytes()) {
                prop_assert!(parsed.text.len() <= text.len());
            }
        }
    }
}
