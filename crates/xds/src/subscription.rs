//! The subscriptions of one client, without its connection and without a clock: which resources it has asked for, which
//! versions it has, and what to send next. Both variants of the protocol are one state with two forms of requests and
//! responses.
//!
//! A response of a type is sent when the client has replied to the one before, so a client that is slow gets the newest
//! resources and never a queue of old ones.

/// The subscription to one type.
mod kind;

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use crate::client::{ClientIdentity, ClientKind};
use crate::exchange::{NameChange, ProtocolVariant, SubscriptionRequest, SubscriptionResponse};
use crate::message::ResourceType;
use crate::name;
use crate::table::ResourceTable;
use kind::{DueResources, TypeSubscription};

/// Maximum number of names of one type that a client may ask for.
pub const MAX_NAMES: usize = 2_000;
/// Maximum number of Listeners of servers that a client may ask for: one for each address on which the process listens.
pub(crate) const MAX_SERVERS: usize = 64;
/// Maximum length of a name.
pub const MAX_NAME_BYTES: usize = 512;
/// Maximum number of resources of one type that a client may say that it has already. Clients that ask for all resources
/// have more than they name.
pub const MAX_KNOWN_RESOURCES: usize = 20_000;
/// Maximum number of bytes of a client's words.
const MAX_WORDS: usize = 512;

/// The subscriptions of a client.
#[derive(Debug)]
pub(crate) struct ClientSubscriptions {
    pub(crate) client: ClientIdentity,
    variant: ProtocolVariant,
    types: BTreeMap<ResourceType, TypeSubscription>,
    last_nonce: u64,
}

/// The meaning of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestMeaning {
    /// The client subscribes to names, without a response before.
    Subscribed,
    /// The client accepts the last response, and perhaps changes its names.
    Acknowledged(ResourceType),
    /// The client rejects the last response, with its words.
    Rejected(ResourceType, String),
    /// The request was sent before the last response arrived: another one follows.
    Outdated,
    /// The client asks for a type that is not served.
    UnknownType(String),
}

/// A request that exceeds a limit: it ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RequestFault {
    /// Too many names.
    #[error("more than {MAX_NAMES} names of one type")]
    TooManyNames,
    /// Too many Listeners of servers.
    #[error("more than {MAX_SERVERS} Listeners of servers")]
    TooManyServers,
    /// A name is too long.
    #[error("a name of more than {MAX_NAME_BYTES} bytes")]
    LongName,
    /// Too many resources that the client has already.
    #[error("more than {MAX_KNOWN_RESOURCES} initial versions of one type")]
    TooManyKnown,
}

