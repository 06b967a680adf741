//! The trace context of a request: W3C Trace Context, else B3 in one field or several.
//!
//! Clients are not trusted: a context that is malformed is ignored as a whole, and a new trace begins.

use codec::head::FieldSection;

use super::span::{SpanId, TraceId};

/// Maximum length of `tracestate` that is kept, in all lines together (W3C Trace Context §3.3.1.5).
const MAX_TRACE_STATE_BYTES: usize = 512;
/// Length of `traceparent` in version 00.
const TRACEPARENT_BYTES: usize = 55;

const TRACEPARENT: &str = "traceparent";
const B3: &str = "b3";
const B3_TRACE: &str = "X-B3-TraceId";
const B3_SPAN: &str = "X-B3-SpanId";
const B3_PARENT: &str = "X-B3-ParentSpanId";
const B3_SAMPLED: &str = "X-B3-Sampled";
const B3_FLAGS: &str = "X-B3-Flags";
/// All fields of B3 in several fields.
const B3_FIELDS: [&str; 5] = [B3_TRACE, B3_SPAN, B3_PARENT, B3_SAMPLED, B3_FLAGS];

/// The trace context that a request brings; it may be empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IncomingContext {
    /// The trace of the client and its span.
    pub(super) parent: Option<(TraceId, SpanId)>,
    pub(super) decision: ParentDecision,
    /// The fields from which it was read.
    pub(super) format: ContextFormat,
}

/// The decision of the client on sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ParentDecision {
    #[default]
    Deferred,
    Sampled,
    NotSampled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ContextFormat {
    #[default]
    None,
    TraceContext,
    B3Single,
    B3Multiple,
}

impl IncomingContext {
    pub(super) fn of_request(fields: &FieldSection) -> Self {
        let found = ContextFields::find(fields);
        if let Some(context) = found.traceparent.single().and_then(parse_traceparent) {
            return context;
        }
        found.b3.single().and_then(parse_b3).or_else(|| found.multiple_b3()).unwrap_or_default()
    }

    /// Returns `tracestate`, which is valid only beside a valid `traceparent`.
    pub(super) fn trace_state(&self, fields: &FieldSection) -> String {
        if self.format != ContextFormat::TraceContext {
            return String::new();
        }
        let mut state = String::new();
        for (_, name, value) in fields.iter() {
            if !name.eq_ignore_ascii_case(b"tracestate") {
                continue;
            }
            let Some(text) = str::from_utf8(value).ok().filter(|text| is_visible(text)) else {
                return String::new();
            };
            if state.len() + text.len() >= MAX_TRACE_STATE_BYTES {
                return String::new();
            }
            if !state.is_empty() {
                state.push(',');
            }
            state.push_str(text);
        }
        state
    }

    /// Writes the context of a span of this proxy in place of the client's: `traceparent`, and B3 in the forms in which
    /// it came, valid or not, so that the endpoint gets no other context. `server` is the parent of the span.
    pub(super) fn replace(
        &self,
        fields: &mut FieldSection,
        trace: TraceId,
        span: SpanId,
        server: SpanId,
    ) {
        let has_single = fields.get(B3).is_some();
        let has_multiple = B3_FIELDS.iter().any(|name| fields.get(name).is_some());
        for name in [TRACEPARENT, B3].iter().chain(&B3_FIELDS) {
            fields.remove_named(name.as_bytes());
        }
        // Without a valid traceparent it belongs to no trace.
        if self.format != ContextFormat::TraceContext {
            fields.remove_named(b"tracestate");
        }
        fields.append(TRACEPARENT, traceparent(trace, span));
        if has_single {
            fields.append(B3, single_b3(trace, span, server));
        }
        if has_multiple {
            fields.append(B3_TRACE, trace.to_string());
            fields.append(B3_SPAN, span.to_string());
            fields.append(B3_PARENT, server.to_string());
            fields.append(B3_SAMPLED, "1");
        }
    }
}

