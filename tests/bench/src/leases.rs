//! Measures host-local alone, with few and with many leases in the store.

use std::process::Command;

use serde_json::{Value, json};

use crate::args::Args;
use crate::process::Run;
use crate::report::{Report, Row};
use crate::sandbox::{Namespace, Sandbox};
use crate::{Contender, Result, announce, process, progress};

/// The number of other leases in the store.
const SIZES: [usize; 5] = [0, 100, 1000, 10_000, 60_000];

/// A store that a contender works on.
struct Store<'a> {
    contender: &'a Contender,
    config: Value,
    netns: &'a std::path::Path,
}

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    // A reference that reads everything takes a second for each call.
    let rounds = (args.samples / 3).max(5);
    let host = Namespace::new("leases-host")?;
    let pod = Namespace::new("leases-pod")?;
    let mut rows: Vec<Row> = Vec::new();
    for size in SIZES {
        announce(&format!("host-local, {size} leases"));
        let stores = args
            .plugins()
            .map(|contender| Store::new(sandbox, contender, size, pod.path()))
            .collect::<Result<Vec<_>>>()?;
        let mut of_size: Vec<Row> = stores
            .iter()
            .flat_map(|store| {
                ["ADD", "CHECK", "DEL"].map(|verb| {
                    let series = format!("host-local {verb}");
                    let what = format!("{series}, {size} leases");
                    Row::new("leases", what, &store.contender.name).at(&series, "leases", size)
                })
            })
            .collect();
        for round in 0..=rounds {
            progress(&format!("host-local, {size} leases: round {round} of {rounds}"));
            for (store, rows) in stores.iter().zip(of_size.chunks_mut(3)) {
                host.enter()?;
                let times = store.round(round)?;
                // The first run has cold kernel caches.
                if round > 0 {
                    for (row, time) in rows.iter_mut().zip(times) {
                        row.push(&time);
                    }
                }
            }
        }
        rows.append(&mut of_size);
    }
    report.rows.append(&mut rows);
    Ok(())
}

impl<'a> Store<'a> {
    /// Creates a store with `size` leases in the reference's format.
    fn new(
        sandbox: &Sandbox,
        contender: &'a Contender,
        size: usize,
        netns: &'a std::path::Path,
    ) -> Result<Self> {
        let data_dir = sandbox.state_dir().join(format!("leases-{}-{size}", contender.name));
        let leases = data_dir.join("bench");
        std::fs::create_dir_all(&leases)?;
        let first = u32::from(std::net::Ipv4Addr::new(10, 96, 0, 2));
        for number in 0..size {
            if number % 1000 == 0 {
                progress(&format!("writing leases for {}: {number} of {size}", contender.name));
            }
            let address = std::net::Ipv4Addr::from(first + u32::try_from(number)?);
            std::fs::write(leases.join(address.to_string()), format!("{number:064x}\r\neth0"))?;
            if number + 1 == size {
                std::fs::write(leases.join("last_reserved_ip.0"), address.to_string())?;
            }
        }
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "bench",
            "type": "bridge",
            "ipam": {"type": "host-local", "dataDir": data_dir, "ranges": [[{"subnet": "10.96.0.0/12"}]]},
        });
        Ok(Store { contender, config, netns })
    }

    /// Runs ADD, CHECK and DEL.
    fn round(&self, number: usize) -> Result<[Run; 3]> {
        let id = format!("round{number}");
        let (result, add) = self.run("ADD", &id, &self.config)?;
        let mut config = self.config.clone();
        if let Some(config) = config.as_object_mut() {
            config.insert("prevResult".to_owned(), serde_json::from_slice(&result)?);
        }
        let (_, check) = self.run("CHECK", &id, &config)?;
        let (_, del) = self.run("DEL", &id, &config)?;
        Ok([add, check, del])
    }

    fn run(&self, verb: &str, id: &str, config: &Value) -> Result<(Vec<u8>, Run)> {
        let mut command = Command::new(self.contender.dir.join("host-local"));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", id)
            .env("CNI_NETNS", self.netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.contender.dir);
        process::timed(command, config.to_string().as_bytes())
            .map_err(|err| format!("host-local {verb}: {err}").into())
    }
}
