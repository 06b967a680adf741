//! Properties of path normalisation, against an implementation that is simple and slow.

use codec::path::{BadPath, PathRules, normalise};

/// The meaning of a path: its segments, decoded, and what ends it.
#[derive(Debug, PartialEq, Eq)]
struct PathMeaning {
    segments: Vec<Vec<u8>>,
    ends_with_slash: bool,
}

/// A normal form has the meaning of the path, is the only one of its kind, and holds nothing that another server could
/// shorten. A path is rejected only if it leads above the root, or has an escape that the rules reject.
pub fn normal_form(path: &[u8]) {
    let path = [b"/", path].concat();
    for merge_slashes in [false, true] {
        let rules = PathRules { merge_slashes, ..PathRules::default() };
        check(&path, rules);
        let strict = PathRules { reject_escaped_slashes: true, ..rules };
        let has_escaped_slash = has_escape(&path, |byte| b"/\\".contains(&byte));
        match normalise(&path, strict) {
            Err(BadPath::EscapedSlash) => assert!(has_escaped_slash),
            Err(BadPath::AboveRoot) => {}
            other => {
                assert!(!has_escaped_slash);
                assert_eq!(other, normalise(&path, rules));
            }
        }
        let slashes_only = PathRules { normalise: false, ..rules };
        let normal = normalise(&path, slashes_only).unwrap().unwrap_or_else(|| path.clone());
        assert_eq!(normal, if merge_slashes { merged(&path) } else { path.clone() });
    }
    assert_eq!(normalise(&path, PathRules::OFF), Ok(None));
}

fn check(path: &[u8], rules: PathRules) {
    let meaning = meaning(path, rules.merge_slashes);
    let normal = match normalise(path, rules) {
        Ok(normal) => normal.unwrap_or_else(|| path.to_vec()),
        Err(bad) => {
            assert_eq!(bad, BadPath::AboveRoot);
            assert_eq!(meaning, None);
            return;
        }
    };
    let shown = format!("{} of {}", normal.escape_ascii(), path.escape_ascii());
    assert_eq!(normalise(&normal, rules), Ok(None), "another normal form: {shown}");
    assert_eq!(self::meaning(&normal, rules.merge_slashes), meaning, "{shown}");
    assert!(meaning.is_some() && normal.len() <= path.len() && normal.starts_with(b"/"), "{shown}");
    let mut segments = normal.split(|&byte| byte == b'/').skip(1);
    assert!(segments.all(|segment| segment != b"." && segment != b".."), "{shown}");
    assert!(!rules.merge_slashes || merged(&normal) == normal, "{shown}");
    // A digit stays escaped where it would make an escape with a `%` before it; nothing else does.
    let stays = |byte: u8| byte.is_ascii_hexdigit() && decoded(&normal).contains(&b'%');
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    assert!(!has_escape(&normal, |byte| is_unreserved(byte) && !stays(byte)), "{shown}");
}

/// Returns the meaning; `None` if the path leads above the root.
fn meaning(path: &[u8], merge_slashes: bool) -> Option<PathMeaning> {
    let mut segments = Vec::new();
    let mut ends_with_slash = false;
    let all: Vec<_> = path.split(|&byte| byte == b'/').skip(1).map(decoded).collect();
    for (place, segment) in all.iter().enumerate() {
        let is_last = place + 1 == all.len();
        match segment.as_slice() {
            b"." => ends_with_slash = is_last,
            b".." => {
                segments.pop()?;
                ends_with_slash = is_last;
            }
            b"" if is_last => ends_with_slash = true,
            b"" if merge_slashes => {}
            name => segments.push(name.to_vec()),
        }
    }
    Some(PathMeaning { segments, ends_with_slash })
}

fn merged(path: &[u8]) -> Vec<u8> {
    let mut merged = path.to_vec();
    merged.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    merged
}

/// Decodes all escapes, and keeps each `%` that begins none.
fn decoded(text: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    each_escape(text, |byte, _| all.push(byte));
    all
}

fn has_escape(text: &[u8], is_meant: impl Fn(u8) -> bool) -> bool {
    let mut found = false;
    each_escape(text, |byte, is_escaped| found |= is_escaped && is_meant(byte));
    found
}

/// Calls `visit` for each byte, with true if it was escaped.
fn each_escape(text: &[u8], mut visit: impl FnMut(u8, bool)) {
    let mut at = 0;
    while at < text.len() {
        let digits =
            text.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        match digits.filter(|_| text[at] == b'%') {
            Some(digits) => {
                let digits = std::str::from_utf8(digits).unwrap();
                visit(u8::from_str_radix(digits, 16).unwrap(), true);
                at += 3;
            }
            None => {
                visit(text[at], false);
                at += 1;
            }
        }
    }
}
