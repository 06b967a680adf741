//! Normal form of request paths (RFC 3986 §5.2.4, §6.2.2.2).
//!
//! Servers decode and shorten paths before they look for a resource. If routes were matched on the path as it was
//! written, `//admin` or `/%61dmin` would be served by the rule for `/` and answered by the resource `/admin`. This
//! module knows no route: it decides what a path means, and the result is both matched and forwarded.

#![expect(
    clippy::indexing_slicing,
    reason = "positions are those of bytes that the loops have just seen"
)]

use crate::word::zero_bytes;

/// The steps of the normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRules {
    /// True if dot segments are removed (RFC 3986 §5.2.4) and escapes of unreserved characters are decoded (§6.2.2.2).
    pub normalise: bool,
    /// True if adjacent slashes become one.
    pub merge_slashes: bool,
    /// True if a path with an escaped slash or backslash (`%2F`, `%5C`) is rejected. Otherwise the escape is kept: it
    /// is data, not a separator (RFC 3986 §2.2).
    pub reject_escaped_slashes: bool,
}

impl PathRules {
    /// No step: the path stays as it was written.
    pub const OFF: Self =
        Self { normalise: false, merge_slashes: false, reject_escaped_slashes: false };
}

/// The steps that are on by default.
impl Default for PathRules {
    fn default() -> Self {
        Self { normalise: true, merge_slashes: true, reject_escaped_slashes: false }
    }
}

/// Reason to reject a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    /// A `..` segment leads above the root.
    AboveRoot,
    /// The path has an escaped slash or backslash, which the rules do not allow.
    EscapedSlash,
}

/// Returns the normal form of a path that begins with `/`; `None` if the path is in normal form.
///
/// The normal form is never longer than the path, has the same decoded segments apart from those that are removed, and
/// is its own normal form.
pub fn normalise(path: &[u8], rules: PathRules) -> Result<Option<Vec<u8>>, BadPath> {
    if rules == PathRules::OFF || is_surely_normal(path) {
        return Ok(None);
    }
    let mut normal = NormalPath { rules, text: Vec::with_capacity(path.len()) };
    let mut segments = path.split(|&byte| byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        normal.add_segment(segment, segments.peek().is_none())?;
    }
    Ok((normal.text != path).then_some(normal.text))
}

/// A path in normal form, as far as its segments have been added.
struct NormalPath {
    rules: PathRules,
    text: Vec<u8>,
}

impl NormalPath {
    fn add_segment(&mut self, segment: &[u8], is_last: bool) -> Result<(), BadPath> {
        let start = self.text.len();
        self.text.push(b'/');
        self.append_decoded(segment)?;
        let is_kept = match &self.text[start + 1..] {
            b"" => !self.rules.merge_slashes,
            b"." => !self.rules.normalise,
            b".." if self.rules.normalise => {
                self.text.truncate(start);
                let parent = self.text.iter().rposition(|&byte| byte == b'/');
                self.text.truncate(parent.ok_or(BadPath::AboveRoot)?);
                self.end_removed(is_last);
                return Ok(());
            }
            _ => true,
        };
        if !is_kept {
            self.text.truncate(start);
            self.end_removed(is_last);
        }
        Ok(())
    }

    /// If the last segment is removed, the path ends with a slash.
    fn end_removed(&mut self, is_last: bool) {
        if is_last {
            self.text.push(b'/');
        }
    }

    fn append_decoded(&mut self, segment: &[u8]) -> Result<(), BadPath> {
        let mut unfinished = UnfinishedEscape::None;
        let mut rest = segment;
        while let Some((&byte, after)) = rest.split_first() {
            let Some((value, after_escape)) = split_escape(rest) else {
                unfinished = unfinished.after(byte);
                self.text.push(byte);
                rest = after;
                continue;
            };
            if self.rules.reject_escaped_slashes && matches!(value, b'/' | b'\\') {
                return Err(BadPath::EscapedSlash);
            }
            if self.rules.normalise && is_unreserved(value) && !unfinished.would_continue(value) {
                self.text.push(value);
            } else {
                self.text.extend_from_slice(&rest[..rest.len() - after_escape.len()]);
            }
            unfinished = UnfinishedEscape::None;
            rest = after_escape;
        }
        Ok(())
    }
}

/// The start of an escape that is none, at the end of the text. A decoded digit after it would make an escape that
/// the client did not write: `%%36%31` must not become `%61`.
#[derive(Clone, Copy)]
enum UnfinishedEscape {
    None,
    Percent,
    PercentAndDigit,
}

impl UnfinishedEscape {
    fn after(self, byte: u8) -> Self {
        match self {
            _ if byte == b'%' => Self::Percent,
            Self::Percent if byte.is_ascii_hexdigit() => Self::PercentAndDigit,
            Self::None | Self::Percent | Self::PercentAndDigit => Self::None,
        }
    }

    fn would_continue(self, byte: u8) -> bool {
        match self {
            Self::None => false,
            Self::Percent | Self::PercentAndDigit => byte.is_ascii_hexdigit(),
        }
    }
}

/// Splits an escape off the start: the byte that it stands for, and the rest.
fn split_escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let [b'%', high, low, rest @ ..] = text else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let value = 16 * digit(*high)? + digit(*low)?;
    Some((value as u8, rest))
}

