//! Fields that an authorizer adds to the response to the client, such as cookies.

use codec::grpc::authorization::FieldChange;
use codec::head::ResponseHead;
use gateway::snapshot::CookieScope;

/// Fields of a positive answer, for the response to the client.
pub(crate) struct AuthorizerFields {
    pub(crate) scope: CookieScope,
    pub(crate) changes: Vec<FieldChange>,
}

impl AuthorizerFields {
    /// Changes the fields of a response, if it is one of those that get them.
    pub(crate) fn apply_to(&self, response: &mut ResponseHead) {
        if self.scope.includes(response.status) {
            self.changes.iter().for_each(|change| change.apply(&mut response.fields));
        }
    }
}
