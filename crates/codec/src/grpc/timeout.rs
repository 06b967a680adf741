//! `grpc-timeout`: the client's timeout, as written in the head of a call.

use std::time::Duration;

/// Largest number of digits.
const MAX_DIGITS: usize = 8;

const LONGEST_UNIT: (u8, u64) = (b'H', 3_600 * 1_000_000_000);

/// Units with their nanoseconds, the finest first.
const UNITS: [(u8, u64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60 * 1_000_000_000),
    LONGEST_UNIT,
];

/// Parses a timeout; `None` if it is malformed, which counts as no timeout.
pub fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    let (_, nanoseconds) = UNITS.iter().find(|(letter, _)| letter == unit)?;
    if !(1..=MAX_DIGITS).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(Duration::from_nanos(nanoseconds.saturating_mul(number)))
}

/// Formats the timeout in the finest unit that can hold it, rounded down, but never as zero.
pub fn write(timeout: Duration) -> String {
    let nanoseconds = timeout.as_nanos().max(1);
    let fits = |unit: &&(u8, u64)| nanoseconds / u128::from(unit.1) < 10u128.pow(MAX_DIGITS as u32);
    let (letter, unit) = UNITS.iter().find(fits).copied().unwrap_or(LONGEST_UNIT);
    let number = (nanoseconds / u128::from(unit)).min(10u128.pow(MAX_DIGITS as u32) - 1);
    format!("{number}{}", char::from(letter))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn grpc_timeout_is_parsed_in_every_unit() {
        let read = |text: &str| parse(text.as_bytes());
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("3S"), Some(Duration::from_secs(3)));
        assert_eq!(read("300m"), Some(Duration::from_millis(300)));
        assert_eq!(read("50u"), Some(Duration::from_micros(50)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(read("0S"), Some(Duration::ZERO));
        assert!(read("99999999H").is_some(), "the timeout is longer than any client waits");
        for bad in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789n", " 1S", "1S ", "1 S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn written_grpc_timeout_is_never_zero() {
        assert_eq!(write(Duration::ZERO), "1n");
        assert_eq!(write(Duration::from_millis(300)), "300000u");
        assert_eq!(write(Duration::MAX), "99999999H");
    }

    proptest! {
        #[test]
        fn grpc_timeout_round_trips_with_little_loss(nanoseconds in 1..=u64::MAX) {
            let again = parse(write(Duration::from_nanos(nanoseconds)).as_bytes()).unwrap();
            let again = u64::try_from(again.as_nanos()).unwrap();
            prop_assert!(again <= nanoseconds);
            prop_assert!(nanoseconds - again <= nanoseconds / 100_000);
        }

        #[test]
        fn arbitrary_bytes_parse_to_a_valid_timeout_or_none(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            if let Some(timeout) = parse(&bytes) {
                prop_assert!(parse(write(timeout).as_bytes()).is_some());
            }
        }
    }
}
