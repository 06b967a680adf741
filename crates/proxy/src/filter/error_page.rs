//! The error page of a response.

use std::sync::Arc;

use gateway::snapshot::{ErrorPageSettings, TrafficSettings};

/// The page for a response.
pub(crate) struct ErrorPage {
    settings: Arc<TrafficSettings>,
    index: usize,
}

impl ErrorPage {
    /// Returns the page for a response with this status.
    pub(super) fn find(
        settings: &Arc<TrafficSettings>,
        status: u16,
        has_no_endpoint: bool,
    ) -> Option<Self> {
        let index = settings.error_page(status, has_no_endpoint)?;
        Some(Self { settings: Arc::clone(settings), index })
    }

    pub(crate) fn page(&self) -> &ErrorPageSettings {
        &self.settings.error_pages[self.index]
    }
}
