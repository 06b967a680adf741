//! Cookies of an authorizer, which the client gets with the response.

use codec::head::ResponseHead;
use gateway::snapshot::CookieScope;

/// Cookies of a positive answer, for the response to the client.
pub(crate) struct AuthorizerCookies {
    pub(crate) scope: CookieScope,
    pub(crate) values: Vec<Vec<u8>>,
}

impl AuthorizerCookies {
    /// Adds the cookies to a response, if it is one of those that get them.
    pub(crate) fn add_to(&self, response: &mut ResponseHead) {
        if self.scope.includes(response.status) {
            for value in &self.values {
                response.fields.append("Set-Cookie", value);
            }
        }
    }
}