/// Replaces the span in the context that `IncomingContext::replace` wrote, for another attempt. A field that a filter of
/// the route has removed or set since stays as it is.
pub(super) fn replace_span(
    fields: &mut FieldSection,
    trace: TraceId,
    (former, span): (SpanId, SpanId),
    server: SpanId,
) {
    let both = |value: &dyn Fn(SpanId) -> String| (value(former), value(span));
    for (name, (old, new)) in [
        (TRACEPARENT, both(&|span| traceparent(trace, span))),
        (B3, both(&|span| single_b3(trace, span, server))),
        (B3_SPAN, both(&|span| span.to_string())),
    ] {
        replace_value(fields, name, &old, &new);
    }
}

/// Replaces a value of a field, if it has that value.
fn replace_value(fields: &mut FieldSection, name: &str, old: &str, new: &str) {
    let (old, new) = (old.as_bytes(), new.as_bytes());
    let lines = fields.iter().filter(|(_, found, _)| is(found, name));
    let values: Vec<Vec<u8>> = lines.map(|(_, _, value)| value.to_vec()).collect();
    if !values.iter().any(|value| value.as_slice() == old) {
        return;
    }
    fields.remove_named(name.as_bytes());
    for value in &values {
        fields.append(name, if value.as_slice() == old { new } else { value.as_slice() });
    }
}

fn traceparent(trace: TraceId, span: SpanId) -> String {
    format!("00-{trace}-{span}-01")
}

fn single_b3(trace: TraceId, span: SpanId, server: SpanId) -> String {
    format!("{trace}-{span}-1-{server}")
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// The fields of a head that have a trace context, found in one pass.
#[derive(Default)]
struct ContextFields<'f> {
    traceparent: FieldValue<'f>,
    b3: FieldValue<'f>,
    trace: FieldValue<'f>,
    span: FieldValue<'f>,
    sampled: FieldValue<'f>,
    flags: FieldValue<'f>,
}

/// The value of a field that may occur once only.
#[derive(Clone, Copy, Default)]
enum FieldValue<'f> {
    #[default]
    Absent,
    Once(&'f [u8]),
    Repeated,
}

impl<'f> FieldValue<'f> {
    fn add(&mut self, value: &'f [u8]) {
        *self = match self {
            Self::Absent => Self::Once(value),
            Self::Once(_) | Self::Repeated => Self::Repeated,
        };
    }

    fn single(self) -> Option<&'f [u8]> {
        match self {
            Self::Once(value) => Some(value),
            Self::Absent | Self::Repeated => None,
        }
    }
}

impl<'f> ContextFields<'f> {
    fn find(fields: &'f FieldSection) -> Self {
        let mut found = Self::default();
        for (_, name, value) in fields.iter() {
            // Most names differ in their length or their first letter.
            let place = match (name.len(), name.first().map(u8::to_ascii_lowercase)) {
                (11, Some(b't')) if is(name, "traceparent") => &mut found.traceparent,
                (2, Some(b'b')) if is(name, "b3") => &mut found.b3,
                (12, Some(b'x')) if is(name, B3_TRACE) => &mut found.trace,
                (11, Some(b'x')) if is(name, B3_SPAN) => &mut found.span,
                (12, Some(b'x')) if is(name, B3_SAMPLED) => &mut found.sampled,
                (10, Some(b'x')) if is(name, B3_FLAGS) => &mut found.flags,
                _ => continue,
            };
            place.add(value);
        }
        found
    }

