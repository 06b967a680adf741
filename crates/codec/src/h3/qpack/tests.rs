//! Tests of field sections: examples, a table of rejected sections, and a round trip.

use proptest::prelude::*;

use super::*;

/// Names and values.
type Lines = Vec<(Vec<u8>, Vec<u8>)>;

fn read(bytes: &[u8]) -> Result<Lines, QpackError> {
    let mut section = FieldSectionDecoder::new(bytes)?;
    let mut lines = Vec::new();
    while let Some(line) = section.next_line()? {
        let (mut name, mut value) = (Vec::new(), Vec::new());
        line.name.append_to(&mut name)?;
        line.value.append_to(&mut value)?;
        lines.push((name, value));
    }
    Ok(lines)
}

fn shown(bytes: &[u8]) -> Result<String, QpackError> {
    let lines = read(bytes)?;
    let show = |text: &[u8]| text.escape_ascii().to_string();
    Ok(lines.iter().map(|(name, value)| format!("{}={};", show(name), show(value))).collect())
}

fn written(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut section = Vec::new();
    begin(&mut section);
    for (name, value) in lines {
        write(name.as_bytes(), value.as_bytes(), &mut section);
    }
    section
}

#[test]
fn field_lines_are_decoded_in_every_representation() {
    let cases: &[(&[u8], &str)] = &[
        // RFC 9204 §B.1.
        (b"\x00\x00\x51\x0b/index.html", ":path=/index.html;"),
        (b"\x00\x00", ""),
        (
            b"\x00\x00\xc0\xd1\xff\x00\xff\x23",
            ":authority=;:method=GET;:status=100;x-frame-options=sameorigin;",
        ),
        // Static name reference with the never-indexed bit, and a two-byte index.
        (b"\x00\x00\x7f\x46\x01a", "content-security-policy=a;"),
        (b"\x00\x00\x23abc\x03def", "abc=def;"),
        (b"\x00\x00\x27\x00abcdefg\x00", "abcdefg=;"),
        // Huffman-coded: a name, a value, and a name with the never-indexed bit.
        (b"\x00\x00\x2a\x1c\x7f\x82\x64\x02", "ab=302;"),
        (b"\x00\x00\x39\x1f\x00", "a=;"),
        // The base has no effect.
        (b"\x00\x05\xd1", ":method=GET;"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(shown(bytes).as_deref(), Ok(*expected), "{}", bytes.escape_ascii());
    }
}

#[test]
fn invalid_or_dynamic_table_sections_are_rejected() {
    let cases: &[&[u8]] = &[
        b"",
        b"\x00",
        b"\x00\x80",
        // RFC 9204 §B.2 and §B.3.
        b"\x03\x81\x10\x11",
        b"\x05\x00\x80\xc1\x81",
        b"\x00\x00\x80",
        b"\x00\x00\x40\x01a",
        b"\x00\x00\x60\x01a",
        b"\x00\x00\x10",
        b"\x00\x00\x00\x01a",
        // Indices beyond the static table.
        b"\x00\x00\xff\x24",
        b"\x00\x00\x5f\x54\x00",
        b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        // Incomplete sections.
        b"\x00\x00\xff",
        b"\x00\x00\x51",
        b"\x00\x00\x51\x02a",
        b"\x00\x00\x23ab",
        b"\x00\x00\x23abc",
        b"\x00\x00\x51\xff\xff\xff\xff\xff\xff\xff\xff\x3f",
        // Invalid Huffman codes.
        b"\x00\x00\x51\x81\xff",
        b"\x00\x00\x29\xff\x00",
    ];
    for bytes in cases {
        assert_eq!(read(bytes), Err(QpackError), "{}", bytes.escape_ascii());
    }
}

#[test]
fn static_table_fields_are_encoded_as_indices() {
    let common =
        [(":status", "200"), ("Content-Type", "text/plain"), ("Server", "a"), ("X-A", "~")];
    assert_eq!(written(&common), b"\x00\x00\xd9\xf5\x5f\x4d\x01a\x23x-a\x01~");
}

proptest! {
    #[test]
    fn field_section_round_trips(
        lines in prop::collection::vec(("[:a-zA-Z0-9-]{1,40}", "[ -~\u{e4}\t]{0,40}"), 0..10),
    ) {
        let lines: Vec<_> =
            lines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let back = read(&written(&lines)).unwrap();
        let expected: Vec<_> = lines
            .iter()
            .map(|(name, value)| (name.to_lowercase().into_bytes(), value.as_bytes().to_vec()))
            .collect();
        prop_assert_eq!(back, expected);
    }

    #[test]
    fn huffman_expansion_is_bounded(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let bytes = [&[0, 0], &bytes[..]].concat();
        let Ok(mut section) = FieldSectionDecoder::new(&bytes) else { return Ok(()) };
        while let Ok(Some(line)) = section.next_line() {
            for text in [line.name, line.value] {
                let mut out = Vec::new();
                if text.append_to(&mut out).is_ok() {
                    prop_assert!(out.len() <= text.bytes.len() * 8 / 5);
                }
            }
        }
    }
}
