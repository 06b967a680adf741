//! Names that a cluster accepts, for objects that a translation derives.

use std::collections::{BTreeMap, BTreeSet};

/// Largest length of a name.
const MAX_LENGTH: usize = 253;
/// Room for a number that makes a name unique.
const MAX_SUFFIX_LENGTH: usize = 8;

/// New names of objects, or of parts of them. Names within one scope are different.
#[derive(Default)]
pub(super) struct UniqueNames {
    new: BTreeMap<(String, String), String>,
    used: BTreeSet<(String, String)>,
}

impl UniqueNames {
    /// Keeps a name from being used.
    pub(super) fn reserve(&mut self, scope: &str, name: &str) {
        self.used.insert((scope.to_owned(), name.to_owned()));
    }

    /// Returns the new name for an old one, always the same.
    pub(super) fn name(&mut self, scope: &str, old: &str) -> String {
        let key = (scope.to_owned(), old.to_owned());
        if let Some(known) = self.new.get(&key) {
            return known.clone();
        }
        let name = self.another(scope, &valid(old));
        self.new.insert(key, name.clone());
        name
    }

    /// Returns this name, or if it is used, one with a number.
    pub(super) fn another(&mut self, scope: &str, name: &str) -> String {
        let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
        let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
        let is_free = |candidate: &String| self.used.insert((scope.to_owned(), candidate.clone()));
        candidates.find(is_free).unwrap_or_default()
    }
}

/// Returns a DNS subdomain (RFC 1123) that reads like the name of a derived object.
fn valid(name: &str) -> String {
    let name = name.strip_prefix("ingress:").unwrap_or(name).replace('*', "wildcard");
    let is_kept = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '.';
    let valid: String = name.chars().map(|char| if is_kept(char) { char } else { '-' }).collect();
    let longest = valid.len().min(MAX_LENGTH - MAX_SUFFIX_LENGTH);
    let valid = valid[..longest].trim_matches(['-', '.']);
    if valid.is_empty() { "ingress".to_owned() } else { valid.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_different() {
        let mut names = UniqueNames::default();
        names.reserve("default", "shop-a.example");
        for (old, new) in [
            ("ingress:shop:b.example", "shop-b.example"),
            ("ingress:shop:a.example", "shop-a.example-2"),
            ("ingress:shop:a.example", "shop-a.example-2"),
            ("ingress:shop:*.example:tls", "shop-wildcard.example-tls"),
            ("ingress:shop:wildcard.example:tls", "shop-wildcard.example-tls-2"),
            ("ingress:shop:*", "shop-wildcard"),
            (":", "ingress"),
        ] {
            assert_eq!(names.name("default", old), new, "{old}");
        }
        assert_eq!(names.name("other", "ingress:shop:a.example"), "shop-a.example");
        let long = "a".repeat(300);
        assert_eq!(names.name("default", &long).len(), 245);
        assert_eq!(names.name("default", &format!("{long}b")).len(), 247);
    }
}
