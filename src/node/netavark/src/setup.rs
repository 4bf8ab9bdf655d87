//! `setup` and `teardown` of one container on one network.

use std::pin::{Pin, pin};
use std::time::Instant;

use cnimble_cni::NetworkList;
use cnimble_runtime::{Added, Attach, Entry, Invoker};
use serde_json::Value;

use crate::answer;
use crate::attach::{attach, is_named, network};
use crate::input::Call;
use crate::invoke::LIMIT;
use crate::options::Options;
use crate::records;
use crate::reload::{self, Note};
use crate::wish::Wish;
use crate::{Failure, said};

/// Puts the container onto the network. Returns the interface with its addresses, for `podman inspect`. If
/// `interrupted` ends before, what was begun is undone, and the call fails.
pub async fn setup(
    netns: &str,
    call: &Call,
    interrupted: impl Future<Output = ()>,
) -> Result<Value, Failure> {
    let network = network(call)?;
    let plain = attach(netns, call, &network)?;
    let invoker = crate::invoker(Options::new(call.network.options.as_ref()));
    let earlier = records::list_for(invoker.cache(), &call.container_id, &call.network.name)?;
    records::end(&invoker, &earlier).await?;
    records::end_dead_before(&invoker, call).await;
    reload::remove_stale();
    let before = reload::find_note(plain.key(&network.name), netns);
    let wish = Wish::from_call(call, before.as_ref());
    let wished = wish.asked(plain.clone(), &network);
    let mut interrupted = pin!(interrupted);
    let begin = Instant::now();
    let mut outcome = add(&invoker, &network, &wished, &wish, interrupted.as_mut()).await;
    let left = LIMIT.saturating_sub(begin.elapsed());
    let is_interrupted = matches!(outcome, Err(Failure::Interrupted));
    if outcome.is_err() && !wish.is_required && !wish.is_empty() && !is_interrupted && !left.is_zero() {
        // The network can't give what it gave before the reload, as a DHCP server may not.
        let invoker = invoker.with_operation_limit(left);
        outcome = add(&invoker, &network, &plain, &wish, interrupted).await;
    }
    if outcome.is_ok() {
        reload::remove_note(plain.key(&network.name));
    }
    outcome
}

/// Takes the container off the network. It succeeds if nothing is left, and if there was nothing.
pub async fn teardown(netns: &str, call: &Call) -> Result<(), Failure> {
    let invoker = crate::invoker(Options::new(call.network.options.as_ref()));
    let entries = records::list_for(invoker.cache(), &call.container_id, &call.network.name)?;
    for entry in entries.iter().filter(|entry| is_named(call) && entry.namespace() == Some(netns)) {
        note_for_reload(entry, netns);
    }
    records::end(&invoker, &entries).await?;
    if entries.is_empty() {
        end_unrecorded(&invoker, netns, call).await?;
    }
    records::end_dead(&invoker).await;
    reload::remove_stale();
    Ok(())
}

/// Ends an attachment without a record: nothing was added, or the records were lost. A call that `setup` would refuse
/// has added nothing.
async fn end_unrecorded(invoker: &Invoker, netns: &str, call: &Call) -> Result<(), Failure> {
    let wanted = network(call).and_then(|network| Ok((attach(netns, call, &network)?, network)));
    match wanted {
        Ok((attach, network)) => Ok(invoker.del(&network, &attach).await?),
        Err(refused) => {
            log::warn!("{refused}; there is no record of the container, and nothing was removed");
            Ok(())
        }
    }
}

/// Runs ADD, and returns its answer. If ADD fails, or the result lacks what `wish` requires, this ends the attachment.
async fn add(
    invoker: &Invoker,
    network: &NetworkList,
    attach: &Attach,
    wish: &Wish,
    interrupted: Pin<&mut impl Future<Output = ()>>,
) -> Result<Value, Failure> {
    let begun = records::begin(invoker.cache(), network, attach)?;
    let added = tokio::select! {
        added = invoker.add(network, attach) => added.map_err(Failure::from),
        // The invoker undoes the dropped ADD, and its DEL below waits for that.
        () = interrupted => Err(Failure::Interrupted),
    };
    let (failure, has_result) = match added {
        Ok(added) => match answer_to(&added, attach, wish) {
            Ok(answer) => return Ok(answer),
            Err(failure) => (failure, true),
        },
        Err(failure) => (failure, false),
    };
    match invoker.del_entry(&begun, has_result).await {
        Ok(_) => Err(failure),
        Err(err) => said(format!("{failure}; then {err}")),
    }
}

fn answer_to(added: &Added, attach: &Attach, wish: &Wish) -> Result<Value, Failure> {
    let mac = answer::mac(&added.result, attach)?;
    match wish.unmet(&added.result, &mac).filter(|_| wish.is_required) {
        None => Ok(answer::answer(&added.result, attach, &mac)),
        Some(what) => said(format!("the network can't give {what}: its plugins have given another one")),
    }
}

/// Notes what the attachment of an entry has, for a reload. An attachment without a result has nothing to ask for.
fn note_for_reload(entry: &Entry, netns: &str) {
    let Ok(Some(result)) = entry.cni_result() else { return };
    let ips = result.ips.iter().map(|ip| ip.address.ip()).collect();
    match answer::mac(&result, &Attach::from_entry(entry)) {
        Ok(mac) => reload::leave_note(entry.key(), &Note { netns: netns.to_owned(), ips, mac }),
        Err(err) => log::warn!("{err}; a reload may ask for an address that the network can't give"),
    }
}
