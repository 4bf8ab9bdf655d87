//! Compares the runtime's sandboxes with the kernel, the leases and the caches. The runtime works meanwhile, so a
//! finding counts only if two examinations have it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnimble_cni::{Attachment, Error};
use cnimble_leases::config;
use cnimble_leases::holder::Holder;
use cnimble_liveness::cache_entries::JudgedEntry;
use cnimble_liveness::leases::{JudgedLease, Network};
use cnimble_liveness::node::Node;
use cnimble_liveness::runtime::{Detail, Runtime, Sandbox};
use cnimble_liveness::{DEFAULT_PODS_CACHE_DIR, inside, young};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_os::shell;
use cnimble_runtime::{Cache, DEFAULT_CACHE_DIR, Entry};

use super::attachments::{Compared, REPLACE};
use super::{Doctor, Finding, FindingKind, FindingRepair, Subject, cache_entries};

/// The pause between two examinations. It is longer than the steps in which a runtime creates or removes a sandbox.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// The name of a pod's interface under CRI runtimes.
const INTERFACE: &str = "eth0";

/// Returns the names of pods by container ID, from the runtime or else from the cache.
pub(super) fn pods(node: &Node) -> BTreeMap<String, String> {
    let cached =
        node.entries.iter().filter_map(|known| Some((known.entry.container_id.clone(), pod_of(known)?)));
    let listed = node.sandboxes.iter().flat_map(BTreeMap::values).map(|of| (of.id.clone(), of.pod.clone()));
    cached.chain(listed).collect()
}

/// Returns `NAMESPACE/NAME` of a Kubernetes pod. It returns `None` for other pods, and for names with control
/// characters, which could steer a terminal.
fn pod_of(known: &JudgedEntry) -> Option<String> {
    Some(format!("{}/{}", argument(known, "K8S_POD_NAMESPACE")?, argument(known, "K8S_POD_NAME")?))
}

/// Returns an argument of the ADD. It returns `None` for a value with control characters.
fn argument<'k>(known: &'k JudgedEntry, wanted: &str) -> Option<&'k str> {
    let (_, value) = known.entry.args.iter().find(|(key, _)| key == wanted)?;
    Some(value.as_str()).filter(|value| !value.contains(char::is_control))
}

/// Returns the findings about sandboxes, and texts about those that could not be looked into. The result is empty if no
/// runtime is asked. A finding is reported only if a second examination, after a pause, has it, too.
pub(super) async fn compare(doctor: &Doctor<'_>, node: &Node) -> Result<Compared, Error> {
    let mut first = compare_once(doctor, node)?;
    if first.findings.is_empty() {
        return Ok(first);
    }
    tokio::time::sleep(PAUSE).await;
    let second = compare_once(doctor, &Node::look(&doctor.evidence)?)?;
    first.findings.retain(|finding| second.findings.iter().any(|again| again.is_again(finding)));
    for why in second.unchecked {
        if !first.unchecked.contains(&why) {
            first.unchecked.push(why);
        }
    }
    Ok(first)
}

/// Does the same as [`compare`] with one examination, which can meet a sandbox while the runtime changes it.
pub(super) fn compare_once(doctor: &Doctor<'_>, node: &Node) -> Result<Compared, Error> {
    match doctor.evidence.runtime.as_deref() {
        Some(runtime) => {
            let bare_results = cache_entries::bare_results(doctor)?;
            SandboxExamination { doctor, node, runtime, bare_results }.compare()
        }
        None => Ok(Compared::default()),
    }
}

/// One examination of the sandboxes.
struct SandboxExamination<'a> {
    doctor: &'a Doctor<'a>,
    node: &'a Node,
    runtime: &'a dyn Runtime,
    /// The bare results in the caches.
    bare_results: Vec<PathBuf>,
}

