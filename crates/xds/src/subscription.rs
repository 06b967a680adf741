//! The subscriptions of one client (state of the world), without its connection and without a clock: which resources it
//! has asked for, which versions it has, and what to send next.
//!
//! A response of a type is sent when the client has replied to the one before, so a client that is slow gets the newest
//! resources and never a queue of old ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use crate::message::{ControlPlane, DiscoveryRequest, DiscoveryResponse, ResourceType};
use crate::name;
use crate::table::ResourceTable;

/// Maximum number of names of one type that a client may ask for.
pub const MAX_NAMES: usize = 2_000;
/// Maximum length of a name.
pub const MAX_NAME_BYTES: usize = 512;
/// Size from which on further resources come in another response, if the type allows it. Clients of gRPC take messages
/// of 4 MiB.
const RESPONSE_BYTES: usize = 1 << 20;
/// Maximum number of bytes of a client's words.
const MAX_WORDS: usize = 512;

/// The subscriptions of a client.
#[derive(Debug, Default)]
pub(crate) struct ClientSubscriptions {
    /// The name by which the client introduces itself; for logs.
    pub(crate) client: String,
    /// The zone of the client; empty if not known.
    zone: String,
    types: BTreeMap<ResourceType, TypeSubscription>,
    last_nonce: u64,
}

/// The subscription to one type.
#[derive(Debug, Default)]
struct TypeSubscription {
    /// The names, each with what the client has been told of it last.
    names: BTreeMap<Arc<str>, SentVersion>,
    /// The number of the last response.
    nonce: u64,
    /// The names of the resources in it.
    sent: Vec<Arc<str>>,
    /// True if the client has not replied to it.
    is_awaited: bool,
}

/// State of a resource at the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SentVersion {
    /// It has been told nothing.
    #[default]
    Nothing,
    /// It has been told that there is no such resource.
    Absence,
    /// It has been sent this version.
    Version(u64),
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
    /// A name is too long.
    #[error("a name of more than {MAX_NAME_BYTES} bytes")]
    LongName,
}

impl ClientSubscriptions {
    /// Takes a request.
    ///
    /// # Errors
    /// If it exceeds a limit; then nothing has changed.
    pub(crate) fn receive(
        &mut self,
        request: DiscoveryRequest,
    ) -> Result<RequestMeaning, RequestFault> {
        let DiscoveryRequest {
            node, resource_names, type_url, response_nonce, error_detail, ..
        } = request;
        if resource_names.len() > MAX_NAMES {
            return Err(RequestFault::TooManyNames);
        }
        if resource_names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(RequestFault::LongName);
        }
        // The first request of a stream has the node; the others may lack it.
        if let Some(node) = node.filter(|_| self.client.is_empty()) {
            let id = if node.id.is_empty() { &node.user_agent_name } else { &node.id };
            self.client = name::quoted(id, MAX_NAME_BYTES);
            self.zone = node.locality.map(|it| it.zone).unwrap_or_default();
        }
        let Some(kind) = ResourceType::of_type_url(&type_url) else {
            return Ok(RequestMeaning::UnknownType(name::quoted(&type_url, MAX_WORDS)));
        };
        let subscription = self.types.entry(kind).or_default();
        let is_reply = !response_nonce.is_empty();
        if is_reply && response_nonce != subscription.nonce.to_string() {
            return Ok(RequestMeaning::Outdated);
        }
        if is_reply {
            subscription.is_awaited = false;
        }
        subscription.set_names(resource_names);
        Ok(match error_detail {
            Some(error) if is_reply => {
                RequestMeaning::Rejected(kind, name::quoted(&error.message, MAX_WORDS))
            }
            Some(_) | None if is_reply => RequestMeaning::Acknowledged(kind),
            Some(_) | None => RequestMeaning::Subscribed,
        })
    }

    /// Returns the next response, if the client lacks something and has replied to the last response of the type.
    pub(crate) fn respond(
        &mut self,
        table: &ResourceTable,
    ) -> Option<(ResourceType, DiscoveryResponse)> {
        for (kind, subscription) in &mut self.types {
            if let Some(resources) = subscription.due(*kind, table, &self.zone) {
                self.last_nonce += 1;
                subscription.nonce = self.last_nonce;
                subscription.is_awaited = true;
                let mut response = DiscoveryResponse {
                    version_info: table.generation().to_string(),
                    type_url: kind.type_url().to_owned(),
                    nonce: self.last_nonce.to_string(),
                    control_plane: Some(ControlPlane { identifier: "sheave".to_owned() }),
                    resources: Vec::with_capacity(resources.len()),
                };
                resources.into_iter().for_each(|it| response.push(it));
                return Some((*kind, response));
            }
        }
        None
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

impl TypeSubscription {
    /// Replaces the names. What the client has been told of names that stay is kept.
    fn set_names(&mut self, names: Vec<String>) {
        let mut former = std::mem::take(&mut self.names);
        self.names = names
            .into_iter()
            .map(|name| {
                former
                    .remove_entry(name.as_str())
                    .unwrap_or_else(|| (name.into(), SentVersion::Nothing))
            })
            .collect();
    }

    /// Returns the resources of the next response, and counts them as sent. `None`: there is nothing to send.
    fn due(
        &mut self,
        kind: ResourceType,
        table: &ResourceTable,
        zone: &str,
    ) -> Option<Vec<bytes::Bytes>> {
        if self.is_awaited {
            return None;
        }
        let current = |name: &str| table.find(kind, name);
        let is_complete = kind.is_complete();
        let is_due = |(name, sent): (&Arc<str>, &SentVersion)| match current(name) {
            Some(resource) => *sent != SentVersion::Version(resource.version),
            None => is_complete && *sent != SentVersion::Absence,
        };
        if !self.names.iter().any(is_due) {
            return None;
        }
        let (mut resources, mut size) = (Vec::new(), 0);
        self.sent.clear();
        for (name, sent) in &mut self.names {
            if !is_complete && (!is_due((name, sent)) || size > RESPONSE_BYTES) {
                continue;
            }
            *sent = match current(name) {
                Some(resource) => {
                    let encoded = resource.encoded(zone).clone();
                    size += encoded.len();
                    resources.push(encoded);
                    self.sent.push(Arc::clone(name));
                    SentVersion::Version(resource.version)
                }
                None => SentVersion::Absence,
            };
        }
        Some(resources)
    }
}

#[cfg(test)]
mod tests;
