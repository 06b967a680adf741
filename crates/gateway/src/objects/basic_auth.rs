//! `basicAuth` of a SecurityPolicy: names and passwords of users (RFC 7617).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names and passwords of users (RFC 7617). A request without those of a user is answered with 401, a gRPC call with
/// UNAUTHENTICATED. Redirects and CORS preflight requests are answered before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BasicAuthentication {
    /// The name of the protected area, which browsers show.
    #[serde(default = "restricted")]
    #[schemars(length(max = 256))]
    pub realm: String,
    /// The Secret with the users. If it does not exist or has an error, all requests are answered with 500.
    pub users: BasicAuthUsers,
    /// True if endpoints get the Authorization field too.
    #[serde(default = "yes")]
    pub forward_credentials: bool,
    /// The name of a header field in which endpoints get the name of the user. The client's own field of this name is
    /// removed. Default: none.
    #[schemars(length(min = 1, max = 256), extend("format" = "field-name"))]
    pub forward_username_header: Option<String>,
}

/// A Secret with the users of `basicAuth`, in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BasicAuthUsers {
    /// The name of the Secret.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The form of the Secret.
    #[serde(default)]
    pub format: BasicAuthUsersFormat,
}

/// The form of a Secret with users. Passwords are hashed by bcrypt (`$2a$`, `$2b$`, `$2y$`, cost up to 14), SHA-1
/// (`{SHA}`) or Apache's MD5 (`$apr1$`), as `htpasswd` writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BasicAuthUsersFormat {
    /// The value `auth` or `.htpasswd` has a line `user:hash` for each user.
    #[default]
    Htpasswd,
    /// Each value has the hash of one user; its key is the name.
    Map,
}

fn restricted() -> String {
    "Restricted".to_owned()
}

const fn yes() -> bool {
    true
}
