//! Finds orphaned leases of the IPAM plugin host-local.

use std::path::PathBuf;
use std::time::Duration;

use cnimble_cni::Error;
use cnimble_leases::INDEX;
use cnimble_leases::holder::Holder;
use cnimble_leases::store::{Identity, Store};
use cnimble_liveness::leases::{JudgedLease, JudgedLeases, Network};
use cnimble_liveness::{is_in_future, young};

use super::{Finding, FindingKind, Repair, Subject, orphaned};

/// Returns the findings about leases whose holder is dead or in doubt.
pub(super) fn findings(leases: &JudgedLeases, grace: Duration) -> impl Iterator<Item = Finding> {
    leases.all().filter_map(move |(network, lease)| finding(network, lease, grace))
}

fn finding(network: &Network, lease: &JudgedLease, grace: Duration) -> Option<Finding> {
    let (why, doubt) = orphaned(&lease.verdict)?;
    let path = lease.path.display();
    let (kind, what) = match &lease.held {
        None => (FindingKind::UnfinishedFile, format!("file {path}")),
        Some((_, Holder::Broken | Holder::Unknown)) => (FindingKind::BrokenLease, format!("lease {path}")),
        Some(_) => (FindingKind::Lease, format!("lease {path}")),
    };
    let mut subject = Subject { network: Some(network.name.clone()), ..Subject::default() };
    match &lease.held {
        Some((_, Holder::Attachment(attachment))) => {
            subject = Subject::from_attachment(&network.name, attachment);
        }
        Some((_, Holder::Container(id))) => subject.container_id = Some(id.clone()),
        _ => {}
    }
    let action = LeaseRemoval { dir: network.path.clone(), path: lease.path.clone(), found: lease.found };
    let is_index = lease.path.file_name().is_some_and(|name| name == INDEX);
    let why = match lease.held {
        None if is_index => "it is the index of leases, and its directory has none".to_owned(),
        None => "it is a file of an unfinished write".to_owned(),
        Some(_) => why,
    };
    Some(Finding {
        kind,
        what,
        subject,
        why,
        doubt,
        // Another machine may own the lease, so it is no fault of this node.
        passing: network.is_shared() || (young(&lease.path, grace).is_some() && !is_in_future(&lease.path)),
        remedy: "remove it under the lock of the directory".into(),
        action: super::FindingRepair::Lease(action),
    })
}

/// Removes a file from the lease directory of a network, if it is still the file that was found.
#[derive(Debug, Clone)]
pub(super) struct LeaseRemoval {
    dir: PathBuf,
    path: PathBuf,
    found: Identity,
}

impl LeaseRemoval {
    /// Removes the file under the lock of its directory.
    pub(super) fn run(&self) -> Result<Repair, Error> {
        // A missing directory contains no lease.
        let (Some(store), Some(name)) = (Store::lock(&self.dir)?, self.path.file_name()) else {
            return Ok(Repair::Gone);
        };
        let is_removed = store.remove_found(&name.to_string_lossy(), self.found)?;
        Ok(if is_removed { Repair::Done } else { Repair::Gone })
    }
}
