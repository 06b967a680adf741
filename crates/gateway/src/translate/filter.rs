//! Filters of HTTPRoutes and GRPCRoutes: translates and validates them.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::backend::{ServiceReferrer, rejected_answer, resolve};
use super::draft::FiltersDraft;
use super::external_auth;
use super::index::ObjectIndex;
use super::report::ValidationFault;
use crate::matching::{PathPattern, RouteMatch};
use crate::objects::{
    CorsFilter, ExternalAuthProtocol, FieldName, HeaderModifier, HttpExternalAuth, HttpFilter,
    HttpFilterType, HttpHeader, PathModifier, PathModifierType, RedirectScheme, RequestMirror,
    RequestRedirect, UrlRewrite,
};
use crate::snapshot::{
    AllowList, CorsPolicy, ExternalAuthSettings, HeaderEdits, HeaderField, MirrorFraction,
    OriginPattern, PathRewrite, RedirectAction, RewriteAction, TransportProtocol, UrlScheme,
};
use crate::status::ConditionReason;

/// Header fields that frame a message or belong to a connection. A route may not change them.
pub(super) const IMMUTABLE_FIELDS: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The place of a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterScope {
    /// The filter belongs to a rule.
    Rule,
    /// The filter belongs to a backend reference.
    Backend,
}

/// Translates filters, and collects their errors.
pub(super) struct FilterBuilder<'a> {
    pub(super) index: &'a ObjectIndex<'a>,
    pub(super) referrer: ServiceReferrer<'a>,
    pub(super) scope: FilterScope,
    /// The matches of the rule, for rewrites of a path prefix.
    pub(super) matches: &'a [Arc<RouteMatch>],
    pub(super) faults: &'a mut Vec<ValidationFault>,
    pub(super) unresolved: &'a mut Vec<ValidationFault>,
}

