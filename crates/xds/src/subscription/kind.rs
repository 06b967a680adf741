//! The subscription of a client to one type: names, or all resources there are, each with what the client has been told
//! of it last.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::{MAX_NAMES, MAX_SERVERS, RequestFault};
use crate::client::ClientIdentity;
use crate::exchange::{ProtocolVariant, content_version};
use crate::message::ResourceType;
use crate::name;
use crate::table::{ClientResource, ResourceTable};

/// The name that stands for all resources of a type.
const WILDCARD: &str = "*";
/// Size from which on further resources come in another response, if the type allows it. Clients of gRPC take messages
/// of 4 MiB.
const RESPONSE_BYTES: usize = 1 << 20;

/// Resources by name, each with what the client has been told of it last.
type SentResources = BTreeMap<Arc<str>, SentVersion>;

/// The subscription to one type.
#[derive(Debug, Default)]
pub(super) struct TypeSubscription {
    /// The names that the client has asked for.
    names: SentResources,
    /// All other resources, if the client asks for them.
    wildcard: Option<WildcardSubscription>,
    /// True if the client has sent a request.
    has_begun: bool,
    /// True if the names have changed since they were last taken.
    pub(super) has_new_names: bool,
    /// True if the client has said which versions it has of another stream, until they are compared.
    has_known: bool,
    /// True if the client has named a resource: from then on a request without names asks for nothing.
    has_named: bool,
    /// The number of the last response.
    pub(super) nonce: u64,
    /// The names of the resources in it.
    pub(super) sent: Vec<Arc<str>>,
    /// True if the client has not replied to it.
    pub(super) is_awaited: bool,
    /// The version of the resources of which the client lacks nothing.
    settled: Option<u64>,
}

/// The subscription to all resources.
#[derive(Debug, Default)]
struct WildcardSubscription {
    /// The resources that the client has been sent without having named them.
    sent: SentResources,
    /// True after the first response, which is sent even if there is no resource.
    is_answered: bool,
}

/// State of a resource at the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum SentVersion {
    /// It has been told nothing.
    #[default]
    Nothing,
    /// It has been told that there is no such resource.
    Absence,
    /// It has been sent this version.
    Version(u64),
    /// It says that it has this version of another stream.
    Known(Box<str>),
}

impl SentVersion {
    /// True if the client has some version of the resource.
    fn is_held(&self) -> bool {
        match self {
            Self::Nothing | Self::Absence => false,
            Self::Version(_) | Self::Known(_) => true,
        }
    }

    fn is_current(&self, resource: &ClientResource<'_>) -> bool {
        *self == Self::Version(resource.version())
    }
}

/// The resources of a response.
#[derive(Debug, Default)]
pub(super) struct DueResources {
    pub(super) resources: Vec<(Arc<str>, Bytes)>,
    /// Names without a resource.
    pub(super) removed: Vec<Arc<str>>,
    /// Names of resources of which the client had another version.
    pub(super) replaced: Vec<Arc<str>>,
    size: usize,
}

impl DueResources {
    fn add(
        &mut self,
        name: &Arc<str>,
        sent: &SentVersion,
        resource: &ClientResource<'_>,
        encoded: Bytes,
    ) {
        if sent.is_held() && !sent.is_current(resource) {
            self.replaced.push(Arc::clone(name));
        }
        self.size += encoded.len();
        self.resources.push((Arc::clone(name), encoded));
    }
}

/// True for the name of a server's Listener, which is none of all resources: there are as many as addresses.
fn is_of_server(name: &str) -> bool {
    name::server_port(name).is_some()
}