/// RFC 3986 §2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const SLASHES: u64 = u64::from_ne_bytes([b'/'; 8]);
const PERCENTS: u64 = u64::from_ne_bytes([b'%'; 8]);
/// Bytes that one step examines: eight, and the one after each.
const STEP_BYTES: usize = 9;

/// True if the path has no `%`, no `//` and no `/.`, as nearly all paths. The scan takes a few instructions for eight
/// bytes; it may miss a normal path.
fn is_surely_normal(path: &[u8]) -> bool {
    let Some(last) = path.len().checked_sub(STEP_BYTES) else {
        let is_suspect = |pair: &[u8]| pair[1] == b'%' || pair[0] == b'/' && pair[1] | 1 == b'/';
        return !path.windows(2).any(is_suspect);
    };
    let mut at = 0;
    loop {
        let word = |at: usize| path[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (bytes, next) = (word(at), word(at + 1));
        // `.` and `/` differ in the lowest bit.
        let slash_then_suspect = zero_bytes(bytes ^ SLASHES) & zero_bytes((next | ONES) ^ SLASHES);
        if slash_then_suspect | zero_bytes(next ^ PERCENTS) != 0 {
            return false;
        }
        if at == last {
            return true;
        }
        at = (at + STEP_BYTES - 1).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rules: PathRules, cases: &[(&str, Result<&str, BadPath>)]) {
        for (path, expected) in cases {
            let normal = normalise(path.as_bytes(), rules);
            let normal = normal.map(|changed| {
                changed.map_or_else(|| (*path).to_owned(), |text| String::from_utf8(text).unwrap())
            });
            assert_eq!(normal.as_deref(), expected.as_ref().map(|text| *text), "{path}");
        }
    }

    #[test]
    fn paths_are_normalised_by_default() {
        check(
            PathRules::default(),
            &[
                ("/", Ok("/")),
                ("/a/b.c/%20/x~y", Ok("/a/b.c/%20/x~y")),
                ("/.well-known/acme", Ok("/.well-known/acme")),
                ("/a/...", Ok("/a/...")),
                ("//admin", Ok("/admin")),
                ("/a//b///c//", Ok("/a/b/c/")),
                ("//", Ok("/")),
                ("/./admin", Ok("/admin")),
                ("/x/../admin", Ok("/admin")),
                ("/x/%2e%2E/admin", Ok("/admin")),
                ("/x/.%2e/admin", Ok("/admin")),
                ("/%61dmin", Ok("/admin")),
                ("/%7Euser/%2D%5f", Ok("/~user/-_")),
                ("/a/.", Ok("/a/")),
                ("/a/..", Ok("/")),
                ("/a/b/..", Ok("/a/")),
                ("/a/b/../", Ok("/a/")),
                ("/a//../b", Ok("/b")),
                ("/.", Ok("/")),
                ("/a%2Fb%5cc%3B", Ok("/a%2Fb%5cc%3B")),
                ("/..", Err(BadPath::AboveRoot)),
                ("//..", Err(BadPath::AboveRoot)),
                ("/a/../../b", Err(BadPath::AboveRoot)),
                ("/%2e%2e/a", Err(BadPath::AboveRoot)),
                // Not escapes; and digits that would make one of them.
                ("/100%", Ok("/100%")),
                ("/%zz%6", Ok("/%zz%6")),
                ("/%%36%31dmin", Ok("/%%361dmin")),
                ("/%6%31", Ok("/%6%31")),
                ("/%%2e%2e", Ok("/%..")),
            ],
        );
    }

    #[test]
    fn each_step_can_be_left_out() {
        let rules = PathRules { merge_slashes: false, ..PathRules::default() };
        let cases = [("//a//b/./c", Ok("//a//b/c")), ("/a//..", Ok("/a/")), ("//../b", Ok("/b"))];
        check(rules, &cases);
        let rules = PathRules { normalise: false, ..PathRules::default() };
        check(rules, &[("//a/../%61/./b//", Ok("/a/../%61/./b/"))]);
        let rules = PathRules { reject_escaped_slashes: true, ..PathRules::default() };
        let rejected = Err(BadPath::EscapedSlash);
        check(rules, &[("/a%2fb", rejected), ("/a%5Cb", rejected), ("/a%2eb", Ok("/a.b"))]);
        check(PathRules::OFF, &[("//a/../%61%2f", Ok("//a/../%61%2f"))]);
    }

    #[test]
    fn scan_finds_what_needs_a_change_at_every_place() {
        for length in 0..40 {
            let plain = [b"/".as_slice(), &vec![b'a'; length]].concat();
            assert!(is_surely_normal(&plain), "{length}");
            for place in 1..=length {
                for (suspect, extra) in [("%", 0), ("//", 1), ("/.", 1)] {
                    if place + extra > length {
                        continue;
                    }
                    let mut path = plain.clone();
                    path[place..=place + extra].copy_from_slice(suspect.as_bytes());
                    assert!(!is_surely_normal(&path), "{suspect} at {place} of {length}");
                }
                let mut path = plain.clone();
                path[place] = b'.';
                assert_eq!(is_surely_normal(&path), place > 1, "a dot at {place} of {length}");
            }
        }
    }
}
