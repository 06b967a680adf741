//! What an HTTPRoute asks of requests: path, header fields, query, method.

use schemars::JsonSchema;
use serde::Deserialize;

/// What a request must have, all of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteMatch {
    /// This path; every one when not given.
    #[serde(default)]
    pub path: PathMatch,
    /// These header fields; of two for one name the first counts.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
    /// These parameters of the query; of two for one name the first counts.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub query_params: Vec<QueryParamMatch>,
    /// This method.
    pub method: Option<HttpMethod>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PathMatch {
    /// How it is compared.
    #[serde(rename = "type")]
    pub kind: PathMatchType,
    /// What it is compared with.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// How a path is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum PathMatchType {
    /// Byte for byte.
    Exact,
    /// Segment by segment from the start.
    #[default]
    PathPrefix,
    /// By a regular expression that matches all of it.
    RegularExpression,
}

/// A header field.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderMatch {
    /// How its value is compared.
    #[serde(rename = "type", default)]
    pub kind: ValueMatchType,
    /// Its name, in any case of letters.
    #[schemars(extend("format" = "field-name"))]
    pub name: String,
    /// What the value of one of its lines is compared with.
    #[schemars(length(min = 1, max = 4096))]
    pub value: String,
}

/// A parameter of the query.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueryParamMatch {
    /// How its value is compared.
    #[serde(rename = "type", default)]
    pub kind: ValueMatchType,
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// What its first value is compared with, once decoded.
    #[schemars(length(min = 1, max = 1024))]
    pub value: String,
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum ValueMatchType {
    /// Byte for byte.
    #[default]
    Exact,
    /// By a regular expression that matches all of it.
    RegularExpression,
}

/// A method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// GET
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// PUT
    Put,
    /// DELETE
    Delete,
    /// CONNECT
    Connect,
    /// OPTIONS
    Options,
    /// TRACE
    Trace,
    /// PATCH
    Patch,
}

impl HttpMethod {
    /// As it stands in a request.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
        }
    }
}

impl Default for PathMatch {
    fn default() -> Self {
        Self { kind: PathMatchType::PathPrefix, value: "/".to_owned() }
    }
}
