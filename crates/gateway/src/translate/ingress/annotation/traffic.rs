//! Limits of the size of requests.
//!
//! ingress-nginx: `client_max_body_size` of each location.

use crate::objects::TrafficLimits;

/// Largest limit of a TrafficPolicy, in bytes: no body reaches it.
const MAX_BODY_BYTES: u64 = 1 << 50;

/// An annotation about the handling of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TrafficAnnotation {
    /// Maximum size of bodies; 0 means no limit.
    BodySize,
}

/// Adds the setting of an annotation.
pub(super) fn add(
    limits: &mut TrafficLimits,
    setting: TrafficAnnotation,
    value: &str,
) -> Result<(), String> {
    match setting {
        TrafficAnnotation::BodySize => limits.body_bytes = Some(parse_size(value)?),
    }
    Ok(())
}

/// Parses a size of nginx or HAProxy Ingress.
fn parse_size(value: &str) -> Result<u64, String> {
    if value == "unlimited" {
        return Ok(MAX_BODY_BYTES);
    }
    let (number, unit) = match value.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => (&value[..value.len() - 1], 1 << 10),
        Some(b'm') => (&value[..value.len() - 1], 1 << 20),
        Some(b'g') => (&value[..value.len() - 1], 1 << 30),
        Some(_) | None => (value, 1_u64),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = number.parse().ok().filter(|_| is_number).and_then(|n: u64| n.checked_mul(unit));
    match bytes.filter(|bytes| *bytes <= MAX_BODY_BYTES) {
        Some(0) => Ok(MAX_BODY_BYTES),
        Some(bytes) => Ok(bytes),
        None => Err(format!("must be a size up to 1048576g, such as 8m, is {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_the_units_of_nginx() {
        let sizes = [("1", 1), ("512k", 512 << 10), ("8m", 8 << 20), ("50M", 50 << 20)];
        for (text, bytes) in sizes.into_iter().chain([("4G", 4 << 30), ("1048576g", 1 << 50)]) {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["0", "0m", "unlimited"] {
            assert_eq!(parse_size(text), Ok(MAX_BODY_BYTES), "{text}");
        }
        for text in ["", "m", "+1", "-1", "1.5m", "8mb", "8 m", "1t", "1048577g", "ü"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size(&format!("{}g", u64::MAX)).is_err());
    }
}
