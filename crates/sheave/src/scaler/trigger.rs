//! Metadata of a KEDA trigger in a ScaledObject, parsed once and strictly, so that a typing error is reported instead
//! of creating a Service that never scales.

use std::collections::HashMap;
use std::time::Duration;

use gateway::objects;
use gateway::snapshot::{BackendKey, TransportProtocol};
use proxy::{LONGEST_WINDOW, WINDOW};
use tonic::Status;

/// Keys that KEDA reads itself and passes on with the rest.
const KEDA_KEYS: [&str; 3] = ["scalerAddress", "enableTLS", "unsafeSsl"];

const KEYS: &str = "service, port, target, activationDemand, window";

/// Upper bound of numbers, above the capacity of any replica and the demand of any Service.
const MAX_VALUE: f64 = 1e9;

/// The Service whose demand is reported, with thresholds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScalerTrigger {
    namespace: String,
    service: String,
    port: Option<u16>,
    /// Target of concurrent requests per replica; `None`: the limit per endpoint of the Service's
    /// policy.
    pub(super) target: Option<f64>,
    /// Threshold: demand up to this value counts as none.
    pub(super) activation: f64,
    /// Averaging window of the demand.
    pub(super) window: Duration,
}

impl ScalerTrigger {
    /// Parses the metadata. `namespace` is that of the ScaledObject, the default for the Service. Errors name the key.
    pub(super) fn parse(
        namespace: &str,
        metadata: &HashMap<String, String>,
    ) -> Result<Self, String> {
        let mut keys: Vec<&String> = metadata.keys().collect();
        keys.sort_unstable();
        let (mut service, mut port, mut target) = (None, None, None);
        let (mut activation, mut window) = (0.0, WINDOW);
        for key in keys {
            let value = metadata[key].as_str();
            match key.as_str() {
                "service" => service = Some(parse_service(namespace, value)?),
                "port" => port = Some(parse_port(value)?),
                "target" => target = Some(parse_number(key, value, f64::MIN_POSITIVE)?),
                "activationDemand" => activation = parse_number(key, value, 0.0)?,
                "window" => window = parse_window(value)?,
                known if KEDA_KEYS.contains(&known) => {}
                unknown => return Err(format!("{unknown}: unknown key; known keys: {KEYS}")),
            }
        }
        let Some((namespace, service)) = service else {
            return Err("service: required, NAME or NAMESPACE/NAME".to_owned());
        };
        Ok(Self { namespace, service, port, target, activation, window })
    }

    /// Returns the name of the Service as metrics show it.
    pub(super) fn name(&self) -> String {
        let Self { namespace, service, port, .. } = self;
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{namespace}/{service}{port}")
    }

    /// Selects the backend of the trigger from the existing ones.
    pub(super) fn select_backend(&self, keys: Vec<BackendKey>) -> Result<BackendKey, Status> {
        let mut ports: Vec<_> = keys
            .into_iter()
            .filter(|key| *key.namespace == *self.namespace && *key.service == *self.service)
            .collect();
        // If a port has both transports, TCP counts. A trigger without a port needs a Service with a single routed
        // port.
        ports.sort_unstable_by_key(|key| (key.port, key.transport == TransportProtocol::Udp));
        ports.dedup_by_key(|key| key.port);
        let numbers: Vec<_> = ports.iter().map(|key| key.port.to_string()).collect();
        let numbers = numbers.join(", ");
        let name = self.name();
        match self.port {
            _ if ports.is_empty() => {
                Err(Status::not_found(format!("Service {name}: no route refers to this Service")))
            }
            Some(port) => ports.into_iter().find(|key| key.port == port).ok_or_else(|| {
                Status::not_found(format!(
                    "Service {name}: no route refers to this port, only to {numbers}"
                ))
            }),
            None if ports.len() > 1 => Err(Status::invalid_argument(format!(
                "port: required, because Service {name} has several: {numbers}"
            ))),
            None => Ok(ports.remove(0)),
        }
    }
}

fn parse_service(namespace: &str, value: &str) -> Result<(String, String), String> {
    let (namespace, name) = value.split_once('/').unwrap_or((namespace, value));
    let is_label = |text: &str| {
        let is_inner =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&text.len()) && text.bytes().all(is_inner)
    };
    if is_label(namespace) && is_label(name) {
        return Ok((namespace.to_owned(), name.to_owned()));
    }
    Err(format!("service: {value:?} is not NAME or NAMESPACE/NAME"))
}

fn parse_port(value: &str) -> Result<u16, String> {
    let port = value.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("port: {value:?} is not a number from 1 to 65535"))
}

