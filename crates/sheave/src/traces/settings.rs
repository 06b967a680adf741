//! The settings of traces, from flags and the environment variables of OpenTelemetry.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use proxy::trace::TraceSampling;
use rustls_pki_types::ServerName;

use crate::flags::TraceFlags;

/// Path of traces below the URL of a collector.
const TRACES_PATH: &str = "/v1/traces";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of one request to the collector.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// The URL of a collector, to which the path of a signal is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectorUrl {
    pub(super) is_encrypted: bool,
    /// Host and port as they were written.
    pub(super) authority: String,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Without a slash at its end.
    pub(super) path: String,
}

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid =
            || format!("{text} is no URL of a collector: write it as http://collector:4318");
        let uri: Uri = text.parse().ok().ok_or_else(invalid)?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(invalid()),
        };
        let authority = uri.authority().ok_or_else(invalid)?;
        if uri.query().is_some() || authority.as_str().contains('@') {
            return Err(invalid());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        ServerName::try_from(host.as_str()).ok().ok_or_else(invalid)?;
        let port = match authority.as_str() == authority.host() {
            true if is_encrypted => 443,
            true => 80,
            false => authority.port_u16().ok_or_else(invalid)?,
        };
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { is_encrypted, authority: authority.to_string(), host, port, path })
    }
}

/// A file of authorities.
#[derive(Clone, Debug)]
pub(crate) struct AuthoritiesFile {
    pub(super) path: PathBuf,
    /// The flag or the variable that names the file.
    pub(super) source: String,
}

/// The collector and how requests are sent to it.
#[derive(Clone, Debug)]
pub(crate) struct CollectorSettings {
    pub(super) url: CollectorUrl,
    /// Path of traces.
    pub(super) target: String,
    pub(super) fields: Vec<(HeaderName, HeaderValue)>,
    /// File with the authorities of the collector; `None`: those of the system.
    pub(super) authorities: Option<AuthoritiesFile>,
    /// Maximum time of one request.
    pub(super) timeout: Duration,
    /// Attributes of this process.
    pub(super) resource: Vec<(String, String)>,
}

/// Traces as they are configured.
#[derive(Debug)]
pub(crate) struct TraceConfiguration {
    pub(crate) sampling: TraceSampling,
    pub(crate) collector: CollectorSettings,
}

impl TraceConfiguration {
    /// Returns `None` if neither a flag nor the environment names a collector. `environment` returns the value of a
    /// variable.
    pub(crate) fn new(
        flags: &TraceFlags,
        environment: impl Fn(&str) -> Option<String>,
        host: String,
    ) -> Result<Option<Self>, String> {
        let environment = VariableReader(environment);
        let Some((url, target)) = environment.collector(flags)? else { return Ok(None) };
        let mut sampling = environment.sampling(flags)?;
        if let Some(share) = flags.trace_share {
            sampling.share = share;
        }
        let of_flag = flags.otlp_ca.clone().map(|path| (path, "--otlp-ca".to_owned()));
        let of_variable = || {
            let (source, path) = environment.of_traces("CERTIFICATE")?;
            Some((PathBuf::from(path), source))
        };
        let authorities = of_flag.or_else(of_variable);
        let collector = CollectorSettings {
            url,
            target,
            fields: environment.fields()?,
            authorities: authorities.map(|(path, source)| AuthoritiesFile { path, source }),
            timeout: environment.timeout()?,
            resource: environment.resource(host)?,
        };
        Ok(Some(Self { sampling, collector }))
    }
}

/// The environment variables of OpenTelemetry's SDKs, as far as they concern traces.
struct VariableReader<F>(F);

