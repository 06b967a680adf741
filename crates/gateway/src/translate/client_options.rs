//! Options of a listener's TLS that are our own: verification of client certificates for its hosts alone.
//!
//! Gateway API has a verification for all listeners of a port, because clients may use one connection for several hosts. The
//! data plane does not serve a host on a connection of another, so listeners may differ.

use std::collections::BTreeMap;

use super::reference::CertificateRef;

/// Option with the Secret of CA certificates (`ca.crt`): its name, or its namespace and name.
pub(super) const CLIENT_CA: &str = "sheave.dev/client-ca";
/// Option that says if the handshake fails without a valid certificate.
pub(super) const CLIENT_CERTIFICATE: &str = "sheave.dev/client-certificate";
/// Option with the number of intermediate certificates that a client may send.
pub(super) const CLIENT_VERIFY_DEPTH: &str = "sheave.dev/client-verify-depth";
/// Beginning of the names of the options.
const PREFIX: &str = "sheave.dev/client";
/// Value: a client without a valid certificate is rejected.
const REQUIRED: &str = "Required";
/// Value: every client is accepted, and policies judge requests by its certificate.
pub(super) const REQUESTED: &str = "Requested";
/// Largest depth. Path building allows no more.
pub(super) const MOST_DEPTH: u8 = 6;

/// Verification of client certificates at one listener.
pub(super) struct ClientOptions<'a> {
    pub(super) authority: CertificateRef<'a>,
    pub(super) required: bool,
    pub(super) max_intermediates: Option<u8>,
}

impl<'a> ClientOptions<'a> {
    /// Parses the options of a listener. The message names the option in error.
    pub(super) fn parse(options: &'a BTreeMap<String, String>) -> Result<Option<Self>, String> {
        let known = [CLIENT_CA, CLIENT_CERTIFICATE, CLIENT_VERIFY_DEPTH];
        if let Some(unknown) = options.keys().find(|it| !known.contains(&&***it)) {
            return Err(format!(
                "has {unknown}, which is not supported, only {}",
                known.join(", ")
            ));
        }
        let option = |name: &str| options.get(name).map(String::as_str);
        let Some(authority) = option(CLIENT_CA) else {
            return match options.is_empty() {
                true => Ok(None),
                false => Err(format!("lacks {CLIENT_CA}, without which others have no effect")),
            };
        };
        let Some(authority) = CertificateRef::of_secret(authority) else {
            return Err(format!(
                "has a {CLIENT_CA} that is no name of a Secret, or namespace/name"
            ));
        };
        let required = match option(CLIENT_CERTIFICATE) {
            None | Some(REQUIRED) => true,
            Some(REQUESTED) => false,
            Some(other) => {
                let message = format!("must be {REQUIRED} or {REQUESTED}, is {other}");
                return Err(format!("has {CLIENT_CERTIFICATE}, which {message}"));
            }
        };
        let depth = option(CLIENT_VERIFY_DEPTH).map(|text| {
            let depth = text.parse().ok().filter(|depth| *depth <= MOST_DEPTH);
            let message = || {
                format!(
                    "has {CLIENT_VERIFY_DEPTH}, which must be from 0 to {MOST_DEPTH}, is {text}"
                )
            };
            depth.ok_or_else(message)
        });
        Ok(Some(Self { authority, required, max_intermediates: depth.transpose()? }))
    }

    /// True if the options are about client certificates, even if they are in error.
    pub(super) fn are_meant(options: &BTreeMap<String, String>) -> bool {
        options.keys().any(|name| name.starts_with(PREFIX))
    }

    /// Returns the Secret of CA certificates that the options name, even if others are in error.
    pub(super) fn authority(options: &'a BTreeMap<String, String>) -> Option<CertificateRef<'a>> {
        CertificateRef::of_secret(options.get(CLIENT_CA)?)
    }
}
