//! Changes in header fields.

use gateway::snapshot::{HeaderEdits, HeaderField};

use crate::h1::write::is_sent_on;
use crate::head::{BodyFraming, FieldSection, KnownFieldName};

/// Takes out, replaces and adds, in this order.
pub(super) fn edit(fields: &mut FieldSection, edits: &HeaderEdits) {
    for name in edits.remove.iter().filter(|name| may_change(name)) {
        fields.remove_named(name.as_bytes());
    }
    for HeaderField { name, value } in edits.set.iter().filter(|field| may_change(&field.name)) {
        fields.remove_named(name.as_bytes());
        fields.append(&**name, &**value);
    }
    for HeaderField { name, value } in edits.add.iter().filter(|field| may_change(&field.name)) {
        fields.append(&**name, &**value);
    }
}

/// What delimits a message or belongs to a connection is ours to write, whatever a Snapshot says: an edit of it could
/// make two requests of one.
fn may_change(name: &str) -> bool {
    let name = KnownFieldName::recognise(name.as_bytes());
    // Whether a body is waited for is settled with each side.
    name != KnownFieldName::Expect && is_sent_on(name, BodyFraming::None)
}
