//! Request rules of TrafficPolicies: rewrites, redirects and responses on conditions.
//!
//! The doc comments become the reference page and the descriptions of the CRD.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::traffic_policy::DirectResponse;

/// A rule about requests. Exactly one of `set`, `rewrite`, `redirect`, `respond` and `forward` is given.
/// Texts may have variables: `$host` (in lower case, without a port), `$http_host`, `$scheme`, `$server_port`,
/// `$request_method`, `$request_uri` (path and query as the client sent them), `$uri` (the path), `$args` (the query),
/// `$is_args` (`?` if there is a query), `$remote_addr` (the client's address), `$http_NAME` (a header field, with `_` for
/// `-`), `$cookie_NAME`, `$arg_NAME` (a query parameter, not decoded), those that rules set, and `$1` to `$9`, the groups
/// of the pattern of the rule's action, or else of its last condition that has one and is not negated. `${NAME}` is
/// `$NAME`. A variable without a value is the empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestRule {
    /// The conditions, all of which a request must meet. Default: none.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub when: Vec<RequestCondition>,
    /// Sets a variable for the rules that follow.
    pub set: Option<VariableAssignment>,
    /// Changes the path of the request.
    pub rewrite: Option<PathReplacement>,
    /// Redirects the client.
    pub redirect: Option<ConditionalRedirect>,
    /// Responds in place of an endpoint.
    pub respond: Option<DirectResponse>,
    /// True if the route forwards the request. The rules that follow, and `URLRewrite` of the path, do not apply.
    #[serde(default)]
    pub forward: bool,
}

/// A condition on a request. It has `equals` or `matches`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestCondition {
    /// The text that is compared, with variables.
    #[schemars(length(min = 1, max = 1024))]
    pub value: String,
    /// The text that the value must equal.
    #[schemars(length(max = 1024))]
    pub equals: Option<String>,
    /// A regular expression that must match a part of the value; `^` and `$` are its start and end.
    #[schemars(length(max = 2048))]
    pub matches: Option<String>,
    /// True if `matches` ignores the case of letters.
    #[serde(default)]
    pub ignore_case: bool,
    /// True if the value must not equal, or not match.
    #[serde(default)]
    pub negate: bool,
}

/// A new value of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VariableAssignment {
    /// The name, without `$`: letters, digits and `_`. It is none of the names that have a meaning.
    #[schemars(length(min = 1, max = 64))]
    pub variable: String,
    /// The value, with variables.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// A change of the path, if the pattern matches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathReplacement {
    /// A regular expression that must match a part of the path. The path is decoded for it: it has no escapes, dot
    /// segments or adjacent slashes.
    #[schemars(length(min = 1, max = 2048))]
    pub pattern: String,
    /// The new path, with variables, and perhaps `?` and parameters. The query of the request is appended, unless the text
    /// ends with `?`. It begins with `/` or a variable.
    #[schemars(length(min = 1, max = 2048))]
    pub replacement: String,
    /// The next step.
    #[serde(default)]
    pub then: RewriteContinuation,
}

/// The step after a rewrite of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RewriteContinuation {
    /// The rules that follow see the new path. After the last one, the route is chosen anew, by the new path.
    #[default]
    NextRule,
    /// The route is chosen anew, by the new path, and its rules apply. After ten times, the response is 500.
    Route,
    /// The route forwards the request. The rules that follow, and `URLRewrite` of the path, do not apply. If the path of the
    /// request has another form when it is decoded, such as `/admin/x` for `/admin%2Fx`, the route is first chosen anew by
    /// that path.
    Forward,
}

/// A redirect, if the pattern matches the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConditionalRedirect {
    /// A regular expression that must match a part of the decoded path. Default: none.
    #[schemars(length(min = 1, max = 2048))]
    pub pattern: Option<String>,
    /// The value of `Location`, with variables: a URL that begins with `http://`, `https://` or `$scheme://`, or a path,
    /// which is one of the requested host.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// The status: 301, 302, 303, 307 or 308.
    #[serde(default = "default_status")]
    #[schemars(range(min = 301, max = 308))]
    pub status: u16,
    /// True if the query of the request is appended to the URL.
    #[serde(default)]
    pub append_query: bool,
}

fn default_status() -> u16 {
    302
}