impl TypeSubscription {
    /// Replaces the names. What the client has been told of names that stay is kept.
    ///
    /// # Errors
    /// If there are too many names.
    pub(super) fn set_names(
        &mut self,
        kind: ResourceType,
        names: Vec<String>,
    ) -> Result<(), RequestFault> {
        self.settled = None;
        let is_for_all = |name: &String| kind.is_complete() && name == WILDCARD;
        let asks_for_all = match names.is_empty() {
            true => kind.is_complete() && !self.has_named,
            false => names.iter().any(is_for_all),
        };
        (self.has_begun, self.has_named) = (true, self.has_named || !names.is_empty());
        let mut former = std::mem::take(&mut self.names);
        let mut others = match (asks_for_all, self.wildcard.take()) {
            (true, wildcard) => Some(wildcard.unwrap_or_default()),
            (false, wildcard) => {
                former.extend(wildcard.into_iter().flat_map(|it| it.sent));
                None
            }
        };
        for name in names.into_iter().filter(|name| !is_for_all(name)) {
            let other = || others.as_mut()?.sent.remove_entry(name.as_str());
            let known = former.remove_entry(name.as_str()).or_else(other);
            self.has_new_names |= known.is_none();
            let (name, sent) = known.unwrap_or_else(|| (name.into(), SentVersion::Nothing));
            self.names.insert(name, sent);
        }
        self.has_new_names |= !former.is_empty();
        if let Some(others) = &mut others {
            let is_kept =
                |(name, sent): &(Arc<str>, SentVersion)| sent.is_held() && !is_of_server(name);
            others.sent.extend(former.into_iter().filter(is_kept));
        }
        self.wildcard = others;
        self.check_servers()
    }

