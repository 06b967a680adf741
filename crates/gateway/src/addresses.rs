//! Which addresses Gateways are served on, and who gets which of a cluster's pool.
//!
//! It knows what Gateways ask for and what they had; it must not know how an address comes to a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::fronts::{self, Fronts};
use crate::objects::{GatewayAddress, GatewaySpec, Metadata, Object, Resource};
use crate::snapshot::{Backend, BackendKey, Snapshot, Target};
use crate::translate::{CONTROLLER, ingress};

/// A Gateway by its namespace and name.
pub type GatewayName = (String, String);

/// Which addresses Gateways are served on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// Files and flags: those that a Gateway asks for, else every address of the machine.
    #[default]
    Own,
    /// A cluster: the same, and clients come by one Service in front of all Gateways, found there.
    Shared(Vec<fronts::Place>),
    /// A cluster: those that each Gateway was given, and no others. [`assign`] gives them.
    Pool {
        /// By Gateway; no address occurs twice.
        assigned: BTreeMap<GatewayName, Vec<IpAddr>>,
    },
    /// A cluster: every address of the machine, where ports of ours stand for those of each Gateway; clients come by
    /// Services in front of them.
    Fronts(Fronts),
}

impl Addresses {
    /// What each Gateway was given of a pool.
    pub fn dealt(&self) -> BTreeMap<GatewayName, Vec<IpAddr>> {
        match self {
            Self::Own | Self::Shared(_) | Self::Fronts(_) => BTreeMap::new(),
            Self::Pool { assigned } => assigned.clone(),
        }
    }

    /// What a Gateway was given of a pool.
    pub(crate) fn assigned(&self, gateway: &Metadata) -> &[IpAddr] {
        let name = (gateway.namespace.clone(), gateway.name.clone());
        match self {
            Self::Own | Self::Shared(_) | Self::Fronts(_) => &[],
            Self::Pool { assigned } => assigned.get(&name).map_or(&[], Vec::as_slice),
        }
    }

    /// Where clients find a Gateway, as far as somebody else than the machine knows.
    pub fn places(&self, gateway: &GatewayName) -> Vec<fronts::Place> {
        match self {
            Self::Own => Vec::new(),
            Self::Shared(places) => places.clone(),
            Self::Pool { assigned } => {
                let addresses = assigned.get(gateway).into_iter().flatten();
                addresses.copied().map(fronts::Place::Ip).collect()
            }
            Self::Fronts(fronts) => fronts.places(gateway).to_vec(),
        }
    }
}

/// The backends that requests to each address of a pool may go to.
pub fn behind(snapshot: &Snapshot) -> BTreeMap<IpAddr, BTreeSet<BackendKey>> {
    let mut behind: BTreeMap<IpAddr, BTreeSet<BackendKey>> = BTreeMap::new();
    for listener in snapshot.listeners.iter().filter(|listener| listener.free_bind) {
        let backends = behind.entry(listener.address.ip()).or_default();
        let targets = listener.rules().flat_map(|rule| &rule.targets);
        backends.extend(targets.filter_map(|target| match target.target {
            Target::Backend(place) => Some(snapshot.backends[place].key.clone()),
            Target::Unresolved => None,
        }));
    }
    behind
}

/// How many endpoints each node has: by its name.
pub type ByNode = BTreeMap<Arc<str>, usize>;

/// How many endpoints of each address of a pool are on which node, where [`behind`] says what is behind them.
pub fn near(
    behind: &BTreeMap<IpAddr, BTreeSet<BackendKey>>,
    backends: &[Backend],
) -> BTreeMap<IpAddr, ByNode> {
    let near = |keys: &BTreeSet<BackendKey>| {
        let reached = backends.iter().filter(|backend| keys.contains(&backend.key));
        let endpoints = reached.flat_map(|backend| &backend.endpoints);
        // A pod counts once, however many ports it has.
        let places = endpoints.filter_map(|it| Some((it.node.as_ref()?, it.address.ip())));
        let mut by_node = ByNode::new();
        for (node, _) in places.collect::<BTreeSet<_>>() {
            *by_node.entry(Arc::clone(node)).or_default() += 1;
        }
        by_node
    };
    behind.iter().map(|(address, keys)| (*address, near(keys))).collect()
}

/// What one entry of a Gateway's `spec.addresses` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// This one.
    Given(IpAddr),
    /// Any one.
    Any,
}

