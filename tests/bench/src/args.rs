//! Parses the command line.

use std::path::PathBuf;

use cnimble_tests::Sample;

use crate::{Contender, Result, SCENARIOS, SECTIONS, Scenario};

pub(crate) const HELP: &str = "\
Times ADD and DEL of bridge and host-local. Usually called by scripts/bench.

  --contender NAME=DIR  a directory with plugins; at least one, the first is the measure
                        for the ratios
  --pods N[,N...]       pods that are there already (default 1,300)
  --services N          for the sections pods and traffic: packet rules on each node as kube-proxy writes
                        them for so many Services (default none)
  --samples N           per verb, network and contender (default 30)
  --section NAME        pods (the default), concurrency, gc, leases, invoker, chain, kinds,
                        ports, growth, traffic, api, cluster or runtime; may be given several
                        times
  --cnimble FILE        the command, for the sections growth and api
  --netavark FILE       the program, as one more contender in the section chain
  --floor FILE          the program made of floor.c, as one more contender
  --only NAME           plain, ipMasq, dual or dual+ipMasq, or a plugin for the section kinds; may be given
                        several times
  --state-dir DIR       for leases (default: a new one below the temporary directory)
  --json FILE           write the figures, with every sample
  --markdown FILE       write a short table
  --report FILE         write everything as Markdown
  --plots DIR           write a plot (SVG) of each figure over a number of pods, leases or ports
  --command TEXT        what the report says it was made by
";

#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) contenders: Vec<Contender>,
    /// In ascending order.
    pub(crate) pods: Vec<usize>,
    pub(crate) samples: usize,
    /// Services with packet rules on each node.
    pub(crate) services: usize,
    pub(crate) json: Option<PathBuf>,
    pub(crate) markdown: Option<PathBuf>,
    pub(crate) state_dir: PathBuf,
    pub(crate) report: Option<PathBuf>,
    pub(crate) plots: Option<PathBuf>,
    pub(crate) command: String,
    pub(crate) cnimble: Option<PathBuf>,
    pub(crate) netavark: Option<PathBuf>,
    only: Vec<String>,
    sections: Vec<String>,
}

impl Args {
    /// Returns `None` if help was requested.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut args = Args {
            contenders: Vec::new(),
            pods: vec![1, 300],
            samples: 30,
            services: 0,
            json: None,
            markdown: None,
            state_dir: std::env::temp_dir(),
            report: None,
            plots: None,
            command: "cnimble-bench".to_owned(),
            cnimble: None,
            netavark: None,
            only: Vec::new(),
            sections: Vec::new(),
        };
        let mut floor = None;
        while let Some(word) = words.next() {
            if word == "--help" || word == "-h" {
                return Ok(None);
            }
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--contender" => {
                    let text = value()?;
                    let (name, dir) = text
                        .split_once('=')
                        .ok_or_else(|| format!("--contender {text}: NAME=DIR is wanted"))?;
                    let (name, dir) = (name.to_owned(), std::path::absolute(dir)?);
                    args.contenders.push(Contender { name, dir, floor: false, waits: false, backend: None });
                }
                "--floor" => floor = Some(std::path::absolute(value()?)?),
                "--section" => {
                    let text = value()?;
                    if !SECTIONS.iter().any(|(name, _)| *name == text) {
                        return Err(format!("--section {text}: there is no such section").into());
                    }
                    args.sections.push(text);
                }
                "--report" => args.report = Some(value()?.into()),
                "--plots" => args.plots = Some(value()?.into()),
                "--command" => args.command = value()?,
                "--pods" => args.pods = pods(&value()?)?,
                "--samples" => {
                    let text = value()?;
                    args.samples = text
                        .parse()
                        .ok()
                        .filter(|n| *n > 0)
                        .ok_or_else(|| format!("--samples {text}: a number from 1 is wanted"))?;
                }
                "--services" => {
                    let text = value()?;
                    let number = text.parse().ok().filter(|number| *number < 65_000);
                    args.services =
                        number.ok_or_else(|| format!("--services {text}: a number below 65000 is wanted"))?;
                }
                "--only" => {
                    let text = value()?;
                    let is_network = SCENARIOS.iter().any(|scenario| scenario.name == text);
                    if !is_network && !Sample::all().iter().any(|sample| sample.plugin == text) {
                        return Err(format!("--only {text}: there is no such network or plugin").into());
                    }
                    args.only.push(text);
                }
                "--cnimble" => args.cnimble = Some(std::path::absolute(value()?)?),
                "--netavark" => args.netavark = Some(std::path::absolute(value()?)?),
                "--state-dir" => args.state_dir = value()?.into(),
                "--json" => args.json = Some(value()?.into()),
                "--markdown" => args.markdown = Some(value()?.into()),
                _ => return Err(format!("unknown argument {word}; see --help").into()),
            }
        }
        if args.contenders.is_empty() {
            return Err("no --contender was given; see --help".into());
        }
        if args.sections.is_empty() {
            args.sections.push("pods".to_owned());
        }
        // The floor is last. The first contender is the reference, and the second is usually ours.
        args.contenders.extend(floor.map(|dir| Contender {
            name: "floor".to_owned(),
            dir,
            floor: true,
            waits: false,
            backend: None,
        }));
        Ok(Some(args))
    }

    /// Returns true if the section is measured.
    pub(crate) fn has(&self, section: &str) -> bool {
        self.sections.iter().any(|name| name == section)
    }

    /// Returns the contenders that are sets of plugins.
    pub(crate) fn plugins(&self) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(|contender| !contender.floor)
    }

    /// Returns the networks to measure.
    pub(crate) fn scenarios(&self) -> impl Iterator<Item = &'static Scenario> {
        let all = !SCENARIOS.iter().any(|scenario| self.names(scenario.name));
        SCENARIOS.iter().filter(move |scenario| all || self.names(scenario.name))
    }

    /// Returns the samples of the plugins that are measured one by one.
    pub(crate) fn samples_of_plugins(&self) -> impl Iterator<Item = &'static Sample> {
        let all = !Sample::all().iter().any(|sample| self.names(&sample.plugin));
        Sample::all().iter().filter(move |sample| all || self.names(&sample.plugin))
    }

    /// Returns true if the command line names `what` as one of the parts to measure.
    fn names(&self, what: &str) -> bool {
        self.only.iter().any(|name| name == what)
    }
}

