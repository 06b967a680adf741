//! The attributes of a request head by which routes match it.

use codec::head::RequestHead;
use gateway::matching::RequestAttributes;

/// A request head, as the routes see it.
pub(crate) struct RoutedRequest<'r>(pub(crate) &'r RequestHead);

impl RequestAttributes for RoutedRequest<'_> {
    fn method(&self) -> &[u8] {
        self.0.method_bytes()
    }

    fn host(&self) -> &[u8] {
        self.0.host()
    }

    fn path(&self) -> &[u8] {
        self.0.path()
    }

    fn query(&self) -> &[u8] {
        self.0.query()
    }

    fn headers<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
        let is_named = |text: &[u8]| text.eq_ignore_ascii_case(name.as_bytes());
        self.0.fields.iter().filter(move |(_, text, _)| is_named(text)).map(|(_, _, value)| value)
    }
}
