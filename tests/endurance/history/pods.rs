//! `cnimble pod` and `cnimble run`, each with separate pods on the node's default network.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::{LIMIT, PATIENCE, command, wait_until};

use super::log::{Facts, Meaning, Outcome};
use super::look::Claim;
use super::plan::{Kill, Net, Running, pods, running};
use super::site::{Operation, Site, run};
use super::{Board, Busy};
use crate::chain::Set;

fn manifest(name: &str, port: u16) -> String {
    let ports = json!([{"containerPort": 80, "hostPort": port}]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example.com/main", "ports": ports}]},
    })
    .to_string()
}

/// Returns the properties of a sandbox, from the cache of its results.
fn claim(site: &Site, state: &str, netns: &str, sandbox: &str, port: u16) -> Result<Claim, String> {
    let cache = format!("{state}/results/pods-{sandbox}-eth0");
    Claim::cached(site, sandbox, Net::Pods, &format!("{netns}/{sandbox}"), Some(port), &cache)
}

/// Runs `cnimble pod up` and `down`.
pub(super) fn pod(board: &Board<'_>, seed: u64) {
    let site = board.site;
    let mut lives = [0_usize; 4];
    let mut up = [false; 4];
    for (number, kill) in pods(seed) {
        if board.is_over() {
            break;
        }
        let name = format!("pod{number}");
        if up[number] {
            pod_down(board, &name, &format!("{name}.{}", lives[number]), kill);
        } else {
            lives[number] += 1;
            let port = 60_000 + u16::try_from(number * 100 + lives[number] % 100).unwrap();
            site.put(&format!("/run/pods/{name}.json"), &manifest(&name, port));
            let who = format!("{name}.{}", lives[number]);
            let args = ["pod", "up", "--json", &format!("/run/pods/{name}.json")];
            let what = format!("pod up {kill:?}");
            let operation =
                Operation { actor: "pod", meaning: Meaning::Adds, who: &who, what, kill, set: Set::Ours };
            let mut claimed = None;
            site.operate(&operation, &mut site.cnimble(Set::Ours, &args), |text| {
                let said: Value = serde_json::from_str(text).unwrap_or_default();
                let sandbox = said[0]["id"].as_str().unwrap_or_default();
                match claim(site, "/var/lib/cnimble/cni", "/run/cnimble/netns", sandbox, port) {
                    Ok(claim) => claimed.insert(claim).told.clone(),
                    // Missing properties are reported at the first look.
                    Err(why) => Facts::from([format!("cache {why}; {said}")]),
                }
            });
            if let Some(claim) = claimed {
                board.enter(&who, claim);
            }
        }
        up[number] = !up[number];
    }
}

fn pod_down(board: &Board<'_>, name: &str, who: &str, kill: Option<Kill>) {
    let site = board.site;
    if let Some(claim) = board.claim(who) {
        site.look(&[(who.to_owned(), claim)]);
    }
    let begun = site.log.begin("pod", Meaning::Ends, who, &format!("pod down {kill:?}"));
    board.leave(who);
    let (outcome, _) = run(&mut site.cnimble(Set::Ours, &["pod", "down", name]), "", kill);
    site.log.end(begun, outcome, Facts::new());
}

/// Removes all pods of `cnimble pod`.
pub(super) fn all_down(site: &Site) {
    let begun = site.log.begin("end", Meaning::Other, "", "pod down --all");
    let (outcome, _) = run(&mut site.cnimble(Set::Ours, &["pod", "down", "--all"]), "", None);
    site.log.end(begun, outcome, Facts::new());
}

const MANIFESTS: &str = "/run/manifests";
const STATE: &str = "/var/lib/cnimble-run";
const RUN_DIR: &str = "/run/cnimble-run";

/// A `cnimble run` process on the node.
struct Runner<'s> {
    site: &'s Site,
    pid: String,
}

impl<'s> Runner<'s> {
    fn start(site: &'s Site) -> Self {
        let begun = site.log.begin("run", Meaning::Other, "", "start");
        let line = format!(
            "CNI_PATH=/opt/cni/bin {} run --manifests {MANIFESTS} --state-dir {STATE} --run-dir {RUN_DIR} \
             --cache-dir {STATE}/cni --check-interval 3 --poll 1 >>/run/run.log 2>&1 & echo $!",
            command().display()
        );
        let pid = site.node.sh(&line);
        site.log.end(begun, Outcome::Done, Facts::new());
        Runner { site, pid }
    }

