//! What a pod's root does to its links.

use std::fmt::Write as _;

use super::mallory::Mallory;

/// The hostile pod's attachment.
pub(super) struct Own {
    /// The host's end.
    pub(super) port: String,
    pub(super) ip: String,
    pub(super) mac: String,
    pub(super) index: u64,
}

/// A link of the host that is imitated.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) index: u64,
    /// The index of its peer, in the peer's namespace.
    pub(super) peer: u64,
    pub(super) mac: String,
    pub(super) alias: String,
}

/// A new pair with both indices of the target's pair, and with the MAC and the address that the pod had.
pub(super) fn imitation(own: &Own, target: &Target, mallory: &Mallory) -> String {
    let Own { ip, mac, .. } = own;
    let Target { index, peer, .. } = target;
    let nested = mallory.nested()[0];
    format!(
        "ip link del eth0
         ip link add eth0 index {peer} address {mac} type veth peer name zz index {index} netns {nested}
         ip addr add {ip}/24 dev eth0
         ip link set eth0 up"
    )
}

/// A splitmix64 generator, with the same sequence for the same seed.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Chance(seed)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// True in one of `of` cases.
    fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Deleted,
    Renamed,
    Nested,
    Kept,
}

#[derive(Clone, Copy)]
enum Kind {
    Veth,
    /// On a link of a nested namespace that has the target's index.
    Macvlan,
    Bridge,
    Dummy,
}

/// A combination.
pub(super) struct Deed {
    /// Of the interface that ADD made.
    fate: Fate,
    kind: Kind,
    index: Option<u64>,
    peer_index: Option<u64>,
    name: String,
    peer_name: String,
    /// The peer's namespace: the pod's own, or a nested one.
    peer_in: Option<usize>,
    mac: Option<String>,
    alias: String,
    mtu: Option<u32>,
    address: Option<String>,
    route: Option<&'static str>,
}

/// What is chosen before the attachment is known.
const OWN: &str = "OWN";

impl Deed {
    pub(super) fn by_chance(chance: &mut Chance, target: &Target) -> Self {
        let kinds =
            [Kind::Veth, Kind::Veth, Kind::Veth, Kind::Veth, Kind::Macvlan, Kind::Bridge, Kind::Dummy];
        let fates = [Fate::Deleted, Fate::Deleted, Fate::Renamed, Fate::Nested, Fate::Kept];
        let some = |chance: &mut Chance, of, value: u64| {
            if chance.once_in(of) { Some(100 + chance.below(900) as u64) } else { Some(value) }
        };
        let text = |chance: &mut Chance, from: &[&str]| (*chance.pick(from)).to_owned();
        Deed {
            fate: *chance.pick(&fates),
            kind: *chance.pick(&kinds),
            index: some(chance, 4, target.peer).filter(|_| !chance.once_in(8)),
            peer_index: some(chance, 4, target.index).filter(|_| !chance.once_in(8)),
            name: text(chance, &["eth0", "eth0", "eth0", "eth0", "net1", &target.name]),
            peer_name: text(chance, &["zz", &target.name, "eth0", "br4", "up0"]),
            peer_in: Some(chance.below(2)).filter(|_| !chance.once_in(5)),
            mac: match chance.below(6) {
                0 => None,
                1 => Some(target.mac.clone()),
                2 => Some("02:00:00:00:00:99".to_owned()),
                _ => Some(OWN.to_owned()),
            },
            alias: text(chance, &["", &target.alias, OWN, "x", &target.name]),
            mtu: *chance.pick(&[None, None, Some(68), Some(1280), Some(9000)]),
            address: match chance.below(5) {
                0 => None,
                1 => Some("10.7.0.2/24".to_owned()),
                2 => Some("10.230.1.2/32".to_owned()),
                _ => Some(OWN.to_owned()),
            },
            route: *chance.pick(&[
                None,
                Some("default dev"),
                Some("10.7.0.0/24 dev"),
                Some("10.230.0.0/16 dev"),
            ]),
        }
    }

    pub(super) fn script(&self, own: &Own, target: &Target, mallory: &Mallory) -> String {
        let nested = mallory.nested();
        let mut script = match self.fate {
            Fate::Deleted => "ip link del eth0\n".to_owned(),
            Fate::Renamed => "ip link set eth0 down; ip link set eth0 name old\n".to_owned(),
            Fate::Nested => format!("ip link set eth0 netns {}\n", nested[0]),
            Fate::Kept => String::new(),
        };
        let mut named = String::new();
        if let Some(index) = self.index {
            let _ = write!(named, " index {index}");
        }
        if let Some(mac) = &self.mac {
            let _ = write!(named, " address {}", if mac == OWN { &own.mac } else { mac });
        }
        if let Some(mtu) = self.mtu {
            let _ = write!(named, " mtu {mtu}");
        }
        let name = &self.name;
        let peer_index = self.peer_index.map(|index| format!(" index {index}")).unwrap_or_default();
        let pid = mallory.pid();
        match self.kind {
            Kind::Veth => {
                let peer_in = self.peer_in.map(|at| format!(" netns {}", nested[at])).unwrap_or_default();
                let peer = &self.peer_name;
                let _ = writeln!(
                    script,
                    "ip link add {name}{named} type veth peer name {peer}{peer_index}{peer_in}"
                );
            }
            Kind::Macvlan => {
                let inner = nested[self.peer_in.unwrap_or_default()];
                let _ = writeln!(
                    script,
                    "nsenter --net=/proc/{inner}/ns/net sh -c 'ip link add low{peer_index} type bridge
                     ip link add link low name m0{named} type macvlan mode bridge
                     ip link set m0 netns {pid}'
                     ip link set m0 name {name}"
                );
            }
            Kind::Bridge => drop(writeln!(script, "ip link add {name}{named} type bridge")),
            Kind::Dummy => drop(writeln!(script, "ip link add {name}{named} type dummy")),
        }
        let alias =
            if self.alias == OWN { format!("{}, {}", own.port, own.index) } else { self.alias.clone() };
        let _ = writeln!(script, "ip link set {name} alias '{alias}'");
        if let Some(address) = &self.address {
            let address = if address == OWN { format!("{}/24", own.ip) } else { address.clone() };
            let _ = writeln!(script, "ip addr add {address} dev {name}");
        }
        let _ = writeln!(script, "ip link set {name} up # as {} of the host", target.name);
        if let Some(route) = self.route {
            let _ = writeln!(script, "ip route add {route} {name}");
        }
        script
    }
}
