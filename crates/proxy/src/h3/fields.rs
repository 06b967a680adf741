//! Field sections to spans, and spans to field sections; no decision about what they mean.

use crate::binary::fields::{Allowance, check_value, is_trailer};
use crate::h1::syntax::{is_field_value, is_token};
use crate::h1::{BadSyntax, HeadLimits};
use crate::head::{Fields, Name, Span};

use super::qpack::{self, Corrupt, Section};

/// Why a field section is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit<B> {
    /// It is none at all, and nothing on its connection makes sense any more.
    Corrupt,
    /// What it says breaks the rules of HTTP/3, and ends its stream (RFC 9114 §4.1.2).
    Malformed,
    /// It is refused, as it would be over HTTP/1.1.
    Bad(B),
}

impl<B> From<Corrupt> for Unfit<B> {
    fn from(_: Corrupt) -> Self {
        Self::Corrupt
    }
}

impl<B> From<BadSyntax> for Unfit<B>
where
    B: From<BadSyntax>,
{
    fn from(bad: BadSyntax) -> Self {
        Self::Bad(bad.into())
    }
}

/// The pseudo-fields of a section.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pseudo {
    pub(super) method: Option<Span>,
    pub(super) scheme: Option<Span>,
    pub(super) authority: Option<Span>,
    pub(super) path: Option<Span>,
    pub(super) protocol: Option<Span>,
    pub(super) status: Option<Span>,
}

impl Pseudo {
    fn place(&mut self, name: &[u8]) -> Option<&mut Option<Span>> {
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

/// Appends the fields of a section. Cookies become one field (RFC 9114 §4.2.1).
pub(super) fn read<B: From<BadSyntax>>(
    section: &[u8],
    limits: &HeadLimits,
    fields: &mut Fields,
) -> Result<Pseudo, Unfit<B>> {
    let mut section = Section::new(section)?;
    let mut allowance = Allowance::new(limits);
    let mut pseudo = Pseudo::default();
    let (mut has_fields, mut cookies) = (false, 0);
    while let Some(line) = section.next_line()? {
        let name = fields.keep_with(|out| line.name.append_to(out))?;
        let is_pseudo = fields.text(name).starts_with(b":");
        if !is_pseudo {
            fields.keep(b": ");
        }
        let value = fields.keep_with(|out| line.value.append_to(out))?;
        let (name_text, text) = (fields.text(name), fields.text(value));
        if !is_field_value(text) {
            return Err(Unfit::Malformed);
        }
        if is_pseudo {
            allowance.take_bytes(name_text, text)?;
            let place = pseudo.place(name_text).ok_or(Unfit::Malformed)?;
            if has_fields || place.replace(value).is_some() {
                return Err(Unfit::Malformed);
            }
            continue;
        }
        if !is_name(name_text) {
            return Err(Unfit::Malformed);
        }
        allowance.take(name_text, text)?;
        check_value(text)?;
        has_fields = true;
        cookies += usize::from(name_text == b"cookie");
        fields.keep(b"\r\n");
        fields.push(name, value);
    }
    if cookies > 1 {
        fields.join(b"cookie", b"; ");
    }
    Ok(pseudo)
}

/// RFC 9114 §4.2: a token without upper-case letters.
fn is_name(text: &[u8]) -> bool {
    is_token(text) && !text.iter().any(u8::is_ascii_uppercase)
}

/// Appends the lines of the fields that `is_sent_on`.
pub(super) fn write(
    fields: &Fields,
    is_sent_on: impl Fn(Name, &[u8]) -> bool,
    section: &mut Vec<u8>,
) {
    for (known, name, value) in fields.iter() {
        if is_sent_on(known, name) {
            qpack::write(name, value, section);
        }
    }
}

/// The trailers of a message; `None`: it has none that may be sent on.
pub fn read_trailers(
    section: &[u8],
    limits: &HeadLimits,
) -> Result<Option<Box<Fields>>, Unfit<BadSyntax>> {
    let mut fields = Fields::new();
    if read::<BadSyntax>(section, limits, &mut fields)?.has_any() {
        return Err(Unfit::Malformed);
    }
    fields.retain(is_trailer);
    let has_any = fields.iter().next().is_some();
    Ok(has_any.then(|| Box::new(fields)))
}

/// Appends the section of trailers. Leaves out what `read_trailers` does.
pub fn write_trailers(fields: &Fields, section: &mut Vec<u8>) {
    qpack::begin(section);
    write(fields, |name, _| is_trailer(name), section);
}

#[cfg(test)]
mod tests;
