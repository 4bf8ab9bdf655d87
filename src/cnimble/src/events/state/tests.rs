use super::*;

const ONE: Identity = (1, 1, 1, 1);
const LEASE: &str = "/leases/net/10.0.0.2";
const TWO: Identity = (1, 2, 2, 2);

fn owner(network: &str, container_id: &str, ifname: &str) -> Owner {
    let attachment = Attachment { container_id: container_id.to_owned(), ifname: ifname.to_owned() };
    Owner { network: network.to_owned(), attachment }
}

struct Follower {
    state: KnownAttachments,
    now: Instant,
    owner: Owner,
}

impl Follower {
    fn new() -> Self {
        Follower {
            state: KnownAttachments::default(),
            now: Instant::now(),
            owner: owner("net", "pod", "eth0"),
        }
    }

    fn later(&mut self) -> &mut Self {
        self.now += Duration::from_secs(2);
        self
    }

    fn link(&mut self, index: u32) -> &mut Self {
        self.state.link(self.now, index, &self.owner.comment());
        self
    }

    fn no_link(&mut self, index: u32) -> &mut Self {
        self.state.no_link(self.now, index, "");
        self
    }

    fn lease(&mut self) -> &mut Self {
        self.state.lease(self.now, Path::new(LEASE), self.owner.clone());
        self
    }

    fn no_lease(&mut self) -> &mut Self {
        self.state.no_lease(self.now, Path::new(LEASE));
        self
    }

    fn entry(&mut self, identity: Option<Identity>) -> &mut Self {
        let path = Path::new("/cache/net-pod-eth0");
        let (owner, about) = (self.owner.clone(), About::default());
        match identity {
            Some(identity) => self.state.entry(self.now, path, AddResult { owner, identity, about }),
            None => self.state.no_entry(self.now, path),
        }
        self
    }

    fn settle(&mut self) -> Vec<(What, Option<u64>)> {
        let events = self.state.end_round(self.now);
        assert!(events.iter().all(|event| event.owner == self.owner), "{events:?}");
        events.into_iter().map(|event| (event.what, event.took.map(|took| took.as_secs()))).collect()
    }
}

#[test]
fn an_add_lasts_from_its_first_link_to_its_result_and_a_del_back() {
    let mut all = Follower::new();
    assert_eq!(all.link(7).settle(), []);
    assert_eq!(all.later().lease().settle(), []);
    assert_eq!(all.later().entry(Some(ONE)).settle(), [(What::Add, Some(4))]);
    assert_eq!(all.state.attached(), 1);
    assert_eq!(all.later().no_lease().settle(), []);
    assert_eq!(all.later().no_link(7).settle(), []);
    assert_eq!(all.later().entry(None).settle(), [(What::Del, Some(4))]);
    assert!(all.state.known.is_empty() && all.state.links.is_empty() && all.state.entries.is_empty());
}

#[test]
fn whatever_queue_is_read_first() {
    let mut all = Follower::new();
    // Link and result are added and removed in one round.
    assert_eq!(
        all.link(7).no_link(7).entry(Some(ONE)).entry(None).settle(),
        [(What::Add, None), (What::Del, None)]
    );
    assert_eq!(
        all.entry(Some(ONE)).entry(None).link(7).no_link(7).settle(),
        [(What::Add, None), (What::Del, None)]
    );
    assert!(all.state.known.is_empty());
}

#[test]
fn what_came_and_went_before_it_was_looked_at_has_not_failed() {
    let mut all = Follower::new();
    assert_eq!(all.link(7).settle(), []);
    // The result file was removed before it could be read.
    assert_eq!(all.later().entry(None).no_link(7).settle(), [(What::Add, None), (What::Del, None)]);
    assert!(all.state.passed.is_empty());
}

#[test]
fn what_goes_without_a_result_has_failed() {
    let mut all = Follower::new();
    assert_eq!(all.link(7).lease().settle(), []);
    assert_eq!(all.later().no_link(7).settle(), []);
    assert_eq!(all.no_lease().settle(), [(What::Failed, Some(2))]);
    assert_eq!(all.link(8).no_link(8).settle(), [(What::Failed, None)], "both signs were read at once");
    assert!(all.state.known.is_empty());
}

#[test]
fn what_comes_again_beside_a_result_was_repaired() {
    let mut all = Follower::new();
    assert_eq!(all.link(7).entry(Some(ONE)).settle(), [(What::Add, None)], "both signs were read at once");
    assert_eq!(all.later().no_link(7).settle(), []);
    assert_eq!(all.later().link(8).settle(), [(What::Repaired, Some(2))]);
    // A second rule belongs to the same repair.
    all.state.rule(all.now, &all.owner.comment());
    assert_eq!(all.settle(), []);
    all.later();
    all.state.rule(all.now, &all.owner.comment());
    assert_eq!(all.settle(), [(What::Repaired, None)]);
    // A runtime repeats ADD without DEL.
    assert_eq!(all.later().entry(Some(TWO)).settle(), [(What::Add, None)]);
    assert_eq!(all.later().entry(Some(TWO)).settle(), [], "read again");
}

#[test]
fn what_is_left_of_a_del_goes_without_a_word() {
    let mut all = Follower::new();
    all.link(7).entry(Some(ONE)).settle();
    assert_eq!(all.entry(None).settle(), [(What::Del, None)]);
    assert_eq!(all.later().no_link(7).settle(), []);
    // A new ADD begins beside remaining signs.
    all.link(8).entry(Some(ONE)).settle();
    assert_eq!(all.entry(None).settle(), [(What::Del, None)]);
    assert_eq!(all.later().link(9).settle(), []);
    assert_eq!(all.later().no_link(8).no_link(9).settle(), [(What::Failed, Some(2))]);
}

#[test]
fn a_link_may_get_its_name_later() {
    let mut all = Follower::new();
    all.state.link(all.now, 7, "");
    assert_eq!(all.settle(), []);
    assert_eq!(all.later().link(7).no_link(7).settle(), [(What::Failed, Some(2))]);
    all.state.link(all.now, 1, "");
    all.state.no_link(all.now, 1, "");
    // The link can also disappear before its alias is known.
    let alias = all.owner.comment();
    all.state.link(all.now, 8, "");
    assert_eq!(all.settle(), []);
    all.later();
    all.state.no_link(all.now, 8, &alias);
    assert_eq!(all.settle(), [(What::Failed, Some(2))]);
    // A link without any notification existed before the last look.
    all.state.no_link(all.now, 9, &alias);
    assert_eq!(all.settle(), []);
    assert!(all.state.unnamed.is_empty() && all.state.known.is_empty());
}

#[test]
fn without_a_cache_only_the_end_is_told() {
    let mut all = Follower::new();
    all.link(7);
    all.state.take_as_it_is();
    assert_eq!(all.settle(), []);
    assert_eq!(all.no_link(7).settle(), [(What::Del, None)]);
    all.link(8).settle();
    all.now += ATTEMPT;
    assert_eq!(all.no_link(8).settle(), [(What::Del, None)]);
}

#[test]
fn memory_has_a_bound() {
    let (mut state, now) = (KnownAttachments::default(), Instant::now());
    for number in 0..MOST as u32 + 10 {
        state.link(now, number, &owner("net", &number.to_string(), "eth0").comment());
    }
    assert_eq!((state.known.len(), state.links.len()), (MOST, MOST));
}
