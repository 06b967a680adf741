//! What a rule asks of a request beyond its host and path.
//!
//! Parsed and compiled when the table is made; here a request is only looked at.

use std::borrow::Cow;

use regex::bytes::{Regex, RegexBuilder};

use super::RequestAttributes;

/// What a compiled regular expression may take, at most.
const MAX_REGEX_BYTES: usize = 1 << 18;

/// What a rule asks of a request beyond its host and path: all of it.
#[derive(Clone, Debug, Default)]
pub struct MatchConditions {
    /// This method.
    pub method: Option<Box<str>>,
    /// These header fields, each name once.
    pub headers: Vec<FieldCondition>,
    /// These parameters of the query, each name once.
    pub query: Vec<FieldCondition>,
}

/// A field by name, and what its value must be.
#[derive(Clone, Debug)]
pub struct FieldCondition {
    /// The name; of a header field in lower case.
    pub name: Box<str>,
    /// What the value must be.
    pub value: ValuePattern,
}

/// What a value must be.
#[derive(Clone, Debug)]
pub enum ValuePattern {
    /// This, byte for byte.
    Exact(Box<str>),
    /// Something that the whole expression matches.
    Regex(RegexPattern),
}

/// A regular expression that matches whole texts, in time linear in the text.
#[derive(Clone, Debug)]
pub struct RegexPattern {
    text: Box<str>,
    regex: Regex,
}

/// Why a regular expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no regular expression that we can use: {0}")]
pub struct InvalidPattern(String);

/// A condition that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmetCondition<'t> {
    /// The method is another.
    Method(&'t str),
    /// A header field is not there, or has another value.
    Header(&'t str),
    /// A parameter of the query is not there, or has another value.
    QueryParam(&'t str),
}

impl MatchConditions {
    /// Nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.method.is_none() && self.headers.is_empty() && self.query.is_empty()
    }

    /// How particular they are, as Gateway API orders rules of one path: method, number of header fields, number of
    /// parameters.
    pub(super) fn precedence(&self) -> impl Ord + use<> {
        (self.method.is_some(), self.headers.len(), self.query.len())
    }

    /// Whether a request meets them all.
    pub(super) fn are_met_by(&self, request: &impl RequestAttributes) -> bool {
        // Most rules ask for nothing more.
        self.is_empty() || self.first_unmet(request).is_none()
    }

    /// The first that a request does not meet.
    pub(super) fn first_unmet(
        &self,
        request: &impl RequestAttributes,
    ) -> Option<UnmetCondition<'_>> {
        if let Some(method) = &self.method
            && method.as_bytes() != request.method()
        {
            return Some(UnmetCondition::Method(method));
        }
        let is_unmet = |asked: &&FieldCondition| {
            !request.headers(&asked.name).any(|value| asked.value.matches(value))
        };
        if let Some(header) = self.headers.iter().find(is_unmet) {
            return Some(UnmetCondition::Header(&header.name));
        }
        let is_unmet = |asked: &&FieldCondition| {
            !query_value(request.query(), asked.name.as_bytes())
                .is_some_and(|value| asked.value.matches(&value))
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
    /// Compiles it for bytes, not Unicode, so that no class is large; what would be large nevertheless is refused.
    pub fn new(text: &str) -> Result<Self, InvalidPattern> {
        // First alone: `a)|(b` is an expression only in the parentheses that we put around it.
        compile(text)?;
        let regex = compile(&format!("^(?:{text})$"))?;
        Ok(Self { text: text.into(), regex })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn matches(&self, value: &[u8]) -> bool {
        self.regex.is_match(value)
    }
}

fn compile(text: &str) -> Result<Regex, InvalidPattern> {
    RegexBuilder::new(text)
        .unicode(false)
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_BYTES)
        .build()
        .map_err(|error| InvalidPattern(last_line(&error.to_string())))
}

/// Where the parser says what is wrong, below a picture of the place.
fn last_line(message: &str) -> String {
    let line = message.lines().last().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).trim_end_matches('.').to_lowercase()
}

/// The value of the first parameter of a name in a query (without its `?`), decoded.
pub fn query_value<'q>(query: &'q [u8], name: &[u8]) -> Option<Cow<'q, [u8]>> {
    let mut pairs = query.split(|&byte| byte == b'&').map(|pair| {
        let end = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (&pair[..end], pair.get(end + 1..).unwrap_or_default())
    });
    pairs.find(|(key, _)| *decoded(key) == *name).map(|(_, value)| decoded(value))
}

/// A part of a form (the URL standard, application/x-www-form-urlencoded): `+` is a space, and `%20` as well.
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
                // Not escaped after all: it stands for itself.
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
