const PLUGINS: [&str; 1] = ["dhcp"];

#[must_use]
pub fn ends(ipam: &str) -> bool {
    PLUGINS.contains(&ipam)
}
