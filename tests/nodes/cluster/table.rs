//! The agent's masquerading rules: what differs is made again, and what is right is left alone.

use cnimble_tests::{PATIENCE, need, wait_until};

use super::members::{Member, Site};

const LIST: &str = "list table inet cnimble-node";

impl Member {
    /// Waits until the agent has looked so often again.
    fn looks(&self, times: u64) {
        let looks = || self.metric("looks_total");
        let mut first = None;
        let more = || {
            first = first.or(looks());
            first.zip(looks()).is_some_and(|(first, now)| now >= first + times)
        };
        assert!(wait_until(PATIENCE, more), "{}", self.log());
    }

    /// Lets the IPv4 rule masquerade something else. Its comment stays.
    fn spoil(&self) {
        let rules = self.host.nft(&format!("-a {LIST}"));
        let rule =
            rules.lines().find(|line| line.contains("10.1.1.0") && line.contains("masquerade")).unwrap();
        let (rule, handle) = rule.split_once(" # handle ").unwrap();
        let comment = rule.split('"').nth(1).unwrap();
        self.host.shell(&format!(
            "nft 'replace rule inet cnimble-node postrouting handle {handle} ip saddr 10.99.0.0/24 masquerade comment \"{comment}\"'"
        ));
        assert!(self.host.nft(LIST).contains("10.99.0.0/24"));
    }
}

#[test]
fn a_masquerading_rule_that_differs_is_made_again_and_one_that_is_right_stays() {
    need!("ip", "nft");
    let mut site = Site::with(2, "--resync 1");
    site.settled();
    let node = &mut site.members[0];
    node.looks(2);
    let (right, with_handles) = (node.host.nft(LIST), node.host.nft(&format!("-a {LIST}")));
    let is_right = |node: &Member| {
        let there = || node.host.nft(LIST);
        assert!(wait_until(PATIENCE, || there() == right), "{}\n{}", there(), node.log());
    };
    // Another agent leaves it alone.
    node.agent = None;
    node.start("--resync 1");
    node.looks(3);
    assert_eq!(node.host.nft(&format!("-a {LIST}")), with_handles);
    assert_eq!(node.metric("writes_total"), Some(0));
    // Under the agent, and while there is none.
    node.spoil();
    is_right(node);
    node.agent = None;
    node.spoil();
    node.start("--resync 1");
    is_right(node);
    node.looks(3);
    assert_eq!(node.metric("writes_total"), Some(1));
}
