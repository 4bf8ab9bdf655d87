//! Runtimes: `cnimble add`, `del` and `check`, and one that calls the plugins as libcni does.

use serde_json::{Value, json};

use super::Board;
use super::log::{Facts, Meaning, Outcome};
use super::look::Claim;
use super::plan::{Caller, Ending, Kill, Life, Lives, Net, Step, Target};
use super::site::{Operation, Site, run};
use crate::chain::Set;

const LIBCNI: &str = "/var/lib/cni";

impl Life {
    fn netns(&self) -> String {
        format!("/run/netns/{}", self.id)
    }

    fn ports(&self) -> Value {
        json!({"portMappings": [{"hostPort": self.port, "containerPort": 80, "protocol": "tcp"}]})
    }

    fn cache(&self) -> String {
        let dir = match self.caller {
            Caller::Command { cache } => cache,
            Caller::Runtime => LIBCNI,
        };
        format!("{dir}/results/{}-{}-eth0", self.net.name(), self.id)
    }
}

/// Follows the plan until the time is over.
pub(super) fn work(board: &Board<'_>, seed: u64, number: usize) {
    let mut worker = Worker { board, site: board.site, actor: format!("w{number}") };
    for (_, life, step) in Lives::new(seed, number, board.site.go.is_some()) {
        if board.is_over() {
            break;
        }
        match step {
            Step::Add => worker.add(&life),
            Step::Check => worker.check(&life),
            Step::End => worker.end(&life),
        }
    }
}

struct Worker<'b> {
    board: &'b Board<'b>,
    site: &'b Site,
    actor: String,
}

