//! Reader of the tables in `tests/data`: rows of columns, bytes with escapes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::{Path, PathBuf};

pub(crate) fn rows<const N: usize>(table: &str) -> Vec<[String; N]> {
    let text = std::fs::read_to_string(path(table)).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rows: Vec<_> = lines
        .map(|line| {
            let columns: Vec<String> = line.split('\t').map(String::from).collect();
            columns.try_into().unwrap_or_else(|_| panic!("{table}: not {N} columns: {line}"))
        })
        .collect();
    assert!(rows.len() > 50, "{table} has few rows");
    rows
}

pub(crate) fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(file)
}

/// Decodes `\r \n \t \\ \xNN`, and `\{N*text}` as N repetitions of the text.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (&kind, after) = rest.split_first().expect("a backslash begins an escape sequence");
        rest = after;
        match kind {
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                let (digits, after) = rest.split_at(2);
                bytes.push(u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap());
                rest = after;
            }
            b'{' => {
                let (inside, after) = str::from_utf8(rest).unwrap().split_once('}').unwrap();
                let (times, text) = inside.split_once('*').unwrap();
                bytes.extend(unescape(text).repeat(times.parse().unwrap()));
                rest = after.as_bytes();
            }
            _ => panic!("no such escape in {text}"),
        }
    }
    bytes
}
