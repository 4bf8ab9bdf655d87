//! The pages of `run`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use cnimble_pod::network::NetworkPlugin;
use cnimble_pod::source::Condition;
use cnimble_pod::sync::Board;

use crate::plain;

use super::metrics::{self, Metrics};
use super::serve::Pages;

/// The time without progress after which the loop counts as stuck.
const HANGS: Duration = Duration::from_secs(60);

/// The state that the pages show.
#[derive(Clone)]
pub(super) struct Status {
    pub(super) board: Board,
    pub(super) network: NetworkPlugin,
    pub(super) conditions: watch::Receiver<Vec<Condition>>,
    pub(super) metrics: Arc<Metrics>,
}

impl Status {
    /// Returns the state of the pods, the network and the sources.
    pub(super) fn json(&self) -> Value {
        let mut overall = serde_json::to_value(&*self.board.overall().borrow()).unwrap_or_default();
        // A source is ready if it was read and is readable now.
        let failing = self.failing();
        if let Some(ready) = overall.get_mut("sourcesReady").filter(|_| !failing.is_empty()) {
            *ready = json!(false);
        }
        let pods = serde_json::to_value(self.board.pods()).unwrap_or_default();
        let network = match self.network.ready() {
            Ok(()) => {
                let name = self.network.default_network().map(|network| network.list.name.clone());
                json!({"ready": true, "name": name})
            }
            Err(why) => json!({"ready": false, "message": why.to_string()}),
        };
        json!({"overall": overall, "network": network, "problems": self.problems(), "pods": pods})
    }

    /// Returns why whole sources can't be read now. It is empty if all can.
    fn failing(&self) -> Vec<String> {
        let conditions = self.conditions.borrow();
        conditions.iter().filter(|of| of.whole).map(|of| of.error.to_string()).collect()
    }

    /// Returns what is wrong with manifests, sources and networks.
    pub(super) fn problems(&self) -> Vec<String> {
        let manifests = self.conditions.borrow();
        manifests.iter().map(|condition| condition.error.to_string()).chain(self.network.problems()).collect()
    }
}

impl Pages for Status {
    fn metrics(&self) -> (String, &'static str) {
        let problems = self.conditions.borrow().len();
        (self.metrics.text(&self.board, problems, &self.network), metrics::CONTENT_TYPE)
    }

    fn life(&self) -> Result<(), String> {
        if self.board.age() > HANGS { Err("the sync loop hangs".to_owned()) } else { Ok(()) }
    }

    fn health(&self) -> Result<String, String> {
        self.life()?;
        if let Some(trouble) = &self.board.overall().borrow().trouble {
            return Err(trouble.clone());
        }
        self.network.ready().map_err(|why| why.to_string())?;
        let failing = self.failing();
        if failing.is_empty() { Ok("ok\n".to_owned()) } else { Err(plain::text(&failing.join("\n"))) }
    }

    fn name(&self) -> &'static str {
        "/pods"
    }

    fn list(&self) -> String {
        plain::json(&format!("{:#}\n", self.json()))
    }
}
