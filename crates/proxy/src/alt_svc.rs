//! Advertisement of HTTP/3 to TCP clients: the field Alt-Svc (RFC 7838 §3).

use std::num::NonZeroU16;

use codec::head::{HttpVersion, KnownFieldName, RequestHead, ResponseHead};
use gateway::snapshot::Http3Settings;

/// Time for which clients may cache the advertisement: a day.
const MAX_AGE_SECONDS: u32 = 86_400;

/// Returns the field value for a TCP port that HTTP/3 is served beside.
pub(crate) fn value(http3: &Http3Settings, port: u16) -> Box<str> {
    let port = http3.advertised_port.map_or(port, NonZeroU16::get);
    format!("h3=\":{port}\"; ma={MAX_AGE_SECONDS}").into()
}

/// Removes the field that an endpoint sends for a port of its own, which clients cannot reach
/// through us. Hypercorn adds it by default.
pub(crate) fn remove_from_endpoint(value: Option<&str>, response: &mut ResponseHead) {
    if value.is_some() {
        response.fields.remove(KnownFieldName::AltSvc);
    }
}

/// Adds the field, unless the client already uses HTTP/3, or a filter of the route has set it.
pub(crate) fn advertise(value: Option<&str>, request: &RequestHead, response: &mut ResponseHead) {
    let Some(value) = value else { return };
    if request.version != HttpVersion::Http3 && !response.fields.has(KnownFieldName::AltSvc) {
        response.fields.add(KnownFieldName::AltSvc, value);
    }
}

#[cfg(test)]
mod tests {
    use gateway::snapshot::CongestionControl;

    use super::*;

    fn http3(advertised_port: Option<NonZeroU16>) -> Http3Settings {
        Http3Settings {
            max_concurrent_streams: 1,
            zero_rtt: false,
            congestion_control: CongestionControl::Cubic,
            advertised_port,
        }
    }

    fn told(
        version: HttpVersion,
        of_endpoint: Option<&str>,
        of_filter: Option<&str>,
    ) -> Vec<String> {
        let (mut request, mut response) = (RequestHead::new(), ResponseHead::new());
        request.version = version;
        of_endpoint.into_iter().for_each(|value| response.fields.append("alt-svc", value));
        let value = value(&http3(None), 443);
        remove_from_endpoint(Some(&value), &mut response);
        of_filter.into_iter().for_each(|value| response.fields.append("alt-svc", value));
        advertise(Some(&value), &request, &mut response);
        let values = response.fields.values(KnownFieldName::AltSvc);
        values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    }

    #[test]
    fn alt_svc_is_sent_once_to_tcp_clients() {
        let ours = "h3=\":443\"; ma=86400";
        assert_eq!(told(HttpVersion::Http11, None, None), [ours]);
        assert_eq!(told(HttpVersion::Http2, Some("h3=\":5443\""), None), [ours]);
        assert_eq!(told(HttpVersion::Http2, Some("h3=\":5443\""), Some("clear")), ["clear"]);
        assert!(told(HttpVersion::Http3, Some("h3=\":5443\""), None).is_empty());
    }

    #[test]
    fn advertised_alt_svc_port_is_configurable() {
        let http3 = http3(NonZeroU16::new(443));
        assert_eq!(&*value(&http3, 8443), "h3=\":443\"; ma=86400");
    }
}
