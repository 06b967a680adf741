//! Validity and size of the fields of an HTTP/2 or HTTP/3 message.

use crate::h1::{BadFraming, BadSyntax, HeadLimits};
use crate::head::{FieldSection, KnownFieldName};

/// Bytes of an HTTP/1.1 field line in addition to its name and value.
pub(crate) const LINE_BYTES: usize = b": \r\n".len();

/// Remaining size budget for the fields of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldBudget {
    /// Counted as if the fields were HTTP/1.1 lines.
    bytes: usize,
    count: usize,
}

impl FieldBudget {
    pub(crate) fn new(limits: &HeadLimits) -> Self {
        Self { bytes: limits.head_bytes, count: limits.fields }
    }

    /// Charges one field to the budget.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadSyntax> {
        self.count = self.count.checked_sub(1).ok_or(BadSyntax::TooManyFields)?;
        self.take_bytes(name, value)
    }

    /// Charges one piece of the Cookie field, which clients send in pieces (RFC 9113 §8.2.3, RFC 9114 §4.2.1). All
    /// pieces count as one field: over HTTP/1.1 they would be one.
    pub(crate) fn take_cookie(&mut self, is_first: bool, piece: &[u8]) -> Result<(), BadSyntax> {
        if is_first { self.take(b"cookie", piece) } else { self.take_bytes(b"cookie", piece) }
    }

    /// Charges the bytes of one line that is not a field.
    pub(crate) fn take_bytes(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadSyntax> {
        let bytes = name.len() + value.len() + LINE_BYTES;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(BadSyntax::TooLarge)?;
        Ok(())
    }
}

/// RFC 9113 §8.2.1: a value has no blank at either end. The caller has already checked the bytes in between.
pub(crate) fn check_value(value: &[u8]) -> Result<(), BadSyntax> {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if is_blank(value.first()) || is_blank(value.last()) {
        return Err(BadSyntax::FieldValue);
    }
    Ok(())
}

/// RFC 9113 §8.2.2, RFC 9114 §4.2: rejects the connection-specific fields of HTTP/1.1.
pub(super) fn check_connection(fields: &FieldSection) -> Result<(), BadFraming> {
    let connection_specific = [
        KnownFieldName::Connection,
        KnownFieldName::KeepAlive,
        KnownFieldName::ProxyConnection,
        KnownFieldName::TransferEncoding,
        KnownFieldName::Upgrade,
    ];
    let other_than_trailers = |value: &[u8]| !value.eq_ignore_ascii_case(b"trailers");
    let te_is_bad = fields.values(KnownFieldName::Te).any(other_than_trailers);
    if te_is_bad || connection_specific.into_iter().any(|name| fields.has(name)) {
        return Err(BadFraming::ConnectionField);
    }
    Ok(())
}
