//! Exemplars: for each bucket of a histogram the last trace that fell into it.
//!
//! Each worker writes its own exemplars, under a lock that only a scrape contends for. If the lock is held, the worker
//! drops the exemplar and does not wait.

use std::sync::Mutex;
use std::time::SystemTime;

use crate::mutex::lock;
use crate::observe::TraceExemplar;

/// A worker's exemplars of one histogram, by bucket; empty until the first exemplar.
#[derive(Default)]
pub(crate) struct ExemplarStore(Mutex<Vec<Option<TraceExemplar>>>);

impl ExemplarStore {
    pub(crate) fn keep(&self, bucket: usize, trace_id: &str, seconds: f64, at: SystemTime) {
        let Ok(mut kept) = self.0.try_lock() else { return };
        if kept.len() <= bucket {
            kept.resize(bucket + 1, None);
        }
        kept[bucket] = Some(TraceExemplar { trace_id: trace_id.to_owned(), value: seconds, at });
    }

    /// Returns the last exemplar of each bucket over all shards.
    pub(crate) fn latest<'e>(shards: impl Iterator<Item = &'e Self>) -> Vec<Option<TraceExemplar>> {
        let mut latest: Vec<Option<TraceExemplar>> = Vec::new();
        for shard in shards {
            let kept = lock(&shard.0);
            if latest.len() < kept.len() {
                latest.resize(kept.len(), None);
            }
            for (latest, kept) in latest.iter_mut().zip(&*kept) {
                let at = |exemplar: &Option<TraceExemplar>| exemplar.as_ref().map(|it| it.at);
                if at(kept) > at(latest) {
                    latest.clone_from(kept);
                }
            }
        }
        latest
    }
}

/// Returns the trace ID of a `traceparent` (W3C Trace Context §3.2), if the trace is sampled. An exemplar of a trace
/// that is not sampled would lead nowhere.
pub(crate) fn sampled_trace(traceparent: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(traceparent).ok()?;
    let mut parts = text.split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let well_formed = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    // Later versions may have more parts; version 00 must not. Version ff is invalid.
    let known = version != "ff" && (version != "00" || parts.next().is_none());
    let named = trace.bytes().any(|byte| byte != b'0');
    let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    (well_formed && known && named && sampled).then_some(trace)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn only_sampled_traces_become_exemplars() {
        let trace = |text: &str| sampled_trace(text.as_bytes()).map(str::to_owned);
        let good = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(trace(&good).as_deref(), Some(TRACE));
        assert_eq!(trace(&good.replace("00-4", "01-4")), Some(TRACE.to_owned()));
        for bad in [
            &good.replace("-01", "-00"),
            &good.replace("00-4", "ff-4"),
            &good.to_uppercase(),
            &good.replace(TRACE, &"0".repeat(32)),
            &format!("{good}-more"),
            &good[..40],
            "",
        ] {
            assert_eq!(trace(bad), None, "{bad}");
        }
    }

    #[test]
    fn latest_exemplar_of_each_bucket_is_exposed() {
        let (one, other) = (ExemplarStore::default(), ExemplarStore::default());
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        one.keep(1, "old", 0.5, at(1));
        other.keep(1, "new", 0.6, at(2));
        one.keep(0, "alone", 0.1, at(1));
        let latest = ExemplarStore::latest([&one, &other].into_iter());
        let ids = latest.iter().flatten().map(|it| it.trace_id.as_str()).collect::<Vec<_>>();
        assert_eq!(ids, ["alone", "new"]);
    }
}
