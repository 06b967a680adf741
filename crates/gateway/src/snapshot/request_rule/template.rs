//! Texts with variables, as nginx writes them: `https://$host/new/$1`.

use std::ops::Range;

use super::super::filter::UrlScheme;
use super::RuleRequest;
use super::path_text::{UrlPart, escape, escape_bytes, sanitised};
use crate::matching::{RequestAttributes, SearchPattern};

/// Largest size of a text, in bytes.
const MAX_BYTES: usize = 16 * 1024;
/// Largest number of a group.
const MAX_GROUP: usize = 9;

/// A text with variables.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestTemplate {
    /// The text as it is written.
    pub text: Box<str>,
    parts: Vec<TemplatePart>,
}

impl std::fmt::Debug for RequestTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Literal(Box<str>),
    /// A group of a pattern, from 1.
    Group(usize),
    Variable(RequestVariable),
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestVariable {
    Host,
    Authority,
    Scheme,
    Port,
    Method,
    ReceivedTarget,
    Path,
    Query,
    QueryMark,
    Client,
    /// A header field, by its name.
    Field(Box<str>),
    Cookie(Box<str>),
    Parameter(Box<str>),
    /// A variable that a rule sets.
    Set(usize),
}

/// Error: a text is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A variable has no meaning.
    #[error("has the unknown variable ${0}")]
    Unknown(String),
    /// A `$` without a name.
    #[error("has a `$` without the name of a variable")]
    NoName,
    /// The pattern has fewer groups.
    #[error("has ${0}, and no pattern has such a group")]
    Group(usize),
}

/// Error: a text became longer than 16 KiB, or the patterns searched more than 256 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the texts of request rules are too long")]
pub struct RuleTextLimit;

impl RequestTemplate {
    /// Parses a text. `variables` are those that rules set, by their number; `groups` is the number of groups of the
    /// pattern.
    pub fn new(text: &str, variables: &[&str], groups: usize) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let (literal, variable) = rest.split_at(at);
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(literal.into()));
            }
            let (name, after) = split_name(&variable[1..]).ok_or(TemplateError::NoName)?;
            parts.push(part(name, variables, groups)?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Literal(rest.into()));
        }
        Ok(Self { text: text.into(), parts })
    }

    /// True if the text has the requested host.
    pub(super) fn has_host(&self) -> bool {
        let is_host = |part: &TemplatePart| {
            let (host, authority) = (RequestVariable::Host, RequestVariable::Authority);
            matches!(part, TemplatePart::Variable(it) if *it == host || *it == authority)
        };
        self.parts.iter().any(is_host)
    }

    /// True if the text itself begins a query.
    fn has_query(&self) -> bool {
        let has_mark =
            |part: &TemplatePart| matches!(part, TemplatePart::Literal(text) if text.contains('?'));
        self.parts.iter().any(has_mark)
    }

    /// True if the text begins with a path: with `/`, or a variable or group that may be one.
    pub fn begins_with_path(&self) -> bool {
        match self.parts.first() {
            Some(TemplatePart::Literal(text)) => text.starts_with('/'),
            Some(TemplatePart::Variable(variable)) => {
                [RequestVariable::Path, RequestVariable::ReceivedTarget].contains(variable)
            }
            Some(TemplatePart::Group(_)) => true,
            None => false,
        }
    }

    /// True if the text is an absolute URL of HTTP.
    pub fn is_absolute(&self) -> bool {
        ["http://", "https://", "$scheme://", "${scheme}://"]
            .iter()
            .any(|start| self.text.starts_with(start))
    }

    /// True if a name has a meaning, so that no rule can set it.
    pub fn is_known_variable(name: &str) -> bool {
        variable(name).is_some()
    }
}

/// Returns the name of a variable at the start of a text, and the rest.
fn split_name(text: &str) -> Option<(&str, &str)> {
    if let Some(rest) = text.strip_prefix('{') {
        return rest.split_once('}').filter(|(name, _)| !name.is_empty() && is_name(name));
    }
    // One digit: `$10` is the first group, and a zero.
    let is_digit = text.starts_with(|char: char| char.is_ascii_digit());
    let end = text.find(|char: char| !is_name_character(char)).unwrap_or(text.len());
    let end = if is_digit { 1 } else { end };
    (end > 0).then(|| text.split_at(end))
}

