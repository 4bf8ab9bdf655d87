//! Prints the addresses of a container, from the cache that it shares with runtimes on libcni.
//!
//! ```text
//! cargo run --example addresses -- CONTAINER
//! ```

use std::error::Error;

use cnimble_runtime::{Cache, DEFAULT_CACHE_DIR};

fn main() -> Result<(), Box<dyn Error>> {
    let container = std::env::args().nth(1).ok_or("usage: addresses CONTAINER")?;
    for entry in Cache::new(DEFAULT_CACHE_DIR).list_of(&container)? {
        for ip in entry.cni_result()?.unwrap_or_default().ips {
            println!("{} {} {}", entry.network, entry.ifname, ip.address);
        }
    }
    Ok(())
}
