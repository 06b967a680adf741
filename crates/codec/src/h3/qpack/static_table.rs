//! The static table of QPACK (RFC 9204, appendix A).

#![expect(
    clippy::indexing_slicing,
    reason = "tables are indexed by numbers of entries, and a test finds every entry"
)]

/// Names and values, by index.
static ENTRIES: [(&str, &str); COUNT] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    ("strict-transport-security", "max-age=31536000; includesubdomains"),
    ("strict-transport-security", "max-age=31536000; includesubdomains; preload"),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    ("content-security-policy", "script-src 'none'; object-src 'none'; base-uri 'none'"),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];

const COUNT: usize = 99;
/// Length of the longest name.
const LONGEST: usize = 32;

/// Indices, sorted by the length of the name and then by the name.
static SORTED: [u8; COUNT] = {
    let mut sorted = [0; COUNT];
    let mut place = 0;
    while place < COUNT {
        let mut at = place;
        while at > 0 && is_before(ENTRIES[place].0, ENTRIES[sorted[at - 1] as usize].0) {
            sorted[at] = sorted[at - 1];
            at -= 1;
        }
        sorted[at] = place as u8;
        place += 1;
    }
    sorted
};

/// Index in `SORTED` of the first name of each length.
static STARTS: [u8; LONGEST + 2] = {
    let mut starts = [0; LONGEST + 2];
    let mut length = 0;
    while length <= LONGEST {
        let (mut number, mut count) = (0, 0);
        while number < COUNT {
            count += (ENTRIES[number].0.len() == length) as u8;
            number += 1;
        }
        starts[length + 1] = starts[length] + count;
        length += 1;
    }
    starts
};

/// True if `name` sorts before `other`: by length, then alphabetically.
const fn is_before(name: &str, other: &str) -> bool {
    let (name, other) = (name.as_bytes(), other.as_bytes());
    if name.len() != other.len() {
        return name.len() < other.len();
    }
    let mut at = 0;
    while at < name.len() && name[at] == other[at] {
        at += 1;
    }
    at < name.len() && name[at] < other[at]
}

/// Result of a lookup in the table.
pub(super) enum StaticTableMatch {
    NameAndValue(u64),
    Name(u64),
    NoMatch,
}

pub(super) fn entry(number: u64) -> Option<(&'static str, &'static str)> {
    ENTRIES.get(usize::try_from(number).ok()?).copied()
}

/// Looks up a field. The name is a token, compared without regard to case.
pub(super) fn find(name: &[u8], value: &[u8]) -> StaticTableMatch {
    let (Some(&start), Some(&end)) = (STARTS.get(name.len()), STARTS.get(name.len() + 1)) else {
        return StaticTableMatch::NoMatch;
    };
    // Among the bytes of a token, this changes only upper-case letters and `_`; no name here contains `_` or DEL.
    let mut lower = [0; LONGEST];
    lower.iter_mut().zip(name).for_each(|(lower, byte)| *lower = byte | 0x20);
    let lower = &lower[..name.len()];
    let numbers = &SORTED[usize::from(start)..usize::from(end)];
    let is_named = |number: u8| {
        let known = ENTRIES[usize::from(number)].0.as_bytes();
        // Most names differ in their first letter.
        known[0] == lower[0] && known == lower
    };
    let Some(place) = numbers.iter().position(|number| is_named(*number)) else {
        return StaticTableMatch::NoMatch;
    };
    for &number in numbers[place..].iter().take_while(|number| is_named(**number)) {
        if ENTRIES[usize::from(number)].1.as_bytes() == value {
            return StaticTableMatch::NameAndValue(u64::from(number));
        }
    }
    StaticTableMatch::Name(u64::from(numbers[place]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_table_entries_are_found_by_name_and_value() {
        for (number, (name, value)) in ENTRIES.iter().enumerate() {
            let number = number as u64;
            let upper = name.to_uppercase();
            assert!(
                matches!(find(name.as_bytes(), value.as_bytes()), StaticTableMatch::NameAndValue(it) if it == number)
            );
            assert!(
                matches!(find(upper.as_bytes(), value.as_bytes()), StaticTableMatch::NameAndValue(it) if it == number)
            );
            let StaticTableMatch::Name(first) = find(name.as_bytes(), b"another") else {
                panic!("{name}")
            };
            assert_eq!(entry(first).unwrap().0, *name);
            assert!(first <= number);
        }
        assert!(entry(COUNT as u64).is_none());
        assert!(entry(u64::MAX).is_none());
    }

    #[test]
    fn names_outside_the_static_table_are_not_found() {
        for name in ["", "x", "via", "content-typ", "content-types", &"x".repeat(LONGEST + 1)] {
            assert!(matches!(find(name.as_bytes(), b""), StaticTableMatch::NoMatch), "{name}");
        }
    }
}
