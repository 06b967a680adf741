//! Lines of `htpasswd`: users and the hashes of their passwords.
//!
//! Messages name lines and keys, never what is in them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::certificate::BadValue;
use crate::objects::{BasicAuthUsersFormat, SecretSpec};
use crate::snapshot::PasswordHash;

/// Names of the value that has the lines: those of ingress-nginx and of Envoy Gateway.
const FILES: [&str; 2] = ["auth", ".htpasswd"];
/// Users with the hashes of their passwords.
pub(super) type UserHashes = BTreeMap<Box<str>, PasswordHash>;

/// Returns the users of a Secret, of which there is at least one.
pub(super) fn users(
    secret: &SecretSpec,
    format: BasicAuthUsersFormat,
) -> Result<UserHashes, BadValue> {
    let users = match format {
        BasicAuthUsersFormat::Htpasswd => {
            let found = FILES.iter().find_map(|name| Some((name, secret.value(name)?)));
            let Some((name, lines)) = found else {
                let message = "has neither `auth` nor `.htpasswd`".to_owned();
                return Err(BadValue { field: "data".to_owned(), message });
            };
            of_lines(lines)
                .map_err(|message| BadValue { field: format!("data.{name}"), message })?
        }
        BasicAuthUsersFormat::Map => of_map(secret)?,
    };
    if users.is_empty() {
        return Err(BadValue { field: "data".to_owned(), message: "has no user".to_owned() });
    }
    Ok(users)
}

fn of_map(secret: &SecretSpec) -> Result<UserHashes, BadValue> {
    let names = secret.data.keys().chain(secret.string_data.keys());
    let user = |name: &String| {
        let value = secret.value(name).unwrap_or_default().trim_ascii();
        let hash = PasswordHash::parse(value)
            .map_err(|message| BadValue { field: format!("data.{name}"), message })?;
        Ok((name.as_str().into(), hash))
    };
    names.map(user).collect()
}

/// Returns the users of lines; of two lines for one user, the first counts.
fn of_lines(text: &[u8]) -> Result<UserHashes, String> {
    let mut users = UserHashes::new();
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, hash) = parse_line(line).map_err(|fault| format!("line {number} {fault}"))?;
        if let Entry::Vacant(user) = users.entry(name.into()) {
            user.insert(hash);
        }
    }
    Ok(users)
}

fn parse_line(line: &[u8]) -> Result<(&str, PasswordHash), String> {
    let line = str::from_utf8(line).ok().ok_or_else(|| "is not UTF-8".to_owned())?;
    let Some((name, rest)) = line.split_once(':') else {
        return Err("has no `:` between user and hash".to_owned());
    };
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err("has no valid name of a user".to_owned());
    }
    // A comment may follow the hash.
    let hash = rest.split(':').next().unwrap_or_default();
    Ok((name, PasswordHash::parse(hash.trim_ascii().as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSUPPORTED: &str =
        "has a hash that is not supported, only bcrypt ($2a$, $2b$, $2y$), {SHA} and $apr1$ are";
    const BCRYPT: &str = "$2y$05$X2pBQfFmKwsJpGM7LBB9BO5BZDhjHYp9Y5pL8pbOwyDnNKtK5dIKu";

    #[test]
    fn comments_and_all_three_hashes_are_read() {
        let text = format!(
            "# users\r\n\nann:{BCRYPT}\r\nbob:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g=:of the office\n\
             eve:$apr1$abcdefgh$0123456789abcdefghijk.\nann:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g="
        );
        let users = of_lines(text.as_bytes()).unwrap();
        assert_eq!(users.keys().map(|it| &**it).collect::<Vec<_>>(), ["ann", "bob", "eve"]);
        assert!(matches!(users["ann"], PasswordHash::Bcrypt { cost: 5, .. }));
        assert!(matches!(users["bob"], PasswordHash::Sha1(_)));
        assert!(matches!(users["eve"], PasswordHash::Apr1 { .. }));
    }

    #[test]
    fn faults_name_the_line_and_nothing_in_it() {
        let too_costly = BCRYPT.replace("$05$", "$15$");
        let cases = [
            ("hunter2".to_owned(), "has no `:` between user and hash"),
            (":hunter2".to_owned(), "has no valid name of a user"),
            ("ann:hunter2".to_owned(), UNSUPPORTED),
            ("ann:rl0uE6WvhunterM".to_owned(), UNSUPPORTED),
            ("ann:$1$hunter$2".to_owned(), UNSUPPORTED),
            (format!("ann:{}", BCRYPT.replace("2y", "2x")), UNSUPPORTED),
            (format!("ann:{BCRYPT}x"), "has a malformed bcrypt hash"),
            (format!("ann:{too_costly}"), "has a hash of bcrypt whose cost is not from 4 to 14"),
            ("ann:{SHA}hunter2".to_owned(), "has a malformed {SHA} hash"),
            ("ann:$apr1$hunter2hunter2$x".to_owned(), "has a malformed $apr1$ hash"),
        ];
        for (line, message) in cases {
            let fault = of_lines(format!("\n{line}\n").as_bytes()).map(|_| ()).unwrap_err();
            assert_eq!(fault, format!("line 2 {message}"));
        }
    }
}
