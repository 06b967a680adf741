//! `Accept-Encoding`: the content coding of responses that a client prefers (RFC 9110 §12.5.3).

use codec::head::{FieldSection, list};
use gateway::snapshot::ContentCoding;

/// The outcome of the negotiation of a content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodingPreference {
    /// The coding that the client accepts and prefers; `None`: the response is not encoded.
    pub(crate) coding: Option<ContentCoding>,
    /// True if the client rejects responses that are not encoded.
    pub(crate) rejects_identity: bool,
}

impl CodingPreference {
    /// Chooses one of the codings, which are in the order of our preference: the one with the highest weight.
    pub(crate) fn of(fields: &FieldSection, codings: &[ContentCoding]) -> Self {
        let mut weights = CodingWeights::default();
        let named = |name: &[u8]| name.eq_ignore_ascii_case(b"accept-encoding");
        let values = fields.iter().filter(|(_, name, _)| named(name)).map(|(.., value)| value);
        values.flat_map(list).for_each(|element| weights.add(element));
        weights.prefer(codings)
    }
}

/// Weights of codings in thousandths.
#[derive(Default)]
struct CodingWeights {
    codings: [Option<u16>; ContentCoding::ALL.len()],
    identity: Option<u16>,
    /// Weight of codings that are not named.
    any: Option<u16>,
}

impl CodingWeights {
    /// Adds an element of the field. One that is not valid is ignored.
    fn add(&mut self, element: &[u8]) {
        let mut parts = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let Some(weight) = parts.next().map_or(Some(1000), parse_weight) else { return };
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let coding = ContentCoding::ALL
            .into_iter()
            .find(|coding| is(coding.token()) || *coding == ContentCoding::Gzip && is("x-gzip"));
        match coding {
            Some(coding) => self.codings[coding as usize] = Some(weight),
            None if is("identity") => self.identity = Some(weight),
            None if name == b"*" => self.any = Some(weight),
            None => {}
        }
    }

    fn prefer(&self, codings: &[ContentCoding]) -> CodingPreference {
        let weight =
            |coding: ContentCoding| self.codings[coding as usize].or(self.any).unwrap_or(0);
        // The first of those with the highest weight.
        let best = codings.iter().copied().rev().max_by_key(|coding| weight(*coding));
        let accepted = |coding: &ContentCoding| {
            let weight = weight(*coding);
            weight > 0 && self.identity.is_none_or(|identity| identity <= weight)
        };
        CodingPreference {
            coding: best.filter(accepted),
            rejects_identity: self.identity.or(self.any) == Some(0),
        }
    }
}

/// Parses `q=0.5`, in thousandths.
fn parse_weight(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', value @ ..] = parameter else { return None };
    let (whole, digits) = match value {
        [whole, b'.', digits @ ..] if digits.len() <= 3 => (*whole, digits),
        [whole] => (*whole, [].as_slice()),
        _ => return None,
    };
    let digit = |place: usize| match digits.get(place) {
        None => Some(0),
        Some(digit) => digit.is_ascii_digit().then(|| u16::from(digit - b'0')),
    };
    let fraction = digit(0)? * 100 + digit(1)? * 10 + digit(2)?;
    match whole {
        b'0' => Some(fraction),
        b'1' if fraction == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coding_with_the_highest_weight_is_preferred() {
        use ContentCoding::{Brotli, Gzip, Zstd};
        let cases = [
            ("", None, false),
            ("gzip", Some(Gzip), false),
            ("x-gzip", Some(Gzip), false),
            ("GZIP;Q=1.0", Some(Gzip), false),
            ("gzip, deflate, br, zstd", Some(Zstd), false),
            ("gzip, br", Some(Brotli), false),
            ("gzip;q=1.0, br;q=0.9", Some(Gzip), false),
            ("gzip;q=0.001", Some(Gzip), false),
            ("gzip;q=0", None, false),
            ("gzip;q=0.000, br ; q=0.1", Some(Brotli), false),
            ("*", Some(Zstd), false),
            ("*;q=0.5, zstd;q=0", Some(Brotli), false),
            ("identity", None, false),
            ("identity, gzip", Some(Gzip), false),
            ("identity;q=1, gzip;q=0.5", None, false),
            ("identity;q=0.5, gzip;q=0.5", Some(Gzip), false),
            ("identity;q=0", None, true),
            ("*;q=0", None, true),
            ("*;q=0, gzip", Some(Gzip), true),
            ("*;q=0, identity", None, false),
            ("identity;q=0, br;q=0.1", Some(Brotli), true),
            ("deflate", None, false),
            ("gzip;q=2", None, false),
            ("gzip;q=1.5", None, false),
            ("gzip;q=0.1234", None, false),
            ("gzip;q=a, br", Some(Brotli), false),
            ("gzip;level=9", None, false),
            (",,;q=1,gzip;", None, false),
        ];
        for (value, coding, rejects_identity) in cases {
            let mut fields = FieldSection::new();
            fields.append("Accept-Encoding", value);
            let found = CodingPreference::of(&fields, &[Zstd, Brotli, Gzip]);
            assert_eq!(found, CodingPreference { coding, rejects_identity }, "{value}");
        }
    }

    #[test]
    fn several_fields_are_one_list_and_other_codings_are_not_used() {
        let mut fields = FieldSection::new();
        fields.append("accept-encoding", "zstd");
        fields.append("Accept-Encoding", "gzip;q=0.5");
        let only_gzip = CodingPreference::of(&fields, &[ContentCoding::Gzip]);
        assert_eq!(only_gzip.coding, Some(ContentCoding::Gzip));
        assert_eq!(CodingPreference::of(&FieldSection::new(), &ContentCoding::ALL).coding, None);
    }
}
