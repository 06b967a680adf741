//! Which fields a message may have that has a stream to itself, and how many.

use crate::h1::{BadFraming, BadSyntax, HeadLimits};
use crate::head::{FieldSection, KnownFieldName};

/// What a line takes in HTTP/1.1 beside its name and value.
pub(crate) const LINE_BYTES: usize = b": \r\n".len();

/// How large the fields of a message may still be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldBudget {
    /// As lines of HTTP/1.1.
    bytes: usize,
    count: usize,
}

impl FieldBudget {
    pub(crate) fn new(limits: &HeadLimits) -> Self {
        Self { bytes: limits.head_bytes, count: limits.fields }
    }

    /// Takes what one more field needs.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadSyntax> {
        self.count = self.count.checked_sub(1).ok_or(BadSyntax::TooManyFields)?;
        self.take_bytes(name, value)
    }

    /// Takes what one more line needs that is no field.
    pub(crate) fn take_bytes(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadSyntax> {
        let bytes = name.len() + value.len() + LINE_BYTES;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(BadSyntax::TooLarge)?;
        Ok(())
    }
}

/// RFC 9113 §8.2.1: no blank at either end. Which bytes may stand between, others have seen to.
pub(crate) fn check_value(value: &[u8]) -> Result<(), BadSyntax> {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if is_blank(value.first()) || is_blank(value.last()) {
        return Err(BadSyntax::FieldValue);
    }
    Ok(())
}

/// RFC 9113 §8.2.2, RFC 9114 §4.2: nothing that belongs to a connection of HTTP/1.1.
pub(super) fn check_connection(fields: &FieldSection) -> Result<(), BadFraming> {
    let of_connection = [
        KnownFieldName::Connection,
        KnownFieldName::KeepAlive,
        KnownFieldName::ProxyConnection,
        KnownFieldName::TransferEncoding,
        KnownFieldName::Upgrade,
    ];
    let other_than_trailers = |value: &[u8]| !value.eq_ignore_ascii_case(b"trailers");
    let te_is_bad = fields.values(KnownFieldName::Te).any(other_than_trailers);
    if te_is_bad || of_connection.into_iter().any(|name| fields.has(name)) {
        return Err(BadFraming::ConnectionField);
    }
    Ok(())
}

/// A trailer may not say what a head says (RFC 9110 §6.5.1), so a name that we treat specially is left out.
pub(crate) fn is_trailer(name: KnownFieldName) -> bool {
    name == KnownFieldName::Other
}
