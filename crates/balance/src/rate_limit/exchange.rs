//! Movement of tokens between replicas: wishes, and gifts that arrive once.
//!
//! A replica tells each peer which tokens it wants from it. A peer that can spare some removes them
//! from its buckets and sends them as a numbered *gift*, which it repeats until the receiver
//! acknowledges it; then it may send the next one. The receiver adds a gift to its buckets if its
//! number is new. So a gift is added once at most, whatever happens to messages, and is lost if
//! either replica ends before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use super::message::{
    LimitId, MAX_MICROS, MAX_TOKEN_ENTRIES, TOKENS_VERSION, TokenAmount, TokenMessage, TokenRefusal,
};
use super::{ReplicaPart, fold};
use crate::leases::ReplicaIdentity;
use crate::slot_assignment::{HANDOVER_TIME, canonical};
use crate::time::{Time, nanos};

/// Time without a message after which a peer wants nothing and is asked for nothing.
const SILENCE: Duration = Duration::from_secs(1);
/// Time for which the same peers are asked for a small number of tokens, before the next ones are.
const TURN: Duration = Duration::from_millis(150);
/// Maximum number of peers that are remembered after they have left.
const MAX_FORMER_PEERS: usize = 256;
/// Millionths of a token in one token.
const TOKEN_MICROS: u64 = 1_000_000;

/// State of the exchange of tokens with the other replicas.
#[derive(Debug)]
pub struct TokenExchange {
    me: ReplicaIdentity,
    /// Members that serve now, this one included.
    members: BTreeSet<SocketAddr>,
    /// Members that have left, until the others may use their part.
    left: BTreeMap<SocketAddr, Time>,
    peers: BTreeMap<SocketAddr, TokenPeer>,
    last_sent: Time,
    refused: [u64; TokenRefusal::ALL.len()],
}

/// State of one peer.
#[derive(Debug)]
struct TokenPeer {
    /// 0 until the first message.
    incarnation: u64,
    /// Newest message.
    sent: Time,
    heard: Option<Time>,
    /// Tokens that the peer wants.
    wishes: Vec<TokenAmount>,
    /// Number of the newest gift to the peer.
    gift: u64,
    /// The gift, until it is acknowledged.
    unacknowledged: Vec<TokenAmount>,
    /// Number of the newest gift of the peer.
    gift_seen: u64,
    owes_acknowledgement: bool,
    /// True if the last message to the peer had wishes.
    has_wishes: bool,
}

/// Tokens that one peer wants and that a gift to it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWish {
    /// Peer.
    pub peer: SocketAddr,
    /// Tokens.
    pub tokens: TokenAmount,
}

impl TokenPeer {
    fn new() -> Self {
        Self {
            incarnation: 0,
            sent: Time::ZERO,
            heard: None,
            wishes: Vec::new(),
            gift: 0,
            unacknowledged: Vec::new(),
            gift_seen: 0,
            owes_acknowledgement: false,
            has_wishes: false,
        }
    }

    fn is_heard(&self, now: Time) -> bool {
        self.heard.is_some_and(|heard| now.saturating_since(heard) < SILENCE)
    }

    /// True if there is something to tell the peer: wishes or that they have ended, a gift, or an
    /// acknowledgement, which counts as sent then.
    fn is_message_due(&mut self, has_wishes: bool) -> bool {
        let had_wishes = std::mem::replace(&mut self.has_wishes, has_wishes);
        let owed = std::mem::take(&mut self.owes_acknowledgement);
        has_wishes || had_wishes || owed || !self.unacknowledged.is_empty()
    }
}

impl TokenExchange {
    /// Returns the state of a replica without peers.
    pub fn new(me: ReplicaIdentity) -> Self {
        let me = ReplicaIdentity { member: canonical(me.member), ..me };
        Self {
            me,
            members: BTreeSet::from([me.member]),
            left: BTreeMap::new(),
            peers: BTreeMap::new(),
            last_sent: Time::ZERO,
            refused: [0; TokenRefusal::ALL.len()],
        }
    }

    /// Sets the replicas that serve now. This one always counts. An empty list changes nothing.
    pub fn update_members(&mut self, members: impl IntoIterator<Item = SocketAddr>, now: Time) {
        let mut members: BTreeSet<_> = members.into_iter().map(canonical).collect();
        if members.is_empty() {
            return;
        }
        members.insert(self.me.member);
        for &gone in self.members.difference(&members) {
            self.left.insert(gone, now + HANDOVER_TIME);
        }
        self.left.retain(|member, _| !members.contains(member));
        // A member that returns is known by its gifts, so that none is added twice.
        if self.peers.len() > members.len() + MAX_FORMER_PEERS {
            self.peers.retain(|member, _| members.contains(member));
        }
        self.members = members;
    }

