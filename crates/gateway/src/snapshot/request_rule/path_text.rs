//! Paths, decoded for patterns and escaped for URLs.

use std::borrow::Cow;

/// Returns a path without escapes. If it had an escaped slash, dot segments and adjacent slashes are removed as well, so
/// that `/a/..%2Fb` is `/b` for a pattern.
pub(super) fn decoded_path(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut has_slash = false;
    let mut rest = path;
    while let [first, after @ ..] = rest {
        let (byte, after) = match rest {
            [b'%', high, low, after @ ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    has_slash |= high << 4 | low == b'/';
                    (high << 4 | low, after)
                }
                (Some(_) | None, _) => (b'%', rest.get(1..).unwrap_or_default()),
            },
            _ => (*first, after),
        };
        decoded.push(byte);
        rest = after;
    }
    Cow::Owned(if has_slash { without_dot_segments(&decoded) } else { decoded })
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
        let is_kept = byte.is_ascii_alphanumeric()
            || match part {
                UrlPart::Path => b"/-._~!$&'()*+,;=:@".contains(byte),
                UrlPart::Query => b"/-._~!$'()*,;:@".contains(byte),
            };
        if is_kept { out.push(*byte) } else { push_escape(*byte, out) }
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
    fn paths_are_decoded_once_and_normalised_if_they_have_new_slashes() {
        for (path, decoded) in [
            ("/plain", "/plain"),
            ("/a%20b%3Fc%25", "/a b?c%"),
            ("/%2561", "/%61"),
            ("/admin%2Fx", "/admin/x"),
            ("/a/..%2Fb", "/b"),
            ("/..%2F..%2Fb%2F", "/b/"),
            ("/a%2F%2Fb/%2e", "/a/b/"),
            ("/%2F", "/"),
            ("/%zz%4", "/%zz%4"),
        ] {
            assert_eq!(decoded_path(path.as_bytes()).escape_ascii().to_string(), decoded, "{path}");
        }
    }

    #[test]
    fn escapes_restore_the_text() {
        let text = b"/x?z%#\"<|(+\xc3\xa9&=\r\n";
        let mut path = Vec::new();
        escape(text, UrlPart::Path, &mut path);
        assert_eq!(path, b"/x%3Fz%25%23%22%3C%7C(+%C3%A9&=%0D%0A");
        assert_eq!(*decoded_path(&path), *text);
        let mut query = Vec::new();
        escape(text, UrlPart::Query, &mut query);
        assert_eq!(query, b"/x%3Fz%25%23%22%3C%7C(%2B%C3%A9%26%3D%0D%0A");
        assert_eq!(sanitised(b"/a b?c=\xc3\r\n".to_vec()), b"/a%20b?c=%C3%0D%0A");
    }
}
