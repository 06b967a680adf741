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

/// Attributes of a cookie.
#[derive(Clone, Copy, Debug)]
pub struct CookieAttributes<'a> {
    /// `Path`: the beginning of the paths of the requests that carry the cookie.
    pub path: &'a str,
    /// `Max-Age`, rounded up to whole seconds; `None`: the cookie ends with the session of the browser.
    pub max_age: Option<Duration>,
    /// `Domain`: subdomains of it get the cookie too; `None`: only the host of the request does.
    pub domain: Option<&'a str>,
    /// True if requests without TLS do not carry the cookie.
    pub is_secure: bool,
    /// `SameSite`: the requests of other sites that carry the cookie.
    pub same_site: &'a str,
}

/// Returns the value of `Set-Cookie` for a cookie that scripts cannot read.
pub fn set(name: &str, value: &str, attributes: &CookieAttributes<'_>) -> String {
    let CookieAttributes { path, max_age, domain, is_secure, same_site } = attributes;
    let seconds = |age: &Duration| age.as_secs() + u64::from(age.subsec_nanos() > 0);
    let max_age = max_age.as_ref().map(|it| format!("; Max-Age={}", seconds(it)));
    let domain = domain.map(|it| format!("; Domain={it}"));
    let (max_age, domain) = (max_age.unwrap_or_default(), domain.unwrap_or_default());
    let secure = if *is_secure { "; Secure" } else { "" };
    format!("{name}={value}; Path={path}{domain}{max_age}{secure}; HttpOnly; SameSite={same_site}")
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
    fn set_cookie_carries_the_attributes() {
        let none = CookieAttributes {
            path: "/",
            max_age: None,
            domain: None,
            is_secure: false,
            same_site: "Lax",
        };
        assert_eq!(set("a", "1", &none), "a=1; Path=/; HttpOnly; SameSite=Lax");
        let all = CookieAttributes {
            path: "/shop",
            max_age: Some(Duration::from_millis(3_599_001)),
            domain: Some("example.com"),
            is_secure: true,
            same_site: "None",
        };
        let expected =
            "a=1; Path=/shop; Domain=example.com; Max-Age=3600; Secure; HttpOnly; SameSite=None";
        assert_eq!(set("a", "1", &all), expected);
    }
}