    fn multiple_b3(&self) -> Option<IncomingContext> {
        let sampled = self.sampled.single().map(parse_b3_decision);
        let decision = match (self.flags.single(), sampled) {
            (Some(b"1"), _) => ParentDecision::Sampled,
            (_, Some(decision)) => decision?,
            (_, None) => ParentDecision::Deferred,
        };
        let parent = match (self.trace.single(), self.span.single()) {
            (Some(trace), Some(span)) => Some((b3_trace_id(trace)?, span_id(span)?)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return None,
        };
        if parent.is_none() && decision == ParentDecision::Deferred {
            return None;
        }
        Some(IncomingContext { parent, decision, format: ContextFormat::B3Multiple })
    }
}

fn is(name: &[u8], known: &str) -> bool {
    name.eq_ignore_ascii_case(known.as_bytes())
}

/// Parses `traceparent` (W3C Trace Context §3.2). Later versions may have more parts; version 00 must not. Version ff is
/// invalid.
fn parse_traceparent(value: &[u8]) -> Option<IncomingContext> {
    let (known, rest) = value.split_at_checked(TRACEPARENT_BYTES)?;
    let mut parts = known.split(|byte| *byte == b'-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let [version] = parse_hex::<1>(version)?;
    let is_known = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.first().is_none_or(|byte| *byte == b'-'),
    };
    if !is_known || parts.next().is_some() {
        return None;
    }
    let [flags] = parse_hex::<1>(flags)?;
    let decision =
        if flags & 1 == 1 { ParentDecision::Sampled } else { ParentDecision::NotSampled };
    let parent = Some((trace_id(trace)?, span_id(span)?));
    Some(IncomingContext { parent, decision, format: ContextFormat::TraceContext })
}

/// Parses `b3`: a decision alone, or `trace-span`, with a decision and the span's parent after it.
fn parse_b3(value: &[u8]) -> Option<IncomingContext> {
    let format = ContextFormat::B3Single;
    if let Some(decision) = parse_b3_decision(value) {
        return Some(IncomingContext { parent: None, decision, format });
    }
    let mut parts = value.split(|byte| *byte == b'-');
    let parent = Some((b3_trace_id(parts.next()?)?, span_id(parts.next()?)?));
    let decision = match parts.next() {
        None => ParentDecision::Deferred,
        Some(decision) => parse_b3_decision(decision)?,
    };
    if let Some(grandparent) = parts.next() {
        span_id(grandparent)?;
    }
    parts.next().is_none().then_some(IncomingContext { parent, decision, format })
}

fn parse_b3_decision(value: &[u8]) -> Option<ParentDecision> {
    match value {
        b"0" | b"false" => Some(ParentDecision::NotSampled),
        b"1" | b"d" | b"true" => Some(ParentDecision::Sampled),
        _ => None,
    }
}

fn trace_id(text: &[u8]) -> Option<TraceId> {
    parse_hex::<16>(text).filter(|bytes| *bytes != [0; 16]).map(TraceId)
}

/// Parses a trace ID of 16 bytes, or of 8, which are the last ones.
fn b3_trace_id(text: &[u8]) -> Option<TraceId> {
    if text.len() == 16 {
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&span_id(text)?.0);
        return Some(TraceId(bytes));
    }
    trace_id(text)
}

fn span_id(text: &[u8]) -> Option<SpanId> {
    parse_hex::<8>(text).filter(|bytes| *bytes != [0; 8]).map(SpanId)
}

