//! Packet rules as kube-proxy writes them (mode iptables), for a node with many Services.
//!
//! Each Service has one endpoint: a rule in KUBE-SERVICES, and a chain for the Service and one for the endpoint. The chains'
//! names and comments have the lengths of real ones.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::Result;
use crate::sandbox::Namespace;

/// Writes the rules into a node's namespace, with the command of the nf_tables variant.
pub(crate) fn add(node: &Namespace, count: usize) -> Result<()> {
    node.enter()?;
    let mut restore =
        Command::new("iptables-nft-restore").arg("--noflush").stdin(Stdio::piped()).spawn().map_err(
            |err| format!("iptables-nft-restore, which makes the rules of Services, can't be run: {err}"),
        )?;
    let mut stdin = restore.stdin.take().ok_or("iptables-nft-restore has no stdin")?;
    stdin.write_all(rules(count).as_bytes())?;
    drop(stdin);
    let status = restore.wait()?;
    if !status.success() {
        return Err(format!("iptables-nft-restore: {status}").into());
    }
    Ok(())
}

/// The table nat in the language of iptables-restore.
fn rules(count: usize) -> String {
    let (mut chains, mut rules) = (String::new(), String::new());
    for number in 0..count {
        let (service, endpoint) = (format!("KUBE-SVC-{number:016X}"), format!("KUBE-SEP-{number:016X}"));
        let (cluster_ip, pod) = (address(96, number), address(200, number));
        let name = format!("default/service-{number}:http");
        let _ = writeln!(chains, ":{service} - [0:0]\n:{endpoint} - [0:0]");
        let _ = writeln!(
            rules,
            "-A KUBE-SERVICES -d {cluster_ip}/32 -p tcp -m comment --comment \"{name} cluster IP\" -m tcp --dport 80 \
             -j {service}\n\
             -A {service} -m comment --comment \"{name} -> {pod}:8080\" -j {endpoint}\n\
             -A {endpoint} -s {pod}/32 -m comment --comment \"{name}\" -j KUBE-MARK-MASQ\n\
             -A {endpoint} -p tcp -m comment --comment \"{name}\" -m tcp -j DNAT --to-destination {pod}:8080"
        );
    }
    format!(
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
         {chains}\
         -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
         -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
         {rules}\
         -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n"
    )
}

/// The address with this number in 10.NET.0.0/16.
fn address(net: u8, number: usize) -> String {
    format!("10.{net}.{}.{}", (number + 1) >> 8 & 255, (number + 1) & 255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_its_chains() {
        let text = rules(300);
        assert!(text.contains("-d 10.96.1.44/32 -p tcp"), "the last of 300");
        assert_eq!(text.matches(":KUBE-SVC-").count(), 300);
        assert_eq!(text.matches("-j DNAT --to-destination 10.200.").count(), 300);
        assert!(text.ends_with("COMMIT\n"));
    }
}