/// Parses a list such as `1,300`, in any order.
fn pods(text: &str) -> Result<Vec<usize>> {
    // A bridge has 1023 ports, and one more pod is added for each sample.
    let mut pods = text
        .split(',')
        .map(|number| number.trim().parse().ok().filter(|n| *n <= 1000))
        .collect::<Option<Vec<usize>>>()
        .ok_or_else(|| format!("--pods {text}: numbers up to 1000 are wanted, with commas between"))?;
    pods.sort_unstable();
    pods.dedup();
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Args>> {
        Args::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn reads_what_the_script_gives() {
        let args =
            parse(&["--contender", "a=/x", "--contender", "b=/y", "--pods", "300,1,300", "--only", "dual"])
                .unwrap()
                .unwrap();
        assert_eq!(args.pods, [1, 300]);
        assert_eq!(args.contenders[1].dir, PathBuf::from("/y"));
        assert_eq!(args.scenarios().map(|s| s.name).collect::<Vec<_>>(), ["dual"]);
        assert_eq!(args.samples_of_plugins().count(), Sample::all().len());
    }

    #[test]
    fn a_plugin_can_be_measured_alone() {
        let args = parse(&["--contender", "a=/x", "--only", "vlan"]).unwrap().unwrap();
        let plugins: Vec<_> = args.samples_of_plugins().map(|sample| sample.plugin.as_str()).collect();
        assert_eq!((plugins, args.scenarios().count()), (vec!["vlan"], SCENARIOS.len()));
    }

    #[test]
    fn the_floor_is_the_last_contender_and_no_plugin() {
        let args = parse(&["--floor", "/f", "--contender", "a=/x"]).unwrap().unwrap();
        assert_eq!(args.contenders[1].name, "floor");
        assert_eq!(args.plugins().count(), 1);
        assert!(args.has("pods") && !args.has("leases"));
    }

    #[test]
    fn refuses_nonsense() {
        for words in [
            &["--pods", "1"][..],
            &["--contender", "a"],
            &["--contender", "a=/x", "--pods", "1,,2"],
            &["--contender", "a=/x", "--pods", "1001"],
            &["--contender", "a=/x", "--samples", "0"],
            &["--contender", "a=/x", "--services", "many"],
            &["--contender", "a=/x", "--only", "triple"],
            &["--contender", "a=/x", "--section", "lunch"],
            &["--contender", "a=/x", "--speed"],
            &["--contender"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
