//! Texts with variables, as nginx writes them: `https://$host/new/$1`.

use super::super::filter::UrlScheme;
use super::RuleRequest;
use super::path_text::{UrlPart, escape, sanitised};
use crate::matching::{RequestAttributes, SearchPattern};

/// Largest size of a text, in bytes.
const MAX_BYTES: usize = 64 * 1024;
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

/// Error: a text became longer than 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a text of a request rule is too long")]
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

    /// True if the text is the path of the request.
    pub(super) fn is_path(&self) -> bool {
        self.parts == [TemplatePart::Variable(RequestVariable::Path)]
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

/// The groups of a pattern in a text.
#[derive(Default)]
pub(super) struct CapturedGroups {
    /// The groups, from the first; one that took no part is empty.
    groups: Vec<Vec<u8>>,
    /// True if the text was a decoded path.
    is_of_path: bool,
}

impl CapturedGroups {
    /// Returns the groups, if a part of the text matches.
    pub(super) fn of(pattern: &SearchPattern, text: &[u8], is_of_path: bool) -> Option<Self> {
        if pattern.groups() == 0 {
            return pattern.is_in(text).then(Self::default);
        }
        let captures = pattern.find_in(text)?;
        let group = |group: Option<regex::bytes::Match<'_>>| {
            group.map(|group| group.as_bytes().to_vec()).unwrap_or_default()
        };
        let groups = captures.iter().skip(1).take(MAX_GROUP).map(group).collect();
        Some(Self { groups, is_of_path })
    }
}

/// The values of variables for one request.
pub(super) struct TemplateValues<'s, 'r, R> {
    pub(super) request: &'s RuleRequest<'r, R>,
    /// The path, decoded.
    pub(super) path: &'s [u8],
    pub(super) query: &'s [u8],
    pub(super) variables: &'s [Vec<u8>],
    pub(super) groups: &'s CapturedGroups,
}

impl<R: RequestAttributes> TemplateValues<'_, '_, R> {
    /// Returns a text as it is compared: the path is decoded.
    pub(super) fn text(&self, template: &RequestTemplate) -> Result<Vec<u8>, RuleTextLimit> {
        let mut out = Vec::new();
        for part in &template.parts {
            match part {
                TemplatePart::Literal(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Group(number) => out.extend_from_slice(self.group(*number)),
                TemplatePart::Variable(RequestVariable::Path) => out.extend_from_slice(self.path),
                TemplatePart::Variable(variable) => self.write(variable, &mut out),
            }
            check_size(&out)?;
        }
        Ok(out)
    }

    /// Returns a text as a URL: what comes from a path is escaped. A query that the text has comes before that of the
    /// request.
    pub(super) fn url(
        &self,
        template: &RequestTemplate,
        appends_query: bool,
    ) -> Result<Vec<u8>, RuleTextLimit> {
        let mut out = Vec::new();
        let mut url_part = UrlPart::Path;
        for part in &template.parts {
            match part {
                TemplatePart::Literal(text) => {
                    out.extend_from_slice(text.as_bytes());
                    if text.contains('?') {
                        url_part = UrlPart::Query;
                    }
                }
                TemplatePart::Group(number) if self.groups.is_of_path => {
                    escape(self.group(*number), url_part, &mut out);
                }
                TemplatePart::Group(number) => out.extend_from_slice(self.group(*number)),
                TemplatePart::Variable(RequestVariable::Path) => {
                    escape(self.path, url_part, &mut out);
                }
                TemplatePart::Variable(variable) => self.write(variable, &mut out),
            }
            check_size(&out)?;
        }
        if appends_query && !self.query.is_empty() {
            out.push(if url_part == UrlPart::Query { b'&' } else { b'?' });
            out.extend_from_slice(self.query);
        }
        check_size(&out)?;
        Ok(sanitised(out))
    }

    fn group(&self, number: usize) -> &[u8] {
        self.groups.groups.get(number - 1).map(Vec::as_slice).unwrap_or_default()
    }

    fn write(&self, variable: &RequestVariable, out: &mut Vec<u8>) {
        let RuleRequest { attributes, scheme, port, authority, received_target, client } =
            self.request;
        match variable {
            RequestVariable::Host => out.extend(attributes.host().to_ascii_lowercase()),
            RequestVariable::Authority => out.extend_from_slice(authority),
            RequestVariable::Scheme => out.extend_from_slice(UrlScheme::text(*scheme).as_bytes()),
            RequestVariable::Port => out.extend_from_slice(port.to_string().as_bytes()),
            RequestVariable::Method => out.extend_from_slice(attributes.method()),
            RequestVariable::ReceivedTarget => out.extend_from_slice(received_target),
            RequestVariable::Path => out.extend_from_slice(self.path),
            RequestVariable::Query => out.extend_from_slice(self.query),
            RequestVariable::QueryMark if self.query.is_empty() => {}
            RequestVariable::QueryMark => out.push(b'?'),
            RequestVariable::Client => {
                out.extend_from_slice(client.to_canonical().to_string().as_bytes());
            }
            RequestVariable::Field(name) => {
                for (number, value) in attributes.headers(name).enumerate() {
                    if number > 0 {
                        out.extend_from_slice(b", ");
                    }
                    out.extend_from_slice(value);
                }
            }
            RequestVariable::Cookie(name) => {
                let pairs = attributes.headers("cookie").flat_map(|it| it.split(|it| *it == b';'));
                out.extend_from_slice(named_value(pairs, name).unwrap_or_default());
            }
            RequestVariable::Parameter(name) => {
                let pairs = self.query.split(|byte| *byte == b'&');
                out.extend_from_slice(named_value(pairs, name).unwrap_or_default());
            }
            RequestVariable::Set(index) => {
                out.extend_from_slice(self.variables.get(*index).map_or(&[], Vec::as_slice));
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
