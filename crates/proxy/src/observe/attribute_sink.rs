//! The attributes of a request, as the access log and spans have them.

use std::fmt::Display;

/// Takes attributes one after another.
pub(crate) trait AttributeSink {
    /// Takes text that needs no escapes: addresses, times, fixed words.
    fn plain(&mut self, key: &'static str, text: impl Display);

    /// Takes untrusted text; invalid UTF-8 becomes U+FFFD.
    fn text(&mut self, key: &'static str, text: &[u8]);

    /// Takes untrusted texts.
    fn texts<'t>(&mut self, key: &'static str, texts: impl Iterator<Item = &'t [u8]>);

    fn integer(&mut self, key: &'static str, number: impl Into<u64>);

    fn seconds(&mut self, key: &'static str, seconds: f64);
}
