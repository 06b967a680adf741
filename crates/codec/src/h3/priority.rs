//! Priority of responses (RFC 9218).

/// Value of the `priority` field or of PRIORITY_UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponsePriority {
    /// From 0 to 7; 0 is the most urgent.
    urgency: u8,
    /// True if the client can use a part of the response already.
    incremental: bool,
}

impl Default for ResponsePriority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl ResponsePriority {
    /// Parses the value of the field. Unknown and invalid parameters are ignored (RFC 9218 §4).
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

    /// Returns the send priority among the streams of a connection. The higher goes first; 0 is the default without any
    /// signal.
    ///
    /// At equal urgency, a response that is useful only as a whole goes before an incremental one.
    pub fn rank(self) -> i32 {
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