/// Why an entry of `spec.addresses` asks for nothing that we could give: the part of it, and a message.
pub(crate) type Unsupported = (&'static str, String);

impl Wish {
    pub(crate) fn parse(asked: &GatewayAddress) -> Result<Self, Unsupported> {
        let kind = asked.kind.as_deref().unwrap_or("IPAddress");
        if kind != "IPAddress" {
            return Err(("type", format!("{kind} is not supported, only IPAddress")));
        }
        let Some(value) = asked.value.as_deref().filter(|value| !value.is_empty()) else {
            return Ok(Self::Any);
        };
        let unreadable = || ("value", format!("{value} is not an IP address"));
        value.parse().ok().map(Self::Given).ok_or_else(unreadable)
    }
}

/// Deals the addresses of a pool to the Gateways of our classes, and to those that stand for IngressClasses of ours.
///
/// A Gateway keeps what it has in `known` (read from its status) as long as that is in the pool and still suits what it
/// asks for. Then come the addresses that Gateways ask for by value, then those that they leave to us: the oldest Gateway
/// first, the lowest free address first. One that asks for nothing gets an address of each family of the pool. One that
/// cannot be read keeps what it has, so that nobody else gets it before it is mended. What a Gateway asks for and cannot
/// have is left out; [`translate`](fn@crate::translate) says so in its status.
pub fn assign(
    pool: &[IpNet],
    objects: &[Object],
    known: &BTreeMap<GatewayName, Vec<IpAddr>>,
) -> Addresses {
    let mut pool = Pool { networks: pool, taken: BTreeSet::new() };
    let of_ingresses = ingress::gateways(objects);
    let of_ingresses = of_ingresses.iter().map(|it| Asking::of_gateway(it));
    let had = |gateway: &GatewayName| known.get(gateway).map_or(&[][..], Vec::as_slice);
    let hand = |gateway: Asking<'_>| Hand::of(gateway, &pool, had);
    let gateways = our_gateways(objects).into_iter().chain(of_ingresses);
    let mut hands: Vec<_> = gateways.map(hand).collect();
    for hand in &mut hands {
        had(&hand.gateway).iter().for_each(|address| hand.keep(*address, &mut pool));
    }
    hands.iter_mut().for_each(|hand| hand.take_given(&mut pool));
    hands.iter_mut().for_each(|hand| hand.take_any(&mut pool));
    let assigned = hands.into_iter().map(|hand| {
        (hand.gateway, hand.places.into_iter().filter_map(|place| place.address).collect())
    });
    Addresses::Pool { assigned: assigned.collect() }
}

/// A Gateway that asks for addresses.
#[derive(Clone, Copy)]
struct Asking<'a> {
    metadata: &'a Metadata,
    class: Option<&'a str>,
    /// `None`: nobody can read it.
    addresses: Option<&'a [GatewayAddress]>,
}

impl<'a> Asking<'a> {
    fn of_gateway(Resource { metadata, spec, .. }: &'a Resource<GatewaySpec>) -> Self {
        let class = Some(&*spec.gateway_class_name);
        Self { metadata, class, addresses: Some(&spec.addresses) }
    }

    fn of(object: &'a Object) -> Option<Self> {
        if let Object::Gateway(gateway) = object {
            return Some(Self::of_gateway(gateway));
        }
        let Object::Refused(refused) = object else { return None };
        let Resource { metadata, spec, .. } = &**refused;
        let class = spec.class.as_deref();
        (spec.kind == "Gateway").then_some(Self { metadata, class, addresses: None })
    }
}

/// The Gateways of our classes in order of age, each name once.
fn our_gateways(objects: &[Object]) -> Vec<Asking<'_>> {
    let mut classes: BTreeMap<&str, bool> = BTreeMap::new();
    let mut gateways = BTreeMap::new();
    for object in objects {
        if let Object::GatewayClass(class) = object {
            let is_ours = class.spec.controller_name == CONTROLLER;
            classes.entry(&class.metadata.name).or_insert(is_ours);
        }
        if let Some(gateway) = Asking::of(object) {
            let name = (&gateway.metadata.namespace, &gateway.metadata.name);
            gateways.entry(name).or_insert(gateway);
        }
    }
    let is_ours = |gateway: &Asking<'_>| {
        gateway.class.and_then(|class| classes.get(class)).copied().unwrap_or_default()
    };
    let mut ours: Vec<_> = gateways.into_values().filter(is_ours).collect();
    ours.sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
    ours
}

