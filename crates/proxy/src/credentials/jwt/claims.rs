//! Claims of a verified token as values of header fields.

use gateway::snapshot::ClaimField;
use serde_json::{Map, Value};

use super::fault::TokenFault;

/// Values of claims, with the indices of the claims in the settings of their issuer.
pub(super) type ClaimValues = Box<[(usize, Box<str>)]>;

/// Maximum length of a value.
const MAX_VALUE: usize = 1024;

/// Returns the values of the claims that the token has and that can be written, with their indices.
pub(super) fn fields(wanted: &[ClaimField], claims: &[u8]) -> Result<ClaimValues, TokenFault> {
    let claims = serde_json::from_slice(claims).ok().ok_or(TokenFault::Malformed)?;
    let value = |(index, wanted): (usize, &ClaimField)| {
        Some((index, text(find(&claims, &wanted.claim)?)?.into()))
    };
    Ok(wanted.iter().enumerate().filter_map(value).collect())
}

/// Returns a claim by its name, which may have dots, or by its path.
fn find<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let mut parts = name.split('.');
    let first = claims.get(parts.next()?)?;
    let mut is_path = false;
    let found = parts.try_fold(first, |value, part| {
        is_path = true;
        value.as_object()?.get(part)
    });
    found.filter(|_| is_path)
}

/// Returns a value as text, if a header field can have it.
fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Array(elements) => {
            let texts: Option<Vec<_>> = elements.iter().map(scalar).collect();
            let texts = texts?;
            // Endpoints take the list apart at its commas.
            if texts.iter().any(|it| it.contains(',')) {
                return None;
            }
            texts.join(",")
        }
        value => scalar(value)?,
    };
    let is_value = !text.is_empty()
        && text.len() <= MAX_VALUE
        && text.trim() == text
        && !text.chars().any(char::is_control);
    is_value.then_some(text)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_written_if_a_field_can_have_them() {
        let claims = json!({
            "sub": "ann",
            "number": 7,
            "fraction": 1.5,
            "truth": true,
            "list": ["a", "b", 3],
            "https://example.com/role": "admin",
            "realm": { "roles": ["x", "y"], "a.b": 1 },
            "realm.name": "whole",
            "unicode": "Zoë",
            "null": null,
            "empty": "",
            "none": [],
            "spaces": " a",
            "line": "a\r\nX-User: root",
            "comma": ["user,admin"],
            "nested": [["a"]],
            "long": "a".repeat(MAX_VALUE + 1),
        });
        let claims = claims.as_object().unwrap();
        for (name, expected) in [
            ("sub", Some("ann")),
            ("number", Some("7")),
            ("fraction", Some("1.5")),
            ("truth", Some("true")),
            ("list", Some("a,b,3")),
            ("https://example.com/role", Some("admin")),
            ("realm.roles", Some("x,y")),
            ("realm.name", Some("whole")),
            ("unicode", Some("Zoë")),
            ("realm", None),
            ("realm.a.b", None),
            ("realm.roles.0", None),
            ("sub.x", None),
            ("absent", None),
            ("null", None),
            ("empty", None),
            ("none", None),
            ("spaces", None),
            ("line", None),
            ("comma", None),
            ("nested", None),
            ("long", None),
        ] {
            let value = find(claims, name).and_then(text);
            assert_eq!(value.as_deref(), expected, "{name}");
        }
    }
}
