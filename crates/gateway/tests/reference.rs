//! Generates `docs/reference/policies.md` and `deploy/crds/*.yaml` from the policy types. The tests fail if the files
//! are outdated; `UPDATE_EXPECT=1` rewrites them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use gateway::objects::{
    AddressPoolSpec, BackendPolicySpec, BgpPeerSpec, ClientPolicySpec, RateLimitPolicySpec,
    SecurityPolicySpec, TrafficPolicySpec, schema,
};
use serde_json::{Map, Value, json};

/// Width of wrapped prose.
const COLUMNS: usize = 120;

/// A policy, or another kind of ours, as it is published.
struct PublishedPolicy {
    kind: &'static str,
    plural: &'static str,
    spec: Value,
    /// True if its objects belong to namespaces.
    is_namespaced: bool,
}

fn policies() -> [PublishedPolicy; 7] {
    [
        PublishedPolicy {
            kind: "BackendPolicy",
            plural: "backendpolicies",
            spec: schema::<BackendPolicySpec>(),
            is_namespaced: true,
        },
        PublishedPolicy {
            kind: "ClientPolicy",
            plural: "clientpolicies",
            spec: schema::<ClientPolicySpec>(),
            is_namespaced: true,
        },
        PublishedPolicy {
            kind: "RateLimitPolicy",
            plural: "ratelimitpolicies",
            spec: schema::<RateLimitPolicySpec>(),
            is_namespaced: true,
        },
        PublishedPolicy {
            kind: "SecurityPolicy",
            plural: "securitypolicies",
            spec: schema::<SecurityPolicySpec>(),
            is_namespaced: true,
        },
        PublishedPolicy {
            kind: "TrafficPolicy",
            plural: "trafficpolicies",
            spec: schema::<TrafficPolicySpec>(),
            is_namespaced: true,
        },
        PublishedPolicy {
            kind: "AddressPool",
            plural: "addresspools",
            spec: schema::<AddressPoolSpec>(),
            is_namespaced: false,
        },
        PublishedPolicy {
            kind: "BgpPeer",
            plural: "bgppeers",
            spec: schema::<BgpPeerSpec>(),
            is_namespaced: false,
        },
    ]
}

#[test]
fn custom_resource_definitions_are_fresh() {
    for policy in policies() {
        let yaml = serde_saphyr::to_string(&definition(&policy)).unwrap();
        let head = "# Made from the policy types by crates/gateway/tests/reference.rs.\n";
        let path = format!("deploy/crds/sheave.dev_{}.yaml", policy.plural);
        assert_fresh(&path, &format!("{head}{yaml}"));
    }
}

#[test]
fn policy_reference_page_is_fresh() {
    let mut page = PAGE_HEAD.to_owned();
    for policy in policies() {
        page += &format!("\n## {}\n\n", policy.kind);
        page += &wrapped(&text(&policy.spec), "", "");
        describe(&policy.spec, "spec", &mut page);
    }
    assert_fresh("docs/reference/policies.md", &page);
}

#[test]
fn every_number_has_limits_and_every_field_a_description() {
    for policy in policies() {
        visit(&policy.spec, policy.kind, &mut |field, schema| {
            assert!(schema["description"].is_string(), "{field} has no description");
            if schema["type"] == "integer" && schema["enum"].is_null() {
                assert!(schema["minimum"].is_number() && schema["maximum"].is_number(), "{field}");
            }
        });
    }
}

fn visit(schema: &Value, path: &str, check: &mut impl FnMut(&str, &Value)) {
    check(path, schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        visit(field, &format!("{path}.{name}"), check);
    }
    for (name, field) in schema["items"]["properties"].as_object().into_iter().flatten() {
        visit(field, &format!("{path}[].{name}"), check);
    }
}

fn assert_fresh(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} is outdated: UPDATE_EXPECT=1 rewrites it", path.display());
}

