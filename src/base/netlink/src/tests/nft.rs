use crate::NetNs;
use crate::nft::{Batch, Expr, Family, Hook, HookPoint, Nft, Rule, Table, Verdict};
use crate::testing::in_netns;

const CHAIN: &str = "many";

/// Rules as iptables writes them: that many, and a jump in the middle.
fn many(nft: &mut Nft, table: Table<'_>, count: usize) {
    let mut batch = Batch::new();
    batch.create_table(table);
    batch.create_chain(table.chain("target"));
    batch.create_chain(table.chain(CHAIN));
    for at in 0..count {
        let verdict = if at == count / 2 { Verdict::Jump("target".into()) } else { Verdict::Return };
        let rule = [Expr::xtables_comment(&format!("rule {at}")), Expr::counter(), Expr::verdict(verdict)];
        batch.add_rule(table.chain(CHAIN), &rule, "");
    }
    nft.commit(&batch).unwrap();
}

/// A socket with a list under way takes no other: the next question needs a new one, and one in another namespace
/// can't be had.
#[test]
fn a_list_ends_at_the_last_rule_of_interest_and_others_can_follow() {
    in_netns("a_list_ends_at_the_last_rule_of_interest_and_others_can_follow", || {
        let table = Table::new(Family::Ipv4, "filter");
        let mut here = Nft::new();
        many(&mut here, table, 1000);
        let ns = NetNs::current().unwrap();
        // An outsider, which looks into the namespace of the rules.
        let outside = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            asks(&mut Nft::open_in(&ns).unwrap(), table);
        });
        asks(&mut here, table);
        outside.join().unwrap();
    });
}

fn asks(nft: &mut Nft, table: Table<'_>) {
    let leads = |rule: &Rule| rule.target().is_some();
    let found = nft.rules_until(table.chain(CHAIN), leads).unwrap();
    assert_eq!((found.len() >= 501, found.len() <= 501), (true, true), "{}", found.len());
    assert!(leads(&found[500]) && found[500].comment == "rule 500");
    assert_eq!(nft.rules_until(table.chain(CHAIN), |_| true).unwrap().len(), 1);
    assert_eq!(nft.rules_until(table.chain(CHAIN), |_| false).unwrap().len(), 1000);
    assert_eq!(nft.rules_until(table.chain("none"), leads).unwrap(), []);
    assert_eq!(nft.rules(table, Some(CHAIN)).unwrap().len(), 1000);
    assert!(nft.has_chain(table.chain("target")).unwrap());
}

#[test]
fn a_rule_is_told_from_one_that_differs_in_anything() {
    in_netns("a_rule_is_told_from_one_that_differs_in_anything", || {
        let table = Table::new(Family::Ipv4, "filter");
        let to = |octet| {
            let load = Expr::payload(crate::nft::Header::Network, 16, 4, crate::nft::REG1);
            [load, Expr::equal(crate::nft::REG1, &[10, 0, 0, octet])]
        };
        let [load, equal] = to(2);
        let wanted = [load.clone(), equal.clone(), Expr::xtables_answers(), Expr::verdict(Verdict::Accept)];
        let accept = Expr::verdict(Verdict::Accept);
        let differ = Expr::differ(crate::nft::REG1, &[10, 0, 0, 2]);
        let source = Expr::payload(crate::nft::Header::Network, 12, 4, crate::nft::REG1);
        let others = [
            vec![],
            vec![load.clone(), equal.clone(), accept.clone()],
            vec![load.clone(), differ, Expr::xtables_answers(), accept.clone()],
            vec![source, equal.clone(), Expr::xtables_answers(), accept.clone()],
            [&to(3)[..], &[Expr::xtables_answers(), accept.clone()]].concat(),
            vec![load.clone(), equal.clone(), Expr::xtables_comment("x"), accept.clone()],
            vec![load.clone(), equal.clone(), Expr::xtables_answers(), Expr::verdict(Verdict::Drop)],
            vec![load, equal, Expr::xtables_answers(), Expr::xtables_comment("x"), accept],
        ];
        let mut batch = Batch::new();
        batch.create_table(table);
        batch.create_chain(table.chain(CHAIN));
        let counted = [&wanted[..3], &[Expr::counter(), wanted[3].clone()]].concat();
        batch.add_rule(table.chain(CHAIN), &counted, "");
        batch.add_rule(table.chain(CHAIN), &wanted, "a comment");
        others.iter().for_each(|rule| batch.add_rule(table.chain(CHAIN), rule, ""));
        let mut nft = Nft::new();
        nft.commit(&batch).unwrap();
        let rules = nft.rules(table, Some(CHAIN)).unwrap();
        let same: Vec<bool> = rules.iter().map(|rule| rule.consists_of(&wanted)).collect();
        assert_eq!(same.iter().position(|same| *same), Some(0));
        assert_eq!(same.iter().filter(|same| **same).count(), 1, "{same:?}");
        for (rule, expressions) in rules.iter().skip(2).zip(&others) {
            assert!(rule.consists_of(expressions), "{rule:?}");
        }
        assert!(rules[0].mentions(&[10, 0, 0, 2]) && !rules[0].mentions(&[10, 0, 0, 3]));
        assert!(!rules[0].mentions(&[]));
    });
}