/// True for a character of the names of variables.
fn is_name_character(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

fn is_name(text: &str) -> bool {
    text.chars().all(is_name_character)
}

fn part(name: &str, variables: &[&str], groups: usize) -> Result<TemplatePart, TemplateError> {
    if let Ok(group) = name.parse::<usize>() {
        let is_known = (1..=groups.min(MAX_GROUP)).contains(&group);
        let part = is_known.then_some(TemplatePart::Group(group));
        return part.ok_or(TemplateError::Group(group));
    }
    let set = || variables.iter().position(|it| *it == name).map(RequestVariable::Set);
    let variable = variable(name).or_else(set);
    let variable = variable.ok_or_else(|| TemplateError::Unknown(name.to_owned()))?;
    Ok(TemplatePart::Variable(variable))
}

/// Returns a variable that every request has.
fn variable(name: &str) -> Option<RequestVariable> {
    let named = |prefix: &str| name.strip_prefix(prefix).filter(|rest| !rest.is_empty());
    Some(match name {
        "host" | "server_name" => RequestVariable::Host,
        "http_host" => RequestVariable::Authority,
        "scheme" => RequestVariable::Scheme,
        "server_port" => RequestVariable::Port,
        "request_method" => RequestVariable::Method,
        "request_uri" => RequestVariable::ReceivedTarget,
        "uri" | "document_uri" => RequestVariable::Path,
        "args" | "query_string" => RequestVariable::Query,
        "is_args" => RequestVariable::QueryMark,
        "remote_addr" => RequestVariable::Client,
        _ => match (named("http_"), named("cookie_"), named("arg_")) {
            (Some(field), _, _) => {
                RequestVariable::Field(field.to_ascii_lowercase().replace('_', "-").into())
            }
            (None, Some(cookie), _) => RequestVariable::Cookie(cookie.into()),
            (None, None, Some(parameter)) => RequestVariable::Parameter(parameter.into()),
            (None, None, None) => return None,
        },
    })
}

/// The origin of a part of a text, by which it is written into a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextOrigin {
    /// The policy, or the URL as the client sent it: written as it is.
    Url,
    /// The decoded path: escaped again.
    Path,
    /// Query, host or header fields: in the path of a request, `?` and `#` are escaped.
    Client,
}

/// A text that knows the origin of its parts, so that what was decoded once is not decoded again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleText {
    /// The text as it is compared.
    pub(super) bytes: Vec<u8>,
    /// The end of each part, and its origin.
    parts: Vec<(usize, TextOrigin)>,
}

impl RuleText {
    fn new(bytes: &[u8], origin: TextOrigin) -> Self {
        let mut text = Self::default();
        text.push(bytes, origin);
        text
    }

    fn push(&mut self, bytes: &[u8], origin: TextOrigin) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        if self.parts.last().is_some_and(|(_, last)| *last == origin) {
            self.parts.pop();
        }
        self.parts.push((self.bytes.len(), origin));
    }

    fn push_text(&mut self, text: &Self) {
        for (bytes, origin) in text.parts() {
            self.push(bytes, origin);
        }
    }

    /// Returns the parts of different origin.
    fn parts(&self) -> impl Iterator<Item = (&[u8], TextOrigin)> {
        let mut start = 0;
        self.parts.iter().map(move |(end, origin)| {
            let bytes = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            (bytes, *origin)
        })
    }

    /// Returns a part of the text.
    fn range(&self, range: Range<usize>) -> Self {
        let mut out = Self::default();
        let mut start = 0;
        for (end, origin) in &self.parts {
            let common = range.start.max(start)..range.end.min(*end);
            out.push(self.bytes.get(common).unwrap_or_default(), *origin);
            start = *end;
        }
        out
    }
}

/// The groups of a pattern in a text.
#[derive(Default)]
pub(super) struct CapturedGroups {
    /// The groups, from the first; one that took no part is empty.
    groups: Vec<RuleText>,
}

impl CapturedGroups {
    /// Returns the groups, if a part of the text matches.
    pub(super) fn of(pattern: &SearchPattern, text: &RuleText) -> Option<Self> {
        Self::find(pattern, &text.bytes, |range| text.range(range))
    }

    /// Returns the groups, if a part of the decoded path matches.
    pub(super) fn of_path(pattern: &SearchPattern, path: &[u8]) -> Option<Self> {
        let group = |range: Range<usize>| {
            RuleText::new(path.get(range).unwrap_or_default(), TextOrigin::Path)
        };
        Self::find(pattern, path, group)
    }

    fn find(
        pattern: &SearchPattern,
        text: &[u8],
        group: impl Fn(Range<usize>) -> RuleText,
    ) -> Option<Self> {
        if pattern.groups() == 0 {
            return pattern.is_in(text).then(Self::default);
        }
        let captures = pattern.find_in(text)?;
        let groups = captures.iter().skip(1).take(MAX_GROUP);
        let groups = groups.map(|it| it.map(|it| group(it.range())).unwrap_or_default()).collect();
        Some(Self { groups })
    }
}

/// The use of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UrlUse {
    /// Path and query of a request.
    Rewrite,
    /// The value of `Location`.
    Redirect,
}

/// The values of variables for one request.
pub(super) struct TemplateValues<'s, 'r, R> {
    pub(super) request: &'s RuleRequest<'r, R>,
    /// The path, decoded.
    pub(super) path: &'s [u8],
    pub(super) query: &'s [u8],
    pub(super) variables: &'s [RuleText],
    pub(super) groups: &'s CapturedGroups,
}