    /// Changes the names. A name that is added again is answered again: the client may have forgotten the resource.
    ///
    /// # Errors
    /// If there are too many names.
    pub(super) fn edit_names(
        &mut self,
        kind: ResourceType,
        added: Vec<String>,
        removed: Vec<String>,
        known: HashMap<String, String>,
    ) -> Result<(), RequestFault> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if !is_first && added.is_empty() && removed.is_empty() {
            return Ok(());
        }
        (self.settled, self.has_new_names) = (None, true);
        let is_for_all = |name: &String| kind.is_complete() && name == WILDCARD;
        if added.iter().any(is_for_all) || is_first && added.is_empty() && kind.is_complete() {
            self.wildcard.get_or_insert_default();
        }
        if removed.iter().any(is_for_all) {
            self.wildcard = None;
        }
        for name in removed.iter().filter(|name| !is_for_all(name)) {
            let removed = self.names.remove_entry(name.as_str());
            let dropped = removed.filter(|(_, sent)| sent.is_held());
            // The client has dropped the resource, though it still asks for all.
            if let Some(((name, _), wildcard)) = dropped.zip(self.wildcard.as_mut())
                && !is_of_server(&name)
            {
                wildcard.sent.insert(name, SentVersion::Nothing);
            }
        }
        for name in added.into_iter().filter(|name| !is_for_all(name)) {
            if let Some(wildcard) = &mut self.wildcard {
                wildcard.sent.remove(name.as_str());
            }
            self.names.insert(name.into(), SentVersion::Nothing);
        }
        if is_first {
            self.set_known(known);
        }
        match self.names.len() > MAX_NAMES {
            true => Err(RequestFault::TooManyNames),
            false => self.check_servers(),
        }
    }

    /// Checks the number of servers' Listeners, each of which has an encoding of its own.
    fn check_servers(&self) -> Result<(), RequestFault> {
        let servers = self.names.keys().filter(|name| is_of_server(name)).take(MAX_SERVERS + 1);
        match servers.count() > MAX_SERVERS {
            true => Err(RequestFault::TooManyServers),
            false => Ok(()),
        }
    }

    /// Takes the versions of resources that the client has of another stream. Of those that it does not ask for it is
    /// told nothing.
    fn set_known(&mut self, known: HashMap<String, String>) {
        self.has_known = !known.is_empty();
        for (name, version) in known {
            let sent = SentVersion::Known(version.into());
            if let Some(named) = self.names.get_mut(name.as_str()) {
                *named = sent;
            } else if let Some(wildcard) = &mut self.wildcard
                && !is_of_server(&name)
            {
                wildcard.sent.insert(name.into(), sent);
            }
        }
    }

    /// Sends a resource again, if the client has asked for it.
    pub(super) fn forget_sent(&mut self, name: &str) {
        if let Some(sent) = self.names.get_mut(name) {
            (*sent, self.settled) = (SentVersion::Nothing, None);
        }
    }

    /// True if the client lacks nothing of this version of the resources, and has accepted or rejected all of them.
    pub(super) fn is_settled(&self, version: u64) -> bool {
        !self.is_awaited && self.settled == Some(version)
    }

    /// Returns the resources of the next response, and counts them as sent. `None`: there is nothing to send. Without
    /// removals, a response that has all resources is sent only if one of them is new or has changed.
    pub(super) fn due(
        &mut self,
        kind: ResourceType,
        variant: ProtocolVariant,
        table: &ResourceTable,
        client: &ClientIdentity,
        holds_removals: bool,
    ) -> Option<DueResources> {
        let version = table.version_for(kind, client);
        if self.is_awaited || self.settled == Some(version) {
            return None;
        }
        let is_incremental = variant == ProtocolVariant::Incremental;
        let is_whole = !is_incremental && kind.is_complete();
        self.find_others(kind, table);
        self.compare_known(kind, table, client);
        let is_due = |name: &str, sent: &SentVersion| match table.find(kind, name, client) {
            Some(resource) => !sent.is_current(&resource),
            None if holds_removals && sent.is_held() => false,
            None => (is_incremental || is_whole) && *sent != SentVersion::Absence,
        };
        let must_answer = self.wildcard.as_ref().is_some_and(|it| !it.is_answered);
        if !must_answer && !self.entries().any(|(name, sent)| is_due(name, sent)) {
            self.settled = Some(version).filter(|_| !holds_removals);
            return None;
        }
        let mut due = DueResources::default();
        for (name, sent) in self.entries() {
            if !is_whole && (due.size > RESPONSE_BYTES || !is_due(name, sent)) {
                continue;
            }
            *sent = match table.find(kind, name, client) {
                Some(resource) => {
                    due.add(name, sent, &resource, resource.encoded(name, client));
                    SentVersion::Version(resource.version())
                }
                None => {
                    due.removed.push(Arc::clone(name));
                    SentVersion::Absence
                }
            };
        }
        self.sent = due.resources.iter().map(|(name, _)| Arc::clone(name)).collect();
        if let Some(wildcard) = &mut self.wildcard {
            wildcard.is_answered = true;
            wildcard.sent.retain(|_, sent| *sent != SentVersion::Absence);
        }
        Some(due)
    }

    /// Adds the resources that the client has not named, if it asks for all.
    fn find_others(&mut self, kind: ResourceType, table: &ResourceTable) {
        let Some(wildcard) = &mut self.wildcard else { return };
        for name in table.names(kind).filter(|name| !self.names.contains_key(*name)) {
            if !wildcard.sent.contains_key(name) {
                wildcard.sent.insert(Arc::clone(name), SentVersion::Nothing);
            }
        }
    }

    /// Counts resources as sent that the client has in the same version of another stream.
    fn compare_known(
        &mut self,
        kind: ResourceType,
        table: &ResourceTable,
        client: &ClientIdentity,
    ) {
        if !std::mem::take(&mut self.has_known) {
            return;
        }
        for (name, sent) in self.entries() {
            if let SentVersion::Known(version) = sent
                && let Some(resource) = table.find(kind, name, client)
                && content_version(&resource.encoded(name, client)) == **version
            {
                *sent = SentVersion::Version(resource.version());
            }
        }
    }

    /// Returns the names that the client has asked for.
    pub(super) fn named(&self) -> impl Iterator<Item = &Arc<str>> {
        self.names.keys()
    }

    fn entries(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut SentVersion)> {
        let others = self.wildcard.iter_mut().flat_map(|it| &mut it.sent);
        self.names.iter_mut().chain(others)
    }
}
