//! Paths, decoded for patterns and escaped for URLs.

use std::borrow::Cow;

/// A path without escapes, dot segments and adjacent slashes.
pub(super) struct DecodedPath<'p> {
    /// The path.
    pub(super) text: Cow<'p, [u8]>,
    /// True if the path has another form for routes: it had the escape of a character that needs none, such as a slash,
    /// or segments were removed.
    pub(super) is_other_route: bool,
}

/// Decodes a path once, then removes dot segments and adjacent slashes, so that `/a/..%2Fb` is `/b` for a pattern.
pub(super) fn decoded_path(path: &[u8]) -> DecodedPath<'_> {
    let (text, has_needless_escape) = without_escapes(path);
    // A listener may keep such segments, and escaped slashes may add some.
    if !text.windows(2).any(|pair| matches!(pair, b"//" | b"/.")) {
        return DecodedPath { text, is_other_route: has_needless_escape };
    }
    let normal = without_dot_segments(&text);
    let is_other_route = has_needless_escape || *normal != *text;
    DecodedPath { text: Cow::Owned(normal), is_other_route }
}

/// Returns a path without escapes, and true if it had one of a character that needs none.
fn without_escapes(path: &[u8]) -> (Cow<'_, [u8]>, bool) {
    if !path.contains(&b'%') {
        return (Cow::Borrowed(path), false);
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut has_needless_escape = false;
    let mut rest = path;
    while let [first, after @ ..] = rest {
        let (byte, after) = match rest {
            [b'%', high, low, after @ ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    let byte = high << 4 | low;
                    has_needless_escape |= needs_no_escape(byte, UrlPart::Path);
                    (byte, after)
                }
                (Some(_) | None, _) => (b'%', rest.get(1..).unwrap_or_default()),
            },
            _ => (*first, after),
        };
        decoded.push(byte);
        rest = after;
    }
    (Cow::Owned(decoded), has_needless_escape)
}

fn without_dot_segments(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut ends_with_slash = false;
    for segment in path.split(|byte| *byte == b'/').skip(1) {
        ends_with_slash = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    let mut out = Vec::with_capacity(path.len());
    for segment in &kept {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    if ends_with_slash || kept.is_empty() {
        out.push(b'/');
    }
    out
}

/// The part of a URL that a text becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UrlPart {
    /// The path: `/` separates segments.
    Path,
    /// The query: `&`, `+`, `=` and `?` are escaped too.
    Query,
}

/// Writes a decoded text as a part of a URL.
pub(super) fn escape(text: &[u8], part: UrlPart, out: &mut Vec<u8>) {
    for byte in text {
        if needs_no_escape(*byte, part) { out.push(*byte) } else { push_escape(*byte, out) }
    }
}

/// True if a byte stands for itself in a part of a URL.
fn needs_no_escape(byte: u8, part: UrlPart) -> bool {
    byte.is_ascii_alphanumeric()
        || match part {
            UrlPart::Path => b"/-._~!$&'()*+,;=:@".contains(&byte),
            UrlPart::Query => b"/-._~!$'()*,;:@".contains(&byte),
        }
}

/// Writes a text, with escapes in place of some of its bytes.
pub(super) fn escape_bytes(text: &[u8], escaped: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        if escaped.contains(byte) { push_escape(*byte, out) } else { out.push(*byte) }
    }
}

/// Returns a URL without bytes that no URL may have: they are escaped.
pub(super) fn sanitised(url: Vec<u8>) -> Vec<u8> {
    let is_unsafe = |byte: &u8| !byte.is_ascii_graphic() || b"\"<>\\^`{|}".contains(byte);
    if !url.iter().any(is_unsafe) {
        return url;
    }
    let mut out = Vec::with_capacity(url.len() * 2);
    for byte in &url {
        if is_unsafe(byte) { push_escape(*byte, &mut out) } else { out.push(*byte) }
    }
    out
}

fn push_escape(byte: u8, out: &mut Vec<u8>) {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    let digits = [digit(byte >> 4), digit(byte & 15)];
    out.push(b'%');
    out.extend(digits.map(|digit| digit.to_ascii_uppercase() as u8));
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_once_and_normalised() {
        for (path, decoded, is_other_route) in [
            ("/plain", "/plain", false),
            ("/.well-known/x", "/.well-known/x", false),
            ("/a%20b%3Fc%25", "/a b?c%", false),
            ("/%2561", "/%61", false),
            ("/%zz%4", "/%zz%4", false),
            ("/%40x", "/@x", true),
            ("/admin%2Fx", "/admin/x", true),
            ("/a/..%2Fb", "/b", true),
            ("/..%2F..%2Fb%2F", "/b/", true),
            ("/a%2F%2Fb/%2e", "/a/b/", true),
            ("/%2F", "/", true),
            ("//a/./b", "/a/b", true),
            ("/a/%2e%2e/b", "/b", true),
        ] {
            let result = decoded_path(path.as_bytes());
            assert_eq!(result.text.escape_ascii().to_string(), decoded, "{path}");
            assert_eq!(result.is_other_route, is_other_route, "{path}");
        }
    }

    #[test]
    fn escapes_restore_the_text() {
        let text = b"/x?z%#\"<|(+\xc3\xa9&=\r\n";
        let mut path = Vec::new();
        escape(text, UrlPart::Path, &mut path);
        assert_eq!(path, b"/x%3Fz%25%23%22%3C%7C(+%C3%A9&=%0D%0A");
        assert_eq!(*decoded_path(&path).text, *text);
        let mut query = Vec::new();
        escape(text, UrlPart::Query, &mut query);
        assert_eq!(query, b"/x%3Fz%25%23%22%3C%7C(%2B%C3%A9%26%3D%0D%0A");
        assert_eq!(sanitised(b"/a b?c=\xc3\r\n".to_vec()), b"/a%20b?c=%C3%0D%0A");
    }
}
