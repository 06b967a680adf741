//! Matches of an HTTPRoute: path, header fields, query parameters, method.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Conditions of a request, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteMatch {
    /// The path. Default: every path.
    #[serde(default)]
    pub path: PathMatch,
    /// Header fields. If a name occurs twice, the first entry counts.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
    /// Query parameters. If a name occurs twice, the first entry counts.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub query_params: Vec<QueryParamMatch>,
    /// The method. Default: every method.
    pub method: Option<HttpMethod>,
}

/// A condition of the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PathMatch {
    /// The type of comparison.
    #[serde(rename = "type")]
    pub kind: PathMatchType,
    /// The value to compare with.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// The comparison of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PathMatchType {
    /// Byte for byte.
    Exact,
    /// By path prefix, segment by segment.
    #[default]
    PathPrefix,
    /// By a regular expression that must match the whole path.
    RegularExpression,
}

/// A condition of a header field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderMatch {
    /// The type of comparison.
    #[serde(rename = "type", default)]
    pub kind: ValueMatchType,
    /// The name, in any case.
    #[schemars(extend("format" = "field-name"))]
    pub name: String,
    /// The value to compare with. The value of one field line must match.
    #[schemars(length(min = 1, max = 4096))]
    pub value: String,
}

/// A condition of a query parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueryParamMatch {
    /// The type of comparison.
    #[serde(rename = "type", default)]
    pub kind: ValueMatchType,
    /// The name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// The value to compare with, which is the first value of the parameter after decoding.
    #[schemars(length(min = 1, max = 1024))]
    pub value: String,
}

/// The comparison of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ValueMatchType {
    /// Byte for byte.
    #[default]
    Exact,
    /// By a regular expression that must match the whole value.
    RegularExpression,
}

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Returns the method as it is written in a request.
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