/// A family of addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// The addresses that there are.
struct Pool<'a> {
    networks: &'a [IpNet],
    taken: BTreeSet<IpAddr>,
}

impl Pool<'_> {
    fn has(&self, family: Family) -> bool {
        self.networks.iter().any(|network| Family::of(network.addr()) == family)
    }

    /// Takes an address of the pool if nobody has it.
    fn take(&mut self, address: IpAddr) -> Option<IpAddr> {
        let is_here = self.networks.iter().any(|network| holds(network, address));
        (is_here && self.taken.insert(address)).then_some(address)
    }

    /// The lowest that nobody has. It looks at no more addresses of a network than are taken of it, and one.
    fn lowest(&self, family: Option<Family>) -> Option<IpAddr> {
        let is_meant = |network: &&IpNet| family.is_none_or(|it| it == Family::of(network.addr()));
        let free = |network: &IpNet| {
            let mut addresses = network.hosts().filter(|address| holds(network, *address));
            addresses.find(|address| !self.taken.contains(address))
        };
        self.networks.iter().filter(is_meant).filter_map(free).min()
    }
}

/// Whether an address is one of a network's that a host can have: neither the network's own nor its broadcast address,
/// nor that of all its routers (RFC 4291 §2.6.1).
fn holds(network: &IpNet, address: IpAddr) -> bool {
    let is_special = match network {
        IpNet::V4(it) if it.prefix_len() < 31 => {
            [network.network(), network.broadcast()].contains(&address)
        }
        IpNet::V6(it) if it.prefix_len() < 127 => network.network() == address,
        IpNet::V4(_) | IpNet::V6(_) => false,
    };
    network.contains(&address) && !is_special
}

/// A Gateway while addresses are dealt.
struct Hand {
    gateway: GatewayName,
    places: Vec<Place>,
}

/// One address that a Gateway asks for.
struct Place {
    wish: Wish,
    /// `None`: either.
    family: Option<Family>,
    address: Option<IpAddr>,
}

impl Place {
    fn is_open_to(&self, address: IpAddr) -> bool {
        let is_wished = match self.wish {
            Wish::Given(given) => given == address,
            Wish::Any => self.family.is_none_or(|family| family == Family::of(address)),
        };
        self.address.is_none() && is_wished
    }
}

impl Hand {
    fn of<'k>(
        gateway: Asking<'_>,
        pool: &Pool<'_>,
        had: impl Fn(&GatewayName) -> &'k [IpAddr],
    ) -> Self {
        let name = (gateway.metadata.namespace.clone(), gateway.metadata.name.clone());
        let place = |wish| Place { wish, family: None, address: None };
        let places = match gateway.addresses {
            None => had(&name).iter().map(|address| place(Wish::Given(*address))).collect(),
            Some([]) => {
                let families = [Family::V4, Family::V6].into_iter().filter(|it| pool.has(*it));
                let any = |family| Place { family: Some(family), ..place(Wish::Any) };
                families.map(any).collect()
            }
            Some(asked) => {
                let wishes = asked.iter().filter_map(|asked| Wish::parse(asked).ok());
                wishes.map(place).collect()
            }
        };
        Self { gateway: name, places }
    }

    /// Takes an address that it had, where it still suits: first for who asks for it by value.
    fn keep(&mut self, address: IpAddr, pool: &mut Pool<'_>) {
        let mut open = self.places.iter_mut().filter(|place| place.is_open_to(address));
        let mut first = open.next();
        if first.as_ref().is_some_and(|place| place.wish == Wish::Any) {
            first = open.find(|place| place.wish != Wish::Any).or(first);
        }
        if let Some(place) = first {
            place.address = pool.take(address);
        }
    }

    fn take_given(&mut self, pool: &mut Pool<'_>) {
        for place in self.places.iter_mut().filter(|place| place.address.is_none()) {
            if let Wish::Given(address) = place.wish {
                place.address = pool.take(address);
            }
        }
    }

    fn take_any(&mut self, pool: &mut Pool<'_>) {
        for place in self.places.iter_mut().filter(|place| place.address.is_none()) {
            if place.wish == Wish::Any {
                place.address = pool.lowest(place.family).and_then(|it| pool.take(it));
            }
        }
    }
}