    /// True if there are other members.
    pub fn has_peers(&self) -> bool {
        self.members.len() > 1
    }

    /// Returns this replica's part of every bucket. That of a replica that has left counts for
    /// [`HANDOVER_TIME`], because the others learn of it at different times; that of one that has
    /// joined is given up at once.
    pub fn part(&mut self, now: Time) -> ReplicaPart {
        self.left.retain(|_, until| now < *until);
        let all: BTreeSet<_> = self.members.iter().chain(self.left.keys()).collect();
        let position = all.iter().filter(|&&&it| it < self.me.member).count();
        let count = u32::try_from(all.len()).ok().and_then(NonZeroU32::new);
        ReplicaPart::new(position as u32, count.unwrap_or(NonZeroU32::MIN))
    }

    /// Returns the time at which the part changes by itself, if it will.
    pub fn next_change(&self) -> Option<Time> {
        self.left.values().min().copied()
    }

    /// Takes a message of a peer, and returns the tokens to add to the buckets.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused. Then it has no effect, except that one for an
    /// earlier run is answered.
    pub fn receive(
        &mut self,
        message: &TokenMessage,
        now: Time,
    ) -> Result<Vec<TokenAmount>, TokenRefusal> {
        self.accept(message, now).inspect_err(|&refusal| self.refused[refusal as usize] += 1)
    }

    fn accept(
        &mut self,
        message: &TokenMessage,
        now: Time,
    ) -> Result<Vec<TokenAmount>, TokenRefusal> {
        self.check(message)?;
        let ReplicaIdentity { member, incarnation } = message.from;
        let member = canonical(member);
        if member == self.me.member || !self.members.contains(&member) {
            return Err(TokenRefusal::UnknownMember);
        }
        let TokenMessage { to, gift_seen, gifts, .. } = message;
        let is_for_any_run = to.incarnation == 0 && gifts.is_empty() && *gift_seen == 0;
        let peer = self.peers.entry(member).or_insert_with(TokenPeer::new);
        if to.incarnation != self.me.incarnation && !is_for_any_run {
            // The sender learns of this run by the answer.
            peer.owes_acknowledgement = true;
            return Err(TokenRefusal::Misaddressed);
        }
        if incarnation < peer.incarnation {
            return Err(TokenRefusal::StaleIncarnation);
        }
        if incarnation > peer.incarnation {
            *peer = TokenPeer { incarnation, gift: peer.gift, ..TokenPeer::new() };
        }
        if message.sent <= peer.sent {
            return Err(TokenRefusal::StaleSequence);
        }
        (peer.sent, peer.heard) = (message.sent, Some(now));
        peer.wishes.clone_from(&message.wishes);
        if message.gift_seen == peer.gift {
            peer.unacknowledged.clear();
        }
        if message.gift == 0 || message.gifts.is_empty() {
            return Ok(Vec::new());
        }
        peer.owes_acknowledgement = true;
        if message.gift <= peer.gift_seen {
            return Ok(Vec::new());
        }
        peer.gift_seen = message.gift;
        Ok(message.gifts.clone())
    }

    fn check(&self, message: &TokenMessage) -> Result<(), TokenRefusal> {
        let TokenMessage { version, from, to, gifts, wishes, .. } = message;
        if *version != TOKENS_VERSION {
            return Err(TokenRefusal::Version);
        }
        if canonical(to.member) != self.me.member {
            return Err(TokenRefusal::Misaddressed);
        }
        let is_absurd = |it: &TokenAmount| it.micros > MAX_MICROS;
        let are_too_many = gifts.len() > MAX_TOKEN_ENTRIES || wishes.len() > MAX_TOKEN_ENTRIES;
        if from.incarnation == 0 || are_too_many || gifts.iter().chain(wishes).any(is_absurd) {
            return Err(TokenRefusal::Absurd);
        }
        Ok(())
    }

