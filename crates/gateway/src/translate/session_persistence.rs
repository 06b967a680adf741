//! `sessionPersistence` of route rules and XBackendTrafficPolicies: validation, and the session affinity that it means.

use std::time::Duration;

use balance::hash::hash;

use super::filter::IMMUTABLE_FIELDS;
use crate::objects::{
    CookieLifetimeType, FieldName, SameSite, SessionPersistence, SessionPersistenceType,
    is_cookie_path,
};
use crate::snapshot::{AffinityCookie, AffinitySettings};

/// Shortest and longest session: browsers keep no cookie longer than 400 days.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(400 * 24 * 3600);

/// Longest name and path of a cookie that Gateway API accepts.
const MAX_NAME: usize = 256;
const MAX_PATH: usize = 1024;

/// Header fields that cannot carry a token, beside those that frame a message: they mean something else in a request or
/// a response, and the token replaces the value that the endpoint gives.
const OCCUPIED_FIELDS: [&str; 16] = [
    "alt-svc",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "forwarded",
    "location",
    "range",
    "set-cookie",
    "vary",
    "www-authenticate",
];

/// A fault: the field within `sessionPersistence`, and the message.
pub(super) type PersistenceFault = (&'static str, String);

/// Returns the session affinity, or all faults. `owner` names the rule or policy, for a name that is unique for it.
pub(super) fn affinity(
    spec: &SessionPersistence,
    owner: &str,
) -> Result<AffinitySettings, Vec<PersistenceFault>> {
    let mut faults = Vec::new();
    if spec.idle_timeout.is_some() {
        let message = "is not supported, and Gateway API no longer has it: use `absoluteTimeout`";
        faults.push(("idleTimeout", message.to_owned()));
    }
    let session_timeout = spec.absolute_timeout.map(|timeout| timeout.0);
    if session_timeout.is_some_and(|it| !(MIN_TIMEOUT..=MAX_TIMEOUT).contains(&it)) {
        faults.push(("absoluteTimeout", "must be from 1s to 9600h".to_owned()));
    }
    let (name_field, name) = name(spec, owner, &mut faults);
    let settings = match spec.kind {
        SessionPersistenceType::Cookie => {
            if spec.header.is_some() {
                faults.push(("header", "is only for type Header".to_owned()));
            }
            AffinitySettings::Cookie(cookie(spec, name.into(), session_timeout, &mut faults))
        }
        SessionPersistenceType::Header => {
            let surplus =
                [("cookie", spec.cookie.is_some()), ("cookieConfig", spec.cookie_config.is_some())];
            let surplus = surplus.into_iter().filter(|(_, is_there)| *is_there);
            faults.extend(surplus.map(|(field, _)| (field, "is only for type Cookie".to_owned())));
            let name = name.to_ascii_lowercase();
            if [&IMMUTABLE_FIELDS[..], &OCCUPIED_FIELDS].concat().contains(&&*name) {
                faults.push((name_field, format!("{name} cannot carry a session token")));
            }
            AffinitySettings::Header { name: name.into(), session_timeout }
        }
    };
    if faults.is_empty() { Ok(settings) } else { Err(faults) }
}

/// Returns the name of the cookie or header field, and the field that gives it.
fn name(
    spec: &SessionPersistence,
    owner: &str,
    faults: &mut Vec<PersistenceFault>,
) -> (&'static str, String) {
    let (field, later) = match spec.kind {
        SessionPersistenceType::Cookie => {
            ("cookie.name", spec.cookie.as_ref().and_then(|it| it.name.as_ref()))
        }
        SessionPersistenceType::Header => ("header.name", spec.header.as_ref().map(|it| &it.name)),
    };
    let given = [(field, later), ("sessionName", spec.session_name.as_ref())];
    let mut given = given.into_iter().filter_map(|(field, name)| Some((field, name?)));
    let Some((field, name)) = given.next() else {
        return ("type", format!("sheave-session-{:016x}", hash(owner.as_bytes())));
    };
    if given.any(|(_, other)| other != name) {
        faults.push(("sessionName", format!("differs from `{field}`, which is its later name")));
    }
    if name.len() > MAX_NAME || FieldName::parse(name).is_err() {
        let message = "must be a name of 1 to 256 letters, digits and !#$%&'*+-.^_`|~ (RFC 9110)";
        faults.push((field, message.to_owned()));
    }
    (field, name.clone())
}

fn cookie(
    spec: &SessionPersistence,
    name: Box<str>,
    session_timeout: Option<Duration>,
    faults: &mut Vec<PersistenceFault>,
) -> AffinityCookie {
    let lifetimes = [
        spec.cookie.as_ref().map(|it| it.lifetime_type),
        spec.cookie_config.as_ref().map(|it| it.lifetime_type),
    ];
    let is_permanent = lifetimes.contains(&Some(CookieLifetimeType::Permanent));
    if is_permanent && session_timeout.is_none() {
        let message = "is missing: a permanent cookie needs it";
        faults.push(("absoluteTimeout", message.to_owned()));
    }
    let path = spec.cookie.as_ref().and_then(|it| it.path.as_deref()).unwrap_or("/");
    if path.len() > MAX_PATH || !is_cookie_path(path) {
        let message =
            "must begin with `/` and hold at most 1024 visible characters of ASCII other than `;`";
        faults.push(("cookie.path", message.to_owned()));
    }
    AffinityCookie {
        name,
        path: path.into(),
        max_age: session_timeout.filter(|_| is_permanent),
        domain: None,
        is_always_secure: false,
        same_site: SameSite::Lax,
        session_timeout,
    }
}
