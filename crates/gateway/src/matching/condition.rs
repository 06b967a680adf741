//! Match conditions of a rule besides its host and path.
//!
//! Conditions are parsed and compiled when the table is built. Here requests are only checked against them.

use std::borrow::Cow;

use regex::bytes::{Captures, Regex, RegexBuilder};

use super::RequestAttributes;

/// Largest size of a compiled regular expression, in bytes.
const MAX_REGEX_BYTES: usize = 1 << 18;
/// Largest size of a compiled regular expression that is searched for, in bytes. A request may be searched by many.
const MAX_SEARCH_REGEX_BYTES: usize = 1 << 16;

/// Conditions of a rule besides its host and path. A request must meet all of them.
#[derive(Clone, Debug, Default)]
pub struct MatchConditions {
    /// The method that the request must have; `None` allows any.
    pub method: Option<Box<str>>,
    /// The header fields that the request must have, each name once.
    pub headers: Vec<FieldCondition>,
    /// The query parameters that the request must have, each name once.
    pub query: Vec<FieldCondition>,
}

/// A named field, and the condition on its value.
#[derive(Clone, Debug)]
pub struct FieldCondition {
    /// The name; for a header field in lower case.
    pub name: Box<str>,
    /// The condition on the value.
    pub value: ValuePattern,
}

/// A condition on a value.
#[derive(Clone, Debug)]
pub enum ValuePattern {
    /// The value must equal this text, byte for byte.
    Exact(Box<str>),
    /// The regular expression must match the whole value.
    Regex(RegexPattern),
}

/// A regular expression that matches whole texts, in time linear in the length of the text.
#[derive(Clone, Debug)]
pub struct RegexPattern {
    text: Box<str>,
    regex: Regex,
}

/// A regular expression that is searched for in texts, in time linear in the length of the text.
#[derive(Clone, Debug)]
pub struct SearchPattern {
    text: Box<str>,
    ignores_case: bool,
    regex: Regex,
}

/// The reason why a regular expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a supported regular expression: {0}")]
pub struct InvalidPattern(String);

/// A condition that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmetCondition<'t> {
    /// The request has another method.
    Method(&'t str),
    /// The header field is absent or has another value.
    Header(&'t str),
    /// The query parameter is absent or has another value.
    QueryParam(&'t str),
}

impl MatchConditions {
    /// True if there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.method.is_none() && self.headers.is_empty() && self.query.is_empty()
    }

    /// Returns the precedence of the conditions by Gateway API's order of rules with the same path: method, number of
    /// header fields, number of query parameters.
    pub(super) fn precedence(&self) -> impl Ord + use<> {
        (self.method.is_some(), self.headers.len(), self.query.len())
    }

    /// True if a request meets all conditions.
    pub(super) fn are_met_by(&self, request: &impl RequestAttributes) -> bool {
        // Most rules have no further conditions.
        self.is_empty() || self.first_unmet(request).is_none()
    }

    /// Returns the first condition that a request does not meet.
    pub(super) fn first_unmet(
        &self,
        request: &impl RequestAttributes,
    ) -> Option<UnmetCondition<'_>> {
        if let Some(method) = &self.method
            && method.as_bytes() != request.method()
        {
            return Some(UnmetCondition::Method(method));
        }
        let is_unmet = |condition: &&FieldCondition| {
            !request.headers(&condition.name).any(|value| condition.value.matches(value))
        };
        if let Some(header) = self.headers.iter().find(is_unmet) {
            return Some(UnmetCondition::Header(&header.name));
        }
        let is_unmet = |condition: &&FieldCondition| {
            !query_value(request.query(), condition.name.as_bytes())
                .is_some_and(|value| condition.value.matches(&value))
        };
        self.query.iter().find(is_unmet).map(|param| UnmetCondition::QueryParam(&param.name))
    }
}

impl ValuePattern {
    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == value,
            Self::Regex(pattern) => pattern.matches(value),
        }
    }
}

impl RegexPattern {
    /// Compiles the expression for bytes, not Unicode, so that no character class is large. An expression that is still
    /// too large is rejected.
    pub fn new(text: &str) -> Result<Self, InvalidPattern> {
        // First without the added parentheses: `a)|(b` is a valid expression only inside them.
        compile(text, false, MAX_REGEX_BYTES)?;
        let regex = compile(&format!("^(?:{text})$"), false, MAX_REGEX_BYTES)?;
        Ok(Self { text: text.into(), regex })
    }

    /// Returns the expression as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn matches(&self, value: &[u8]) -> bool {
        self.regex.is_match(value)
    }
}

impl SearchPattern {
    /// Compiles the expression for bytes. Its size has a lower limit than that of a [`RegexPattern`].
    pub fn new(text: &str, ignores_case: bool) -> Result<Self, InvalidPattern> {
        let regex = compile(text, ignores_case, MAX_SEARCH_REGEX_BYTES)?;
        Ok(Self { text: text.into(), ignores_case, regex })
    }

    /// Returns the expression as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the number of groups, without the whole.
    pub fn groups(&self) -> usize {
        self.regex.captures_len() - 1
    }

    /// True if a part of the text matches.
    pub fn is_in(&self, text: &[u8]) -> bool {
        self.regex.is_match(text)
    }

    /// Returns the groups of the first part of the text that matches.
    pub fn find_in<'t>(&self, text: &'t [u8]) -> Option<Captures<'t>> {
        self.regex.captures(text)
    }
}

/// Patterns with the same text are the same.
impl PartialEq for SearchPattern {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.ignores_case) == (&other.text, other.ignores_case)
    }
}

impl Eq for SearchPattern {}

fn compile(text: &str, ignores_case: bool, max_bytes: usize) -> Result<Regex, InvalidPattern> {
    RegexBuilder::new(text)
        .unicode(false)
        .case_insensitive(ignores_case)
        .size_limit(max_bytes)
        .dfa_size_limit(MAX_REGEX_BYTES)
        .build()
        .map_err(|error| InvalidPattern(last_line(&error.to_string())))
}

/// Returns the last line, which has the error. The parser prints the expression with a marker above it.
fn last_line(message: &str) -> String {
    let line = message.lines().last().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).trim_end_matches('.').to_lowercase()
}

/// Returns the decoded value of the first parameter with this name in a query (without its `?`).
pub fn query_value<'q>(query: &'q [u8], name: &[u8]) -> Option<Cow<'q, [u8]>> {
    let mut pairs = query.split(|&byte| byte == b'&').map(|pair| {
        let end = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (&pair[..end], pair.get(end + 1..).unwrap_or_default())
    });
    pairs.find(|(key, _)| *decoded(key) == *name).map(|(_, value)| decoded(value))
}

/// Decodes a part of a form (the URL standard, application/x-www-form-urlencoded): `+` is a space, and `%20` as well.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| b"%+".contains(byte)) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'+', _) => (b' ', after),
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                // Not a valid escape: the `%` stands for itself.
                (Some(_) | None, _) => (b'%', rest.get(1..).unwrap_or_default()),
            },
            (byte, _) => (*byte, after),
        };
        out.push(byte);
        rest = after;
    }
    Cow::Owned(out)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
