//! Byte classes of the HTTP and URI grammars.

#![expect(clippy::indexing_slicing, reason = "tables of 256 entries are indexed by a byte")]

const TOKEN: u8 = 1;
const PATH: u8 = 2;
const QUERY: u8 = 4;
const HOST: u8 = 8;
const FIELD_VALUE: u8 = 16;

/// Bit set of the classes of each byte.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    mark(&mut classes, b"-_.~", PATH | QUERY | HOST);
    mark(&mut classes, b"!#$%&'*+-.^_`|~", TOKEN);
    mark(&mut classes, b"/:@%!$&'()*+,;=", PATH | QUERY);
    // Not in RFC 3986, but browsers and `curl` send them unencoded (WHATWG URL). All other bytes outside the RFC are
    // rejected: `\` and `<` mean different things to different servers.
    mark(&mut classes, b"[]{}|^", PATH | QUERY);
    mark(&mut classes, b"?`\\", QUERY);
    let mut byte = 0;
    while byte < 256 {
        if (byte as u8).is_ascii_alphanumeric() {
            classes[byte] = TOKEN | PATH | QUERY | HOST;
        }
        if byte as u8 == b'\t' || !(byte as u8).is_ascii_control() {
            classes[byte] |= FIELD_VALUE;
        }
        byte += 1;
    }
    classes
};

const fn mark(classes: &mut [u8; 256], bytes: &[u8], class: u8) {
    let mut at = 0;
    while at < bytes.len() {
        classes[bytes[at] as usize] |= class;
        at += 1;
    }
}

fn all(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|&b| CLASSES[b as usize] & class != 0)
}

/// True for a token (RFC 9110 §5.6.2).
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// True for the bytes of a field value (RFC 9110 §5.5); does not check the rule on leading and trailing blanks.
pub(crate) fn is_field_value(bytes: &[u8]) -> bool {
    all(bytes, FIELD_VALUE)
}

pub(super) fn is_path(bytes: &[u8]) -> bool {
    all(bytes, PATH)
}

pub(super) fn is_query(bytes: &[u8]) -> bool {
    all(bytes, QUERY)
}

/// True for the unreserved characters of RFC 3986. No Route can match a name with any other character, and attackers
/// use `,` or `@` to make Host mean two hosts.
pub(super) fn is_host_name(bytes: &[u8]) -> bool {
    all(bytes, HOST)
}
