//! Routes: matches of requests, and the clusters that they lead to.

use prost::Message;

use super::well_known::{AnyMessage, EmptyMessage, TimeSpan, UInt32Value};

/// The routes of a listener.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteConfiguration {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) virtual_hosts: Vec<VirtualHost>,
    #[prost(bool, tag = "14")]
    pub(crate) ignore_port_in_host_matching: bool,
}

/// The routes of some hosts.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct VirtualHost {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) domains: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) routes: Vec<RouteEntry>,
}

/// `Route`. The first that matches a request applies.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteEntry {
    #[prost(message, optional, tag = "1")]
    pub(crate) r#match: Option<RouteMatcher>,
    #[prost(message, optional, tag = "2")]
    pub(crate) route: Option<RouteAction>,
    #[prost(message, optional, tag = "3")]
    pub(crate) redirect: Option<RedirectResponse>,
    #[prost(message, optional, tag = "7")]
    pub(crate) direct_response: Option<DirectResponse>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) request_headers_to_add: Vec<HeaderValueOption>,
    #[prost(message, repeated, tag = "10")]
    pub(crate) response_headers_to_add: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "11")]
    pub(crate) response_headers_to_remove: Vec<String>,
    #[prost(string, repeated, tag = "12")]
    pub(crate) request_headers_to_remove: Vec<String>,
    #[prost(string, tag = "14")]
    pub(crate) name: String,
    /// A server answers the call itself.
    #[prost(message, optional, tag = "18")]
    pub(crate) non_forwarding_action: Option<EmptyMessage>,
}

/// `RouteMatch`. One of the first three is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteMatcher {
    #[prost(string, optional, tag = "1")]
    pub(crate) prefix: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) path: Option<String>,
    #[prost(message, optional, tag = "10")]
    pub(crate) safe_regex: Option<RegexMatcher>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) headers: Vec<HeaderMatcher>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) query_parameters: Vec<QueryParameterMatcher>,
}

/// A regular expression in RE2's syntax that matches the whole text.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegexMatcher {
    #[prost(string, tag = "2")]
    pub(crate) regex: String,
}

/// A condition on a header field.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMatcher {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "13")]
    pub(crate) string_match: Option<StringMatcher>,
}

/// A condition on a parameter of the query.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct QueryParameterMatcher {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) string_match: Option<StringMatcher>,
}

/// A condition on a text. One of the fields is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringMatcher {
    #[prost(string, optional, tag = "1")]
    pub(crate) exact: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub(crate) safe_regex: Option<RegexMatcher>,
}

impl StringMatcher {
    /// Matches this text alone.
    pub(crate) fn equal_to(text: &str) -> Self {
        Self { exact: Some(text.to_owned()), safe_regex: None }
    }
}

/// The clusters of requests, and how requests are sent. One of the first two fields is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteAction {
    #[prost(string, optional, tag = "1")]
    pub(crate) cluster: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) weighted_clusters: Option<WeightedClusters>,
    #[prost(string, tag = "5")]
    pub(crate) prefix_rewrite: String,
    #[prost(string, optional, tag = "6")]
    pub(crate) host_rewrite_literal: Option<String>,
    /// The maximum time of a request at an Envoy; 0: no limit.
    #[prost(message, optional, tag = "8")]
    pub(crate) timeout: Option<TimeSpan>,
    #[prost(message, optional, tag = "9")]
    pub(crate) retry_policy: Option<RetryPolicy>,
    #[prost(message, repeated, tag = "15")]
    pub(crate) hash_policy: Vec<HashPolicy>,
    #[prost(message, repeated, tag = "30")]
    pub(crate) request_mirror_policies: Vec<RequestMirror>,
    #[prost(message, optional, tag = "32")]
    pub(crate) regex_rewrite: Option<RegexSubstitution>,
    #[prost(message, optional, tag = "36")]
    pub(crate) max_stream_duration: Option<MaxStreamDuration>,
}

/// `WeightedCluster`: clusters that share the requests.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WeightedClusters {
    #[prost(message, repeated, tag = "1")]
    pub(crate) clusters: Vec<ClusterWeight>,
}

/// A cluster and its share.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClusterWeight {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) weight: Option<UInt32Value>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) request_headers_to_add: Vec<HeaderValueOption>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) response_headers_to_add: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "6")]
    pub(crate) response_headers_to_remove: Vec<String>,
    #[prost(string, repeated, tag = "9")]
    pub(crate) request_headers_to_remove: Vec<String>,
}

