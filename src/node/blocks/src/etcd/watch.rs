//! Watches the owners of blocks, those of single addresses, and the nodes' addresses.

use std::net::IpAddr;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchStream};

use cnimble_cni::names;

use super::keys::ip;
use super::{Entry, Etcd, away, failed, in_time, parse};
use crate::Result;
use crate::record::{Change, Host, Owner};
use crate::store::Watch;
use crate::watch::LOOK;

/// The subject of a watch.
#[derive(Debug, Clone, Copy)]
enum List {
    Blocks,
    Singles,
    Hosts,
}

impl List {
    /// Reads a changed key or its removal. An invalid value counts as none. Returns `None` for an invalid key.
    fn change(self, entry: &Entry, event: EventType) -> Option<Change> {
        let first: Option<IpAddr> = ip(&entry.key);
        Some(match self {
            List::Blocks => Change::Block(first?, read_owner(entry, event)),
            List::Singles => Change::Single(first?, read_owner(entry, event)),
            List::Hosts => {
                let name = entry.key.rsplit('/').next().filter(|name| names::is_identifier(name))?;
                let host = parse::<Host>(entry).ok().filter(|_| event == EventType::Put);
                Change::Host(name.to_owned(), host.map(|host| host.ips))
            }
        })
    }
}

/// Returns the owner that an entry has after the event. An invalid one counts as none.
fn read_owner(entry: &Entry, event: EventType) -> Option<Owner> {
    parse::<Owner>(entry).ok().filter(|_| event == EventType::Put)
}

/// The three watches.
pub(crate) struct Streams {
    blocks: WatchStream,
    singles: WatchStream,
    hosts: WatchStream,
}

impl Streams {
    /// Passes the present state to `take`, and watches from there on.
    pub(super) async fn begin(session: &mut Etcd, mut take: impl FnMut(Change)) -> Result<Self> {
        let keys = session.keys.clone();
        let mut stream = async |list: List, prefix: String| {
            let revision = session
                .read_each(&prefix, |entry| {
                    list.change(&entry, EventType::Put).into_iter().for_each(&mut take);
                })
                .await?;
            let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
            in_time("answer", session.client.watch(prefix, Some(options))).await
        };
        Ok(Streams {
            blocks: stream(List::Blocks, keys.blocks()).await?,
            singles: stream(List::Singles, keys.singles()).await?,
            hosts: stream(List::Hosts, keys.hosts()).await?,
        })
    }
}

impl Watch for Streams {
    /// Returns the shortest time, because a member without a quorum reports nothing.
    fn read_again(&self) -> Duration {
        LOOK
    }

    async fn next(&mut self) -> Result<(Vec<Change>, Option<i64>)> {
        let (list, message) = tokio::select! {
            message = self.blocks.message() => (List::Blocks, message),
            message = self.singles.message() => (List::Singles, message),
            message = self.hosts.message() => (List::Hosts, message),
        };
        let message = message.map_err(|err| failed(&err))?.ok_or_else(|| away("it ends the watch"))?;
        if message.canceled() {
            return Err(away(format!("it ends the watch: {}", message.cancel_reason())));
        }
        let events = message.events().iter();
        let changes = events.filter_map(|event| list.change(&Entry::from(event.kv()?), event.event_type()));
        Ok((changes.collect(), message.header().map(etcd_client::ResponseHeader::revision)))
    }
}
