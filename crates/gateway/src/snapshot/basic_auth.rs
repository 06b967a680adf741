//! Users and the hashes of their passwords, as the data plane checks them.

use std::fmt;
use std::sync::Arc;

use super::password_hash::PasswordHash;

/// Users that may send requests with their passwords (RFC 7617).
#[derive(Clone, PartialEq, Eq)]
pub struct BasicAuthSettings {
    /// The value of `WWW-Authenticate` in a response that asks for a password.
    pub challenge: Box<str>,
    /// `namespace/name` of the Secret that has the users.
    pub secret: Arc<str>,
    /// The users with the hashes of their passwords, sorted by name, each once. There is at least one.
    pub users: Vec<(Box<str>, PasswordHash)>,
    /// True if endpoints get the Authorization field too.
    pub forwards_credentials: bool,
    /// The name of the header field in which endpoints get the name of the user, in lower case.
    pub username_header: Option<Box<str>>,
}

impl BasicAuthSettings {
    /// Returns the hash of a user's password; `None`: there is no such user.
    #[must_use]
    pub fn hash_of(&self, user: &str) -> Option<&PasswordHash> {
        let found = self.users.binary_search_by(|(name, _)| (**name).cmp(user)).ok()?;
        Some(&self.users[found].1)
    }
}

// Neither names nor hashes are shown.
impl fmt::Debug for BasicAuthSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of Secret {} ({} users)", self.challenge, self.secret, self.users.len())
    }
}
