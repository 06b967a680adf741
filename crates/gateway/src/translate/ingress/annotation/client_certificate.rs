//! Client certificates: `auth-tls-*` of ingress-nginx.
//!
//! In ingress-nginx the settings are those of a host, and the handshake succeeds without a certificate: requests get 400,
//! or the error page. So here.

use super::super::super::client_options::MOST_DEPTH;
use super::endpoint_tls::own_secret;
use super::value::{parse_bool, parse_number};
use crate::objects::{ClientCertificateAccess, ClientCertificateMode, SslClientFields};

/// An annotation about client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ClientCertificateAnnotation {
    /// The Secret with CA certificates.
    Secret,
    /// The clients that are accepted.
    Verification,
    /// The number of intermediate certificates.
    Depth,
    /// The page for clients that are not.
    ErrorPage,
    /// True if endpoints get the certificate.
    PassesCertificate,
}

/// Verification of the client certificates of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct HostClientCertificates {
    /// The namespace of the Secret with CA certificates.
    pub(in super::super) namespace: String,
    /// The name of the Secret.
    pub(in super::super) secret: String,
    /// The number of intermediate certificates that a client may send.
    pub(in super::super) depth: u8,
    /// The check of requests.
    pub(in super::super) access: ClientCertificateAccess,
}

/// Settings while annotations are read.
#[derive(Default)]
pub(super) struct ClientCertificateAnnotations {
    secret: Option<String>,
    /// `Some(None)`: no certificate is requested.
    mode: Option<Option<ClientCertificateMode>>,
    depth: Option<u8>,
    error_page: Option<String>,
    passes_certificate: Option<bool>,
}

impl ClientCertificateAnnotations {
    pub(super) fn add(
        &mut self,
        setting: ClientCertificateAnnotation,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            ClientCertificateAnnotation::Secret => self.secret = Some(value.to_owned()),
            ClientCertificateAnnotation::Verification => {
                self.mode = Some(match value {
                    "on" => Some(ClientCertificateMode::Required),
                    "optional" => Some(ClientCertificateMode::ValidIfPresent),
                    "optional_no_ca" => Some(ClientCertificateMode::Any),
                    "off" => None,
                    _ => {
                        return Err(format!(
                            "must be on, off, optional or optional_no_ca, is {value}"
                        ));
                    }
                });
            }
            ClientCertificateAnnotation::Depth => {
                let depth = parse_number(value, 0, MOST_DEPTH.into())?;
                self.depth = u8::try_from(depth).ok();
            }
            ClientCertificateAnnotation::ErrorPage => {
                let is_url = ["http://", "https://"].iter().any(|it| value.starts_with(it))
                    && value.bytes().all(|byte| byte.is_ascii_graphic());
                if !is_url {
                    return Err(format!("must be an absolute URL, is {value}"));
                }
                self.error_page = Some(value.to_owned());
            }
            ClientCertificateAnnotation::PassesCertificate => {
                self.passes_certificate = Some(parse_bool(value)?);
            }
        }
        Ok(())
    }

    /// Returns the verification of an Ingress in this namespace, or why it cannot be made. The message begins with the
    /// name of an annotation.
    pub(super) fn into_verification(
        self,
        namespace: &str,
    ) -> Result<Option<HostClientCertificates>, String> {
        let Self { secret, mode, depth, error_page, passes_certificate } = self;
        let Some(secret) = secret else {
            let is_given = mode.flatten().is_some() || depth.is_some() || error_page.is_some();
            return match is_given {
                true => Err("auth-tls-secret is missing".to_owned()),
                false => Ok(None),
            };
        };
        let Some(name) = own_secret(&secret, namespace) else {
            return Err("auth-tls-secret must be of the Ingress's namespace".to_owned());
        };
        let mode = mode.unwrap_or(Some(ClientCertificateMode::Required));
        let fields = match passes_certificate {
            Some(true) => SslClientFields::NamesAndCertificate,
            Some(false) | None => SslClientFields::Names,
        };
        Ok(mode.map(|mode| HostClientCertificates {
            namespace: namespace.to_owned(),
            secret: name.to_owned(),
            depth: depth.unwrap_or(1),
            access: ClientCertificateAccess {
                mode,
                error_page,
                forward: None,
                ssl_client_fields: Some(fields),
            },
        }))
    }
}
