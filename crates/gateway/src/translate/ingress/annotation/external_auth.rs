//! Authorization of requests by another server.
//!
//! ingress-nginx: `auth_request` to a location that sends a GET with the fields of the client's request to `auth-url`.

use super::value::{parse_bool, parse_list};
use crate::objects::{
    AuthorizerCookies, AuthorizerMethod, BackendObjectRef, DEFAULT_AUTHORIZER_TIMEOUT,
    ExternalAuth, ExternalAuthProtocol, FieldName, REDIRECT_PARAMETER, SignInPage,
};
use crate::snapshot::UrlTemplate;

/// Largest number of header fields of an authorizer.
const MAX_FIELDS: usize = 64;

/// An annotation about authorization by another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ExternalAuthAnnotation {
    /// True if all responses get the cookies of the authorizer.
    AlwaysSetCookie,
    Method,
    RedirectParameter,
    /// Fields of the answer that the endpoint gets.
    ResponseHeaders,
    /// The page where clients sign in.
    SignIn,
    Url,
}

/// Settings while annotations are read.
#[derive(Default)]
pub(super) struct ExternalAuthAnnotations {
    url: Option<AuthorizerUrl>,
    method: Option<AuthorizerMethod>,
    sign_in: Option<String>,
    redirect_parameter: Option<String>,
    response_headers: Vec<FieldName>,
    always_sets_cookie: bool,
}

/// The URL of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct AuthorizerUrl {
    pub(in super::super) is_encrypted: bool,
    /// The host, or a variable that stands for that of the client's request.
    pub(in super::super) host: String,
    pub(in super::super) port: Option<u16>,
    /// Path and query.
    pub(in super::super) path: String,
}

/// Authorization by the server of a URL, whose Service is not known yet.
pub(in super::super) struct IngressAuth {
    pub(in super::super) url: AuthorizerUrl,
    /// The settings; the reference to the Service is empty.
    pub(in super::super) auth: ExternalAuth,
}

impl AuthorizerUrl {
    fn parse(value: &str) -> Result<Self, String> {
        let message = || {
            format!(
                "must be a URL such as http://SERVICE.NAMESPACE.svc.cluster.local/path, is {value}"
            )
        };
        UrlTemplate::parse(value)?;
        let schemes = [("http://", Some(false)), ("https://", Some(true)), ("$scheme://", None)];
        let found =
            schemes.iter().find_map(|(scheme, it)| Some((*it, value.strip_prefix(scheme)?)));
        let (is_encrypted, rest) = found.ok_or_else(message)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => {
                let port = port.parse().ok().filter(|port| *port != 0);
                (host, Some(port.ok_or_else(message)?))
            }
            None => (authority, None),
        };
        if host.is_empty() || host.contains('@') {
            return Err(message());
        }
        let path = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let is_encrypted = is_encrypted.unwrap_or_default();
        Ok(Self { is_encrypted, host: host.to_ascii_lowercase(), port, path })
    }

    /// Returns the port.
    pub(in super::super) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.is_encrypted { 443 } else { 80 })
    }

    /// True if the host is that of the client's request.
    pub(in super::super) fn is_of_request(&self) -> bool {
        ["$host", "$http_host", "$best_http_host"].contains(&&*self.host)
    }
}

impl ExternalAuthAnnotations {
    pub(super) fn add(
        &mut self,
        setting: ExternalAuthAnnotation,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            ExternalAuthAnnotation::AlwaysSetCookie => {
                self.always_sets_cookie = parse_bool(value)?;
            }
            ExternalAuthAnnotation::Method => {
                let method = AuthorizerMethod::parse(value);
                self.method = Some(method.ok_or_else(|| {
                    format!("must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS, is {value}")
                })?);
            }
            ExternalAuthAnnotation::RedirectParameter => {
                self.redirect_parameter = Some(value.to_owned());
            }
            ExternalAuthAnnotation::ResponseHeaders => {
                let names = parse_list(value, MAX_FIELDS)?.into_iter().map(FieldName::parse);
                self.response_headers = names.collect::<Result<_, _>>()?;
            }
            ExternalAuthAnnotation::SignIn if value.is_empty() => {}
            ExternalAuthAnnotation::SignIn => {
                UrlTemplate::parse(value)?;
                self.sign_in = Some(value.to_owned());
            }
            ExternalAuthAnnotation::Url if value.is_empty() => {}
            ExternalAuthAnnotation::Url => self.url = Some(AuthorizerUrl::parse(value)?),
        }
        Ok(())
    }

    /// Returns the settings if there is a URL; without one, the other annotations have no effect.
    pub(super) fn into_auth(self) -> Option<IngressAuth> {
        let url = self.url?;
        let parameter = self.redirect_parameter.filter(|it| !it.is_empty());
        let redirect_parameter = parameter.unwrap_or_else(|| REDIRECT_PARAMETER.to_owned());
        let (group, kind, namespace, name, port) = (None, None, None, String::new(), None);
        let auth = ExternalAuth {
            protocol: ExternalAuthProtocol::Http,
            backend_ref: BackendObjectRef { group, kind, namespace, name, port },
            path: Some(url.path.clone()),
            path_prefix: None,
            method: self.method,
            host: None,
            request_headers: vec![FieldName("*".to_owned())],
            response_headers: self.response_headers,
            cookies: match self.always_sets_cookie {
                true => AuthorizerCookies::Always,
                false => AuthorizerCookies::OnSuccess,
            },
            sign_in: self.sign_in.map(|url| SignInPage { url, redirect_parameter }),
            forward_body: None,
            timeout: DEFAULT_AUTHORIZER_TIMEOUT,
            is_of_ingress: true,
            is_permitted: false,
        };
        Some(IngressAuth { url, auth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_a_host_and_a_path() {
        let parse = |text| AuthorizerUrl::parse(text).map(|it| (it.port(), it.host, it.path));
        let url = |port, host: &str, path: &str| Ok((port, host.to_owned(), path.to_owned()));
        assert_eq!(parse("http://a.b.svc"), url(80, "a.b.svc", "/"));
        assert_eq!(parse("http://a.b.svc:8080/x?y=1"), url(8080, "a.b.svc", "/x?y=1"));
        assert_eq!(parse("https://$host/oauth2/auth"), url(443, "$host", "/oauth2/auth"));
        assert_eq!(parse("https://A.test?x"), url(443, "a.test", "/?x"));
        for text in ["a.test/x", "ftp://a", "http:///x", "http://a:0/", "http://u@a/", "http://$x/"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
