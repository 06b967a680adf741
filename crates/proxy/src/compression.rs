//! Compression of responses of endpoints, for clients that accept it.
//!
//! Whether a response is compressed is judged by [`crate::filter::compression`]. Memory for it is only taken while there
//! is enough: a response that is not compressed is as good, only longer.

use codec::head::RequestMethod;

use crate::context::AttemptContext;
use crate::filter::{RequestFilters, compression};
use crate::memory::MemoryPressure;

/// Encoders of bodies.
pub(crate) mod encoder;
/// Outcomes for metrics.
pub(crate) mod outcome;

use encoder::BodyEncoder;
use outcome::CompressionOutcome;

/// Prepares the compression of the endpoint's response, if its policy wants it. Returns the encoder of its body.
pub(crate) fn begin(context: &mut AttemptContext<'_>) -> Option<Box<BodyEncoder>> {
    let AttemptContext { worker, exchange, record, .. } = context;
    if exchange.grpc_call.is_some() {
        return None;
    }
    let filters: &RequestFilters = exchange.filters.as_ref()?;
    let coding = filters.choose_coding(&exchange.request, &mut exchange.response)?;
    if exchange.request.method == RequestMethod::Head {
        compression::describe(coding, &mut exchange.response);
        return None;
    }
    let is_scarce = worker.shared.budgets.memory.pressure() > MemoryPressure::Normal;
    let place = if is_scarce { None } else { worker.encoders.admit() };
    let encoder = place.and_then(|place| BodyEncoder::new(coding, place));
    let outcome = match &encoder {
        Some(_) => CompressionOutcome::Compressed,
        None => CompressionOutcome::Skipped,
    };
    if let Some(backend) = &record.backend {
        backend.counters[worker.index].compressions[outcome as usize].add(1);
    }
    let encoder = encoder?;
    compression::describe(coding, &mut exchange.response);
    Some(Box::new(encoder))
}
