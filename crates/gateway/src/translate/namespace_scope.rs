//! Namespaces that routes and ListenerSets may attach from.

use super::index::ObjectIndex;
use crate::objects::{AllowedNamespaces, FromNamespaces, LabelSelector};

/// The namespaces that objects may attach from.
pub(super) enum NamespaceScope<'a> {
    All,
    Only(&'a str),
    Labelled(&'a LabelSelector),
    None,
}

impl<'a> NamespaceScope<'a> {
    /// Reads the scope of an object in the namespace `own`; `usual` is the default. An error is a field and a message.
    pub(super) fn read(
        asked: &'a AllowedNamespaces,
        default: FromNamespaces,
        own: &'a str,
    ) -> Result<Self, (String, String)> {
        let selector = match asked.from.unwrap_or(default) {
            FromNamespaces::All => return Ok(Self::All),
            FromNamespaces::Same => return Ok(Self::Only(own)),
            FromNamespaces::None => return Ok(Self::None),
            FromNamespaces::Selector => asked.selector.as_ref(),
        };
        let Some(selector) = selector else {
            let message = "is missing: `from: Selector` needs it";
            return Err(("selector".to_owned(), message.to_owned()));
        };
        match selector.fault() {
            Some((part, message)) => Err((format!("selector.{part}"), message)),
            None => Ok(Self::Labelled(selector)),
        }
    }

    pub(super) fn permits(&self, index: &ObjectIndex<'_>, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(own) => *own == namespace,
            Self::Labelled(selector) => index.selects(selector, namespace),
            Self::None => false,
        }
    }
}
