//! A DHCPv6 server that a test plays. It records messages.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cnimble_tests::{Ns, PATIENCE, wait_until};

pub(crate) const SOLICIT: u8 = 1;
pub(crate) const REQUEST: u8 = 3;
pub(crate) const RENEW: u8 = 5;
pub(crate) const REBIND: u8 = 6;
pub(crate) const RELEASE: u8 = 8;
pub(crate) const DECLINE: u8 = 9;
const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;

#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) kind: u8,
    pub(crate) duid: Vec<u8>,
    /// The message is for this server.
    pub(crate) server: Option<Vec<u8>>,
    pub(crate) address: Option<Ipv6Addr>,
    pub(crate) options: BTreeMap<u16, Vec<u8>>,
    xid: [u8; 3],
}

fn options(mut bytes: &[u8]) -> BTreeMap<u16, Vec<u8>> {
    let mut all = BTreeMap::new();
    while let [a, b, c, d, rest @ ..] = bytes {
        let (value, behind) = rest.split_at(usize::from(u16::from_be_bytes([*c, *d])));
        all.insert(u16::from_be_bytes([*a, *b]), value.to_vec());
        bytes = behind;
    }
    all
}

impl Said {
    fn parse(bytes: &[u8]) -> Said {
        let options = options(&bytes[4..]);
        let address = self::options(&options[&3][12..]).get(&5).map(|value| {
            let octets: [u8; 16] = value[..16].try_into().unwrap();
            Ipv6Addr::from(octets)
        });
        let xid = bytes[1..4].try_into().unwrap();
        let (duid, server) = (options[&1].clone(), options.get(&2).cloned());
        Said { kind: bytes[0], duid, server, address, options, xid }
    }
}

/// A test may change it at any time.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    /// Each DUID gets its own, counted from here.
    pub(crate) first: Ipv6Addr,
    pub(crate) seconds: u32,
    /// T1 and T2 in seconds.
    pub(crate) times: (u32, u32),
    pub(crate) silent: bool,
    pub(crate) preference: u8,
    /// Commits at once if the client allows it.
    pub(crate) rapid: bool,
    /// An IA's status, and the messages that get it.
    pub(crate) refuses: Option<(u16, &'static [u8])>,
    /// Invalid answers come first.
    pub(crate) babbles: bool,
    pub(crate) more: Vec<(u16, Vec<u8>)>,
}

impl Manner {
    pub(crate) fn new(first: Ipv6Addr, seconds: u32) -> Manner {
        Manner {
            first,
            seconds,
            times: (0, 0),
            silent: false,
            preference: 255,
            rapid: false,
            refuses: None,
            babbles: false,
            more: Vec::new(),
        }
    }

    fn answers(&self, own: &[u8], said: &Said, clients: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        // The message is for another server.
        if self.silent || said.server.as_ref().is_some_and(|server| server != own) {
            return Vec::new();
        }
        let rapid = self.rapid && said.options.contains_key(&14);
        let kind = if said.kind == SOLICIT && !rapid { ADVERTISE } else { REPLY };
        let number = clients.iter().position(|known| *known == said.duid).unwrap_or_else(|| {
            clients.push(said.duid.clone());
            clients.len() - 1
        });
        let address = Ipv6Addr::from(u128::from(self.first) + u128::try_from(number).unwrap());
        let mut bytes = vec![kind];
        bytes.extend(said.xid);
        bytes.extend(option(1, &said.duid));
        bytes.extend(option(2, own));
        if kind == ADVERTISE {
            bytes.extend(option(7, &[self.preference]));
        }
        if rapid {
            bytes.extend(option(14, &[]));
        }
        let mut ia = said.options[&3][..4].to_vec();
        ia.extend([self.times.0, self.times.1].map(u32::to_be_bytes).concat());
        match self.refuses {
            Some((status, kinds)) if kinds.contains(&said.kind) => {
                ia.extend(option(13, &[&status.to_be_bytes()[..], b"so it is"].concat()));
            }
            _ if matches!(said.kind, RELEASE | DECLINE) => {}
            _ => {
                // The earlier address is taken back.
                if let Some(old) = said.address.filter(|old| *old != address) {
                    ia.extend(option(5, &[&old.octets()[..], &[0; 8]].concat()));
                }
                let times = [self.seconds; 2].map(u32::to_be_bytes).concat();
                ia.extend(option(5, &[&address.octets()[..], &times].concat()));
            }
        }
        bytes.extend(option(3, &ia));
        for (code, value) in &self.more {
            bytes.extend(option(*code, value));
        }
        let mut all = if self.babbles { babble(&bytes) } else { Vec::new() };
        all.push(bytes);
        all
    }
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap();
    [&code.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}

/// Cut off, of another type, transaction, client or server, or with endless options.
fn babble(answer: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = vec![Vec::new(), vec![0xff; 1000]];
    all.extend((1..30).map(|length| answer[..length].to_vec()));
    for at in [0, 1, 3, 4, 8, 12] {
        let mut other = answer.to_vec();
        other[at] ^= 0xff;
        all.push(other);
    }
    let mut endless = answer[..4].to_vec();
    endless.extend([0, 1, 0xff, 0xff]);
    all.push(endless);
    all
}

pub(crate) struct Server {
    manner: Arc<Mutex<Manner>>,
    said: Arc<Mutex<Vec<Said>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// On `link` in `ns`.
    pub(crate) fn start(ns: &Ns, link: &str, own: &'static [u8], manner: Manner) -> Server {
        let index = ns.link(link)["ifindex"].as_u64().and_then(|index| u32::try_from(index).ok()).unwrap();
        let socket = ns.within(|| {
            let socket = UdpSocket::bind(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 547, 0, 0)).unwrap();
            socket.join_multicast_v6(&"ff02::1:2".parse().unwrap(), index).unwrap();
            socket
        });
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (manner, said) = (Arc::new(Mutex::new(manner)), Arc::new(Mutex::new(Vec::new())));
        let stop = Arc::new(AtomicBool::new(false));
        let (its_manner, its_said, its_stop) = (Arc::clone(&manner), Arc::clone(&said), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (mut buffer, mut clients) = ([0; 2048], Vec::new());
            while !its_stop.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                let said = Said::parse(&buffer[..length]);
                its_said.lock().unwrap().push(said.clone());
                let manner = its_manner.lock().unwrap().clone();
                for answer in manner.answers(own, &said, &mut clients) {
                    // The client may have exited.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Server { manner, said, stop, thread: Some(thread) }
    }

    pub(crate) fn now(&self, change: impl FnOnce(&mut Manner)) {
        change(&mut self.manner.lock().unwrap());
    }

    pub(crate) fn said(&self, kind: u8) -> Vec<Said> {
        self.said.lock().unwrap().iter().filter(|said| said.kind == kind).cloned().collect()
    }

    /// Returns the last of this many messages.
    #[track_caller]
    pub(crate) fn wait(&self, kind: u8, times: usize) -> Said {
        let mut said = Vec::new();
        let enough = wait_until(PATIENCE, || {
            said = self.said(kind);
            said.len() >= times
        });
        assert!(enough, "{:?}", self.said.lock().unwrap());
        said.pop().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
