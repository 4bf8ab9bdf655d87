//! A DHCP server that a test plays. It can misbehave, and records messages.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cnimble_tests::{Ns, PATIENCE, wait_until};

pub(crate) const DISCOVER: u8 = 1;
pub(crate) const OFFER: u8 = 2;
pub(crate) const REQUEST: u8 = 3;
pub(crate) const DECLINE: u8 = 4;
pub(crate) const ACK: u8 = 5;
pub(crate) const NAK: u8 = 6;
pub(crate) const RELEASE: u8 = 7;

#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) kind: u8,
    /// The field `ciaddr`.
    pub(crate) has: Ipv4Addr,
    /// The field `chaddr`.
    pub(crate) mac: [u8; 6],
    pub(crate) options: BTreeMap<u8, Vec<u8>>,
    bytes: Vec<u8>,
}

impl Said {
    fn parse(bytes: &[u8]) -> Said {
        let mut options = BTreeMap::new();
        let mut rest = &bytes[240..];
        while let [code, length, tail @ ..] = rest {
            if *code == 255 {
                break;
            }
            let (value, tail) = tail.split_at(usize::from(*length));
            options.insert(*code, value.to_vec());
            rest = tail;
        }
        let has = <[u8; 4]>::try_from(&bytes[12..16]).unwrap().into();
        let mac = bytes[28..34].try_into().unwrap();
        Said { kind: options[&53][0], has, mac, options, bytes: bytes.to_vec() }
    }
}

/// A test may change it at any time.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    /// Each client ID gets its own, counted from here.
    pub(crate) first: Ipv4Addr,
    /// Of the subnet mask.
    pub(crate) prefix: u8,
    pub(crate) seconds: u32,
    /// T1 and T2 in seconds, if they are sent.
    pub(crate) times: Option<(u32, u32)>,
    pub(crate) silent: bool,
    pub(crate) refuses: bool,
    /// Invalid answers come first.
    pub(crate) babbles: bool,
    pub(crate) more: Vec<(u8, Vec<u8>)>,
}

pub(crate) struct Server {
    pub(crate) manner: Arc<Mutex<Manner>>,
    said: Arc<Mutex<Vec<Said>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// In a network of 24 bits.
    pub(crate) fn start(ns: &Ns, own: Ipv4Addr, manner: Manner) -> Server {
        let socket = ns.within(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).unwrap();
            socket.set_broadcast(true).unwrap();
            socket
        });
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (manner, said) = (Arc::new(Mutex::new(manner)), Arc::new(Mutex::new(Vec::new())));
        let stop = Arc::new(AtomicBool::new(false));
        let (its_manner, its_said, its_stop) = (Arc::clone(&manner), Arc::clone(&said), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (mut buffer, mut clients) = ([0; 2048], Vec::new());
            while !its_stop.load(Ordering::Relaxed) {
                let Ok(length) = socket.recv(&mut buffer) else { continue };
                let said = Said::parse(&buffer[..length]);
                its_said.lock().unwrap().push(said.clone());
                let manner = its_manner.lock().unwrap().clone();
                let [a, b, c, _] = own.octets();
                let all = SocketAddr::from(([a, b, c, 255], 68));
                for answer in manner.answers(own, &said, &mut clients) {
                    socket.send_to(&answer, all).unwrap();
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

    /// Until clients have sent this many.
    #[track_caller]
    pub(crate) fn wait(&self, kind: u8, times: usize) -> Said {
        assert!(wait_until(PATIENCE, || self.said(kind).len() >= times), "{:?}", self.said.lock().unwrap());
        self.said(kind).pop().unwrap()
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

impl Manner {
    pub(crate) fn new(first: Ipv4Addr, seconds: u32) -> Manner {
        let more = Vec::new();
        let prefix = 24;
        Manner { first, prefix, seconds, times: None, silent: false, refuses: false, babbles: false, more }
    }

    fn answers(&self, own: Ipv4Addr, said: &Said, clients: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        if self.silent {
            return Vec::new();
        }
        // For another server's offer.
        if said.options.get(&54).is_some_and(|server| *server != own.octets()) {
            return Vec::new();
        }
        let kind = match said.kind {
            DISCOVER => OFFER,
            REQUEST if self.refuses => NAK,
            REQUEST => ACK,
            _ => return Vec::new(),
        };
        let id = said.options.get(&61).cloned().unwrap_or_default();
        let number = clients.iter().position(|known| *known == id).unwrap_or_else(|| {
            clients.push(id);
            clients.len() - 1
        });
        let address = Ipv4Addr::from(u32::from(self.first) + u32::try_from(number).unwrap());
        let mut options = vec![(53, vec![kind]), (54, own.octets().to_vec())];
        if kind != NAK {
            let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
            options.push((1, mask.to_be_bytes().to_vec()));
            options.push((51, self.seconds.to_be_bytes().to_vec()));
            if let Some((renew, rebind)) = self.times {
                options.push((58, renew.to_be_bytes().to_vec()));
                options.push((59, rebind.to_be_bytes().to_vec()));
            }
            options.extend(self.more.iter().cloned());
        }
        let mut bytes = said.bytes[..240].to_vec();
        bytes[0] = 2;
        if kind != NAK {
            bytes[16..20].copy_from_slice(&address.octets());
        }
        for (code, value) in options {
            bytes.extend([code, u8::try_from(value.len()).unwrap()]);
            bytes.extend(value);
        }
        bytes.push(255);
        let mut all = if self.babbles { babble(&bytes) } else { Vec::new() };
        all.push(bytes);
        all
    }
}

fn babble(answer: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = vec![Vec::new(), vec![0xff; 1000], answer[..241].to_vec()];
    // Another transaction, client, cookie, no address, and options without an end.
    for at in [4, 28, 236, 16] {
        let mut other = answer.to_vec();
        other[at] ^= if at == 16 { answer[16] } else { 0xff };
        all.push(other);
    }
    let mut endless = answer[..answer.len() - 1].to_vec();
    endless.extend([119, 255, 0xc0]);
    endless[19] = 0;
    endless[16] = 240;
    all.push(endless);
    all
}