impl<F: Fn(&str) -> Option<String>> VariableReader<F> {
    /// Returns the value of a variable; an empty one counts as not set.
    fn value(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.trim().is_empty())
    }

    /// Returns name and value of the variable for traces, else of the one for all signals.
    fn of_traces(&self, what: &str) -> Option<(String, String)> {
        let names =
            [format!("OTEL_EXPORTER_OTLP_TRACES_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")];
        names.into_iter().find_map(|name| Some((name.clone(), self.value(&name)?)))
    }

    fn collector(&self, flags: &TraceFlags) -> Result<Option<(CollectorUrl, String)>, String> {
        if let Some(url) = &flags.otlp_endpoint {
            return Ok(Some((url.clone(), format!("{}{TRACES_PATH}", url.path))));
        }
        let is_off =
            self.value("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true"))
                || self.value("OTEL_TRACES_EXPORTER").is_some_and(|it| it == "none");
        let Some((name, text)) = self.of_traces("ENDPOINT").filter(|_| !is_off) else {
            return Ok(None);
        };
        if let Some((name, protocol)) =
            self.of_traces("PROTOCOL").filter(|it| it.1 != "http/protobuf")
        {
            return Err(format!("{name} is {protocol}: only http/protobuf is supported"));
        }
        let url: CollectorUrl = text.trim().parse().map_err(|error| format!("{name}: {error}"))?;
        // The variable for traces has the whole URL.
        let target = match name.contains("TRACES") {
            true if url.path.is_empty() => "/".to_owned(),
            true => url.path.clone(),
            false => format!("{}{TRACES_PATH}", url.path),
        };
        Ok(Some((url, target)))
    }

    fn sampling(&self, flags: &TraceFlags) -> Result<TraceSampling, String> {
        const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
        let sampler = self.value("OTEL_TRACES_SAMPLER");
        let sampler = sampler.as_deref().map_or("parentbased_always_on", str::trim);
        let own = sampler.strip_prefix("parentbased_");
        let share = match own.unwrap_or(sampler) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => match self.value(ARGUMENT) {
                None => 1.0,
                Some(text) => {
                    let share = text.trim().parse().ok().filter(|it| (0.0..=1.0).contains(it));
                    share.ok_or_else(|| invalid(ARGUMENT, &text, "a share from 0 to 1"))?
                }
            },
            _ => {
                let valid =
                    "always_on, always_off or traceidratio, with parentbased_ before it or not";
                return Err(invalid("OTEL_TRACES_SAMPLER", sampler, valid));
            }
        };
        Ok(TraceSampling {
            share,
            honours_parent: own.is_some(),
            slow_after: flags.trace_slow,
            traces_failed: sampler != "always_off",
            max_per_second: flags.trace_limit,
        })
    }

    fn fields(&self) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let Some((name, text)) = self.of_traces("HEADERS") else { return Ok(Vec::new()) };
        let field = |(key, value): (String, String)| {
            let key = HeaderName::from_bytes(key.as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            Some((key, value))
        };
        // The value may be a secret: it is not repeated.
        let fields: Option<_> = pairs(&text).map(|pair| field(pair?)).collect();
        fields.ok_or_else(|| format!("{name} is invalid: write NAME=VALUE,NAME=VALUE"))
    }

    fn timeout(&self) -> Result<Duration, String> {
        let Some((name, text)) = self.of_traces("TIMEOUT") else { return Ok(DEFAULT_TIMEOUT) };
        let timeout = text.trim().parse().ok().map(Duration::from_millis);
        let timeout =
            timeout.filter(|timeout| (Duration::from_millis(1)..=MAX_TIMEOUT).contains(timeout));
        timeout.ok_or_else(|| invalid(&name, &text, "milliseconds, 60000 at most"))
    }

    /// Returns the attributes of this process.
    fn resource(&self, host: String) -> Result<Vec<(String, String)>, String> {
        const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let mut resource = vec![
            ("service.name".to_owned(), "sheave".to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id".to_owned(), host.clone()),
            ("host.name".to_owned(), host),
        ];
        let mut set = |key: String, value: String| {
            resource.retain(|(known, _)| *known != key);
            resource.push((key, value));
        };
        if let Some(text) = self.value(ATTRIBUTES) {
            for pair in pairs(&text) {
                let valid = "NAME=VALUE,NAME=VALUE";
                let (key, value) = pair.ok_or_else(|| invalid(ATTRIBUTES, &text, valid))?;
                set(key, value);
            }
        }
        if let Some(name) = self.value("OTEL_SERVICE_NAME") {
            set("service.name".to_owned(), name);
        }
        Ok(resource)
    }
}

fn invalid(name: &str, value: &str, valid: impl Display) -> String {
    format!("{name} is {value}: write {valid}")
}