impl SandboxExamination<'_> {
    fn compare(&self) -> Result<Compared, Error> {
        let mut compared = Compared::default();
        for sandbox in self.node.sandboxes.iter().flat_map(BTreeMap::values) {
            match self.runtime.sandbox(&sandbox.id)? {
                Some(detail) if detail.host_network || detail.ready != sandbox.ready => {}
                Some(detail) if detail.ready => self.ready(sandbox, &detail, &mut compared),
                Some(_) => compared.findings.extend(self.unready(sandbox)),
                // The sandbox was removed after the listing.
                None => {}
            }
        }
        let caches = self.caches();
        let of_runtime = self.node.entries.iter().filter(|known| caches.contains(known.cache.as_path()));
        for known in of_runtime {
            match self.gone(known) {
                Ok(found) => compared.findings.extend(found),
                Err(err) => compared.unchecked.push(format!(
                    "whether {} of {} still has its namespace: {err}",
                    known.entry.ifname, known.entry.container_id
                )),
            }
        }
        Ok(compared)
    }

    /// Returns the doctor's cache, and those with a listed sandbox. The pods of any other cache can be another
    /// runtime's.
    fn caches(&self) -> BTreeSet<&Path> {
        let of_sandboxes =
            self.node.entries.iter().filter(|known| self.node.is_listed(&known.entry.container_id, true));
        let caches = of_sandboxes.map(|known| known.cache.as_path());
        caches.chain([self.doctor.invoker.cache().dir()]).collect()
    }

    /// Returns the cache entries of a sandbox, without loopback's.
    fn entries(&self, id: &str) -> Vec<&JudgedEntry> {
        let of_sandbox = self.node.entries.iter().filter(|known| known.entry.container_id == id);
        of_sandbox.filter(|known| known.entry.ifname != "lo").collect()
    }

    /// Returns the leases of a sandbox.
    fn leases(&self, id: &str) -> impl Iterator<Item = (&Network, &JudgedLease)> {
        self.node.leases.all().filter(move |(_, lease)| lease.container() == Some(id))
    }

    /// Adds the findings about a ready sandbox.
    fn ready(&self, sandbox: &Sandbox, detail: &Detail, compared: &mut Compared) {
        let entries = self.entries(&sandbox.id);
        let cached = entries.iter().find_map(|known| known.entry.namespace()).map(PathBuf::from);
        let Some(netns) = detail.netns.clone().or(cached) else {
            let why = "neither the runtime nor a result cache that was read names its namespace";
            return compared.unchecked.push(format!("pod {}: {why}", sandbox.pod));
        };
        match compare_addresses(sandbox, detail, &netns, &entries) {
            Ok(None) => {}
            Ok(Some(found)) => {
                let is_lost = found.kind == FindingKind::SandboxInterface;
                compared.findings.push(found);
                if is_lost {
                    return;
                }
            }
            Err(err) => return compared.unchecked.push(format!("pod {}: {err}", sandbox.pod)),
        }
        if entries.is_empty() && self.has_bare_result(&sandbox.id) {
            let why = "its record is a bare result of libcni before 0.8";
            compared.unchecked.push(format!("pod {}: {why}", sandbox.pod));
        } else if entries.is_empty() && !self.node.blind.is_empty() {
            let why = "no result cache that was read has its ADD, and some records could not be read";
            compared.unchecked.push(format!("pod {}: {why}", sandbox.pod));
        } else if entries.is_empty() {
            let why = "the sandbox is Ready, and no result cache that was read has its ADD: its DEL may have no \
                       result to go by";
            let remedy =
                "if the runtime has no cache elsewhere, delete the pod; --repair removes what is known here";
            let found = finding(FindingKind::SandboxWithoutEntry, sandbox, &entries, why.to_owned(), remedy);
            compared.findings.push(found);
        }
        for known in entries.iter().filter(|known| is_of_leases(known)) {
            let mut unleased = known.addrs();
            unleased.retain(|ip| !self.is_leased(known, *ip));
            for ip in unleased.extract_if(.., |ip| self.has_unread_lease(*ip)) {
                compared.unchecked.push(format!("pod {}: the lease file of {ip} can't be read", sandbox.pod));
            }
            if !unleased.is_empty() {
                let why = format!(
                    "the sandbox is Ready, and without a lease: {}; another pod may get it",
                    joined(&unleased)
                );
                let remedy = "host-state puts it back; else delete the pod before another gets its address";
                let found = finding(FindingKind::SandboxWithoutLease, sandbox, &[known], why, remedy);
                compared.findings.push(found);
            }
        }
    }

    /// Returns whether the name of a bare result has the sandbox's ID. A DEL goes by such a record.
    fn has_bare_result(&self, id: &str) -> bool {
        let part = format!("-{id}-");
        let mut names = self.bare_results.iter().filter_map(|path| path.file_name());
        names.any(|name| name.to_string_lossy().contains(&part))
    }

    /// Returns whether the sandbox has a lease of this address.
    fn is_leased(&self, known: &JudgedEntry, ip: IpAddr) -> bool {
        let mut leases = self.leases(&known.entry.container_id);
        leases.any(|(_, lease)| lease.held.as_ref().is_some_and(|(held, _)| *held == ip))
    }

    /// Returns whether a lease file of this address can't be read. It may be anybody's.
    fn has_unread_lease(&self, ip: IpAddr) -> bool {
        self.node.leases.all().any(|(_, lease)| lease.held == Some((ip, Holder::Unknown)))
    }

    /// Returns the finding about a sandbox that is not ready and has leases.
    fn unready(&self, sandbox: &Sandbox) -> Option<Finding> {
        let held: Vec<IpAddr> =
            self.leases(&sandbox.id).filter_map(|(_, lease)| Some(lease.held.as_ref()?.0)).collect();
        let why = format!("the sandbox is NotReady and holds a lease: {}", joined(&held));
        let remedy = "the kubelet stops it, or `cnimble cri down` with the same --socket does";
        let entries = self.entries(&sandbox.id);
        (!held.is_empty()).then(|| finding(FindingKind::SandboxLease, sandbox, &entries, why, remedy))
    }

    /// Returns the finding about an entry whose namespace exists although the runtime has no sandbox for it. An entry
    /// within the grace period is left out.
    ///
    /// # Errors
    /// Fails if the kernel can't tell whether the namespace exists.
    fn gone(&self, known: &JudgedEntry) -> Result<Option<Finding>, Error> {
        let Some(pod) = pod_of(known) else { return Ok(None) };
        let id = &known.entry.container_id;
        if known.entry.ifname == "lo" || self.node.is_listed(id, true) {
            return Ok(None);
        }
        // A runtime lists a sandbox only after its ADD, so a young entry proves nothing.
        let path = Cache::new(&known.cache).path(known.entry.key());
        if young(&path, self.doctor.evidence.grace).is_some() || known.namespace()?.is_none() {
            return Ok(None);
        }
        let sandbox = Sandbox { id: id.clone(), pod, ready: false };
        let why = "the runtime lists no such sandbox, and its namespace is there".to_owned();
        let remedy = "detach it by `cnimble del`, if nothing uses it";
        let mut finding = finding(FindingKind::SandboxGone, &sandbox, &[known], why, remedy);
        finding.doubt =
            Some(format!("something may use it; if not, `{}` detaches it", del_command(self.doctor, known)));
        Ok(Some(finding))
    }
}

