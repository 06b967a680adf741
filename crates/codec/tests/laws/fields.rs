//! Properties of the parsers of single field values.

use codec::h3::priority::ResponsePriority;
use codec::head::{FieldSection, KnownFieldName, cookie, list};

use super::is_storable;

/// Each parser takes any value, and finds nothing that is not there.
pub fn value(value: &[u8]) {
    for element in list(value) {
        assert!(!element.is_empty() && element.trim_ascii() == element && !element.contains(&b','));
    }
    let rank = ResponsePriority::parse(value).rank();
    assert!((-9..=6).contains(&rank), "rank {rank}");
    if is_storable(value) {
        cookies(value);
    }
    if value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte)) {
        let known = KnownFieldName::recognise(value);
        assert_eq!(known, KnownFieldName::recognise(&value.to_ascii_uppercase()), "{known:?}");
    }
}

/// A cookie is found by the name before its first `=`, as a loop over all pairs finds it.
fn cookies(value: &[u8]) {
    let mut fields = FieldSection::new();
    fields.append("Cookie", value);
    let pairs = value.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let pairs: Vec<_> = pairs.filter_map(|pair| split_once(pair, b'=')).collect();
    for (name, _) in &pairs {
        let Ok(text) = str::from_utf8(name) else { continue };
        let first = pairs.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
        assert_eq!(cookie::find(&fields, text), first, "cookie {text:?}");
    }
    // No pair has a name with a semicolon.
    assert_eq!(cookie::find(&fields, ";"), None);
}

fn split_once(pair: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|&byte| byte == separator)?;
    Some((&pair[..at], &pair[at + 1..]))
}
