//! Names and passwords of users.
//!
//! ingress-nginx and HAProxy Ingress: a Secret with lines of `htpasswd`. The controller of HAProxy Technologies: a
//! Secret whose keys are the users.

use super::super::dialect::AnnotationDialect;
use super::endpoint_tls::own_secret;
use crate::objects::{BasicAuthUsers, BasicAuthUsersFormat, BasicAuthentication};

/// An annotation about names and passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum BasicAuthAnnotation {
    /// The kind of credentials.
    Type,
    /// The Secret with the users.
    Secret,
    /// The form of the Secret.
    SecretType,
    /// The name of the protected area.
    Realm,
}

/// Settings while annotations are read.
#[derive(Default)]
pub(super) struct BasicAuthAnnotations {
    /// The dialect of all annotations.
    dialect: Option<AnnotationDialect>,
    has_type: bool,
    secret: Option<String>,
    format: Option<BasicAuthUsersFormat>,
    realm: Option<String>,
}

impl BasicAuthAnnotations {
    pub(super) fn add(
        &mut self,
        dialect: AnnotationDialect,
        setting: BasicAuthAnnotation,
        value: &str,
    ) -> Result<(), String> {
        if *self.dialect.get_or_insert(dialect) != dialect {
            return Err("contradicts annotations of another controller".to_owned());
        }
        match setting {
            BasicAuthAnnotation::Type => {
                let expected = match dialect {
                    AnnotationDialect::IngressNginx | AnnotationDialect::HaproxyIngress => "basic",
                    AnnotationDialect::Haproxy => "basic-auth",
                };
                self.has_type = true;
                if value != expected {
                    return Err(format!("is not supported and restricts access, is {value}"));
                }
            }
            BasicAuthAnnotation::Secret => self.secret = Some(value.to_owned()),
            BasicAuthAnnotation::SecretType => {
                self.format = Some(match value {
                    "auth-file" => BasicAuthUsersFormat::Htpasswd,
                    "auth-map" => BasicAuthUsersFormat::Map,
                    _ => return Err(format!("must be `auth-file` or `auth-map`, is {value}")),
                });
            }
            BasicAuthAnnotation::Realm => self.realm = Some(value.to_owned()),
        }
        Ok(())
    }

    /// Returns the check of an Ingress in this namespace, or why it cannot be made. The message begins with the name of
    /// an annotation.
    pub(super) fn into_check(
        self,
        namespace: &str,
    ) -> Result<Option<BasicAuthentication>, (AnnotationDialect, String)> {
        let Some(dialect) = self.dialect else { return Ok(None) };
        let fault = |message: &str| Err((dialect, message.to_owned()));
        // HAProxy Ingress has no other type.
        if !self.has_type && dialect != AnnotationDialect::HaproxyIngress {
            return fault("auth-type is missing, without which other annotations have no effect");
        }
        let Some(secret) = self.secret else { return fault("auth-secret is missing") };
        let Some(name) = own_secret(&secret, namespace) else {
            return fault("auth-secret must be of the Ingress's namespace");
        };
        let (realm, format) = match dialect {
            AnnotationDialect::IngressNginx => ("", BasicAuthUsersFormat::Htpasswd),
            AnnotationDialect::HaproxyIngress => ("localhost", BasicAuthUsersFormat::Htpasswd),
            AnnotationDialect::Haproxy => ("Protected Content", BasicAuthUsersFormat::Map),
        };
        let format = self.format.unwrap_or(format);
        Ok(Some(BasicAuthentication {
            realm: self.realm.unwrap_or_else(|| realm.to_owned()),
            users: BasicAuthUsers { name: name.to_owned(), format },
            // ingress-nginx removes the field, and the others do not.
            forward_credentials: dialect != AnnotationDialect::IngressNginx,
            forward_username_header: None,
        }))
    }
}