fn definition(policy: &PublishedPolicy) -> Value {
    let PublishedPolicy { kind, plural, spec, is_namespaced } = policy;
    let mut spec = spec.clone();
    make_structural(&mut spec);
    let root = json!({
        "description": spec["description"],
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        },
    });
    let age = json!({ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" });
    let mut metadata = json!({ "name": format!("{plural}.sheave.dev") });
    if spec["properties"]["targetRefs"].is_object() {
        // Gateway API demands this label on policies that change only their targets.
        metadata["labels"] = json!({ "gateway.networking.k8s.io/policy": "Direct" });
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": "sheave.dev",
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": kind.to_lowercase(),
                "categories": ["gateway-api"],
            },
            "scope": if *is_namespaced { "Namespaced" } else { "Cluster" },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [age],
                "schema": { "openAPIV3Schema": root },
            }],
        },
    })
}

/// Makes a schema structural, as API servers demand: they have different formats, and always drop unknown fields.
fn make_structural(schema: &mut Value) {
    let Value::Object(keys) = schema else { return };
    // A map of texts keeps its type.
    if !keys.get("additionalProperties").is_some_and(Value::is_object) {
        keys.remove("additionalProperties");
    }
    // API servers know sets by another name.
    keys.remove("uniqueItems");
    if let Some(Value::String(format)) = keys.remove("format") {
        keys.extend(as_api_server_checks(&format));
    }
    if let Some(items) = keys.get_mut("items") {
        make_structural(items);
    }
    if let Some(Value::Object(properties)) = keys.get_mut("properties") {
        properties.values_mut().for_each(make_structural);
    }
}

fn as_api_server_checks(format: &str) -> Map<String, Value> {
    let duration = |least: &str| {
        let rule =
            format!("duration(self) >= duration('{least}') && duration(self) <= duration('24h')");
        let message = format!("must be from {least} to 24h");
        json!({
            "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$",
            // The longest value has four pairs. API servers estimate the cost of a rule by the length.
            "maxLength": 28,
            "x-kubernetes-validations": [{ "rule": rule, "message": message }],
        })
    };
    let checks = match format {
        "duration" => duration("0s"),
        "positive-duration" => duration("1ms"),
        "name" => json!({ "pattern": NAME_PATTERN, "minLength": 1, "maxLength": 253 }),
        "label" => {
            let pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
            json!({ "pattern": pattern, "minLength": 1, "maxLength": 63 })
        }
        "cookie-path" => json!({ "pattern": "^/[!-:<-~]*$" }),
        "field-value" => json!({ "pattern": r"^\S(.*\S)?$" }),
        "host" => json!({ "pattern": NAME_PATTERN, "minLength": 1, "maxLength": 253 }),
        "absolute-uri" => {
            json!({ "pattern": r"^[A-Za-z][-A-Za-z0-9+.]*:[-A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%]+$" })
        }
        "target" => json!({ "pattern": "^/[-A-Za-z0-9/._~%!$&'()*+,;=:@?]*$" }),
        "field-name" => {
            json!({ "pattern": "^[-A-Za-z0-9!#$%&'*+.^_`|~]+$", "minLength": 1, "maxLength": 256 })
        }
        "network" => json!({ "pattern": "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$", "maxLength": 49 }),
        "ip" => json!({ "pattern": "^[0-9a-fA-F:.]+$", "maxLength": 45 }),
        "community" => json!({ "pattern": "^[0-9]{1,10}(:[0-9]{1,10}){1,2}$" }),
        "media-range" => {
            let part = "[-A-Za-z0-9!#$%&'+.^_`|~]+";
            json!({ "pattern": format!(r"^{part}/(\*|{part})$"), "maxLength": 256 })
        }
        "status-range" => json!({ "pattern": "^[45][0-9][0-9](-[45][0-9][0-9])?$" }),
        other => panic!("no check for {other}"),
    };
    checks.as_object().cloned().unwrap()
}

const NAME_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

const PAGE_HEAD: &str = "\
<!-- Made from the policy types by crates/gateway/tests/reference.rs. -->
# Policies

A policy of `apiVersion: sheave.dev/v1alpha1` is attached to its targets by `spec.targetRefs`. AddressPools and
BgpPeers have no targets and belong to no namespace. An unknown field, a value of the wrong type and a value outside of
its limits are errors. The format of durations is that of Gateway API (GEP-2257): `5s`, `100ms`, `1h30m`.

