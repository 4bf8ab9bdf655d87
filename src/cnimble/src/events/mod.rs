//! `events`: observes the signs of attachments (`state`) that the kernel reports (`watch`). Plugins and runtimes aren't
//! asked, so events of every runtime appear.

mod metrics;
mod show;
mod state;
mod watch;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cnimble_cni::Owner;
use cnimble_leases::holder::Holder;
use cnimble_liveness::cache_entries::owner_of;
use cnimble_liveness::data_dirs;
use cnimble_netlink::monitor::{LinkMonitor, LinkNotice};
use cnimble_os::files::Links;
use cnimble_runtime::{Cache, Entry};

use super::args::follow::Events;
use super::output::unwritten;
use super::report::{Exit, Report, usage};
use super::{Session, network};
use metrics::Metrics;
use show::Show;
use state::{About, AddResult, KnownAttachments};
use watch::{Sign, Watch};

/// The greatest size of a lease file that is read.
const LEASE: usize = 4096;

/// The number of reads of the queues after which events are shown, even if new signs keep coming.
const ROUNDS: usize = 32;

const WHAT: &str = "can't follow events";

/// Why the command ends.
enum StopReason {
    /// The reader closed its end of the pipe.
    Unread,
    /// Stdout can't be written.
    Unwritten(io::Error),
    /// The node can't be observed.
    Failed(String),
}

impl From<String> for StopReason {
    fn from(why: String) -> Self {
        StopReason::Failed(why)
    }
}

impl From<io::Error> for StopReason {
    fn from(err: io::Error) -> Self {
        match err.kind() {
            io::ErrorKind::BrokenPipe => StopReason::Unread,
            _ => StopReason::Unwritten(err),
        }
    }
}

/// Prints events until the reader closes the pipe or a signal ends the process.
///
/// # Errors
/// Fails if the given network is unknown, and if the node can't be observed.
pub(super) fn events(session: &Session, given: &Events) -> Result<(), Report> {
    if given.metrics && session.json {
        return Err(usage("--metrics and --json can't be combined").hint("leave one out"));
    }
    let caches = session.caches();
    let data = leases(session, &given.leases.data_dir, &caches);
    let only = given.network.as_deref().map(|name| known(session, name, &caches, &data)).transpose()?;
    let mut follower =
        match Follower::new(caches, data, Show::new(session, only, given.metrics.then(Metrics::default))) {
            Ok(follower) => follower,
            Err(why) => return Err(Report::because(Exit::Files, WHAT, why)),
        };
    match follower.follow() {
        StopReason::Unread => Ok(()),
        StopReason::Unwritten(err) => Err(unwritten(&err)),
        StopReason::Failed(why) => Err(Report::because(Exit::Files, WHAT, why)),
    }
}

/// Follows the signs of attachments and shows the events.
struct Follower {
    watch: Watch,
    caches: Vec<Cache>,
    /// The directories of leases.
    data: BTreeSet<PathBuf>,
    state: KnownAttachments,
    show: Show,
}

impl Follower {
    /// Begins to watch, and takes the current state without events.
    fn new(caches: Vec<Cache>, data: BTreeSet<PathBuf>, show: Show) -> Result<Self, String> {
        let results = caches.iter().map(|cache| cache.dir().join("results")).collect();
        // The watch is complete from here on. The look at the current state follows, so nothing is missed.
        let watch = Watch::new(&results, &data)?;
        let mut follower = Follower { watch, caches, data, state: KnownAttachments::default(), show };
        follower.read_node()?;
        follower.state.take_as_it_is();
        Ok(follower)
    }

    /// Shows events until an error ends that.
    fn follow(&mut self) -> StopReason {
        let outcome = self.show.begin(self.state.attached()).map_err(StopReason::from);
        let outcome = outcome.and_then(|()| {
            loop {
                self.watch.wait().map_err(|err| StopReason::Failed(err.to_string()))?;
                self.round()?;
            }
        });
        match outcome {
            Ok(()) => StopReason::Unread,
            Err(end) => end,
        }
    }

    /// Reads until the queues are empty, and shows the events. If new signs keep coming, it shows the finished ADDs and
    /// DELs but draws no conclusions from what is missing.
    fn round(&mut self) -> Result<(), StopReason> {
        let mut all = false;
        for _ in 0..ROUNDS {
            let signs = self.watch.read()?;
            if signs.is_empty() {
                all = true;
                break;
            }
            for sign in signs {
                self.handle_sign(sign)?;
            }
        }
        let events = if all { self.state.end_round(Instant::now()) } else { self.state.take_events() };
        events.iter().try_for_each(|event| self.show.event(event))?;
        Ok(self.show.round(self.state.attached())?)
    }

    /// Passes a sign to the state. After a loss of notifications it reads everything again.
    fn handle_sign(&mut self, sign: Sign) -> Result<(), StopReason> {
        let now = Instant::now();
        match sign {
            Sign::Link(LinkNotice::Seen(link)) => self.state.link(now, link.index, &link.alias),
            Sign::Link(LinkNotice::Gone { index, alias }) => self.state.no_link(now, index, &alias),
            Sign::Rule(comment) => self.state.rule(now, &comment),
            Sign::File(path) => self.file(now, &path)?,
            Sign::Lost(what) => {
                self.show.lost(what)?;
                self.read_node()?;
            }
        }
        Ok(())
    }