impl ClientSubscriptions {
    pub(crate) fn new(variant: ProtocolVariant) -> Self {
        Self { client: ClientIdentity::default(), variant, types: BTreeMap::new(), last_nonce: 0 }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// If it exceeds a limit.
    pub(crate) fn receive(
        &mut self,
        request: SubscriptionRequest,
    ) -> Result<RequestMeaning, RequestFault> {
        let SubscriptionRequest { node, type_url, nonce, error, names } = request;
        check_size(&names)?;
        // The first request of a stream has the node; the others may lack it.
        if let Some(node) = node.filter(|_| self.client.name.is_empty()) {
            self.client = ClientIdentity { stream: self.client.stream, ..node.into() };
        }
        let Some(kind) = ResourceType::of_type_url(&type_url) else {
            return Ok(RequestMeaning::UnknownType(name::quoted(&type_url, MAX_WORDS)));
        };
        let subscription = self.types.entry(kind).or_default();
        let is_reply = !nonce.is_empty();
        let is_outdated = is_reply && nonce != subscription.nonce.to_string();
        match names {
            // The request after this one has all names again.
            NameChange::All(_) if is_outdated => return Ok(RequestMeaning::Outdated),
            NameChange::All(names) => subscription.set_names(kind, names)?,
            NameChange::Edit { added, removed, known } => {
                subscription.edit_names(kind, added, removed, known)?;
            }
        }
        if is_outdated {
            return Ok(RequestMeaning::Outdated);
        }
        if is_reply {
            subscription.is_awaited = false;
        }
        Ok(match error {
            Some(error) if is_reply => {
                RequestMeaning::Rejected(kind, name::quoted(&error.message, MAX_WORDS))
            }
            Some(_) | None if is_reply => RequestMeaning::Acknowledged(kind),
            Some(_) | None => RequestMeaning::Subscribed,
        })
    }

    /// Returns the next response, if the client lacks something and has replied to the last response of the type.
    pub(crate) fn respond(&mut self, table: &ResourceTable) -> Option<SubscriptionResponse> {
        // New Clusters come before the routes that name them, and removed ones go after the client has the routes that
        // do not, so that no request is for a Cluster that is not there.
        let has_routes = self.has_routes(table);
        let due = self.due(table, !has_routes).or_else(|| {
            // The others may have shown that the client has the routes now.
            let may_remove = !has_routes && self.has_routes(table);
            if may_remove { self.due(table, false) } else { None }
        });
        let (kind, due) = due?;
        // An Envoy that replaces a cluster uses it when it has got its endpoints again, even if they are the same.
        if kind == ResourceType::Cluster
            && self.client.kind == ClientKind::Envoy
            && let Some(assignments) = self.types.get_mut(&ResourceType::ClusterLoadAssignment)
        {
            due.replaced.iter().for_each(|name| assignments.forget_sent(name));
        }
        Some(SubscriptionResponse {
            kind,
            generation: table.generation(),
            nonce: self.last_nonce,
            resources: due.resources,
            removed: due.removed,
        })
    }

    /// True if the client is known to have all routes that it asks for.
    fn has_routes(&self, table: &ResourceTable) -> bool {
        let mut routes = self.types.iter().filter(|(kind, _)| !kind.is_named_by_routes());
        routes.all(|(kind, subscription)| subscription.is_settled(table.version(*kind)))
    }

    /// Returns what is due of the first type of which something is.
    fn due(
        &mut self,
        table: &ResourceTable,
        holds_removals: bool,
    ) -> Option<(ResourceType, DueResources)> {
        let Self { client, variant, types, last_nonce } = self;
        types.iter_mut().find_map(|(kind, subscription)| {
            let holds_removals = holds_removals && kind.is_named_by_routes();
            let due = subscription.due(*kind, *variant, table, client, holds_removals)?;
            *last_nonce += 1;
            subscription.nonce = *last_nonce;
            subscription.is_awaited = true;
            Some((*kind, due))
        })
    }

    /// Returns the Clusters that the client has named, if that has changed since the last call.
    pub(crate) fn take_named_clusters(&mut self) -> Option<impl Iterator<Item = Arc<str>>> {
        let clusters = self.types.get_mut(&ResourceType::Cluster)?;
        let has_changed = std::mem::take(&mut clusters.has_new_names);
        has_changed.then(|| clusters.named().map(Arc::clone))
    }

    /// Returns the names of the resources in the last response of a type.
    pub(crate) fn last_sent(&self, kind: ResourceType) -> &[Arc<str>] {
        self.types.get(&kind).map_or(&[], |it| &it.sent)
    }

    /// True if the client has not replied to some response.
    pub(crate) fn is_awaited(&self) -> bool {
        self.types.values().any(|it| it.is_awaited)
    }
}

fn check_size(names: &NameChange) -> Result<(), RequestFault> {
    let (count, known) = match names {
        NameChange::All(names) => (names.len(), 0),
        NameChange::Edit { added, removed, known } => (added.len().max(removed.len()), known.len()),
    };
    if count > MAX_NAMES {
        return Err(RequestFault::TooManyNames);
    }
    if known > MAX_KNOWN_RESOURCES {
        return Err(RequestFault::TooManyKnown);
    }
    match names.names().any(|name| name.len() > MAX_NAME_BYTES) {
        true => Err(RequestFault::LongName),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
