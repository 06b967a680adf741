//! JSON Schemas of types, and all violations of a schema by a value, each with its path.
//!
//! Serde stops at the first error. A schema that is derived from the same types does not, and a CRD needs one anyway.

use std::fmt;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::scalar;

/// Returns the schema of a type without references and `null`, with enums as lists of values.
pub fn schema<S: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<S>().to_value();
    simplify(&mut schema);
    schema
}

/// A violation of a schema.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SchemaViolation {
    /// The path of the field, as in `spec.rules[0].name`.
    pub(super) field: String,
    /// The error.
    pub(super) message: String,
    /// True if the value is a text that must be a name and is not a valid one.
    pub(super) is_name: bool,
}

/// Returns all violations of `schema` by `value`. `field` is the path of the value.
pub(super) fn faults(value: &Value, schema: &Value, field: &str) -> Vec<SchemaViolation> {
    let mut faults = Vec::new();
    check(value, schema, FieldPath::Root(field), &mut faults);
    faults
}

/// Removes every field from `value` that `schema` does not contain, and returns the removed fields.
pub(super) fn prune(value: &mut Value, schema: &Value, field: &str) -> Vec<SchemaViolation> {
    let mut faults = Vec::new();
    prune_at(value, schema, FieldPath::Root(field), &mut faults);
    faults
}