    /// Reads the links, results and leases of the node. Differences since the last look count as signs.
    fn read_node(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let links = LinkMonitor::links().map_err(|err| err.to_string())?;
        for link in &links {
            self.state.link(now, link.index, &link.alias);
        }
        let (entries, leases, known) = self.state.objects();
        let there: BTreeSet<u32> = links.iter().map(|link| link.index).collect();
        known
            .iter()
            .filter(|index| !there.contains(index))
            .for_each(|index| self.state.no_link(now, *index, ""));
        let networks = self.data.iter().flat_map(|dir| watch::children(dir));
        let results = self.caches.iter().map(|cache| cache.dir().join("results"));
        let mut paths: BTreeSet<PathBuf> =
            networks.chain(results).flat_map(|dir| watch::children(&dir)).collect();
        paths.extend(entries.into_iter().chain(leases));
        paths.iter().try_for_each(|path| self.file(now, path))
    }

    /// Reads a result or a lease that was created, changed or removed. Hidden files are ignored, because they are
    /// drafts of an atomic write.
    fn file(&mut self, now: Instant, path: &Path) -> Result<(), String> {
        let Some(dir) = path.parent().filter(|_| !watch::is_hidden(path)) else { return Ok(()) };
        let cache = self.caches.iter().find(|cache| cache.dir().join("results") == dir);
        let outcome = match cache {
            Some(cache) => cache.entry_at(path).map_err(|err| err.to_string()).map(|entry| {
                // An unreadable file is no result yet. Another notification follows when it has been written.
                let identity = std::fs::symlink_metadata(path).ok();
                match (entry, identity) {
                    (Some(entry), Some(meta)) => {
                        let added = AddResult {
                            owner: owner_of(&entry),
                            identity: (meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec()),
                            about: about(&entry),
                        };
                        // The loopback interface belongs to the pod's runtime.
                        if entry.ifname != "lo" {
                            self.state.entry(now, path, added);
                        }
                    }
                    (_, None) => self.state.no_entry(now, path),
                    (None, Some(_)) => {}
                }
            }),
            None => self.lease(now, path),
        };
        outcome.map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Reads a lease. A file whose name is no address is none, and a file of another kind is ignored.
    fn lease(&mut self, now: Instant, path: &Path) -> Result<(), String> {
        let network = path.parent().and_then(file_name).map(str::to_owned);
        let (Some(network), Some(_)) = (network, file_name(path).and_then(cnimble_leases::address)) else {
            return Ok(());
        };
        match cnimble_os::files::read(path, LEASE, Links::Refuse) {
            Ok(bytes) => {
                if let Holder::Attachment(attachment) = Holder::parse(&bytes) {
                    self.state.lease(now, path, Owner { network, attachment });
                }
                Ok(())
            }
            Err(err) if cnimble_os::files::is_absent(&err) => {
                self.state.no_lease(now, path);
                Ok(())
            }
            Err(err) if cnimble_os::files::is_foreign(&err) => Ok(()),
            Err(err) => Err(err.to_string()),
        }
    }
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(|name| name.to_str())
}

/// Returns what an event says about an attachment.
fn about(entry: &Entry) -> About {
    About {
        pod: cnimble_doctor::tree::kubernetes_name(&entry.args),
        netns: entry.namespace().map(str::to_owned),
        addresses: cnimble_doctor::tree::given_addresses(entry),
        ports: cnimble_liveness::cache_entries::published_ports(entry),
    }
}

/// Returns the name of the network that the user names. A network with attachments or leases needs no configuration.
///
/// # Errors
/// Fails if it has none of these.
fn known(
    session: &Session,
    name: &str,
    caches: &[Cache],
    data: &BTreeSet<PathBuf>,
) -> Result<String, Report> {
    match network::load_network(session, name) {
        Ok(list) => Ok(list.name),
        Err(err) => {
            let mut entries = caches.iter().flat_map(|cache| cache.list().unwrap_or_default());
            let is_leased =
                cnimble_cni::names::is_identifier(name) && data.iter().any(|dir| dir.join(name).is_dir());
            if is_leased || entries.any(|entry| entry.network == name) {
                Ok(name.to_owned())
            } else {
                Err(Report::conf(WHAT, &err))
            }
        }
    }
}

/// Returns the given directories of leases, or else the usual one and those of the configured networks and of the
/// recorded ones.
fn leases(session: &Session, given: &[PathBuf], caches: &[Cache]) -> BTreeSet<PathBuf> {
    if !given.is_empty() {
        return given.iter().cloned().collect();
    }
    let listed = session.conf.list().map(|listing| listing.networks).unwrap_or_default();
    let lists = listed.into_iter().map(|network| network.list);
    let entries = caches.iter().flat_map(|cache| cache.list().unwrap_or_default());
    let lists = lists.chain(entries.filter_map(|entry| entry.network_list().ok()));
    let mut dirs: BTreeSet<PathBuf> = lists.flat_map(|list| data_dirs(&list)).collect();
    dirs.insert(PathBuf::from(cnimble_leases::config::DATA_DIR));
    dirs
}
