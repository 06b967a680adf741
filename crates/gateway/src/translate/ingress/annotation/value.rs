//! Values of annotations: parses them, or says what they must be.

use crate::matching::PathPattern;
use crate::objects::Duration;

/// Parses a boolean, in each form that Go's `strconv.ParseBool` accepts.
pub(super) fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "true" | "True" | "TRUE" | "t" | "T" | "1" => Ok(true),
        "false" | "False" | "FALSE" | "f" | "F" | "0" => Ok(false),
        _ => Err(format!("must be `true` or `false`, is {value}")),
    }
}

/// Parses a switch of nginx.
pub(super) fn parse_switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("must be `on` or `off`, is {value}")),
    }
}

pub(super) fn parse_number(value: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("must be a whole number from {least} to {most}, is {value}"))
}

/// Parses a list that is separated by commas, with at most `most` entries. Empty entries have no meaning.
pub(super) fn parse_list(value: &str, most: usize) -> Result<Vec<&str>, String> {
    let entries = value.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let entries: Vec<_> = entries.collect();
    if entries.len() > most {
        return Err(format!("must have at most {most} entries, has {}", entries.len()));
    }
    Ok(entries)
}

/// Parses a duration; a number without a unit has the default unit.
pub(super) fn parse_duration(default_unit: &str, value: &str) -> Result<Duration, String> {
    let end = value.find(|char: char| !char.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let millis = match if unit.is_empty() { default_unit } else { unit } {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = number.parse::<u64>().ok().zip(millis).and_then(|(n, unit)| n.checked_mul(unit));
    let millis = millis.filter(|millis| (1..=86_400_000).contains(millis));
    let message = || format!("must be a time from 1ms to 24h, such as 60 or 60s, is {value}");
    millis.map(Duration::from_millis).ok_or_else(message)
}

/// Parses the name of a cookie or header field.
pub(super) fn parse_name(value: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=256).contains(&value.len()) && value.bytes().all(is_inner);
    is_name
        .then(|| value.to_owned())
        .ok_or_else(|| format!("must be a name of letters, digits, `-`, `_` and `.`, is {value}"))
}

pub(super) fn parse_path(value: &str) -> Result<String, String> {
    PathPattern::exact(value).map_err(|fault| fault.to_string())?;
    Ok(value.to_owned())
}
