use crate::testing::in_netns;
use crate::{Netlink, rule};

#[test]
fn rules_read_back_are_told_from_others_and_go() {
    in_netns("rules_read_back_are_told_from_others_and_go", || {
        let mut netlink = Netlink::open().unwrap();
        let before = netlink.rules().unwrap();
        assert!(before.iter().all(|rule| rule.from.is_none()), "{before:?}");
        for from in ["10.0.0.2", "fd00::2"] {
            let from = from.parse().unwrap();
            netlink.execute(rule::add(from, 1000, 77)).unwrap();
            let wanted = rule::Rule { from: Some(from), table: 1000, protocol: 77 };
            assert!(netlink.rules().unwrap().contains(&wanted));
            let another = netlink.execute(rule::del(from, 1000, 78)).unwrap_err();
            assert!(another.is_missing(), "{another}");
            netlink.execute(rule::del(from, 1000, 0)).unwrap();
        }
        assert_eq!(netlink.rules().unwrap(), before);
        for other in
            ["from 10.0.0.0/24", "from 10.0.0.2 to 10.1.0.1", "not from 10.0.0.2", "from 10.0.0.2 iif lo"]
        {
            let status = std::process::Command::new("ip")
                .args(["rule", "add"])
                .args(other.split(' '))
                .args(["table", "1000"])
                .status();
            assert!(status.unwrap().success(), "{other}");
        }
        let now = netlink.rules().unwrap();
        assert!(now.iter().all(|rule| rule.from.is_none()), "{now:?}");
        assert_eq!(now.iter().filter(|rule| rule.table == 1000).count(), 4);
    });
}