/// Returns the finding about a ready sandbox that has lost its namespace or an interface, or that has another address
/// than its runtime reports.
///
/// # Errors
/// Fails if the namespace can't be read; then nothing is known.
fn compare_addresses(
    sandbox: &Sandbox,
    detail: &Detail,
    netns: &Path,
    entries: &[&JudgedEntry],
) -> Result<Option<Finding>, Error> {
    // A device that a program of the pod drives itself (DPDK) is no interface of the kernel.
    let in_kernel = entries.iter().filter(|known| !inside::is_without_mac(&known.entry));
    let names: Vec<&str> = match entries {
        [] => vec![INTERFACE],
        _ => in_kernel.map(|known| known.entry.ifname.as_str()).collect(),
    };
    let kernel = match look_inside(netns, &names)? {
        Ok(kernel) => kernel,
        Err(why) => return Ok(Some(finding(FindingKind::SandboxInterface, sandbox, entries, why, REPLACE))),
    };
    let lost: Vec<&IpAddr> = detail.ips.iter().filter(|ip| !kernel.contains(ip)).collect();
    if lost.is_empty() || names.len() < entries.len() {
        return Ok(None);
    }
    let why = format!("the runtime's IP is not the kernel's: {} and {}", joined(&lost), joined(&kernel));
    Ok(Some(finding(FindingKind::SandboxAddress, sandbox, entries, why, REPLACE)))
}

