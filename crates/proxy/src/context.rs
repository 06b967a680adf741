//! The values that the stages of one request share.
//!
//! The fields are public, so that a function can borrow several of them at the same time. A function that needs only
//! one or two takes those instead.

use std::rc::Rc;

use crate::accept::client::ClientConnection;
use crate::exchange::{Exchange, RequestPolicy};
use crate::observe::access::AccessRecord;
use crate::worker::Worker;

/// The context of one request, from its head to its Outcome.
pub(crate) struct RequestContext<'r> {
    pub(crate) worker: &'r Rc<Worker>,
    pub(crate) client: &'r mut ClientConnection,
    pub(crate) exchange: &'r mut Exchange,
    pub(crate) record: &'r mut AccessRecord,
}

/// The context of the attempts of one request, whose policy is fixed by then.
pub(crate) struct AttemptContext<'r> {
    pub(crate) worker: &'r Rc<Worker>,
    pub(crate) client: &'r mut ClientConnection,
    pub(crate) exchange: &'r mut Exchange,
    pub(crate) record: &'r mut AccessRecord,
    pub(crate) policy: &'r RequestPolicy<'r>,
}

impl RequestContext<'_> {
    /// Returns the context of the request's attempts.
    pub(crate) fn with_policy<'a>(
        &'a mut self,
        policy: &'a RequestPolicy<'a>,
    ) -> AttemptContext<'a> {
        let Self { worker, client, exchange, record } = self;
        AttemptContext { worker, client, exchange, record, policy }
    }
}
