use crate::NetNs;
use crate::nft::{Batch, Expr, Family, Nft, Rule, Table, Verdict};
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