    fn again(&mut self, signal: &str) {
        let begun = self.site.log.begin("run", Meaning::Other, "", &format!("SIG{signal}, and start again"));
        self.site.node.run(&format!("kill -{signal} {}", self.pid));
        let gone = format!("! kill -0 {0} 2>/dev/null || grep -q '^State:.Z' /proc/{0}/status", self.pid);
        let ended = wait_until(PATIENCE, || self.site.node.run(&gone).status == 0);
        let outcome = if ended { Outcome::Done } else { Outcome::Failed("it does not end".into()) };
        self.site.log.end(begun, outcome, Facts::new());
        *self = Self::start(self.site);
    }

    /// Returns its information about a pod.
    fn pod(&self, name: &str) -> Option<Value> {
        let socket = self.site.path(&format!("{RUN_DIR}/cnimble.sock"));
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "GET /pods HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let page: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        let pods = page["pods"].as_array()?;
        Some(pods.iter().find(|pod| pod["name"] == name).cloned().unwrap_or_default())
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.site.path("/run/run.log")).unwrap_or_default();
        text.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }
}

/// Runs `cnimble run`, changes its manifests and kills it.
pub(super) fn runner(board: &Board<'_>, seed: u64, busy: Busy<'_>) {
    let site = board.site;
    std::fs::create_dir_all(site.path(MANIFESTS)).unwrap();
    let mut runner = Runner::start(site);
    let mut lives = [0_usize; 6];
    let mut up = [false; 6];
    let mut again = None;
    for step in running(seed) {
        if board.is_over() {
            break;
        }
        let number = match step {
            Running::Again { signal, after } => {
                // It happens in the middle of the next turn.
                again = Some((signal, after));
                continue;
            }
            Running::Turn(number) => number,
        };
        let name = format!("run{number}");
        let file = format!("{MANIFESTS}/{name}.json");
        let mut strike = |runner: &mut Runner<'_>| {
            if let Some((signal, after)) = again.take() {
                std::thread::sleep(Duration::from_millis(after));
                runner.again(signal);
            }
        };
        if up[number] {
            let who = format!("{name}.{}", lives[number]);
            if let Some(claim) = board.claim(&who) {
                site.look(&[(who.clone(), claim)]);
            }
            let begun = site.log.begin("run", Meaning::Ends, &who, "manifest removed");
            board.leave(&who);
            std::fs::remove_file(site.path(&file)).unwrap();
            strike(&mut runner);
            let gone = wait_until(PATIENCE, || runner.pod(&name) == Some(Value::Null));
            let outcome = if gone { Outcome::Done } else { Outcome::Failed(runner.log()) };
            site.log.end(begun, outcome, Facts::new());
        } else {
            lives[number] += 1;
            let who = format!("{name}.{}", lives[number]);
            let port = 61_000 + u16::try_from(number * 100 + lives[number] % 100).unwrap();
            let begun = site.log.begin("run", Meaning::Adds, &who, "manifest placed");
            site.put(&file, &manifest(&name, port));
            strike(&mut runner);
            let mut pod = Value::Null;
            let ready = wait_until(PATIENCE, || {
                pod = runner.pod(&name).unwrap_or_default();
                pod["phase"] == "Ready"
            });
            let sandbox = pod["sandbox"].as_str().unwrap_or_default();
            match claim(site, &format!("{STATE}/cni"), &format!("{RUN_DIR}/netns"), sandbox, port) {
                Ok(claim) if ready => {
                    site.log.end(begun, Outcome::Done, claim.told.clone());
                    board.enter(&who, claim);
                }
                Ok(_) => {
                    site.log.end(begun, Outcome::Failed(format!("{pod}: {}", runner.log())), Facts::new());
                }
                Err(why) => {
                    site.log.end(
                        begun,
                        Outcome::Failed(format!("{why}; {pod}: {}", runner.log())),
                        Facts::new(),
                    );
                }
            }
        }
        up[number] = !up[number];
    }
    // Its pods stay when it stops. They are looked at once more, and then removed with their manifests.
    busy.wait_for_the_last_look();
    for (number, _) in up.iter().enumerate().filter(|(_, up)| **up) {
        let (name, who) = (format!("run{number}"), format!("run{number}.{}", lives[number]));
        let begun = site.log.begin("run", Meaning::Ends, &who, "manifest removed");
        board.leave(&who);
        std::fs::remove_file(site.path(&format!("{MANIFESTS}/{name}.json"))).unwrap();
        let gone = wait_until(PATIENCE, || runner.pod(&name) == Some(Value::Null));
        let outcome = if gone { Outcome::Done } else { Outcome::Failed(runner.log()) };
        site.log.end(begun, outcome, Facts::new());
    }
    site.node.sh(&format!("kill -TERM {}", runner.pid));
}