impl Worker<'_> {
    fn operation<'o>(
        &'o self,
        meaning: Meaning,
        life: &'o Life,
        what: &str,
        kill: Option<Kill>,
    ) -> Operation<'o> {
        let what = format!("{what} by {:?}, {:?}, in {}, {kill:?}", life.caller, life.set, life.net.name());
        Operation { actor: &self.actor, meaning, who: &life.id, what, kill, set: life.set }
    }

    fn add(&mut self, life: &Life) {
        let _in = (life.net == Net::Listed).then(|| self.board.gate.read().unwrap());
        self.site.node.sh(&format!("ip netns add {}", life.id));
        let mut claim = None;
        let told = |text: &str, claim: &mut Option<Claim>| {
            let Ok(result) = serde_json::from_str(text) else { return Facts::from(["a result".to_owned()]) };
            let made = Claim::new(&life.id, life.net, &life.netns(), &result, Some(life.port), &life.cache());
            claim.insert(made).told.clone()
        };
        let operation = self.operation(Meaning::Adds, life, "ADD", life.kill_add);
        match life.caller {
            Caller::Command { cache } => {
                let ports = life.ports().to_string();
                let args =
                    ["add", life.net.name(), &life.id, "--container-id", &life.id, "--cap-args", &ports];
                let mut command = self.site.cnimble(life.set, &args);
                command.args(["--cache-dir", cache, "--json"]);
                self.site.operate(&operation, &mut command, |text| told(text, &mut claim));
            }
            Caller::Runtime => {
                let site = self.site;
                let begun =
                    site.log.begin(operation.actor, operation.meaning, operation.who, &operation.what);
                let (outcome, text) = self.runtime_adds(life);
                let outcome = outcome.of(life.set);
                let good = outcome == Outcome::Done;
                let told = if good { told(&text, &mut claim) } else { Facts::new() };
                site.log.end(begun, outcome, told);
            }
        }
        if let Some(claim) = claim {
            self.board.enter(&life.id, claim);
        }
    }

    /// Adds as libcni does: plugin by plugin, and then the result into the cache.
    fn runtime_adds(&self, life: &Life) -> (Outcome, String) {
        let mut result: Option<Value> = None;
        let mut kill = life.kill_add;
        for plugin in life.net.plugins() {
            let (outcome, text) = self.call(life, "ADD", &plugin, result.as_ref(), kill);
            if outcome != Outcome::Done {
                return (outcome, text);
            }
            result = serde_json::from_str(&text).ok();
            if kill.take().is_some_and(|kill| kill.target == Target::Command) {
                return (Outcome::Killed("the runtime between two plugins".into()), String::new());
            }
        }
        let list =
            json!({"cniVersion": life.net.version(), "name": life.net.name(), "plugins": life.net.plugins()});
        let entry = json!({
            "kind": "cniCacheV1", "containerId": life.id, "config": base64(list.to_string().as_bytes()),
            "ifName": "eth0", "networkName": life.net.name(), "netns": life.netns(),
            "capabilityArgs": life.ports(), "result": result,
        });
        self.site.put(&life.cache(), &entry.to_string());
        (Outcome::Done, result.unwrap_or_default().to_string())
    }

    /// Calls one plugin, without a lock of ours.
    fn call(
        &self,
        life: &Life,
        verb: &str,
        plugin: &Value,
        prev: Option<&Value>,
        kill: Option<Kill>,
    ) -> (Outcome, String) {
        let mut config = plugin.clone();
        config["cniVersion"] = json!(life.net.version());
        config["name"] = json!(life.net.name());
        if config["type"] == "portmap" {
            config["runtimeConfig"] = life.ports();
        }
        if let Some(prev) = prev {
            config["prevResult"] = prev.clone();
        }
        let dir = self.site.plugins(life.set);
        let program = dir.join(config["type"].as_str().unwrap());
        let mut command = self.site.node.command(program.to_str().unwrap());
        command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", &life.id).env("CNI_IFNAME", "eth0");
        command.env("CNI_NETNS", life.netns()).env("CNI_PATH", dir);
        let kill = kill.filter(|kill| kill.target == Target::Plugin);
        run(&mut command, &config.to_string(), kill)
    }

    fn check(&mut self, life: &Life) {
        // Only a living attachment is checked. The plan is made without knowing whether its ADD succeeds.
        let Some(claim) = self.board.claim(&life.id) else { return };
        self.site.look(&[(life.id.clone(), claim)]);
        // The Go plugins can't check what ours made, and 1.9.1 can't check some of its own.
        if let Caller::Command { cache } = life.caller {
            let args = ["check", life.net.name(), &life.id, "--container-id", &life.id, "--cache-dir", cache];
            let mut command = self.site.cnimble(Set::Ours, &args);
            let operation =
                Operation { set: Set::Ours, ..self.operation(Meaning::Other, life, "CHECK", None) };
            self.site.operate(&operation, &mut command, |_| Facts::new());
        }
    }

    fn end(&mut self, life: &Life) {
        if let Some(claim) = self.board.claim(&life.id) {
            // The properties until now.
            self.site.look(&[(life.id.clone(), claim)]);
        }
        if life.ending == Ending::Unlisted {
            return self.unlist(life);
        }
        let _in = (life.net == Net::Listed).then(|| self.board.gate.read().unwrap());
        let what = format!("{:?}", life.ending);
        let operation = self.operation(Meaning::Ends, life, &what, life.kill_end);
        let begun = self.site.log.begin(&self.actor, Meaning::Ends, &life.id, &operation.what);
        self.board.leave(&life.id);
        let unpin = || self.site.node.sh(&format!("ip netns del {}", life.id));
        if life.ending != Ending::Del {
            unpin();
        }
        let mut outcome = Outcome::Done;
        if life.ending != Ending::Abandoned {
            outcome = self.del(life, life.kill_end).of(life.set);
            if matches!(outcome, Outcome::Killed(_) | Outcome::Theirs(_)) {
                // As a runtime does. Our plugins remove what the Go plugins can't.
                let again = self.del(&Life { set: Set::Ours, ..life.clone() }, None);
                outcome = if again == Outcome::Done { outcome } else { again };
            }
        }
        self.site.log.end(begun, outcome, Facts::new());
        if life.ending == Ending::Del {
            unpin();
        }
    }

    fn del(&self, life: &Life, kill: Option<Kill>) -> Outcome {
        match life.caller {
            Caller::Command { cache } => {
                let args =
                    ["del", life.net.name(), &life.id, "--container-id", &life.id, "--cache-dir", cache];
                run(&mut self.site.cnimble(life.set, &args), "", kill).0
            }
            Caller::Runtime => {
                let path = self.site.path(&life.cache());
                let entry = std::fs::read_to_string(&path).ok();
                let entry: Option<Value> = entry.and_then(|text| serde_json::from_str(&text).ok());
                let result = entry.map(|entry| entry["result"].clone());
                for plugin in life.net.plugins().iter().rev() {
                    let (outcome, _) = self.call(life, "DEL", plugin, result.as_ref(), kill);
                    if outcome != Outcome::Done {
                        return outcome;
                    }
                }
                let _ = std::fs::remove_file(path);
                Outcome::Done
            }
        }
    }

    /// Calls GC with a list of all others. The list is correct as long as no ADD runs.
    fn unlist(&mut self, life: &Life) {
        let _alone = self.board.gate.write().unwrap();
        let operation = self.operation(Meaning::Ends, life, "GC with a list", life.kill_end);
        let begun = self.site.log.begin(&self.actor, Meaning::Ends, &life.id, &operation.what);
        self.board.leave(&life.id);
        let others = self.board.all().into_iter().filter(|(_, claim)| claim.net == Net::Listed);
        let valid: Vec<Value> = others.map(|(id, _)| json!({"containerID": id, "ifname": "eth0"})).collect();
        let mut command = self.site.cnimble(life.set, &["gc", life.net.name(), "--valid-file", "-"]);
        let (outcome, _) = run(&mut command, &json!(valid).to_string(), life.kill_end);
        self.site.log.end(begun, outcome, Facts::new());
        self.site.node.sh(&format!("ip netns del {}", life.id));
    }
}

/// Encodes the configuration as in libcni's cache.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0, |number, at| number << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let letter = LETTERS[number >> (18 - 6 * at) & 63];
            text.push(if at <= three.len() { letter.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_padded() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| super::base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
