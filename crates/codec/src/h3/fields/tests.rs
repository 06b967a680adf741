//! Tests of field sections: rejected fields and limits.

use super::*;
use crate::h3::qpack;

const LIMITS: HeadLimits = HeadLimits { head_bytes: 200, fields: 4, target_bytes: 0 };

/// Returns a section with literal names of any few bytes, valid or not.
fn section(lines: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in lines {
        let begun = section.len();
        qpack::write(&vec![b'q'; name.len()], value, &mut section);
        assert!(section[begun] & 0b1110_0000 == 0b0010_0000, "a literal name");
        // The length of the name takes three bits, or one more byte.
        let taken = if name.len() < 7 { 1 } else { 2 };
        section[begun + taken..][..name.len()].copy_from_slice(name);
    }
    section
}

/// Returns the fields that result from parsing.
fn shown(lines: &[(&[u8], &[u8])]) -> Result<String, FieldSectionError<BadSyntax>> {
    let mut fields = FieldSection::new();
    read::<BadSyntax>(&section(lines), &LIMITS, &mut fields)?;
    let show = |text: &[u8]| text.escape_ascii().to_string();
    Ok(fields.iter().map(|(_, name, value)| format!("{}={};", show(name), show(value))).collect())
}

#[test]
fn fields_are_read_and_cookies_joined() {
    let lines: &[(&[u8], &[u8])] =
        &[(b"cookie", b"a=1"), (b"x", b"\xff\t1"), (b"cookie", b"b=2"), (b"cookie", b"")];
    assert_eq!(shown(lines).as_deref(), Ok("x=\\xff\\t1;cookie=a=1; b=2;"));
    assert_eq!(shown(&[(b"cookie", b""), (b"cookie", b"")]).as_deref(), Ok("cookie=;"));
    assert_eq!(shown(&[(b"cookie", b"a=1")]).as_deref(), Ok("cookie=a=1;"));
    assert_eq!(shown(&[]).as_deref(), Ok(""));
}

#[test]
fn invalid_field_lines_are_malformed() {
    let cases: &[&[(&[u8], &[u8])]] = &[
        &[(b"X", b"1")],
        &[(b"", b"1")],
        &[(b"a b", b"1")],
        &[(b"a:", b"1")],
        &[(b"x", b"1\r\n")],
        &[(b"x", b"1\n")],
        &[(b"x", b"\x00")],
        &[(b"x", b"\x7f")],
        &[(b":path", b"/\n")],
        &[(b":what", b"1")],
        &[(b":", b"1")],
        &[(b":path", b"/"), (b":path", b"/")],
        &[(b"x", b"1"), (b":path", b"/")],
    ];
    for lines in cases {
        assert_eq!(shown(lines), Err(FieldSectionError::Malformed), "{lines:x?}");
    }
}

#[test]
fn field_limits_match_http1() {
    let bad = |bad: BadSyntax| Err(FieldSectionError::Refused(bad));
    let pairs = [(&b"x"[..], &b"1"[..]); 5];
    assert_eq!(shown(&pairs[..4]).as_deref(), Ok("x=1;x=1;x=1;x=1;"));
    assert_eq!(shown(&pairs), bad(BadSyntax::TooManyFields));
    // Counted as HTTP/1.1 lines: a name, a value and four bytes.
    assert!(shown(&[(b"x", &[b'~'; 195])]).is_ok());
    assert_eq!(shown(&[(b"x", &[b'~'; 196])]), bad(BadSyntax::TooLarge));
    assert_eq!(shown(&[(b":path", &[b'~'; 192])]), bad(BadSyntax::TooLarge));
    assert_eq!(shown(&[(b"x", b" 1")]), bad(BadSyntax::FieldValue));
    assert_eq!(shown(&[(b"x", b"1\t")]), bad(BadSyntax::FieldValue));
    assert_eq!(
        read::<BadSyntax>(b"\x00\x00\x80", &LIMITS, &mut FieldSection::new()).err(),
        Some(FieldSectionError::Qpack)
    );
}

#[test]
fn trailers_round_trip_without_head_only_fields() {
    let mut fields = FieldSection::new();
    for (name, value) in [("Grpc-Status", "0"), ("Via", "1.1 a"), ("grpc-message", "")] {
        fields.append(name, value);
    }
    let mut written = Vec::new();
    write_trailers(&fields, &mut written);
    let back = read_trailers(&written, &LIMITS).unwrap().unwrap();
    assert_eq!(back.iter().count(), 2);
    assert_eq!(back.get("grpc-status"), Some(b"0".as_slice()));
    assert_eq!(back.get("grpc-message"), Some(b"".as_slice()));
    let trailers = |lines| read_trailers(&section(lines), &LIMITS).map(|it| it.is_some());
    assert_eq!(trailers(&[]), Ok(false));
    assert_eq!(trailers(&[(b"via", b"1")]), Ok(false));
    assert_eq!(trailers(&[(b":status", b"200")]), Err(FieldSectionError::Malformed));
}
