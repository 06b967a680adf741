//! Cookies in requests and responses (RFC 6265).

use std::time::Duration;

use super::FieldSection;

/// Returns the value of the first cookie with this name, as the client sent it.
pub fn find<'f>(fields: &'f FieldSection, name: &str) -> Option<&'f [u8]> {
    let lines = fields.iter().filter(|(_, text, _)| text.eq_ignore_ascii_case(b"cookie"));
    let mut pairs = lines.flat_map(|(_, _, value)| value.split(|byte| *byte == b';'));
    pairs.find_map(|pair| {
        let pair = pair.trim_ascii().strip_prefix(name.as_bytes())?;
        pair.strip_prefix(b"=")
    })
}

/// Returns the value of `Set-Cookie` for a cookie that scripts cannot read and that cross-site requests do not carry. If
/// `is_secure` is true, requests without TLS do not carry it either.
pub fn set(name: &str, value: &str, max_age: Option<Duration>, is_secure: bool) -> String {
    let max_age = max_age.map(|age| format!("; Max-Age={}", age.as_secs())).unwrap_or_default();
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{name}={value}; Path=/{max_age}{secure}; HttpOnly; SameSite=Lax")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_found_by_their_whole_name() {
        let mut fields = FieldSection::new();
        fields.append("Cookie", "ab=1; a=2;b = 3; a=4");
        fields.append("cookie", "c=;d=\"5\"");
        let found = |name| find(&fields, name).map(|value| value.escape_ascii().to_string());
        assert_eq!(found("a").as_deref(), Some("2"));
        assert_eq!(found("ab").as_deref(), Some("1"));
        assert_eq!(found("b"), None);
        assert_eq!(found("c").as_deref(), Some(""));
        assert_eq!(found("d").as_deref(), Some("\\\"5\\\""));
        assert_eq!(found(""), None);
    }

    #[test]
    fn set_cookie_carries_the_max_age() {
        assert_eq!(set("a", "1", None, false), "a=1; Path=/; HttpOnly; SameSite=Lax");
        assert_eq!(set("a", "1", None, true), "a=1; Path=/; Secure; HttpOnly; SameSite=Lax");
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(set("a", "1", hour, false), "a=1; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax");
    }
}
