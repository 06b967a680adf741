//! Fields as spans of the received bytes, and the edits on top.

#![expect(
    clippy::indexing_slicing,
    reason = "a span is made where its bytes are stored, and the bytes are only ever added to"
)]

use std::borrow::Cow;
use std::ops::Range;

use super::KnownFieldName;

/// A range of a head's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSpan {
    start: u32,
    len: u32,
}

impl ByteSpan {
    /// Heads are bounded far below 4 GiB, so the casts lose nothing.
    pub(crate) const fn new(start: usize, len: usize) -> Self {
        debug_assert!(start + len <= u32::MAX as usize);
        Self { start: start as u32, len: len as u32 }
    }

    /// Returns the position of `part` within `whole`, of which it is a slice; an empty part may lie anywhere.
    pub(crate) fn of(part: &[u8], whole: &[u8]) -> Self {
        if part.is_empty() {
            return Self::default();
        }
        let start = part.as_ptr().addr() - whole.as_ptr().addr();
        debug_assert!(start + part.len() <= whole.len(), "the part is a slice of the whole");
        Self::new(start, part.len())
    }

    /// Returns the absolute span of `part`, which is relative to the start of this span.
    fn part(self, part: Self) -> Self {
        Self { start: self.start + part.start, len: part.len }
    }

    pub(crate) fn lengthen(self, by: usize) -> Self {
        Self::new(self.start as usize, self.len as usize + by)
    }

    pub(crate) fn shorten(self, len: usize) -> Self {
        debug_assert!(len <= self.len as usize);
        Self::new(self.start as usize, len)
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }

    pub(crate) fn in_bytes(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.range()]
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }
}

#[derive(Clone, Copy, Debug)]
struct FieldEntry {
    name: ByteSpan,
    value: ByteSpan,
    known: KnownFieldName,
    /// True if the bytes are a line in our own format: name, `: `, value, CR LF.
    is_line: bool,
    removed: bool,
}

/// A field line as it is written, prepared once for many messages.
#[derive(Clone, Debug)]
pub struct PreparedFieldLine {
    known: KnownFieldName,
    text: Cow<'static, str>,
    /// Relative to `text`, as is `value`.
    name: ByteSpan,
    value: ByteSpan,
}

impl PreparedFieldLine {
    /// `text` is the complete line: the name in our spelling, `: `, the value, CR LF.
    pub const fn fixed(known: KnownFieldName, text: &'static str) -> Self {
        let (name, value) = Self::parts(known, text.len());
        Self { known, text: Cow::Borrowed(text), name, value }
    }

    pub fn new(known: KnownFieldName, value: &str) -> Self {
        debug_assert!(value.bytes().all(|byte| !b"\r\n\0".contains(&byte)));
        let text = format!("{}: {value}\r\n", known.text());
        let (name, value) = Self::parts(known, text.len());
        Self { known, text: Cow::Owned(text), name, value }
    }

    pub fn value(&self) -> &str {
        self.text.get(self.value.range()).unwrap_or_default()
    }

    /// Returns the spans of name and value in a line of `len` bytes.
    const fn parts(known: KnownFieldName, len: usize) -> (ByteSpan, ByteSpan) {
        let name_len = known.text().len();
        let value_start = name_len + ": ".len();
        (ByteSpan::new(0, name_len), ByteSpan::new(value_start, len - value_start - "\r\n".len()))
    }
}

/// Fields that are written one after another, prepared once for many messages.
#[derive(Clone, Debug)]
pub struct PreparedFields {
    /// All lines.
    text: Box<[u8]>,
    /// The spans are relative to `text`.
    entries: Box<[FieldEntry]>,
    present: u32,
}

impl PreparedFields {
    /// Each field has the name in our spelling. No value contains CR, LF or NUL.
    pub fn new(fields: &[(KnownFieldName, &str)]) -> Self {
        let mut section = FieldSection::new();
        fields.iter().for_each(|(name, value)| section.add(*name, value));
        let FieldSection { bytes, table, present } = section;
        Self { text: bytes.into(), entries: table.into(), present }
    }
}

/// The fields of a head in their order, over the received bytes.
#[derive(Clone, Debug, Default)]
pub struct FieldSection {
    /// The head as it was received, then what was appended.
    bytes: Vec<u8>,
    table: Vec<FieldEntry>,
    /// One bit for each `KnownFieldName` that may still be in the table; most lookups need only this.
    present: u32,
}

