//! Conversion between field sections and spans; no decision about their meaning.

use crate::binary::fields::{FieldBudget, check_value};
use crate::h1::syntax::{is_field_value, is_token};
use crate::h1::{BadSyntax, HeadLimits};
use crate::head::{ByteSpan, FieldSection, KnownFieldName, is_trailer};

use super::qpack::{self, FieldSectionDecoder, QpackError};

/// Reason to reject a field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldSectionError<B> {
    /// QPACK decoding failed; the connection cannot continue.
    Qpack,
    /// The section violates the rules of HTTP/3, which ends its stream (RFC 9114 §4.1.2).
    Malformed,
    /// The message is rejected for the same reason as over HTTP/1.1.
    Refused(B),
}

impl<B> From<QpackError> for FieldSectionError<B> {
    fn from(_: QpackError) -> Self {
        Self::Qpack
    }
}

impl<B> From<BadSyntax> for FieldSectionError<B>
where
    B: From<BadSyntax>,
{
    fn from(bad: BadSyntax) -> Self {
        Self::Refused(bad.into())
    }
}

/// The pseudo-header fields of a section.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PseudoHeaders {
    pub(super) method: Option<ByteSpan>,
    pub(super) scheme: Option<ByteSpan>,
    pub(super) authority: Option<ByteSpan>,
    pub(super) path: Option<ByteSpan>,
    pub(super) protocol: Option<ByteSpan>,
    pub(super) status: Option<ByteSpan>,
}

impl PseudoHeaders {
    fn value_mut(&mut self, name: &[u8]) -> Option<&mut Option<ByteSpan>> {
        match name {
            b":method" => Some(&mut self.method),
            b":scheme" => Some(&mut self.scheme),
            b":authority" => Some(&mut self.authority),
            b":path" => Some(&mut self.path),
            b":protocol" => Some(&mut self.protocol),
            b":status" => Some(&mut self.status),
            _ => None,
        }
    }

    fn has_any(&self) -> bool {
        let Self { method, scheme, authority, path, protocol, status } = self;
        [method, scheme, authority, path, protocol, status].into_iter().any(Option::is_some)
    }
}

/// Appends the fields of a section. Cookie fields are joined into one (RFC 9114 §4.2.1).
pub(super) fn read<B: From<BadSyntax>>(
    section: &[u8],
    limits: &HeadLimits,
    fields: &mut FieldSection,
) -> Result<PseudoHeaders, FieldSectionError<B>> {
    let mut section = FieldSectionDecoder::new(section)?;
    let mut budget = FieldBudget::new(limits);
    let mut pseudo = PseudoHeaders::default();
    let (mut has_fields, mut cookies) = (false, 0);
    while let Some(line) = section.next_line()? {
        let name = fields.store_with(|out| line.name.append_to(out))?;
        let is_pseudo = fields.text(name).starts_with(b":");
        if !is_pseudo {
            fields.store(b": ");
        }
        let value = fields.store_with(|out| line.value.append_to(out))?;
        let (name_text, text) = (fields.text(name), fields.text(value));
        if !is_field_value(text) {
            return Err(FieldSectionError::Malformed);
        }
        if is_pseudo {
            budget.take_bytes(name_text, text)?;
            let place = pseudo.value_mut(name_text).ok_or(FieldSectionError::Malformed)?;
            if has_fields || place.replace(value).is_some() {
                return Err(FieldSectionError::Malformed);
            }
            continue;
        }
        if !is_name(name_text) {
            return Err(FieldSectionError::Malformed);
        }
        if name_text == b"cookie" {
            budget.take_cookie(cookies == 0, text)?;
            cookies += 1;
        } else {
            budget.take(name_text, text)?;
        }
        check_value(text)?;
        has_fields = true;
        fields.store(b"\r\n");
        fields.push(name, value);
    }
    if cookies > 1 {
        fields.join(b"cookie", b"; ");
    }
    Ok(pseudo)
}

/// True for a field name (RFC 9114 §4.2): a token without upper-case letters.
fn is_name(text: &[u8]) -> bool {
    is_token(text) && !text.iter().any(u8::is_ascii_uppercase)
}

/// Appends the lines of the fields for which `is_sent_on` is true.
pub(super) fn write(
    fields: &FieldSection,
    is_sent_on: impl Fn(KnownFieldName, &[u8]) -> bool,
    section: &mut Vec<u8>,
) {
    for (known, name, value) in fields.iter() {
        if is_sent_on(known, name) {
            qpack::write(name, value, section);
        }
    }
}

/// Returns the trailers of a message; `None` if it has none that may be forwarded.
pub fn read_trailers(
    section: &[u8],
    limits: &HeadLimits,
) -> Result<Option<Box<FieldSection>>, FieldSectionError<BadSyntax>> {
    let mut fields = FieldSection::new();
    if read::<BadSyntax>(section, limits, &mut fields)?.has_any() {
        return Err(FieldSectionError::Malformed);
    }
    fields.retain(is_trailer);
    let has_any = fields.iter().next().is_some();
    Ok(has_any.then(|| Box::new(fields)))
}

/// Appends the field section of trailers. Leaves out the same names as `read_trailers`.
pub fn write_trailers(fields: &FieldSection, section: &mut Vec<u8>) {
    qpack::begin(section);
    write(fields, is_trailer, section);
}

#[cfg(test)]
mod tests;