fn prune_at(
    value: &mut Value,
    schema: &Value,
    path: FieldPath<'_>,
    faults: &mut Vec<SchemaViolation>,
) {
    match value {
        Value::Object(fields) => fields.retain(|name, field| {
            let at = FieldPath::Field(&path, name);
            match schema["properties"].get(name) {
                Some(known) => prune_at(field, known, at, faults),
                None if is_closed(schema) => {
                    faults.push(unknown(schema, at));
                    return false;
                }
                None => prune_at(field, &schema["additionalProperties"], at, faults),
            }
            true
        }),
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                prune_at(item, &schema["items"], FieldPath::Item(&path, index), faults);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// True if the schema forbids unknown fields.
fn is_closed(schema: &Value) -> bool {
    schema["additionalProperties"] == json!(false)
}

/// Removes nulls: in Kubernetes, as here, `null` means absent.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The path of a value. It is formatted only if there is a violation.
#[derive(Clone, Copy)]
enum FieldPath<'a> {
    Root(&'a str),
    Field(&'a Self, &'a str),
    Item(&'a Self, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => f.write_str(name),
            Self::Field(FieldPath::Root(""), name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

fn check(value: &Value, schema: &Value, path: FieldPath<'_>, faults: &mut Vec<SchemaViolation>) {
    if let Some(message) = fault(value, schema) {
        let is_name =
            value.is_string() && ["name", "label"].map(Some).contains(&schema["format"].as_str());
        faults.push(SchemaViolation { field: path.to_string(), message, is_name });
        return;
    }
    match value {
        Value::Object(fields) => check_fields(fields, schema, path, faults),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                check(item, &schema["items"], FieldPath::Item(&path, index), faults);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_fields(
    fields: &Map<String, Value>,
    schema: &Value,
    path: FieldPath<'_>,
    faults: &mut Vec<SchemaViolation>,
) {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in required.filter(|name| !fields.contains_key(*name)) {
        let field = FieldPath::Field(&path, name).to_string();
        faults.push(SchemaViolation { field, message: "is missing".to_owned(), is_name: false });
    }
    for (name, field) in fields {
        let at = FieldPath::Field(&path, name);
        match schema["properties"].get(name) {
            Some(known) => check(field, known, at, faults),
            None if is_closed(schema) => {
                faults.push(unknown(schema, at));
            }
            None => check(field, &schema["additionalProperties"], at, faults),
        }
    }
}

fn unknown(schema: &Value, at: FieldPath<'_>) -> SchemaViolation {
    let known: Vec<_> = schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .map(String::as_str)
        .collect();
    let message = format!("unknown field, known here: {}", known.join(", "));
    SchemaViolation { field: at.to_string(), message, is_name: false }
}

/// Returns the violation by the value itself, without its children.
fn fault(value: &Value, schema: &Value) -> Option<String> {
    if let Some(expected) = schema["type"].as_str()
        && !is_type(value, expected)
    {
        let is_secret = schema["writeOnly"] == json!(true);
        let found = if is_secret { "something else".to_owned() } else { description(value) };
        return Some(format!("must be {}, is {found}", with_article(expected)));
    }
    if schema["x-kubernetes-int-or-string"] == json!(true) {
        let words = schema["pattern"].as_str().unwrap_or_default().trim_matches(['^', '$']);
        return if is_type(value, "integer") {
            outside_range(value, schema)
        } else if let (Some(text), Some(format)) = (value.as_str(), schema["format"].as_str()) {
            scalar::fault(format, text)
        } else if value.as_str() == Some(words) {
            None
        } else {
            Some(format!("must be a whole number or {words}, is {}", description(value)))
        };
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let allowed: Vec<_> = allowed.iter().map(plain).collect();
        return Some(format!("must be {}, is {}", allowed.join(" or "), plain(value)));
    }
    match value {
        Value::String(text) => outside(text.chars().count(), schema, "Length", "character")
            .or_else(|| schema["format"].as_str().and_then(|format| scalar::fault(format, text))),
        Value::Array(items) => outside(items.len(), schema, "Items", "item"),
        Value::Number(_) => outside_range(value, schema),
        Value::Null | Value::Bool(_) | Value::Object(_) => None,
    }
}

/// Returns the violation of the `min…` and `max…` limits of a count.
fn outside(count: usize, schema: &Value, limits: &str, what: &str) -> Option<String> {
    let limit = |edge: &str| schema[format!("{edge}{limits}")].as_u64();
    let plural = |count| if count == 1 { "" } else { "s" };
    let count = count as u64;
    match (limit("min"), limit("max")) {
        (Some(least), _) if count < least => {
            Some(format!("must have at least {least} {what}{}", plural(least)))
        }
        (_, Some(most)) if count > most => {
            Some(format!("must have at most {most} {what}{}", plural(most)))
        }
        _ => None,
    }
}

/// Returns the violation of the range of an integer. No number in the objects has a fraction, and all limits fit an
/// `i64`.
fn outside_range(value: &Value, schema: &Value) -> Option<String> {
    let limit = |edge: &str| schema[edge].as_i64();
    let too_small = |least| value.as_i64().is_some_and(|number| number < least);
    let too_large = |most| value.as_i64().is_none_or(|number| number > most);
    match (limit("minimum"), limit("maximum")) {
        (Some(least), Some(most)) if too_small(least) || too_large(most) => {
            Some(format!("must be from {least} to {most}, is {value}"))
        }
        (Some(least), None) if too_small(least) => {
            Some(format!("must be at least {least}, is {value}"))
        }
        _ => None,
    }
}

fn is_type(value: &Value, expected: &str) -> bool {
    match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => true,
    }
}

fn with_article(kind: &str) -> &str {
    match kind {
        "object" => "a mapping",
        "array" => "a list",
        "string" => "a string",
        "boolean" => "true or false",
        "integer" => "a whole number",
        other => other,
    }
}

fn description(value: &Value) -> String {
    match value {
        Value::Object(_) => "a mapping".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => format!("the string \"{text}\""),
        Value::Number(number) => format!("the number {number}"),
        Value::Bool(_) | Value::Null => value.to_string(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Converts the output of the derive macro into the one form that is checked and published.
fn simplify(schema: &mut Value) {
    let Value::Object(keys) = schema else { return };
    for key in ["$schema", "title"] {
        keys.remove(key);
    }
    flatten_option(keys);
    flatten_variants(keys);
    match keys.get_mut("default") {
        Some(Value::Null) => drop(keys.remove("default")),
        Some(default) => drop_nulls(default),
        None => {}
    }
    if keys.contains_key("enum") {
        // The limits of the type are redundant beside the list of values.
        keys.remove("minimum");
        keys.remove("maximum");
    }
    if keys
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|f| f.starts_with("uint") || f == "int64")
    {
        keys.remove("format");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = keys.get_mut(key) {
            simplify(inner);
        }
    }
    if let Some(Value::Object(properties)) = keys.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
}

/// Replaces the schema of an `Option` by that of its type.
fn flatten_option(keys: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = keys.get("type") {
        let kind = kinds.iter().find(|kind| **kind != json!("null")).cloned();
        keys.insert("type".to_owned(), kind.unwrap_or_default());
    }
    let Some(Value::Array(choices)) = keys.remove("anyOf") else { return };
    for choice in choices {
        if let Value::Object(choice) = choice
            && choice.get("type") != Some(&json!("null"))
        {
            choice.into_iter().for_each(|(key, value)| {
                keys.entry(key).or_insert(value);
            });
        }
    }
}

/// Replaces the variants of an enum by a list of values, and appends their comments to the description of the enum.
fn flatten_variants(keys: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = keys.remove("oneOf") else { return };
    let mut description = keys.get("description").map(plain).unwrap_or_default();
    for variant in &variants {
        let (name, about) = (plain(&variant["const"]), plain(&variant["description"]));
        description += &format!("\n- `{name}`: {about}");
    }
    let values = variants.iter().map(|variant| variant["const"].clone()).collect();
    keys.insert("type".to_owned(), json!("string"));
    keys.insert("enum".to_owned(), Value::Array(values));
    keys.insert("description".to_owned(), Value::String(description));
}