impl FilterBuilder<'_> {
    pub(super) fn filters(&mut self, filters: &[HttpFilter], field: &str) -> FiltersDraft {
        let mut draft = FiltersDraft::default();
        for (n, filter) in filters.iter().enumerate() {
            let field = format!("{field}[{n}]");
            let is_duplicate = filters[..n].iter().any(|earlier| earlier.kind == filter.kind);
            if is_duplicate && filter.kind != HttpFilterType::RequestMirror {
                self.refuse(&field, "type", "occurs twice");
            }
            if self.referrer.kind == "GRPCRoute" && !is_grpc_filter(filter.kind) {
                self.refuse(
                    &field,
                    "type",
                    format!("{:?} is not supported by GRPCRoutes", filter.kind),
                );
            }
            self.check_parts(filter, &field);
            self.add(filter, &field, &mut draft);
        }
        if draft.filters.redirect.is_some() && draft.filters.rewrite.is_some() {
            let message = "RequestRedirect and URLRewrite exclude each other";
            self.faults.push(ValidationFault::new(
                ConditionReason::IncompatibleFilters,
                field,
                message,
            ));
        }
        draft
    }

    fn refuse(&mut self, field: &str, part: &str, message: impl Into<String>) {
        let field = format!("{field}.{part}");
        self.faults.push(ValidationFault::new(ConditionReason::UnsupportedValue, field, message));
    }

    /// Checks that a filter has exactly the part that its type names.
    fn check_parts(&mut self, filter: &HttpFilter, field: &str) {
        use HttpFilterType::{
            Cors, ExternalAuth, RequestHeaderModifier, RequestMirror, RequestRedirect,
            ResponseHeaderModifier, UrlRewrite,
        };
        let parts = [
            (
                filter.request_header_modifier.is_some(),
                "requestHeaderModifier",
                RequestHeaderModifier,
            ),
            (
                filter.response_header_modifier.is_some(),
                "responseHeaderModifier",
                ResponseHeaderModifier,
            ),
            (filter.request_mirror.is_some(), "requestMirror", RequestMirror),
            (filter.request_redirect.is_some(), "requestRedirect", RequestRedirect),
            (filter.url_rewrite.is_some(), "urlRewrite", UrlRewrite),
            (filter.cors.is_some(), "cors", Cors),
            (filter.external_auth.is_some(), "externalAuth", ExternalAuth),
        ];
        for (is_there, part, kind) in parts {
            match (is_there, kind == filter.kind) {
                (true, false) => self.refuse(field, part, "is not for a filter of this type"),
                (false, true) => self.refuse(field, part, "is missing"),
                (true, true) | (false, false) => {}
            }
        }
    }

    fn add(&mut self, filter: &HttpFilter, field: &str, draft: &mut FiltersDraft) {
        let made = &mut draft.filters;
        match filter.kind {
            HttpFilterType::RequestHeaderModifier => {
                let field = format!("{field}.requestHeaderModifier");
                let edits = filter.request_header_modifier.iter();
                made.request_headers =
                    edits.map(|it| self.header_edits(it, &field)).next().unwrap_or_default();
            }
            HttpFilterType::ResponseHeaderModifier => {
                let field = format!("{field}.responseHeaderModifier");
                let edits = filter.response_header_modifier.iter();
                made.response_headers =
                    edits.map(|it| self.header_edits(it, &field)).next().unwrap_or_default();
            }
            HttpFilterType::RequestMirror => {
                let field = format!("{field}.requestMirror");
                let mirror = filter.request_mirror.as_ref();
                draft.mirrors.extend(mirror.and_then(|it| self.mirror(it, &field)));
            }
            HttpFilterType::UrlRewrite => {
                let field = format!("{field}.urlRewrite");
                made.rewrite = filter.url_rewrite.as_ref().map(|it| self.rewrite(it, &field));
            }
            HttpFilterType::RequestRedirect if self.scope == FilterScope::Rule => {
                let field = format!("{field}.requestRedirect");
                made.redirect =
                    filter.request_redirect.as_ref().map(|it| self.redirect(it, &field));
            }
            HttpFilterType::Cors if self.scope == FilterScope::Rule => {
                made.cors = filter.cors.as_ref().map(cors);
            }
            HttpFilterType::ExternalAuth if self.scope == FilterScope::Rule => {
                let field = format!("{field}.externalAuth");
                let asked = filter.external_auth.as_ref();
                made.external_auth = asked.map(|it| self.external_auth(it, &field).into());
            }
            HttpFilterType::RequestRedirect
            | HttpFilterType::Cors
            | HttpFilterType::ExternalAuth => {
                self.refuse(field, "type", "is not supported for one backend, only for the rule");
            }
            HttpFilterType::ExtensionRef => {
                self.refuse(field, "type", format!("{:?} is not supported", filter.kind));
            }
        }
    }

    fn header_edits(&mut self, asked: &HeaderModifier, field: &str) -> HeaderEdits {
        let mut fields = |list: &[HttpHeader], part: &str| {
            let mut made = Vec::new();
            for (n, HttpHeader { name, value }) in list.iter().enumerate() {
                let name = self.field_name(name, field, &format!("{part}[{n}].name"));
                made.push(HeaderField { name, value: value.as_str().into() });
            }
            made
        };
        let (set, add) = (fields(&asked.set, "set"), fields(&asked.add, "add"));
        let names = asked.remove.iter().enumerate();
        let remove = names
            .map(|(n, name)| self.field_name(&name.0, field, &format!("remove[{n}]")))
            .collect();
        HeaderEdits { remove, set, add }
    }

    fn field_name(&mut self, name: &str, field: &str, part: &str) -> Box<str> {
        let name = name.to_ascii_lowercase();
        if name == "host" {
            self.refuse(field, part, "cannot be changed here: use `hostname` of a URLRewrite");
        } else if IMMUTABLE_FIELDS.contains(&&*name) {
            self.refuse(field, part, "cannot be changed: it belongs to the connection");
        }
        name.into()
    }

    /// Returns a mirror, or `None` if its backend cannot be resolved or its share is 0.
    fn mirror(
        &mut self,
        asked: &RequestMirror,
        field: &str,
    ) -> Option<(crate::snapshot::BackendKey, MirrorFraction)> {
        let share = self.share(asked, field)?;
        let at = format!("{field}.backendRef");
        let service = asked.backend_ref.service();
        let key = resolve(self.index, self.referrer, service, TransportProtocol::Tcp, &at)
            .map_err(|fault| self.unresolved.push(fault))
            .ok()?;
        self.unresolved.extend(rejected_answer(self.index, &key, &at));
        (share.numerator > 0).then_some((key, share))
    }

    /// Returns the settings of an authorizer. If its Service cannot be resolved, requests are answered with 500.
    fn external_auth(&mut self, asked: &HttpExternalAuth, field: &str) -> ExternalAuthSettings {
        let HttpExternalAuth { protocol, backend_ref, grpc, http, forward_body: _ } = asked;
        match protocol {
            ExternalAuthProtocol::Http if grpc.is_some() => {
                self.refuse(field, "grpc", "is not for this protocol");
            }
            ExternalAuthProtocol::Grpc if http.is_some() => {
                self.refuse(field, "http", "is not for this protocol");
            }
            ExternalAuthProtocol::Http | ExternalAuthProtocol::Grpc => {}
        }
        let http = http.clone().unwrap_or_default();
        if let Some(prefix) = Some(&*http.path).filter(|it| !it.is_empty()) {
            if !prefix.starts_with('/') {
                self.refuse(field, "http.path", "must begin with `/`");
            } else if let Err(fault) = PathPattern::exact(prefix) {
                self.refuse(field, "http.path", fault.to_string());
            }
        }
        for (n, FieldName(name)) in http.allowed_response_headers.iter().enumerate() {
            if !external_auth::may_be_set(name) {
                let part = format!("http.allowedResponseHeaders[{n}]");
                self.refuse(field, &part, "cannot be changed: it belongs to the connection");
            }
        }
        let backend =
            external_auth::authorizer(self.index, self.referrer, *protocol, backend_ref, field)
                .map_err(|fault| self.unresolved.push(fault))
                .ok();
        external_auth::of_filter(self.referrer.namespace, backend, asked)
    }

    fn share(&mut self, asked: &RequestMirror, field: &str) -> Option<MirrorFraction> {
        let (numerator, denominator) = match (asked.percent, asked.fraction) {
            (None, None) => return Some(MirrorFraction::ALL),
            (Some(percent), None) => (percent, 100),
            (None, Some(fraction)) => (fraction.numerator, fraction.denominator),
            (Some(_), Some(_)) => {
                self.refuse(field, "percent", "and `fraction` exclude each other");
                return None;
            }
        };
        if numerator > denominator {
            self.refuse(field, "fraction.numerator", format!("must be at most {denominator}"));
        }
        Some(MirrorFraction { numerator, denominator: NonZeroU32::new(denominator)? })
    }

    fn redirect(&mut self, asked: &RequestRedirect, field: &str) -> RedirectAction {
        let scheme = asked.scheme.map(|scheme| match scheme {
            RedirectScheme::Http => UrlScheme::Http,
            RedirectScheme::Https => UrlScheme::Https,
        });
        RedirectAction {
            status: asked.status_code,
            scheme,
            hostname: asked.hostname.as_deref().map(Into::into),
            port: asked.port.or_else(|| scheme.map(UrlScheme::port)),
            path: asked.path.as_ref().and_then(|path| self.path(path, field)),
        }
    }

    fn rewrite(&mut self, asked: &UrlRewrite, field: &str) -> RewriteAction {
        RewriteAction {
            hostname: asked.hostname.as_deref().map(Into::into),
            path: asked.path.as_ref().and_then(|path| self.path(path, field)),
        }
    }

    fn path(&mut self, asked: &PathModifier, field: &str) -> Option<PathRewrite> {
        let (name, other, given, surplus) = match asked.kind {
            PathModifierType::ReplaceFullPath => (
                "replaceFullPath",
                "replacePrefixMatch",
                &asked.replace_full_path,
                &asked.replace_prefix_match,
            ),
            PathModifierType::ReplacePrefixMatch => (
                "replacePrefixMatch",
                "replaceFullPath",
                &asked.replace_prefix_match,
                &asked.replace_full_path,
            ),
        };
        if surplus.is_some() {
            self.refuse(field, &format!("path.{other}"), "is not for this type");
        }
        let part = format!("path.{name}");
        let Some(path) = given.as_deref() else {
            self.refuse(field, &part, "is missing");
            return None;
        };
        let may_be_empty = asked.kind == PathModifierType::ReplacePrefixMatch;
        if let Err(fault) = PathPattern::exact(path)
            && !(path.is_empty() && may_be_empty)
        {
            self.refuse(field, &part, fault.to_string());
            return None;
        }
        match asked.kind {
            PathModifierType::ReplaceFullPath => Some(PathRewrite::Full(path.into())),
            PathModifierType::ReplacePrefixMatch => {
                let Some(length) = common_prefix(self.matches) else {
                    let message = "needs the same PathPrefix in all matches of the rule";
                    self.refuse(field, &part, message);
                    return None;
                };
                let replacement = path.trim_end_matches('/').into();
                Some(PathRewrite::Prefix { length, replacement })
            }
        }
    }
}

