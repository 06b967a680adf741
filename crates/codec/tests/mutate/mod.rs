//! Messages from the tables, slightly mutated: parser bugs are most likely near messages that are almost valid.

use std::fmt;

use proptest::prelude::*;

use crate::table::{rows, unescape};

/// Byte sequences that parsers often handle wrongly.
const PIECES: &[&[u8]] = &[
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"\0",
    b"\x0b",
    b"\x7f",
    b"\x80",
    b":",
    b",",
    b";",
    b"/",
    b"?",
    b"#",
    b"@",
    b"[",
    b"]",
    b"*",
    b"+",
    b"-",
    b"0",
    b"5",
    b"a",
    b"\"",
    b"\\",
    b"chunked",
    b"gzip",
    b"close",
    b"keep-alive",
    b"upgrade",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"GET ",
    b"http://b",
    b"Host: a\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
];

/// Bytes that a failing test prints legibly.
#[derive(Clone)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

#[derive(Clone, Debug)]
enum Edit {
    Insert(&'static [u8]),
    Overwrite(u8),
    Remove(usize),
    /// Duplicates a range of bytes.
    Double(usize),
}

/// Generates one or two messages from `column` of a table, with up to four edits.
pub(crate) fn mutated<const N: usize>(
    table: &str,
    column: usize,
) -> impl Strategy<Value = Message> {
    let messages: Vec<Vec<u8>> = rows::<N>(table)
        .iter()
        .map(|row| unescape(&row[column]))
        .filter(|m| m.len() < 500)
        .collect();
    let edit = prop_oneof![
        4 => prop::sample::select(PIECES).prop_map(Edit::Insert),
        2 => any::<u8>().prop_map(Edit::Overwrite),
        2 => (1..8_usize).prop_map(Edit::Remove),
        1 => (1..40_usize).prop_map(Edit::Double),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), edit), 0..5);
    (prop::collection::vec(prop::sample::select(messages), 1..3), edits)
        .prop_map(|(messages, edits)| Message(edited(messages.concat(), edits)))
}

fn edited(mut bytes: Vec<u8>, edits: Vec<(prop::sample::Index, Edit)>) -> Vec<u8> {
    for (at, edit) in edits {
        let at = at.index(bytes.len() + 1);
        match edit {
            Edit::Insert(piece) => drop(bytes.splice(at..at, piece.iter().copied())),
            Edit::Overwrite(byte) => bytes.iter_mut().skip(at).take(1).for_each(|old| *old = byte),
            Edit::Remove(len) => drop(bytes.drain(at..bytes.len().min(at + len))),
            Edit::Double(len) => {
                let range = bytes[at..bytes.len().min(at + len)].to_vec();
                drop(bytes.splice(at..at, range));
            }
        }
    }
    bytes
}