impl FieldSection {
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all fields; keeps the memory for the next message.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.table.clear();
        self.present = 0;
    }

    /// Reserves memory for this many more fields and this many more bytes.
    pub(crate) fn reserve(&mut self, fields: usize, bytes: usize) {
        self.table.reserve(fields);
        self.bytes.reserve(bytes);
    }

    /// Returns the fields that were not removed, each as known name, name text and value.
    pub fn iter(&self) -> impl Iterator<Item = (KnownFieldName, &[u8], &[u8])> {
        self.table.iter().filter(|field| !field.removed).map(|field| {
            (field.known, field.name.in_bytes(&self.bytes), field.value.in_bytes(&self.bytes))
        })
    }

    /// Returns the same fields as `iter`, with the range of each value in `bytes`.
    pub(crate) fn iter_ranges(
        &self,
    ) -> impl Iterator<Item = (KnownFieldName, &[u8], Range<usize>)> {
        self.table
            .iter()
            .filter(|field| !field.removed)
            .map(|field| (field.known, field.name.in_bytes(&self.bytes), field.value.range()))
    }

    /// Returns all bytes that were received or appended; every field is a range of them.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the values of all fields with this name, in their order. Not for a class of names.
    pub fn values(&self, name: KnownFieldName) -> impl Iterator<Item = &[u8]> {
        self.value_spans(name).map(|span| span.in_bytes(&self.bytes))
    }

    pub(crate) fn value_spans(&self, name: KnownFieldName) -> impl Iterator<Item = ByteSpan> {
        debug_assert!(!name.is_class(), "a field of a class is found by its text");
        let table = if self.has(name) { self.table.as_slice() } else { &[] };
        table
            .iter()
            .filter(move |field| field.known == name && !field.removed)
            .map(|field| field.value)
    }

    pub fn first(&self, name: KnownFieldName) -> Option<&[u8]> {
        self.values(name).next()
    }

    pub fn count(&self, name: KnownFieldName) -> usize {
        self.values(name).count()
    }

    pub fn has(&self, name: KnownFieldName) -> bool {
        self.has_any([name])
    }

    pub fn has_any<const COUNT: usize>(&self, names: [KnownFieldName; COUNT]) -> bool {
        self.present & bits(names) != 0
    }

    /// Returns the value of the first field with this name; the name is compared without regard to case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.find_span(name).map(|value| self.text(value))
    }

    /// Returns the span of the value of the first field with this name, compared without regard to case. The span stays
    /// valid even if the field is removed.
    pub fn find_span(&self, name: &str) -> Option<ByteSpan> {
        let is_named = |field: &&FieldEntry| {
            !field.removed && field.name.in_bytes(&self.bytes).eq_ignore_ascii_case(name.as_bytes())
        };
        self.table.iter().find(is_named).map(|field| field.value)
    }

    pub fn remove(&mut self, name: KnownFieldName) {
        self.remove_all([name]);
    }

    /// Removes every field with any of these names. Most heads have none of them; then the table is not searched.
    pub fn remove_all<const COUNT: usize>(&mut self, names: [KnownFieldName; COUNT]) {
        debug_assert!(
            !names.contains(&KnownFieldName::Other),
            "other fields are removed by their text"
        );
        let bits = bits(names);
        if self.present & bits == 0 {
            return;
        }
        for field in &mut self.table {
            field.removed |= field.known.bit() & bits != 0;
        }
        self.present &= !bits;
    }

    /// Removes all fields with this name except the first.
    pub(crate) fn keep_one_line(&mut self, name: KnownFieldName) {
        let is_named = |field: &&mut FieldEntry| field.known == name && !field.removed;
        for field in self.table.iter_mut().filter(is_named).skip(1) {
            field.removed = true;
        }
    }

    /// Removes every field with this name, compared without regard to case.
    pub fn remove_named(&mut self, name: &[u8]) {
        let known = KnownFieldName::recognise(name);
        if !known.is_class() {
            return self.remove(known);
        }
        for field in &mut self.table {
            field.removed |=
                field.known == known && field.name.in_bytes(&self.bytes).eq_ignore_ascii_case(name);
        }
    }

    /// Removes every field with this name, compared without regard to case, and with an underscore in place of a hyphen:
    /// applications of CGI, WSGI and PHP cannot tell the two.
    pub fn remove_spellings(&mut self, name: &[u8]) {
        self.remove_named(name);
        let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        for field in &mut self.table {
            let found = field.name.in_bytes(&self.bytes);
            field.removed |= found.iter().map(plain).eq(name.iter().map(plain));
        }
    }

    /// Removes the fields that Connection names (RFC 9110 §7.6.1), except those with a `KnownFieldName`.
    ///
    /// Known names have rules of their own: connection-specific fields are never forwarded, framing fields and Host are
    /// written anew, and a client that names X-Forwarded-For here must not make us drop the value that an earlier proxy
    /// wrote. The same holds for other claims of proxies.
    pub(crate) fn remove_connection_options(&mut self) {
        for at in 0..self.table.len() {
            if self.table[at].known != KnownFieldName::Connection {
                continue;
            }
            for option in list(self.table[at].value.in_bytes(&self.bytes)) {
                for field in &mut self.table {
                    let is_open = matches!(
                        field.known,
                        KnownFieldName::Other | KnownFieldName::WithUnderscore
                    );
                    field.removed |=
                        is_open && field.name.in_bytes(&self.bytes).eq_ignore_ascii_case(option);
                }
            }
        }
    }

    /// Adds a field at the end. Name and value are ours or checked: neither may contain CR, LF or NUL.
    pub fn append(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (name, value) = (name.as_ref(), value.as_ref());
        debug_assert!(!name.is_empty() && name.iter().chain(value).all(|b| !b"\r\n\0".contains(b)));
        self.add_line(KnownFieldName::recognise(name), name, value);
    }

    /// Adds a field that this proxy writes itself; its name needs no lookup.
    pub fn add(&mut self, known: KnownFieldName, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        debug_assert!(value.iter().all(|b| !b"\r\n\0".contains(b)));
        self.add_line(known, known.text().as_bytes(), value);
    }

    /// Adds a field line that is the same in many messages.
    pub fn add_prepared(&mut self, line: &PreparedFieldLine) {
        let kept = self.store(line.text.as_bytes());
        self.push_line(line.known, kept.part(line.name), kept.part(line.value));
    }

    /// Adds fields that are the same in many messages.
    pub fn add_all_prepared(&mut self, fields: &PreparedFields) {
        let all = self.store(&fields.text);
        let here = |entry: &FieldEntry| {
            let (name, value) = (all.part(entry.name), all.part(entry.value));
            FieldEntry { name, value, ..*entry }
        };
        self.table.extend(fields.entries.iter().map(here));
        self.present |= fields.present;
    }

    /// Adds a field from its complete line: the name in our spelling, `: `, the value, CR LF.
    pub fn add_whole_line(&mut self, known: KnownFieldName, line: &[u8]) {
        let (name, value) = PreparedFieldLine::parts(known, line.len());
        let kept = self.store(line);
        self.push_line(known, kept.part(name), kept.part(value));
    }

    /// Adds a field whose value is the concatenation of `pieces`, separated by `between`.
    pub(crate) fn append_pieces<'v>(
        &mut self,
        name: &[u8],
        mut pieces: impl Iterator<Item = &'v [u8]>,
        between: &[u8],
    ) {
        let known = KnownFieldName::recognise(name);
        let name = self.store(name);
        self.bytes.extend_from_slice(b": ");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(pieces.next().unwrap_or_default());
        for piece in pieces {
            self.bytes.extend_from_slice(between);
            self.bytes.extend_from_slice(piece);
        }
        let value = ByteSpan::new(start, self.bytes.len() - start);
        self.bytes.extend_from_slice(b"\r\n");
        self.push_line(known, name, value);
    }

    /// Joins all fields named `name` into one. Their non-empty values are separated by `between`. `name` is not a
    /// `KnownFieldName`.
    pub(crate) fn join(&mut self, name: &[u8], between: &[u8]) {
        let is_named = |field: &&FieldEntry| {
            !field.removed && field.name.in_bytes(&self.bytes).eq_ignore_ascii_case(name)
        };
        let values: Vec<_> = self.table.iter().filter(is_named).map(|field| field.value).collect();
        self.remove_named(name);
        let name = self.store(name);
        self.bytes.extend_from_slice(b": ");
        let start = self.bytes.len();
        for value in values.into_iter().filter(|value| !value.is_empty()) {
            if self.bytes.len() > start {
                self.bytes.extend_from_slice(between);
            }
            self.bytes.extend_from_within(value.range());
        }
        let value = ByteSpan::new(start, self.bytes.len() - start);
        self.bytes.extend_from_slice(b"\r\n");
        self.push_line(KnownFieldName::Other, name, value);
    }

    /// Removes all fields for whose name `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(KnownFieldName, &[u8]) -> bool) {
        self.table.retain(|field| is_kept(field.known, field.name.in_bytes(&self.bytes)));
        self.present = self.table.iter().fold(0, |bits, field| bits | field.known.bit());
    }

    /// Adds a field whose value is a copy of another span of the head.
    pub(crate) fn add_from_span(&mut self, known: KnownFieldName, value: ByteSpan) {
        let name = self.store(known.text().as_bytes());
        self.bytes.extend_from_slice(b": ");
        let start = self.bytes.len();
        let value_again = ByteSpan::new(start, value.len as usize);
        self.bytes.extend_from_within(value.range());
        self.bytes.extend_from_slice(b"\r\n");
        self.push_line(known, name, value_again);
    }

    fn add_line(&mut self, known: KnownFieldName, name: &[u8], value: &[u8]) {
        let name = self.store(name);
        self.bytes.extend_from_slice(b": ");
        let value = self.store(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.push_line(known, name, value);
    }

    /// Writes the lines of the fields that are forwarded, in their order.
    ///
    /// Adjacent lines that are already in our own format are copied in one piece.
    pub(crate) fn write_lines(
        &self,
        is_sent_on: impl Fn(KnownFieldName) -> bool,
        out: &mut Vec<u8>,
    ) {
        let mut run = 0..0;
        for field in self.table.iter().filter(|field| !field.removed && is_sent_on(field.known)) {
            let (name, value) = (field.name.range(), field.value.range());
            if field.is_line {
                let end = value.end + 2;
                if name.start == run.end {
                    run.end = end;
                } else {
                    out.extend_from_slice(
                        &self.bytes[std::mem::replace(&mut run, name.start..end)],
                    );
                }
                continue;
            }
            out.extend_from_slice(&self.bytes[std::mem::take(&mut run)]);
            out.extend_from_slice(&self.bytes[name]);
            out.extend_from_slice(b": ");
            out.extend_from_slice(&self.bytes[value]);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(&self.bytes[run]);
    }

    /// Appends the bytes of a head, or text that belongs to it, and returns their span.
    pub(crate) fn store(&mut self, text: &[u8]) -> ByteSpan {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        ByteSpan::new(start, text.len())
    }

    /// Stores the text that `append` appends, and returns its span.
    pub(crate) fn store_with<E>(
        &mut self,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<ByteSpan, E> {
        let start = self.bytes.len();
        append(&mut self.bytes)?;
        Ok(ByteSpan::new(start, self.bytes.len() - start))
    }

    /// Adds a field whose name and value are already in the bytes.
    pub(crate) fn push(&mut self, name: ByteSpan, value: ByteSpan) {
        let known = KnownFieldName::recognise(name.in_bytes(&self.bytes));
        self.push_entry(FieldEntry { name, value, known, is_line: false, removed: false });
    }

    /// Adds a field of which the bytes are a line in our own format.
    fn push_line(&mut self, known: KnownFieldName, name: ByteSpan, value: ByteSpan) {
        self.push_entry(FieldEntry { name, value, known, is_line: true, removed: false });
    }

    /// Adds a field of a received line. Name and value are parts of `text`, which has been stored as the first bytes. A
    /// colon follows the name, and what follows the value and the space after it ends the line, as the parser knows.
    pub(crate) fn push_received(&mut self, name: &[u8], value: &[u8], text: &[u8]) {
        let known = KnownFieldName::recognise(name);
        let (name, value) = (ByteSpan::of(name, text), ByteSpan::of(value, text));
        let name_end = name.range().end;
        let is_line = value.range().start == name_end + 2
            && text.get(name_end + 1) == Some(&b' ')
            && text.get(value.range().end) == Some(&b'\r');
        self.push_entry(FieldEntry { name, value, known, is_line, removed: false });
    }

    fn push_entry(&mut self, entry: FieldEntry) {
        self.present |= entry.known.bit();
        self.table.push(entry);
    }

    pub fn text(&self, span: ByteSpan) -> &[u8] {
        span.in_bytes(&self.bytes)
    }
}

/// Returns the bits of all these names.
fn bits<const COUNT: usize>(names: [KnownFieldName; COUNT]) -> u32 {
    names.iter().fold(0, |bits, name| bits | name.bit())
}

/// Returns the elements of a comma-separated field value, without the empty ones (RFC 9110 §5.6.1.2).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{FieldSection, PreparedFieldLine, PreparedFields, list};
    use crate::head::KnownFieldName;

    fn fields() -> FieldSection {
        let mut fields = FieldSection::new();
        for (name, value) in [("X", "1"), ("Via", "a"), ("x", "2"), ("Y", ""), ("via", "b")] {
            fields.append(name, value);
        }
        fields
    }

    fn shown(fields: &FieldSection) -> String {
        fields
            .iter()
            .map(|(_, name, value)| format!("{}={} ", name.escape_ascii(), value.escape_ascii()))
            .collect()
    }

    #[test]
    fn fields_are_found_by_name() {
        let fields = fields();
        assert_eq!(fields.first(KnownFieldName::Via), Some(b"a".as_slice()));
        assert_eq!(fields.count(KnownFieldName::Via), 2);
        assert_eq!(fields.first(KnownFieldName::Host), None);
        assert_eq!(fields.get("x"), Some(b"1".as_slice()));
        assert_eq!(fields.get("y"), Some(b"".as_slice()));
        assert_eq!(fields.get("z"), None);
    }

    #[test]
    fn prebuilt_field_line_equals_an_added_field() {
        let mut fields = FieldSection::new();
        fields.add(KnownFieldName::Via, "1.1 a");
        fields.add_prepared(&PreparedFieldLine::new(KnownFieldName::XForwardedFor, "192.0.2.7"));
        fields.add_prepared(&PreparedFieldLine::fixed(KnownFieldName::Via, "Via: 1.1 b\r\n"));
        fields.add_whole_line(KnownFieldName::Date, b"Date: c\r\n");
        let two = [(KnownFieldName::Host, "d"), (KnownFieldName::Te, "")];
        fields.add_all_prepared(&PreparedFields::new(&two));
        assert_eq!(
            shown(&fields),
            "Via=1.1 a X-Forwarded-For=192.0.2.7 Via=1.1 b Date=c Host=d TE= "
        );
        assert!(fields.has(KnownFieldName::Host) && !fields.has(KnownFieldName::Trailer));
        let mut out = Vec::new();
        fields.write_lines(|name| name == KnownFieldName::Via, &mut out);
        assert_eq!(out, b"Via: 1.1 a\r\nVia: 1.1 b\r\n");
        assert_eq!(PreparedFieldLine::new(KnownFieldName::Via, "1.1 b").value(), "1.1 b");
    }

    #[test]
    fn removed_fields_are_gone_and_others_stay_in_order() {
        let mut fields = fields();
        fields.remove(KnownFieldName::Via);
        assert_eq!(shown(&fields), "X=1 x=2 Y= ");
        assert!(!fields.has(KnownFieldName::Via));
        fields.remove_named(b"X");
        assert_eq!(shown(&fields), "Y= ");
        fields.append("Via", "c");
        fields.remove_named(b"y");
        assert_eq!(shown(&fields), "Via=c ");
        fields.remove_named(b"VIA");
        assert_eq!(shown(&fields), "");
    }

    #[test]
    fn other_spellings_of_a_name_are_removed_with_it() {
        let mut fields = FieldSection::new();
        for name in ["X-User", "x_user", "X_USER", "x-users", "user"] {
            fields.append(name, "1");
        }
        fields.remove_spellings(b"x-user");
        assert_eq!(shown(&fields), "x-users=1 user=1 ");
    }

    #[test]
    fn connection_options_remove_named_fields_except_protected_ones() {
        let mut fields = fields();
        fields.append("Connection", "x, via");
        fields.append("connection", ",Y ,");
        fields.remove_connection_options();
        assert_eq!(shown(&fields), "Via=a via=b Connection=x, via connection=,Y , ");
    }

    #[test]
    fn cleared_fields_hold_nothing() {
        let mut fields = fields();
        fields.clear();
        assert_eq!(shown(&fields), "");
        assert!(!fields.has(KnownFieldName::Via));
    }

    #[test]
    fn lists_are_split_at_commas() {
        let elements: Vec<&[u8]> = list(b" a,\tb c ,, d").collect();
        assert_eq!(elements, [b"a".as_slice(), b"b c", b"d"]);
        assert_eq!(list(b" , ").count(), 0);
    }
}