/// True if GRPCRoutes support a filter.
const fn is_grpc_filter(kind: HttpFilterType) -> bool {
    match kind {
        HttpFilterType::RequestHeaderModifier
        | HttpFilterType::ResponseHeaderModifier
        | HttpFilterType::RequestMirror
        | HttpFilterType::ExtensionRef => true,
        HttpFilterType::RequestRedirect
        | HttpFilterType::UrlRewrite
        | HttpFilterType::Cors
        | HttpFilterType::ExternalAuth => false,
    }
}

/// Returns the length of the path prefix that all matches share.
fn common_prefix(matches: &[Arc<RouteMatch>]) -> Option<usize> {
    let mut prefixes = matches.iter().map(|asked| match &asked.path {
        PathPattern::Prefix(prefix) => Some(prefix.trim_end_matches('/')),
        PathPattern::Exact(_) | PathPattern::Regex(_) => None,
    });
    let first = prefixes.next()??;
    prefixes.all(|other| other == Some(first)).then_some(first.len())
}

fn cors(asked: &CorsFilter) -> CorsPolicy {
    let joined = |list: &[FieldName]| -> Box<str> {
        list.iter().map(|name| &*name.0).collect::<Vec<_>>().join(", ").into()
    };
    let allowed = |list: &[FieldName]| {
        let is_any = list.iter().any(|name| name.0 == "*");
        if is_any { AllowList::Any } else { AllowList::Only(joined(list)) }
    };
    let is_any = asked.allow_origins.iter().any(|origin| origin.0 == "*");
    let patterns = || asked.allow_origins.iter().map(|it| origin(&it.0)).collect();
    CorsPolicy {
        origins: if is_any { AllowList::Any } else { AllowList::Only(patterns()) },
        credentials: asked.allow_credentials,
        methods: allowed(&asked.allow_methods),
        headers: allowed(&asked.allow_headers),
        expose_headers: joined(&asked.expose_headers),
        max_age: asked.max_age.to_string().into(),
    }
}

/// Parses an origin. Browsers omit the default port of a scheme.
fn origin(text: &str) -> OriginPattern {
    let usual = |scheme: UrlScheme| {
        let rest = text.strip_suffix(&format!(":{}", scheme.port()))?;
        rest.starts_with(&format!("{}://", scheme.text())).then_some(rest)
    };
    let text = usual(UrlScheme::Http).or_else(|| usual(UrlScheme::Https)).unwrap_or(text);
    match text.split_once('*') {
        Some((start, end)) => OriginPattern::Wildcard { start: start.into(), end: end.into() },
        None => OriginPattern::Exact(text.into()),
    }
}