    /// Returns what peers want that may get a gift now. Wishes for the same bucket are adjacent.
    pub fn wishes(&self, now: Time) -> Vec<TokenWish> {
        let members = self.peers.iter().filter(|(member, _)| self.members.contains(member));
        let ready = members.filter(|(_, it)| it.is_heard(now) && it.unacknowledged.is_empty());
        let mut wishes: Vec<_> = ready
            .flat_map(|(&peer, it)| it.wishes.iter().map(move |&tokens| TokenWish { peer, tokens }))
            .collect();
        wishes.sort_by_key(|wish| (wish.tokens.limit, wish.tokens.key));
        wishes
    }

    /// Gives each peer its part of what buckets have released: for each of [`Self::wishes`], the
    /// millionths of a token.
    pub fn give(&mut self, gifts: impl IntoIterator<Item = TokenWish>, now: Time) {
        let mut given = BTreeSet::new();
        for TokenWish { peer, tokens } in gifts {
            let Some(state) = self.peers.get_mut(&peer) else { continue };
            if tokens.micros == 0 || state.unacknowledged.len() >= MAX_TOKEN_ENTRIES {
                continue;
            }
            if given.insert(peer) {
                state.gift = now.as_nanos().max(state.gift + 1);
                // What the peer wanted is answered.
                state.wishes.clear();
            }
            state.unacknowledged.push(tokens);
        }
    }

    /// Returns the messages that are due, one for each peer at most. `wanted` are the tokens that
    /// this replica wants, those that it wants most first.
    pub fn messages(&mut self, wanted: &[TokenAmount], now: Time) -> Vec<TokenMessage> {
        let others = self.members.iter().filter(|&&member| member != self.me.member);
        let peers = self.members.len() - 1;
        let sent = now.max(self.last_sent + Duration::from_nanos(1));
        let mut messages = Vec::new();
        for (number, &member) in others.enumerate() {
            let wishes = wishes_of_peer(wanted, number, peers, now);
            let peer = self.peers.entry(member).or_insert_with(TokenPeer::new);
            if !peer.is_message_due(!wishes.is_empty()) {
                continue;
            }
            messages.push(TokenMessage {
                version: TOKENS_VERSION,
                from: self.me,
                to: ReplicaIdentity { member, incarnation: peer.incarnation },
                sent,
                gift: peer.gift,
                gift_seen: peer.gift_seen,
                gifts: peer.unacknowledged.clone(),
                wishes,
            });
        }
        if !messages.is_empty() {
            self.last_sent = sent;
        }
        messages
    }

    /// Returns the number of messages refused for each reason, in the order of
    /// [`TokenRefusal::ALL`].
    pub fn refused(&self) -> [u64; TokenRefusal::ALL.len()] {
        self.refused
    }
}

/// Returns what to ask one of several peers for: an equal part of what is wanted, or nothing if
/// fewer tokens than there are peers are wanted, and it is the turn of others.
fn wishes_of_peer(
    wanted: &[TokenAmount],
    peer: usize,
    peers: usize,
    now: Time,
) -> Vec<TokenAmount> {
    let (peer, peers) = (peer as u64, peers as u64);
    let turn = now.as_nanos() / nanos(TURN).max(1);
    let part = |wish: &TokenAmount| {
        let micros = wish.micros.min(MAX_MICROS);
        let asked = micros.div_ceil(TOKEN_MICROS).clamp(1, peers);
        let first = turn.wrapping_add(fold(wish.key)) % peers;
        let is_asked = (peer + peers - first) % peers < asked && micros > 0;
        is_asked.then(|| TokenAmount { micros: micros.div_ceil(asked), ..*wish })
    };
    wanted.iter().filter_map(part).take(MAX_TOKEN_ENTRIES).collect()
}

/// Divides what a bucket has released among the wishes for it, in proportion.
pub fn divide(released: u64, wishes: &[TokenWish]) -> Vec<TokenWish> {
    let total: u128 = wishes.iter().map(|wish| u128::from(wish.tokens.micros)).sum();
    let part = |wish: &TokenWish| {
        let micros = u128::from(released) * u128::from(wish.tokens.micros) / total.max(1);
        let micros = u64::try_from(micros).unwrap_or(0);
        TokenWish { tokens: TokenAmount { micros, ..wish.tokens }, ..*wish }
    };
    wishes.iter().map(part).collect()
}

/// Returns the wishes for each bucket, of wishes that are sorted by bucket.
pub fn by_bucket(wishes: &[TokenWish]) -> impl Iterator<Item = &[TokenWish]> {
    let bucket = |wish: &TokenWish| -> (LimitId, u128) { (wish.tokens.limit, wish.tokens.key) };
    wishes.chunk_by(move |a, b| bucket(a) == bucket(b))
}