impl<R: RequestAttributes> TemplateValues<'_, '_, R> {
    /// Returns a text as it is compared: the path is decoded.
    pub(super) fn text(&self, template: &RequestTemplate) -> Result<RuleText, RuleTextLimit> {
        let mut out = RuleText::default();
        for part in &template.parts {
            match part {
                TemplatePart::Literal(text) => out.push(text.as_bytes(), TextOrigin::Url),
                TemplatePart::Group(number) => {
                    if let Some(group) = self.groups.groups.get(number - 1) {
                        out.push_text(group);
                    }
                }
                TemplatePart::Variable(variable) => self.write(variable, &mut out),
            }
            check_size(&out.bytes)?;
        }
        Ok(out)
    }

    /// Returns a text as a URL: what comes from a path is escaped. A query that the text has comes before that of the
    /// request.
    pub(super) fn url(
        &self,
        template: &RequestTemplate,
        appends_query: bool,
        url_use: UrlUse,
    ) -> Result<Vec<u8>, RuleTextLimit> {
        let mut out = Vec::new();
        let mut url_part = UrlPart::Path;
        for (bytes, origin) in self.text(template)?.parts() {
            match (origin, url_use, url_part) {
                (TextOrigin::Url, _, _) => {
                    out.extend_from_slice(bytes);
                    if bytes.contains(&b'?') {
                        url_part = UrlPart::Query;
                    }
                }
                (TextOrigin::Path, _, _) => escape(bytes, url_part, &mut out),
                // The value of a client does not cut off the rest of the path.
                (TextOrigin::Client, UrlUse::Rewrite, UrlPart::Path) => {
                    escape_bytes(bytes, b"?#", &mut out);
                }
                (TextOrigin::Client, _, _) => out.extend_from_slice(bytes),
            }
            check_size(&out)?;
        }
        if appends_query && !self.query.is_empty() {
            out.push(if template.has_query() { b'&' } else { b'?' });
            out.extend_from_slice(self.query);
        }
        if url_use == UrlUse::Rewrite && out.contains(&b'#') {
            // A request has no fragment.
            let target = std::mem::take(&mut out);
            escape_bytes(&target, b"#", &mut out);
        }
        check_size(&out)?;
        Ok(sanitised(out))
    }

    fn write(&self, variable: &RequestVariable, out: &mut RuleText) {
        use TextOrigin::{Client, Path, Url};
        let RuleRequest { attributes, scheme, port, authority, received_target, client } =
            self.request;
        match variable {
            RequestVariable::Host => {
                // Routes ignore the dot of a fully qualified name as well.
                let host = attributes.host();
                let host = host.strip_suffix(b".").unwrap_or(host);
                out.push(&host.to_ascii_lowercase(), Client);
            }
            RequestVariable::Authority => out.push(authority, Client),
            RequestVariable::Scheme => out.push(UrlScheme::text(*scheme).as_bytes(), Url),
            RequestVariable::Port => out.push(port.to_string().as_bytes(), Url),
            RequestVariable::Method => out.push(attributes.method(), Client),
            RequestVariable::ReceivedTarget => out.push(received_target, Url),
            RequestVariable::Path => out.push(self.path, Path),
            RequestVariable::Query => out.push(self.query, Client),
            RequestVariable::QueryMark if self.query.is_empty() => {}
            RequestVariable::QueryMark => out.push(b"?", Url),
            RequestVariable::Client => {
                out.push(client.to_canonical().to_string().as_bytes(), Url);
            }
            RequestVariable::Field(name) => {
                // Cookie is no list of values with commas (RFC 6265 section 5.4).
                let separator: &[u8] = if **name == *"cookie" { b"; " } else { b", " };
                for (number, value) in attributes.headers(name).enumerate() {
                    if number > 0 {
                        out.push(separator, Client);
                    }
                    out.push(value, Client);
                }
            }
            RequestVariable::Cookie(name) => {
                let pairs = attributes.headers("cookie").flat_map(|it| it.split(|it| *it == b';'));
                out.push(named_value(pairs, name).unwrap_or_default(), Client);
            }
            RequestVariable::Parameter(name) => {
                let pairs = self.query.split(|byte| *byte == b'&');
                out.push(named_value(pairs, name).unwrap_or_default(), Client);
            }
            RequestVariable::Set(index) => {
                if let Some(value) = self.variables.get(*index) {
                    out.push_text(value);
                }
            }
        }
    }
}

/// Returns the value of the first pair `name=value` with this name, in any case of letters.
fn named_value<'p>(mut pairs: impl Iterator<Item = &'p [u8]>, name: &str) -> Option<&'p [u8]> {
    pairs.find_map(|pair| {
        let (key, value) = pair.trim_ascii().split_at_checked(name.len())?;
        key.eq_ignore_ascii_case(name.as_bytes()).then(|| value.strip_prefix(b"="))?
    })
}

fn check_size(text: &[u8]) -> Result<(), RuleTextLimit> {
    if text.len() > MAX_BYTES { Err(RuleTextLimit) } else { Ok(()) }
}
