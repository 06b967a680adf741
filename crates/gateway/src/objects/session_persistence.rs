//! `sessionPersistence` of route rules and XBackendTrafficPolicies (GEP-1619), as Gateway API 1.6 and 1.7 write it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;
use super::scalar::UnsupportedField;

/// Session persistence: clients stay at the endpoint of their first request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SessionPersistence {
    /// The carrier of the session token.
    #[serde(rename = "type")]
    pub kind: SessionPersistenceType,
    /// The name of the cookie or header field, as Gateway API 1.6 writes it. Default: a name that is unique for the
    /// rule or policy.
    pub session_name: Option<String>,
    /// Settings of the cookie, as Gateway API 1.6 writes them.
    pub cookie_config: Option<SessionCookieConfig>,
    /// Settings of the cookie, as Gateway API 1.7 writes them.
    pub cookie: Option<SessionCookie>,
    /// Settings of the header field, as Gateway API 1.7 writes them.
    pub header: Option<SessionHeader>,
    /// Maximum time from the first request of a session to its last.
    #[schemars(extend("format" = "any-duration"))]
    pub absolute_timeout: Option<Duration>,
    /// Maximum time between two requests of a session. Gateway API no longer has it.
    pub idle_timeout: Option<UnsupportedField>,
}

/// The carrier of a session token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionPersistenceType {
    /// A cookie.
    #[default]
    Cookie,
    /// A header field.
    Header,
}

/// Settings of the cookie of a session in Gateway API 1.6.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SessionCookieConfig {
    /// The lifetime of the cookie.
    pub lifetime_type: CookieLifetimeType,
}

/// Settings of the cookie of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SessionCookie {
    /// The name.
    pub name: Option<String>,
    /// The beginning of the paths of the requests that carry the cookie. Default: `/`.
    pub path: Option<String>,
    /// The lifetime.
    pub lifetime_type: CookieLifetimeType,
}

/// The lifetime of a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CookieLifetimeType {
    /// The session of the browser.
    #[default]
    Session,
    /// The time in `absoluteTimeout`.
    Permanent,
}

/// Settings of the header field of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionHeader {
    /// The name.
    pub name: String,
}