/// Parses lower-case hexadecimal digits: exactly those of this many bytes.
fn parse_hex<const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != BYTES || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn fields(lines: &[(&str, &str)]) -> FieldSection {
        let mut fields = FieldSection::new();
        lines.iter().for_each(|(name, value)| fields.append(name, value));
        fields
    }

    /// Returns trace, span and decision as they are understood.
    fn understood(lines: &[(&str, &str)]) -> (String, ParentDecision) {
        let context = IncomingContext::of_request(&fields(lines));
        let parent = context.parent.map(|(trace, span)| format!("{trace} {span}"));
        (parent.unwrap_or_default(), context.decision)
    }

    fn all() -> String {
        format!("{TRACE} {SPAN}")
    }

    #[test]
    fn traceparent_of_known_and_later_versions_is_understood() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        for (value, decision) in [
            (good.clone(), ParentDecision::Sampled),
            (good.replace("-01", "-00"), ParentDecision::NotSampled),
            (good.replace("-01", "-03"), ParentDecision::Sampled),
            (good.replace("00-4", "01-4"), ParentDecision::Sampled),
            (format!("{}-more", good.replace("00-4", "cc-4")), ParentDecision::Sampled),
        ] {
            assert_eq!(understood(&[("TraceParent", &value)]), (all(), decision), "{value}");
        }
    }

    #[test]
    fn malformed_contexts_are_ignored() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        let ignored = (String::new(), ParentDecision::Deferred);
        for bad in [
            String::new(),
            "0".to_owned(),
            "-".repeat(55),
            good.replace("00-4", "ff-4"),
            good.to_uppercase(),
            good.replace(TRACE, &"0".repeat(32)),
            good.replace(SPAN, &"0".repeat(16)),
            format!("{good}-more"),
            format!("{good} "),
            good[..54].to_owned(),
            good.replace("-01", "-0g"),
            good.replace('-', "_"),
            "9".repeat(60_000),
        ] {
            assert_eq!(understood(&[("traceparent", &bad)]), ignored, "{bad:.80}");
        }
        let twice = [("traceparent", good.as_str()), ("traceparent", good.as_str())];
        assert_eq!(understood(&twice), ignored);
        for bad in [
            "",
            "2",
            "-",
            TRACE,
            &format!("{TRACE}-{SPAN}-2"),
            &format!("{TRACE}-{SPAN}-1-"),
            &format!("{TRACE}-{SPAN}-1-{SPAN}-1"),
            &format!("{}-{SPAN}-1", &TRACE[..30]),
        ] {
            assert_eq!(understood(&[("b3", bad)]), ignored, "{bad}");
        }
        for bad in [
            &[("X-B3-TraceId", TRACE)][..],
            &[("X-B3-TraceId", TRACE), ("X-B3-SpanId", "xyz"), ("X-B3-Sampled", "1")],
            &[("X-B3-TraceId", TRACE), ("X-B3-SpanId", SPAN), ("X-B3-Sampled", "maybe")],
        ] {
            assert_eq!(understood(bad), ignored, "{bad:?}");
        }
    }

    #[test]
    fn b3_is_understood_in_one_field_and_in_several() {
        let short = &TRACE[16..];
        let padded = format!("{}{short} {SPAN}", "0".repeat(16));
        for (value, parent, decision) in [
            (format!("{TRACE}-{SPAN}-1"), all(), ParentDecision::Sampled),
            (format!("{TRACE}-{SPAN}-d-{SPAN}"), all(), ParentDecision::Sampled),
            (format!("{TRACE}-{SPAN}-0"), all(), ParentDecision::NotSampled),
            (format!("{TRACE}-{SPAN}"), all(), ParentDecision::Deferred),
            (format!("{short}-{SPAN}-1"), padded, ParentDecision::Sampled),
            ("0".to_owned(), String::new(), ParentDecision::NotSampled),
            ("d".to_owned(), String::new(), ParentDecision::Sampled),
        ] {
            assert_eq!(understood(&[("b3", &value)]), (parent, decision), "{value}");
        }
        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        assert_eq!(understood(&ids), (all(), ParentDecision::Deferred));
        let more = |name, value| understood(&[ids[0], ids[1], (name, value)]);
        assert_eq!(more("x-b3-sampled", "1"), (all(), ParentDecision::Sampled));
        assert_eq!(more("x-b3-sampled", "0"), (all(), ParentDecision::NotSampled));
        assert_eq!(more("x-b3-flags", "1"), (all(), ParentDecision::Sampled));
        let both = format!("00-{TRACE}-{SPAN}-00");
        assert_eq!(more("traceparent", &both), (all(), ParentDecision::NotSampled));
    }

    #[test]
    fn own_context_replaces_the_form_that_came() {
        let (trace, span, server) = (TraceId([1; 16]), SpanId([2; 8]), SpanId([3; 8]));
        let replaced = |lines: &[(&str, &str)]| {
            let mut fields = fields(lines);
            let context = IncomingContext::of_request(&fields);
            context.replace(&mut fields, trace, span, server);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            fields.iter().map(|(_, name, value)| (text(name), text(value))).collect::<Vec<_>>()
        };
        let own = ("traceparent".to_owned(), format!("00-{trace}-{span}-01"));
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let state = ("tracestate".to_owned(), "a=b".to_owned());
        let good = [("traceparent", parent.as_str()), ("tracestate", "a=b")];
        assert_eq!(replaced(&good), [state, own.clone()]);
        assert_eq!(
            replaced(&[("traceparent", "bad"), ("tracestate", "a=b")]),
            std::slice::from_ref(&own)
        );
        let b3 = ("b3".to_owned(), format!("{trace}-{span}-1-{server}"));
        assert_eq!(replaced(&[("b3", "1")]), [own, b3]);
        let several =
            replaced(&[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-flags", "1")]);
        let several: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(several, ["traceparent", B3_TRACE, B3_SPAN, B3_PARENT, B3_SAMPLED]);
    }

    #[test]
    fn endpoint_gets_no_other_context_beside_the_own_one() {
        let (trace, span, server) = (TraceId([1; 16]), SpanId([2; 8]), SpanId([3; 8]));
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let b3 = format!("{TRACE}-{SPAN}-1");
        let (parent, b3) = (parent.as_str(), b3.as_str());
        for lines in [
            &[("traceparent", parent), ("b3", b3)][..],
            &[("traceparent", parent), ("X-B3-TraceId", TRACE), ("X-B3-SpanId", SPAN)],
            &[("b3", b3), ("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)],
            &[("b3", "bad"), ("b3", b3)],
        ] {
            let mut fields = fields(lines);
            IncomingContext::of_request(&fields).replace(&mut fields, trace, span, server);
            let values: Vec<_> = fields.iter().map(|(_, _, value)| value.to_vec()).collect();
            let all = String::from_utf8(values.join(&b' ')).unwrap();
            assert!(!all.contains(TRACE) && !all.contains(SPAN), "{lines:?}: {all}");
            for (name, _) in lines {
                assert!(fields.get(name).is_some(), "{lines:?}: {name}");
            }
        }
    }

    #[test]
    fn another_attempt_replaces_only_what_is_still_ours() {
        let (trace, server) = (TraceId([1; 16]), SpanId([3; 8]));
        let spans = (SpanId([2; 8]), SpanId([4; 8]));
        let mut written = fields(&[("b3", "1"), ("x-b3-sampled", "1")]);
        let context = IncomingContext::of_request(&written);
        context.replace(&mut written, trace, spans.0, server);
        let value = |fields: &FieldSection, name: &str| {
            fields.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let mut again = written.clone();
        replace_span(&mut again, trace, spans, server);
        assert_eq!(value(&again, TRACEPARENT), Some(traceparent(trace, spans.1)));
        assert_eq!(value(&again, B3), Some(single_b3(trace, spans.1, server)));
        assert_eq!(value(&again, B3_SPAN), Some(spans.1.to_string()));
        assert_eq!(value(&again, B3_PARENT), Some(server.to_string()));

        let mut filtered = written;
        filtered.remove_named(b"traceparent");
        filtered.remove_named(b"b3");
        filtered.append("b3", "0");
        replace_span(&mut filtered, trace, spans, server);
        assert_eq!(value(&filtered, TRACEPARENT), None);
        assert_eq!(value(&filtered, B3).as_deref(), Some("0"));

        // A rule may add a line of its own.
        let own = traceparent(trace, spans.0);
        let mut added = fields(&[("traceparent", own.as_str()), ("traceparent", "other")]);
        replace_span(&mut added, trace, spans, server);
        let values: Vec<_> = added.iter().map(|(_, _, value)| value.to_vec()).collect();
        assert_eq!(values, [traceparent(trace, spans.1).into_bytes(), b"other".to_vec()]);
    }

    #[test]
    fn trace_state_is_bounded_and_needs_a_parent() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let state = |lines: &[(&str, &str)]| {
            let fields = fields(lines);
            IncomingContext::of_request(&fields).trace_state(&fields)
        };
        let with = |value: &str| state(&[("traceparent", &parent), ("tracestate", value)]);
        assert_eq!(with("a=b,c=d"), "a=b,c=d");
        assert_eq!(with(&"a".repeat(600)), "");
        assert_eq!(with("a=\u{e4}"), "");
        assert_eq!(state(&[("tracestate", "a=b")]), "");
        let lines =
            [("traceparent", parent.as_str()), ("tracestate", "a=b"), ("tracestate", "c=d")];
        assert_eq!(state(&lines), "a=b,c=d");
    }
}
