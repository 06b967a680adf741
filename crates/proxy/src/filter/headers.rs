//! Header modification filter.

use codec::h1::write::is_sent_on;
use codec::head::{BodyFraming, FieldSection, KnownFieldName};
use gateway::snapshot::{HeaderEdits, HeaderField};

/// Removes, replaces and adds fields, in this order.
pub(super) fn edit(fields: &mut FieldSection, edits: &HeaderEdits) {
    for name in edits.remove.iter().filter(|name| may_change(name.as_bytes())) {
        fields.remove_named(name.as_bytes());
    }
    for HeaderField { name, value } in
        edits.set.iter().filter(|field| may_change(field.name.as_bytes()))
    {
        fields.remove_named(name.as_bytes());
        fields.append(&**name, &**value);
    }
    for HeaderField { name, value } in
        edits.add.iter().filter(|field| may_change(field.name.as_bytes()))
    {
        fields.append(&**name, &**value);
    }
}

/// True if filters may change the field. Fields that frame a message or belong to a connection are
/// set by us alone, whatever a Snapshot says: changing them could allow request smuggling.
pub(crate) fn may_change(name: &[u8]) -> bool {
    let name = KnownFieldName::recognise(name);
    // `Expect` is negotiated with each side separately.
    name != KnownFieldName::Expect && is_sent_on(name, BodyFraming::None)
}
