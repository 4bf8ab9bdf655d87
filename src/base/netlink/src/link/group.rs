//! Removes many links with one request, and so with one set of the kernel's grace periods, as a group of their own. A
//! request names a link by its index, which another link may have by now. So the group's members are read before the
//! group is removed: a later link with the same index is not in the group.

use std::collections::HashMap;

use nix::errno::Errno;

use crate::link::read::{family_and_index, query, read};
use crate::link::{self, Change, Filter, Link};
use crate::uapi::rtnetlink::IFINFOMSG;
use crate::wire::{Attributes, u32_ne};
use crate::{Error, IfPresent, Netlink, Request, Result};

/// The most attempts. A second one is rare: another process has to use the same random group, or change a group
/// meanwhile.
const ATTEMPTS: usize = 5;
/// The group of links that were put into no other.
const DEFAULT: u32 = 0;

impl Netlink {
    /// Removes those links that still exist. A link of the same index but another alias stays. If `links` is only one
    /// link, its alias isn't compared.
    ///
    /// # Errors
    /// Fails with EAGAIN if other processes keep changing the groups. After a failure some links may remain.
    pub fn remove_links(&mut self, links: &[Link]) -> Result<()> {
        match links {
            [] => Ok(()),
            [link] => present(self.remove_link(link.index, &link.name)),
            _ => self.remove_group(links),
        }
    }

    /// Removes several links. All links that can't be found with their alias are taken for removed.
    fn remove_group(&mut self, links: &[Link]) -> Result<()> {
        let mut wanted: HashMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
        for _ in 0..ATTEMPTS {
            let group = random_group();
            let requests = wanted.values().map(|link| set_group(link, group));
            let outcome = present(self.execute_all(requests.collect()));
            let found = self.links_where(|index, of| of == group || wanted.contains_key(&index))?;
            let (known, others): (Vec<_>, Vec<_>) = found
                .iter()
                .partition(|link| wanted.get(&link.index).is_some_and(|wanted| wanted.alias == link.alias));
            // Either the group was theirs before, or their index was another link's.
            let strangers: Vec<&Link> = others.into_iter().filter(|link| link.group == group).collect();
            for link in strangers.iter().filter(|link| wanted.contains_key(&link.index)) {
                log::warn!(
                    "link {} has the index of one that is gone; its group is {DEFAULT} now",
                    link.name
                );
                present(self.execute(set_group(link, DEFAULT)))?;
            }
            outcome?;
            if known.is_empty() {
                return Ok(());
            }
            if strangers.is_empty() && known.iter().all(|link| link.group == group) {
                let mut members: Vec<u32> = known.iter().map(|link| link.index).collect();
                members.sort_unstable();
                let request = link::del_group(group, known.len());
                return present(self.carry_out_removal(request, &members));
            }
            let left: Vec<u32> = known.iter().map(|link| link.index).collect();
            wanted.retain(|index, _| left.contains(index));
        }
        Err(Error::new(format!("delete {} links", wanted.len()), Errno::EAGAIN)
            .reason(format!("they could not be made a group of their own, {ATTEMPTS} times in a row")))
    }

    /// Lists the links whose index and group are `of_interest`, and reads only these in full.
    fn links_where(&mut self, of_interest: impl Fn(u32, u32) -> bool) -> Result<Vec<Link>> {
        self.dump("list the groups of links", query(&Filter::default()), |message| {
            let group = Attributes::behind(message.body, IFINFOMSG).find(libc::IFLA_GROUP)?;
            let group = group.and_then(|group| u32_ne(group, 0)).unwrap_or(DEFAULT);
            match family_and_index(message) {
                Some((_, index)) if !of_interest(index, group) => Ok(None),
                _ => read(message),
            }
        })
    }
}

fn set_group(link: &Link, group: u32) -> Request {
    link::set(link.index, &link.name, &Change { group: Some(group), ..Change::default() })
}

/// Returns a random group above the numbers that people use. Whether another process uses it, its members show.
fn random_group() -> u32 {
    let [a, b, c, d, ..] = link::Mac::random().0;
    u32::from_ne_bytes([a, b, c, d]) | 1 << 31
}

/// Takes a missing link for success.
fn present(outcome: Result<()>) -> Result<()> {
    outcome.if_present().map(drop)
}
