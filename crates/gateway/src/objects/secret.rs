//! `Secret` and `ConfigMap` (v1): certificates and keys that other objects refer to.
//!
//! The values of a Secret are never shown, neither by `Debug` nor in a message.

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::BASE64;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::scalar::IgnoredField;

/// Secret values, which are never shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SecretSpec {
    /// The type, such as `kubernetes.io/tls`. Ignored: the names of the values determine how they are used.
    #[serde(rename = "type")]
    pub kind: Option<IgnoredField>,
    /// Values by name, in base64.
    #[schemars(extend("writeOnly" = true))]
    pub data: BTreeMap<String, SecretBytes>,
    /// Values by name, as plain text. They take precedence over `data`.
    #[schemars(extend("writeOnly" = true))]
    pub string_data: BTreeMap<String, SecretText>,
    /// For the API server.
    pub immutable: Option<IgnoredField>,
}

/// Values that are not secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConfigMapSpec {
    /// Values by name.
    pub data: BTreeMap<String, String>,
    /// Values by name that are not text.
    pub binary_data: Option<IgnoredField>,
    /// For the API server.
    pub immutable: Option<IgnoredField>,
}

/// A secret value, written in base64.
#[derive(Clone, PartialEq, Eq, JsonSchema)]
#[schemars(transparent, extend("format" = "base64", "writeOnly" = true))]
pub struct SecretBytes(#[schemars(with = "String")] pub Vec<u8>);

/// A secret value, written as plain text.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("writeOnly" = true))]
pub struct SecretText(pub String);

impl SecretSpec {
    /// Returns a value by its name.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let plain = self.string_data.get(name).map(|value| value.0.as_bytes());
        plain.or_else(|| self.data.get(name).map(|value| &*value.0))
    }
}

/// Decodes base64 (RFC 4648 §4). Whitespace is skipped, because YAML block scalars contain it.
pub(super) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let dense: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64.decode(&dense).ok()
}

impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        decode_base64(&text).map(Self).ok_or_else(|| D::Error::custom("not base64"))
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encoded")
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plain")
    }
}

#[cfg(test)]
mod tests {
    use crate::parse;

    const SECRET: &str = "
apiVersion: v1
kind: Secret
metadata: {name: key}
type: kubernetes.io/tls
data: {both: ZGF0YQ==, encoded: \"aHVu\\ndGVyMg==\"}
stringData: {both: text}
";

    #[test]
    fn string_data_takes_precedence_over_data() {
        let (objects, problems) = parse(SECRET, "secret.yaml");
        assert_eq!(problems, []);
        let [crate::ApiObject::Secret(secret)] = &objects[..] else { panic!("{objects:?}") };
        assert_eq!(secret.spec.value("both"), Some(&b"text"[..]));
        assert_eq!(secret.spec.value("encoded"), Some(&b"hunter2"[..]));
        assert_eq!(secret.spec.value("other"), None);
    }

    #[test]
    fn error_messages_contain_no_secret_values() {
        let cases = [
            ("data: {both: ZGF0YQ==", "data: {both: hunter2!"),
            ("data: {both: ZGF0YQ==", "data: {both: 73313"),
            ("stringData: {both: text}", "stringData: hunter2!"),
            ("stringData: {both: text}", "stringData: {both: [hunter2!]}"),
        ];
        for (before, after) in cases {
            let (objects, problems) = parse(&SECRET.replace(before, after), "secret.yaml");
            let text = format!("{objects:?} {problems:?}");
            assert_eq!(problems.len(), 1, "{text}");
            assert!(!text.contains("hunter2!") && !text.contains("73313"), "{text}");
        }
        let (objects, _) = parse(SECRET, "secret.yaml");
        let text = format!("{objects:?}");
        assert!(!text.contains("text") && !text.contains("ZGF0"), "{text}");
    }
}
