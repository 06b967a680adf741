//! Netlink attributes: lists of kind, length and value (linux/netlink.h, `struct nlattr`). Numbers of netfilter are in
//! network byte order.

use std::ffi::CStr;

use netlink_packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NlasIterator};

/// Attributes in the order in which they are added.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct AttributeList {
    bytes: Vec<u8>,
}

impl AttributeList {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.push(kind, value);
        self
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn u64(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a text with the zero byte at its end.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let value = [value.as_bytes(), &[0]].concat();
        self.bytes(kind, &value)
    }

    pub(crate) fn list(self, kind: u16, value: &Self) -> Self {
        self.bytes(kind | NLA_F_NESTED, &value.bytes)
    }

    pub(crate) fn followed_by(mut self, more: &Self) -> Self {
        self.bytes.extend(&more.bytes);
        self
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(NLA_HEADER_SIZE + value.len())
            .expect("long lists are divided among messages");
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Returns the value of the first attribute of this kind.
pub(crate) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = NlasIterator::new(attributes).filter_map(Result::ok);
    let attribute = all.find(|attribute| attribute.kind() == kind)?;
    let length = usize::from(attribute.length());
    attribute.into_inner().get(NLA_HEADER_SIZE..length)
}

pub(crate) fn find_u64(attributes: &[u8], kind: u16) -> Option<u64> {
    Some(u64::from_be_bytes(find(attributes, kind)?.try_into().ok()?))
}

pub(crate) fn find_u32(attributes: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_be_bytes(find(attributes, kind)?.try_into().ok()?))
}

pub(crate) fn find_u16(attributes: &[u8], kind: u16) -> Option<u16> {
    Some(u16::from_be_bytes(find(attributes, kind)?.try_into().ok()?))
}

pub(crate) fn find_text(attributes: &[u8], kind: u16) -> Option<&str> {
    CStr::from_bytes_until_nul(find(attributes, kind)?).ok()?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_aligned_and_found_by_kind() {
        let inner = AttributeList::default().u32(1, 7);
        let list = AttributeList::default().text(3, "ab").list(4, &inner).bytes(5, &[1, 2]);
        let expected = [
            [7, 0, 3, 0, b'a', b'b', 0, 0].as_slice(),
            &[12, 0, 4, 0x80, 8, 0, 1, 0, 0, 0, 0, 7],
            &[6, 0, 5, 0, 1, 2, 0, 0],
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(list.as_bytes(), expected.concat());
        }
        assert_eq!(find_text(list.as_bytes(), 3), Some("ab"));
        assert_eq!(find_u32(find(list.as_bytes(), 4).unwrap(), 1), Some(7));
        assert_eq!(find_u16(list.as_bytes(), 5), Some(0x0102));
        assert_eq!(find_u64(list.as_bytes(), 5), None, "another length");
    }

    #[test]
    fn malformed_attributes_end_the_search() {
        for bytes in [&[1, 0, 3, 0][..], &[200, 0, 3, 0, 1], &[4], &[]] {
            assert_eq!(find(bytes, 3), None);
        }
    }
}
