//! Tests the agent's masquerading rules: a changed rule is replaced, and a correct one is not rewritten.

use cnimble_tests::{PATIENCE, need, wait_until};

use super::members::{Member, Site};

const LIST: &str = "list table inet cnimble-node";

impl Member {
    /// Waits until the agent has looked this many times again.
    fn looks(&self, times: u64) {
        let looks = || self.metric("looks_total");
        let mut first = None;
        let more = || {
            first = first.or(looks());
            first.zip(looks()).is_some_and(|(first, now)| now >= first + times)
        };
        assert!(wait_until(PATIENCE, more), "{}", self.log());
    }

    /// Changes the network in the IPv4 masquerading rule, but not its comment.
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
    // A restarted agent doesn't rewrite it.
    node.agent = None;
    node.start("--resync 1");
    node.looks(3);
    assert_eq!(node.host.nft(&format!("-a {LIST}")), with_handles);
    assert_eq!(node.metric("writes_total"), Some(0));
    // The rule is changed while the agent runs, and while it doesn't.
    node.spoil();
    is_right(node);
    node.agent = None;
    node.spoil();
    node.start("--resync 1");
    is_right(node);
    node.looks(3);
    assert_eq!(node.metric("writes_total"), Some(1));
}