fn parse_number(key: &str, value: &str, least: f64) -> Result<f64, String> {
    let number = value.parse().ok().filter(|number| (least..=MAX_VALUE).contains(number));
    let from = if least > 0.0 { "above 0" } else { "from 0" };
    number.ok_or_else(|| format!("{key}: {value:?} is not a number {from} up to {MAX_VALUE:e}"))
}

fn parse_window(value: &str) -> Result<Duration, String> {
    let window = objects::Duration::parse(value).map(|window| window.0);
    let window = window.filter(|window| (Duration::from_secs(1)..=LONGEST_WINDOW).contains(window));
    window.ok_or_else(|| format!("window: {value:?} is not a duration from 1s to 60s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn parse(pairs: &[(&str, &str)]) -> Result<ScalerTrigger, String> {
        ScalerTrigger::parse("shop", &metadata(pairs))
    }

    fn key(port: u16, transport: TransportProtocol) -> BackendKey {
        BackendKey { namespace: "shop".into(), service: "web".into(), port, transport, node: None }
    }

    #[test]
    fn omitted_trigger_keys_have_defaults() {
        let web = parse(&[("service", "web"), ("scalerAddress", "sheave:9901")]).unwrap();
        assert_eq!((web.name().as_str(), web.target), ("shop/web", None));
        assert_eq!((web.activation, web.window), (0.0, WINDOW));
        let api = parse(&[
            ("service", "back/api"),
            ("port", "80"),
            ("target", "2.8"),
            ("activationDemand", "0.5"),
            ("window", "30s"),
            ("enableTLS", "true"),
        ]);
        let api = api.unwrap();
        assert_eq!((api.name().as_str(), api.target), ("back/api:80", Some(2.8)));
        assert_eq!((api.activation, api.window), (0.5, Duration::from_secs(30)));
    }

    #[test]
    fn invalid_trigger_values_are_reported_by_key() {
        for (pairs, message) in [
            (vec![], "service: required, NAME or NAMESPACE/NAME"),
            (vec![("service", "")], "service: \"\" is not NAME or NAMESPACE/NAME"),
            (vec![("service", "a/b/c")], "service: \"a/b/c\" is not NAME or NAMESPACE/NAME"),
            (vec![("service", "Web")], "service: \"Web\" is not NAME or NAMESPACE/NAME"),
            (vec![("port", "0")], "port: \"0\" is not a number from 1 to 65535"),
            (vec![("port", "http")], "port: \"http\" is not a number from 1 to 65535"),
            (vec![("target", "0")], "target: \"0\" is not a number above 0 up to 1e9"),
            (vec![("target", "-4")], "target: \"-4\" is not a number above 0 up to 1e9"),
            (vec![("target", "NaN")], "target: \"NaN\" is not a number above 0 up to 1e9"),
            (vec![("target", "inf")], "target: \"inf\" is not a number above 0 up to 1e9"),
            (
                vec![("activationDemand", "-1")],
                "activationDemand: \"-1\" is not a number from 0 up to 1e9",
            ),
            (vec![("window", "2m")], "window: \"2m\" is not a duration from 1s to 60s"),
            (vec![("window", "15")], "window: \"15\" is not a duration from 1s to 60s"),
            (
                vec![("Service", "web")],
                "Service: unknown key; known keys: service, port, target, activationDemand, window",
            ),
        ] {
            assert_eq!(parse(&pairs).unwrap_err(), message, "{pairs:?}");
        }
    }

    #[test]
    fn port_may_be_omitted_if_unambiguous() {
        let web = parse(&[("service", "web")]).unwrap();
        let (http, dns) = (key(80, TransportProtocol::Tcp), key(53, TransportProtocol::Udp));
        assert_eq!(web.select_backend(vec![http.clone()]).unwrap(), http);
        let both = vec![key(80, TransportProtocol::Udp), http.clone()];
        assert_eq!(web.select_backend(both).unwrap(), http);
        let status = web.select_backend(vec![http.clone(), dns.clone()]).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert_eq!(
            status.message(),
            "port: required, because Service shop/web has several: 53, 80"
        );
        let at = parse(&[("service", "web"), ("port", "53")]).unwrap();
        assert_eq!(at.select_backend(vec![http.clone(), dns.clone()]).unwrap(), dns);
        let status = at.select_backend(vec![http]).unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound);
        assert_eq!(
            status.message(),
            "Service shop/web:53: no route refers to this port, only to 80"
        );
    }

    #[test]
    fn missing_service_is_named_in_the_error() {
        let status = parse(&[("service", "back/web")]).unwrap();
        let status = status.select_backend(vec![key(80, TransportProtocol::Tcp)]).unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound);
        assert_eq!(status.message(), "Service back/web: no route refers to this Service");
    }
}