/// Retries of a request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RetryPolicy {
    /// Statuses of gRPC that are retried, separated by commas.
    #[prost(string, tag = "1")]
    pub(crate) retry_on: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) num_retries: Option<UInt32Value>,
    #[prost(message, optional, tag = "3")]
    pub(crate) per_try_timeout: Option<TimeSpan>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) retry_host_predicate: Vec<RetryHostPredicate>,
    #[prost(int64, tag = "6")]
    pub(crate) host_selection_retry_max_attempts: i64,
    #[prost(uint32, repeated, tag = "7")]
    pub(crate) retriable_status_codes: Vec<u32>,
    #[prost(message, optional, tag = "8")]
    pub(crate) retry_back_off: Option<RetryBackOff>,
}

/// `RetryPolicy.RetryHostPredicate`: endpoints that a retry avoids.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RetryHostPredicate {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) typed_config: Option<AnyMessage>,
}

/// `envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate`: those of the attempts before.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct PreviousHosts {}

impl PreviousHosts {
    /// The name of the type.
    pub(crate) const NAME: &str =
        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate";
}

/// `RequestMirrorPolicy`: a cluster that gets copies of requests.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestMirror {
    #[prost(string, tag = "1")]
    pub(crate) cluster: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) runtime_fraction: Option<RuntimeFraction>,
}

/// `RuntimeFractionalPercent`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RuntimeFraction {
    #[prost(message, optional, tag = "1")]
    pub(crate) default_value: Option<FractionalPercent>,
}

/// `FractionalPercent`: a fraction of requests.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct FractionalPercent {
    #[prost(uint32, tag = "1")]
    pub(crate) numerator: u32,
    #[prost(int32, tag = "2")]
    pub(crate) denominator: i32,
}

impl FractionalPercent {
    /// The denominator of parts of a million.
    pub(crate) const MILLION: i32 = 2;
}

/// `RegexMatchAndSubstitute`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegexSubstitution {
    #[prost(message, optional, tag = "1")]
    pub(crate) pattern: Option<RegexMatcher>,
    #[prost(string, tag = "2")]
    pub(crate) substitution: String,
}

/// The waiting time before a retry.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RetryBackOff {
    #[prost(message, optional, tag = "1")]
    pub(crate) base_interval: Option<TimeSpan>,
    #[prost(message, optional, tag = "2")]
    pub(crate) max_interval: Option<TimeSpan>,
}

/// A part of a request that is hashed. One of the fields is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HashPolicy {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderValueSource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) cookie: Option<CookieSource>,
    #[prost(message, optional, tag = "3")]
    pub(crate) connection_properties: Option<ConnectionProperties>,
    #[prost(message, optional, tag = "5")]
    pub(crate) query_parameter: Option<QueryParameterSource>,
    #[prost(message, optional, tag = "6")]
    pub(crate) filter_state: Option<FilterState>,
}

/// `HashPolicy.Header`: a header field of the request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueSource {
    #[prost(string, tag = "1")]
    pub(crate) header_name: String,
}

/// `HashPolicy.Cookie`: a cookie of the request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CookieSource {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// `HashPolicy.ConnectionProperties`: the address of the client.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ConnectionProperties {
    #[prost(bool, tag = "1")]
    pub(crate) source_ip: bool,
}

/// `HashPolicy.QueryParameter`: a parameter of the query.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct QueryParameterSource {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// `HashPolicy.FilterState`: a property of the client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilterState {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
}

/// The maximum time of a request.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct MaxStreamDuration {
    #[prost(message, optional, tag = "1")]
    pub(crate) max_stream_duration: Option<TimeSpan>,
}

/// `DirectResponseAction`: a response in place of the endpoint's. A gRPC client fails the call.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct DirectResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) status: u32,
}

/// `RedirectAction`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RedirectResponse {
    #[prost(string, tag = "1")]
    pub(crate) host_redirect: String,
    #[prost(string, optional, tag = "2")]
    pub(crate) path_redirect: Option<String>,
    #[prost(int32, tag = "3")]
    pub(crate) response_code: i32,
    #[prost(string, optional, tag = "5")]
    pub(crate) prefix_rewrite: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub(crate) scheme_redirect: Option<String>,
    #[prost(uint32, tag = "8")]
    pub(crate) port_redirect: u32,
}

/// A header field to add.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderValue>,
    #[prost(int32, tag = "3")]
    pub(crate) append_action: i32,
}

impl HeaderValueOption {
    /// Adds the value to those that are there.
    pub(crate) const APPEND: i32 = 0;
    /// Replaces those that are there.
    pub(crate) const OVERWRITE: i32 = 2;
}

/// A header field.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}