/// Returns the addresses of all interfaces, without those of loopback and IPv6 link-local ones. The inner error is a text about the
/// first of `names` that is missing. The runtime's address can be on an interface whose record could not be read.
///
/// # Errors
/// Fails if the kernel can't be asked.
fn look_inside(netns: &Path, names: &[&str]) -> Result<Result<Vec<IpAddr>, String>, Error> {
    let mut inside = match NetNs::open(netns).and_then(|netns| Netlink::open_bounded(&netns)) {
        Err(err) if err.is_missing() => {
            return Ok(Err(format!(
                "the sandbox is Ready, and its namespace {} is not there",
                netns.display()
            )));
        }
        opened => opened?,
    };
    for name in names {
        if inside.find_link(name)?.is_none() {
            return Ok(Err(format!("the sandbox is Ready and has no {name}")));
        }
    }
    let mut ips: Vec<IpAddr> = inside.all_addrs()?.into_iter().map(|addr| addr.net.ip()).collect();
    ips.retain(|ip| !ip.is_loopback() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    Ok(Ok(ips))
}

/// Returns the command that deletes the attachment of an entry. It names the directories that are not the usual ones,
/// because a DEL with other plugins or another cache would leave the attachment. A pod of `cnimble pod` has a record of
/// its own, which only its own command ends.
pub(super) fn del_command(doctor: &Doctor<'_>, known: &JudgedEntry) -> String {
    if known.cache == Path::new(DEFAULT_PODS_CACHE_DIR)
        && let Some(pod) = pod_of(known)
    {
        return format!("cnimble pod down {pod}");
    }
    let Entry { network, container_id, ifname, .. } = &known.entry;
    let mut command = format!("cnimble del {network} --container-id {container_id}");
    if ifname != INTERFACE {
        command += &format!(" -i {ifname}");
    }
    if known.cache != Path::new(DEFAULT_CACHE_DIR) {
        command += &shell::option("--cache-dir", known.cache.as_os_str());
    }
    command + doctor.options
}

/// Returns whether the network has leases of host-local.
fn is_of_leases(known: &JudgedEntry) -> bool {
    let plugins = known.entry.network_list().map(|list| list.plugins).unwrap_or_default();
    plugins.iter().any(config::is_used_by)
}

fn finding(
    kind: FindingKind,
    sandbox: &Sandbox,
    entries: &[&JudgedEntry],
    why: String,
    remedy: &'static str,
) -> Finding {
    let mut subject = Subject { container_id: Some(sandbox.id.clone()), ..Subject::default() };
    if let Some(known) = entries.first() {
        let attachment = Attachment { container_id: sandbox.id.clone(), ifname: known.entry.ifname.clone() };
        subject = Subject::from_attachment(&known.entry.network, &attachment);
    }
    Finding {
        kind,
        what: format!("pod {}", sandbox.pod),
        subject,
        why,
        doubt: None,
        passing: false,
        remedy: remedy.into(),
        action: FindingRepair::Runtime,
    }
}

/// Returns the items with spaces between them, or `none`.
fn joined<T: ToString>(list: &[T]) -> String {
    match list {
        [] => "none".to_owned(),
        list => list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cnimble_liveness::Evidence;
    use cnimble_runtime::Invoker;

    use super::*;

    /// A runtime with one ready sandbox, whose namespace it does not report.
    #[derive(Debug)]
    struct WithoutNamespace;

    impl Runtime for WithoutNamespace {
        fn sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
            Ok(vec![Sandbox { id: "one".to_owned(), pod: "shop/web".to_owned(), ready: true }])
        }

        fn sandbox(&self, _: &str) -> Result<Option<Detail>, Error> {
            let ips = vec![IpAddr::from([10, 1, 0, 2])];
            Ok(Some(Detail { ready: true, ips, netns: None, host_network: false }))
        }
    }

    #[test]
    fn a_sandbox_without_a_known_namespace_is_named_and_not_judged() {
        let nowhere = std::env::temp_dir().join("cnimble-doctor-without-a-cache");
        let invoker = Invoker::new([&nowhere]).with_cache_dir(&nowhere);
        let mut evidence = Evidence::new(invoker.cache().clone());
        evidence.others.clear();
        evidence.data_dirs = vec![nowhere];
        evidence.runtime = Some(Arc::new(WithoutNamespace));
        let doctor = Doctor { invoker: &invoker, evidence, plugins: &[], options: "" };
        let compared = compare_once(&doctor, &Node::look(&doctor.evidence).unwrap()).unwrap();
        let told = "pod shop/web: neither the runtime nor a result cache that was read names its namespace";
        assert_eq!(compared.unchecked, [told]);
        assert!(compared.findings.is_empty(), "{:?}", compared.findings);
    }
}