/// Parses `NAME=VALUE,NAME=VALUE`, with percent-encoded values; `None` for a pair that is invalid.
fn pairs(text: &str) -> impl Iterator<Item = Option<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    members.map(|member| {
        let (key, value) = member.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then_some((key.to_owned(), percent_decoded(value.trim())?))
    })
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(rest.next()?)? << 4 | digit(rest.next()?)?;
        bytes.push(value as u8);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn flags() -> TraceFlags {
        TraceFlags {
            otlp_endpoint: None,
            otlp_ca: None,
            trace_share: None,
            trace_slow: None,
            trace_limit: NonZeroU32::new(100).unwrap(),
        }
    }

    fn configured(
        flags: &TraceFlags,
        variables: &[(&str, &str)],
    ) -> Result<Option<TraceConfiguration>, String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        TraceConfiguration::new(flags, value, "node".to_owned())
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

    #[test]
    fn urls_of_collectors_are_parsed() {
        let parts = |text: &str| {
            let url: CollectorUrl = text.parse()?;
            Ok::<_, String>((url.is_encrypted, url.host, url.port, url.path))
        };
        let expected =
            |tls, host: &str, port, path: &str| Ok((tls, host.to_owned(), port, path.to_owned()));
        assert_eq!(parts("http://collector:4318"), expected(false, "collector", 4318, ""));
        assert_eq!(parts("https://[::1]/a/b/"), expected(true, "::1", 443, "/a/b"));
        assert_eq!(parts("http://10.0.0.1/"), expected(false, "10.0.0.1", 80, ""));
        for bad in [
            "",
            "collector:4318",
            "grpc://collector",
            "http://",
            "http://a/?b",
            "http://u@a/",
            "http://a b/",
            "/v1/traces",
            "http://a:99999/",
            "http://-/",
        ] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn collector_is_named_by_flag_or_environment() {
        let target = |flags: &TraceFlags, variables: &[_]| {
            let configured = configured(flags, variables).unwrap();
            configured.map(|it| (it.collector.url.host, it.collector.target))
        };
        let expected = |host: &str, target: &str| Some((host.to_owned(), target.to_owned()));
        assert_eq!(target(&flags(), &[]), None);
        assert_eq!(target(&flags(), &[ENDPOINT]), expected("collector", "/v1/traces"));
        let named =
            TraceFlags { otlp_endpoint: Some("http://other/p".parse().unwrap()), ..flags() };
        assert_eq!(target(&named, &[ENDPOINT]), expected("other", "/p/v1/traces"));
        let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/own");
        assert_eq!(target(&flags(), &[ENDPOINT, whole]), expected("traces", "/own"));
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(target(&flags(), &[ENDPOINT, off]), None);
        }
    }

    #[test]
    fn sampler_of_the_environment_is_used() {
        let sampling = |flags: &TraceFlags, sampler: &str, argument: &str| {
            let sampler = ("OTEL_TRACES_SAMPLER", sampler);
            let variables = [ENDPOINT, sampler, ("OTEL_TRACES_SAMPLER_ARG", argument)];
            let sampling = configured(flags, &variables).unwrap().unwrap().sampling;
            (sampling.share, sampling.honours_parent, sampling.traces_failed)
        };
        assert_eq!(sampling(&flags(), "", ""), (1.0, true, true));
        assert_eq!(sampling(&flags(), "always_on", ""), (1.0, false, true));
        assert_eq!(sampling(&flags(), "always_off", ""), (0.0, false, false));
        assert_eq!(sampling(&flags(), "parentbased_always_off", ""), (0.0, true, true));
        assert_eq!(sampling(&flags(), "traceidratio", "0.25"), (0.25, false, true));
        assert_eq!(sampling(&flags(), "parentbased_traceidratio", "0.5"), (0.5, true, true));
        let own = TraceFlags { trace_share: Some(0.01), ..flags() };
        assert_eq!(sampling(&own, "parentbased_traceidratio", "0.5"), (0.01, true, true));
    }

    #[test]
    fn invalid_variables_are_errors_that_name_the_remedy() {
        for (name, value, message) in [
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "collector",
                "OTEL_EXPORTER_OTLP_ENDPOINT: collector is no URL",
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "only http/protobuf is supported"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", "write always_on, always_off"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "milliseconds"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "OTEL_EXPORTER_OTLP_HEADERS is invalid"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a", "NAME=VALUE"),
        ] {
            let error = configured(&flags(), &[(name, value), ENDPOINT]).unwrap_err();
            assert!(error.contains(message), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn fields_and_resource_are_read() {
        let variables = [
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20a%3Db, x-tenant=shop"),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=web-1,service.name=other"),
            ("OTEL_SERVICE_NAME", "edge"),
        ];
        let collector = configured(&flags(), &variables).unwrap().unwrap().collector;
        assert_eq!(collector.fields[0].1, "Bearer a=b");
        assert_eq!(collector.fields[1].0, "x-tenant");
        let resource = |key: &str| {
            let values = collector.resource.iter().filter(|(known, _)| known == key);
            values.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(resource("service.name"), ["edge"]);
        assert_eq!(resource("k8s.pod.name"), ["web-1"]);
        assert_eq!(resource("host.name"), ["node"]);
    }
}
