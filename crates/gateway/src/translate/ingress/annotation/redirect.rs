//! Redirects: of every request, of the root path, and to HTTPS.

use super::value::{parse_bool, parse_path};
use crate::matching::{HostPattern, PathPattern};
use crate::objects::{PathModifier, PathModifierType, RedirectScheme, RequestRedirect};

/// An annotation about redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RedirectAnnotation {
    AppRoot,
    ForceTls,
    Permanent,
    Temporal,
    /// The status of the redirect of every request.
    Code,
    Tls,
    TlsCode,
}

/// The redirects of an Ingress.
pub(in super::super) struct IngressRedirects {
    /// True if plain-HTTP requests are redirected to HTTPS; `None` redirects hosts with a certificate.
    pub(in super::super) tls: Option<bool>,
    /// True if the redirect to HTTPS also applies to hosts without a certificate.
    pub(in super::super) forces_tls: bool,
    /// The status of the redirect to HTTPS.
    pub(in super::super) tls_code: u16,
    /// The redirect of every request.
    pub(in super::super) all: Option<RequestRedirect>,
    /// The path that requests for `/` are redirected to.
    pub(in super::super) app_root: Option<String>,
}

impl Default for IngressRedirects {
    fn default() -> Self {
        Self { tls: None, forces_tls: false, tls_code: 308, all: None, app_root: None }
    }
}

impl IngressRedirects {
    pub(super) fn add(&mut self, setting: RedirectAnnotation, value: &str) -> Result<(), String> {
        match setting {
            RedirectAnnotation::AppRoot => self.app_root = Some(parse_app_root(value)?),
            RedirectAnnotation::ForceTls => self.forces_tls = parse_bool(value)?,
            RedirectAnnotation::Permanent => self.all = Some(parse_redirect(value, 301)?),
            RedirectAnnotation::Temporal => self.all = Some(parse_redirect(value, 302)?),
            RedirectAnnotation::Code => {
                let code = parse_redirect_status(value)?;
                // The code follows its redirect in the order of names, and has no effect alone.
                self.all.iter_mut().for_each(|redirect| redirect.status_code = code);
            }
            RedirectAnnotation::Tls => self.tls = Some(parse_bool(value)?),
            RedirectAnnotation::TlsCode => self.tls_code = parse_redirect_status(value)?,
        }
        Ok(())
    }
}

fn parse_redirect_status(value: &str) -> Result<u16, String> {
    let code = value.parse().ok().filter(|code| [301, 302, 303, 307, 308].contains(code));
    code.ok_or_else(|| format!("must be 301, 302, 303, 307 or 308, is {value}"))
}

/// The variables of nginx for `?` and the query, which every redirect keeps.
const QUERY: &str = "$is_args$args";

/// Parses the path that requests for `/` are redirected to.
fn parse_app_root(value: &str) -> Result<String, String> {
    let path = value.strip_suffix(QUERY).unwrap_or(value);
    if path.contains('$') {
        return Err(format!(
            "must be a path without variables, except {QUERY} at its end, is {value}"
        ));
    }
    parse_path(path)
}

/// The variable of nginx for the requested path and query.
const REQUEST_URI: &str = "$request_uri";

/// Parses the target of a redirect. If it ends in [`REQUEST_URI`], the path is kept.
fn parse_redirect(value: &str, status_code: u16) -> Result<RequestRedirect, String> {
    let url = value.strip_suffix(REQUEST_URI);
    let keeps_path = url.is_some();
    let url = url.unwrap_or(value);
    let mut redirect = RequestRedirect { status_code, ..Default::default() };
    let mut rest = url;
    if let Some((scheme, authority)) = url.split_once("://") {
        redirect.scheme = Some(match scheme {
            "http" => RedirectScheme::Http,
            "https" => RedirectScheme::Https,
            _ => return Err(format!("must begin with http:// or https://, is {value}")),
        });
        let end = authority.find('/').unwrap_or(authority.len());
        let (host, port) = authority[..end].split_once(':').unwrap_or((&authority[..end], ""));
        let is_host = matches!(HostPattern::parse(host), Ok(HostPattern::Exact(_)));
        let number = port.parse().ok().filter(|port| *port != 0);
        if !is_host || (number.is_none() && !port.is_empty()) {
            return Err(format!("must name a host in lower case, is {value}"));
        }
        (redirect.hostname, redirect.port) = (Some(host.to_owned()), number);
        rest = &authority[end..];
    }
    if rest.is_empty() && keeps_path {
        return Ok(redirect);
    }
    let whole = if rest.is_empty() { "/" } else { rest };
    if keeps_path || PathPattern::exact(whole).is_err() {
        return Err(format!(
            "must be a URL without query and variables, except {REQUEST_URI} in place of its path, is {value}"
        ));
    }
    redirect.path = Some(PathModifier {
        kind: PathModifierType::ReplaceFullPath,
        replace_full_path: Some(whole.to_owned()),
        replace_prefix_match: None,
    });
    Ok(redirect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_root_may_end_in_the_query() {
        assert_eq!(parse_app_root("/start"), Ok("/start".to_owned()));
        assert_eq!(parse_app_root("/start$is_args$args"), Ok("/start".to_owned()));
        for text in ["/$uri", "/start?x=$arg_x", "start", "/start$is_args"] {
            assert!(parse_app_root(text).is_err(), "{text}");
        }
    }
}
