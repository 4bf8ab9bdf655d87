use super::*;
use crate::link::Mac;
use crate::nft::{Header, HookPoint, Meta, REG1, REG2, Verdict, word};

/// Every change and every expression.
fn everything() -> Batch {
    let mut batch = Batch::new();
    let table = Table::new(Family::Bridge, "t");
    batch.create_table(table);
    let chain = table.chain("c");
    batch.create_base_chain(chain, Hook { kind: "filter", hook: HookPoint::Forward, priority: -300 });
    batch.create_chain(Table::new(Family::Ipv6, "t6").chain("plain"));
    batch.create_set(table.set("s"), &[KeyType::Ifname, KeyType::EtherAddr]);
    batch.create_set(table.set("i"), &[KeyType::Ifname]);
    batch.create_map(table.set("m"), &[KeyType::InetProto, KeyType::InetService], &[KeyType::Ipv4Addr]);
    let rule = [
        Expr::meta(Meta::Iifname, REG1),
        Expr::payload(Header::Network, 12, 4, word(3)),
        Expr::mask(REG1, &[0xff, 0, 0, 0]),
        Expr::equal(REG1, &[10, 0, 0, 0]),
        Expr::differ(REG2, &[1, 2]),
        Expr::in_set(REG1, "s"),
        Expr::not_in_set(REG1, "s"),
        Expr::map(REG1, "m", REG2),
        Expr::ct_status(REG1),
        Expr::ct_state(REG1),
        Expr::destination_type(REG1),
        Expr::dnat(Family::Ipv6, REG1, REG2),
        Expr::masquerade(),
        Expr::verdict(Verdict::Jump("inner".into())),
        Expr::verdict(Verdict::Return),
    ];
    batch.add_rule(chain, &rule, "why");
    let key = Key::ifname("veth0").and_mac(Mac([2, 0, 0, 0, 0, 9]));
    let mapped = Element::mapped(Key::port(6, 80), Key::ip([10, 0, 0, 1].into()), "");
    batch.create_elements(table.set("s"), [&Element::new(key.clone(), "ours")]);
    batch.create_element(table.set("m"), &mapped);
    batch.delete_element(table.set("s"), &key);
    batch.delete_rule(chain, 7);
    batch.flush_chain(chain);
    batch.delete_chain(chain);
    batch.delete_set(table.set("s"));
    batch.delete_table(table);
    batch
}

#[test]
fn key_types_are_those_of_nft() {
    assert_eq!(key_type(&[KeyType::Ipv4Addr]), (7, 4));
    assert_eq!(key_type(&[KeyType::EtherAddr]), (9, 6));
    assert_eq!(key_type(&[KeyType::Ifname, KeyType::EtherAddr]), (41 << 6 | 9, 24));
}

#[test]
fn an_attribute_too_long_is_refused() {
    let mut batch = Batch::new();
    let rule = vec![Expr::masquerade(); 4_000];
    batch.add_rule(Table::new(Family::Inet, "t").chain("c"), &rule, "");
    assert!(batch.finish(1, Purpose::Commit).is_none());
}

/// The bytes as they went to the kernel from the beginning, a message a line.
#[test]
#[cfg(target_endian = "little")]
fn the_bytes_of_a_batch_stay_what_they_are() {
    let bytes = everything().finish(41, Purpose::Commit).unwrap();
    let mut lines = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some(length) = wire::u32_ne(rest, 0) {
        let (message, behind) = rest.split_at(length as usize);
        lines.push(message.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        rest = behind;
    }
    let expected: Vec<&str> = include_str!("everything.hex").lines().collect();
    assert_eq!(lines, expected);
    // Without the end, which only tries the changes out.
    let tried = everything().finish(41, Purpose::TryOut).unwrap();
    assert!(bytes.starts_with(&tried) && bytes.len() > tried.len());
}
