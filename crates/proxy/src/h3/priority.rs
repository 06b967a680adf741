//! Which response a client needs first (RFC 9218).

/// What the `priority` field says, or PRIORITY_UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponsePriority {
    /// From 0 on, the most urgent first.
    urgency: u8,
    /// Half of it is of use already.
    incremental: bool,
}

impl Default for ResponsePriority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl ResponsePriority {
    /// Reads the value of the field. What nobody understands says nothing (RFC 9218 §4).
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in value.split(|&byte| byte == b',') {
            let member = member.split(|&byte| byte == b';').next().unwrap_or_default();
            match member.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }

    /// The place among the streams of a connection: what is higher goes first, and 0 is what nobody has said anything of.
    ///
    /// Of two that are as urgent, one that is of no use until it is whole goes before one that is.
    pub(super) fn rank(self) -> i32 {
        2 * (3 - i32::from(self.urgency)) - i32::from(self.incremental)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_priority_parameters_are_ignored() {
        let cases = [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i=?1,u=1", 1, true),
            ("i, i=?0", 3, false),
            ("u=2;x=1 , i;y", 2, true),
            ("u=8", 3, false),
            ("u=-1", 3, false),
            ("u=1.0", 3, false),
            ("U=1", 3, false),
            ("x=\"u=1\", , i=1", 3, false),
        ];
        for (value, urgency, incremental) in cases {
            assert_eq!(
                ResponsePriority::parse(value.as_bytes()),
                ResponsePriority { urgency, incremental },
                "{value}"
            );
        }
    }

    #[test]
    fn priority_rank_orders_by_urgency() {
        let ranks = ["u=0", "u=2", "u=2, i", "", "i", "u=7", "u=7, i"]
            .map(|value| ResponsePriority::parse(value.as_bytes()).rank());
        assert!(ranks.is_sorted_by(|before, after| before > after), "{ranks:?}");
        assert_eq!(ResponsePriority::default().rank(), 0);
    }
}