In a file, an error rejects the edit. In a cluster, the custom resource definitions may be newer or older than Sheave.
If the spec has an error there, the part with the error (`queue`, `timeouts`, ...) has its defaults, and all other parts
apply: an endpoint does not lose its limit because of an algorithm that this version does not know. The status has the
condition `Accepted` with the value false and the first error. Two parts have further effects. If `targetRefs` cannot be
read, the targets are unknown, and the policy does not apply. If `tls` cannot be read, the trusted certificates are
unknown, and connections to the endpoints fail unless a BackendTLSPolicy applies.
";

/// Adds a line for each field. Fields of objects follow under their own heading.
fn describe(schema: &Value, path: &str, page: &mut String) {
    let fields = |is_object: bool| {
        let fields = schema["properties"].as_object().into_iter().flatten();
        fields.filter(move |(_, field)| field["properties"].is_object() == is_object)
    };
    *page += "\n";
    for (name, field) in fields(false) {
        let head = format!("- `{path}.{name}` ({}): ", kind(schema, name));
        let (about, values) = split_values(&text(field));
        *page += &wrapped(&about, &head, "  ");
        for value in values {
            *page += &wrapped(&value, "  - ", "    ");
        }
        let items = field["items"]["properties"].as_object().into_iter().flatten();
        for (part, part_schema) in items {
            let head = format!("  - `{part}` ({}): ", kind(&field["items"], part));
            *page += &wrapped(&split_values(&text(part_schema)).0, &head, "    ");
        }
    }
    for (name, field) in fields(true) {
        *page += &format!("\n### `{path}.{name}`\n\n");
        *page += &wrapped(&text(field), "", "");
        describe(field, &format!("{path}.{name}"), page);
    }
}

/// Returns the type of a field, whether it is required, its default and its limits.
fn kind(parent: &Value, name: &str) -> String {
    let field = &parent["properties"][name];
    let mut parts = vec![type_name(field)];
    if parent["required"].as_array().is_some_and(|required| required.contains(&json!(name))) {
        parts.push("required".to_owned());
    }
    if let (Some(least), Some(most)) = (&field["minimum"].as_i64(), &field["maximum"].as_i64()) {
        parts.push(format!("{least} to {most}"));
    }
    let default = &field["default"];
    if !default.is_null() && *default != json!([]) && *default != json!("") {
        parts.push(format!("default `{}`", plain(default)));
    }
    parts.join(", ")
}

fn type_name(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<_> = values.iter().map(|value| format!("`{}`", plain(value))).collect();
        return values.join(" or ");
    }
    if field["x-kubernetes-int-or-string"] == json!(true) {
        return field["format"].as_str().unwrap_or("whole number").to_owned();
    }
    match (field["type"].as_str(), field["format"].as_str()) {
        (_, Some("duration")) => "duration, 0s to 24h".to_owned(),
        (_, Some("positive-duration")) => "duration, 1ms to 24h".to_owned(),
        (_, Some(format)) => format.to_owned(),
        (Some("integer"), None) => "whole number".to_owned(),
        (Some("array"), None) => {
            let most = field["maxItems"].as_u64().map(|it| format!(" of at most {it}"));
            let most = most.unwrap_or_default();
            match type_name(&field["items"]).as_str() {
                "object" => format!("list{most}"),
                items => format!("list{most} of {items}"),
            }
        }
        (kind, None) => kind.unwrap_or("anything").to_owned(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn text(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().to_owned()
}

/// Splits the description of an enum from those of its values.
fn split_values(text: &str) -> (String, Vec<String>) {
    let mut parts = text.split("\n- ").map(str::to_owned);
    (parts.next().unwrap_or_default(), parts.collect())
}

/// Wraps `first` and the text. Lines after the first begin with `indent`.
fn wrapped(text: &str, first: &str, indent: &str) -> String {
    let marker = &first[..first.len() - first.trim_start().len()];
    let mut lines = String::new();
    let mut line = marker.to_owned();
    let mut is_empty = true;
    for word in first.split_whitespace().chain(text.split_whitespace()) {
        if !is_empty && line.len() + 1 + word.len() > COLUMNS {
            lines += &format!("{}\n", line.trim_end());
            line = indent.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines + &format!("{}\n", line.trim_end())
}
