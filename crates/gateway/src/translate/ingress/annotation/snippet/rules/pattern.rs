//! Regular expressions of nginx (PCRE) whose text means something else to the `regex` crate.
//!
//! What only PCRE has, such as look-around and back-references, is an error of the compiler.

/// Checks that both read the expression in the same way.
pub(super) fn check_pattern(pattern: &str) -> Result<(), String> {
    let unsupported =
        |what: &str| Err(format!("has a pattern with {what}, which is not supported"));
    let mut is_class = false;
    let mut rest = pattern;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        match char {
            '\\' => {
                let escaped = after.chars().next();
                if matches!(escaped, Some('<' | '>')) {
                    return unsupported("an escaped `<` or `>`");
                }
                rest = &after[escaped.map_or(0, char::len_utf8)..];
                continue;
            }
            '[' if is_class && !after.starts_with(':') => return unsupported("`[` in a class"),
            '[' if is_class => {
                // A named class, such as `[:alpha:]`.
                let Some(end) = after.find(":]") else { return unsupported("`[` in a class") };
                rest = &after[end + 2..];
                continue;
            }
            '[' => {
                is_class = true;
                // A `]` at the start of a class is one of its characters.
                let after = after.strip_prefix('^').unwrap_or(after);
                rest = after.strip_prefix(']').unwrap_or(after);
                continue;
            }
            ']' => is_class = false,
            '&' | '~' | '-' if is_class && after.starts_with(char) => {
                return unsupported("an operator in a class");
            }
            '*' | '+' | '?' | '}' if !is_class && after.starts_with('+') => {
                return unsupported("a possessive quantifier");
            }
            _ => {}
        }
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_expressions_with_the_same_meaning_pass() {
        for pattern in [
            "^/a(.*)$",
            r"\.(php|cgi)$",
            "[^/]+",
            "[]a]",
            "[[:alpha:]_-]+",
            "a+?",
            "a--b&&c",
            r"\[",
        ] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        for pattern in ["[a&&b]", "[a--b]", "[a[b]", "a++", ".*+", "a{2}+", r"\<a\>"] {
            assert!(check_pattern(pattern).is_err(), "{pattern}");
        }
    }
}
