use cnimble_tests::need_recent_go;

use super::*;

/// Sorted, without their protocol.
fn routes(site: &Site, table: &str) -> Vec<String> {
    let all = ["", "-6 "].map(|family| site.pod.run(&format!("ip {family}route show table {table}")).text());
    let mut lines: Vec<String> = all
        .iter()
        .flat_map(|text| text.lines())
        .map(|line| line.replace(" proto kernel", "").replace(" proto boot", "").trim().to_owned())
        // Ours leaves link-local addresses in the table main.
        .filter(|line| !line.starts_with("fe80::"))
        .collect();
    lines.sort();
    lines
}

#[test]
fn either_set_makes_the_same_and_checks_and_removes_what_the_other_made() {
    need_recent_go!(go, "ip");
    for keys in [json!({}), json!({"table": 88})] {
        let mut seen = Vec::new();
        for ours_first in [true, false] {
            let site = Site::new();
            let mut ours = site.sbr();
            ours.config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            let theirs = ours.served_by(go);
            let (one, other) = if ours_first { (&ours, &theirs) } else { (&theirs, &ours) };
            let (front, attachment) = (site.front(1), site.attachment("eth0"));
            let prev = front.added(&attachment);
            let result = add(one, &attachment, &prev).result();
            assert_eq!(result["ips"], prev["ips"]);
            other.check(&attachment, &result).success();
            let v4 = |table: &str| -> Vec<String> {
                routes(&site, table).into_iter().filter(|line| !line.contains(':')).collect()
            };
            seen.push((site.rules(), v4("100"), v4("main"), routes(&site, "main").len()));
            other.deleted(&attachment, Some(&result));
            assert_eq!(site.rules(), [], "{keys} {ours_first}");
            front.deleted(&attachment, Some(&result));
            assert_eq!(site.pod.links(), ["lo"]);
        }
        assert_eq!(seen[0], seen[1], "{keys}");
    }
}
