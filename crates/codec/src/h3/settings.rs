//! SETTINGS, which each side sends first (RFC 9114 §7.2.4, RFC 9204 §5, RFC 9220).

use super::varint;
use super::{H3ErrorCode, PeerRole, frame};

const TABLE_CAPACITY: u64 = 0x1;
const FIELD_SECTION: u64 = 0x6;
const BLOCKED_STREAMS: u64 = 0x7;
const CONNECT_PROTOCOL: u64 = 0x8;
/// A reserved setting without meaning, sent so that peers tolerate unknown settings (RFC 9114 §7.2.4.1).
const GREASE: u64 = 0x1f * 0x2a + 0x21;

/// The settings of a peer that affect this proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct H3Settings {
    /// True if the peer supports extended CONNECT, and therefore WebSocket.
    pub connect_protocol: bool,
}

impl H3Settings {
    /// Parses the payload of a SETTINGS frame.
    pub fn read(mut payload: &[u8]) -> Result<Self, H3ErrorCode> {
        let mut settings = Self::default();
        let mut seen = 0_u32;
        while !payload.is_empty() {
            let (name, value) = take_pair(&mut payload).ok_or(H3ErrorCode::FRAME_ERROR)?;
            match name {
                // Settings of HTTP/2.
                0x0 | 0x2..=0x5 => return Err(H3ErrorCode::SETTINGS_ERROR),
                CONNECT_PROTOCOL if value > 1 => return Err(H3ErrorCode::SETTINGS_ERROR),
                CONNECT_PROTOCOL => settings.connect_protocol = value == 1,
                _ => {}
            }
            // A setting may occur only once. Repetition is not checked for settings that this proxy ignores.
            if name <= CONNECT_PROTOCOL {
                let mark = 1 << name;
                if seen & mark != 0 {
                    return Err(H3ErrorCode::SETTINGS_ERROR);
                }
                seen |= mark;
            }
        }
        Ok(settings)
    }
}

fn take_pair(payload: &mut &[u8]) -> Option<(u64, u64)> {
    let (name, taken) = varint::read(payload)?;
    let (value, more) = varint::read(payload.get(taken..)?)?;
    *payload = payload.get(taken + more..)?;
    Some((name, value))
}

/// Appends the SETTINGS frame for `peer`. Field sections of up to `field_section` bytes are accepted from it.
pub fn write(peer: PeerRole, field_section: u64, out: &mut Vec<u8>) {
    frame::write_settings(out, |out| {
        let mut setting = |name, value| {
            varint::write(name, out);
            varint::write(value, out);
        };
        setting(TABLE_CAPACITY, 0);
        setting(FIELD_SECTION, field_section);
        setting(BLOCKED_STREAMS, 0);
        if peer == PeerRole::Client {
            setting(CONNECT_PROTOCOL, 1);
        }
        setting(GREASE, 0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_payload_is_parsed() {
        let read = |payload: &[u8]| H3Settings::read(payload);
        let (without, with) =
            (H3Settings { connect_protocol: false }, H3Settings { connect_protocol: true });
        let cases: &[(&[u8], Result<H3Settings, H3ErrorCode>)] = &[
            (&[], Ok(without)),
            (&[0x8, 1], Ok(with)),
            (&[0x1, 0x40, 0x00, 0x6, 0x52, 0x00, 0x7, 0x00, 0x8, 0x1, 0x33, 0x1], Ok(with)),
            (&[0x21, 0x00, 0x21, 0x00], Ok(without)),
            (&[0x8], Err(H3ErrorCode::FRAME_ERROR)),
            (&[0x8, 0x40], Err(H3ErrorCode::FRAME_ERROR)),
            (&[0x8, 0x2], Err(H3ErrorCode::SETTINGS_ERROR)),
            (&[0x8, 0x1, 0x8, 0x1], Err(H3ErrorCode::SETTINGS_ERROR)),
            (&[0x6, 0x1, 0x6, 0x2], Err(H3ErrorCode::SETTINGS_ERROR)),
            (&[0x0, 0x0], Err(H3ErrorCode::SETTINGS_ERROR)),
            (&[0x2, 0x0], Err(H3ErrorCode::SETTINGS_ERROR)),
            (&[0x3, 0x7f, 0xff], Err(H3ErrorCode::SETTINGS_ERROR)),
            (&[0x4, 0x0], Err(H3ErrorCode::SETTINGS_ERROR)),
            (&[0x5, 0x0], Err(H3ErrorCode::SETTINGS_ERROR)),
        ];
        for (payload, expected) in cases {
            assert_eq!(read(payload), *expected, "{payload:x?}");
        }
    }
}