/// Each kind of expression that rules of the node's agent have: a rule is known again, and one that differs in one
/// number isn't.
#[test]
fn each_kind_of_expression_is_known_again_and_told_from_others() {
    use crate::nft::{Header, KeyType, Meta, REG1, REG2, word};
    in_netns("each_kind_of_expression_is_known_again_and_told_from_others", || {
        let table = Table::new(Family::Inet, "exact");
        let proto = [Expr::meta(Meta::Nfproto, REG1), Expr::equal(REG1, &[2])];
        let load = |to| Expr::payload(Header::Network, 12, 4, to);
        let mask = [load(REG1), Expr::mask(REG1, &[255, 255, 255, 0]), Expr::equal(REG1, &[10, 1, 0, 0])];
        let odd = [load(REG1), Expr::mask(REG1, &[255, 255, 254, 0]), Expr::equal(REG1, &[10, 1, 0, 0])];
        let state = |value: u32| {
            let mask = Expr::mask(REG1, &value.to_ne_bytes());
            vec![Expr::ct_state(REG1), mask, Expr::differ(REG1, &[0; 4])]
        };
        let with = |parts: &[Expr], end: Expr| [&proto[..], parts, &[end]].concat();
        let drop = || Expr::verdict(Verdict::Drop);
        let rules = [
            with(&mask, Expr::masquerade()),
            with(&mask, drop()),
            with(&odd, drop()),
            with(&[load(REG1), Expr::in_set(REG1, "one")], drop()),
            with(&[load(REG1), Expr::not_in_set(REG1, "one")], drop()),
            with(&[load(REG1), Expr::not_in_set(REG1, "two")], drop()),
            with(&[load(REG2), Expr::in_set(REG2, "one")], drop()),
            with(&state(1), drop()),
            with(&state(2), drop()),
            vec![Expr::meta(Meta::L4proto, REG1), Expr::equal(REG1, &[2]), drop()],
        ];
        let mut batch = Batch::new();
        batch.create_table(table);
        batch.create_set(table.set("one"), &[KeyType::Ipv4Addr]);
        batch.create_set(table.set("two"), &[KeyType::Ipv4Addr]);
        let hook = Hook { kind: "nat", hook: HookPoint::Postrouting, priority: 100 };
        batch.create_base_chain(table.chain(CHAIN), hook);
        rules.iter().for_each(|rule| batch.add_rule(table.chain(CHAIN), rule, "said of it"));
        let mut nft = Nft::new();
        nft.commit(&batch).unwrap();
        let listed = nft.rules(table, Some(CHAIN)).unwrap();
        for (n, found) in listed.iter().enumerate() {
            let same: Vec<usize> = (0..rules.len()).filter(|other| found.does(&rules[*other])).collect();
            assert_eq!(same, [n], "{found:?}");
            assert!(!found.consists_of(&rules[n]), "it has a comment");
        }
        // The kernel tells of a register's first word by the register's number.
        let words = with(&[load(word(4)), Expr::in_set(word(4), "one")], drop());
        assert!(listed[6].does(&words) && !listed[3].does(&words));
        let words = with(&[load(word(5)), Expr::in_set(word(5), "one")], drop());
        assert!(!listed[6].does(&words));
    });
}
