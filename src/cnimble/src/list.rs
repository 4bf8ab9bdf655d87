//! `plugins` and `networks`: list the installed plugins and networks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

use cnimble_cni::Version;
use cnimble_runtime::{PluginError, Stderr, Versions, all_plugins};

use super::report::{Exit, Report};
use super::style::table;
use super::{Session, print, print_json};

/// The time limit for a plugin's answer. The directory may contain other programs.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn plugins(session: &Session) -> Result<(), Report> {
    let path = session.invoker.path();
    let found = all_plugins(&harmless(path));
    let invoker = session.invoker.clone().with_time_limit(LIMIT).with_stderr(Stderr::Capture);
    let invoker = &invoker;
    let probes = found.into_iter().map(|(name, file)| async move {
        let answer = invoker.versions_of(&file).await;
        (name, file, answer)
    });
    let answers: Vec<_> = futures::stream::iter(probes).buffered(8).collect().await;
    if answers.is_empty() {
        let dirs: Vec<String> = path.iter().map(|dir| dir.display().to_string()).collect();
        return Err(Report::new(Exit::Execution, "there are no plugins")
            .row("why", format!("looked in {}", dirs.join(" ")))
            .hint("name their directories with --cni-path or CNI_PATH"));
    }
    if session.json {
        let list = answers.iter().map(|(name, file, answer)| match answer {
            Ok(versions) => json!({"name": name, "path": file, "supportedVersions": versions.supported}),
            Err(err) => json!({"name": name, "path": file, "error": err.to_string()}),
        });
        return print_json(&list.collect());
    }
    let lines: Vec<Vec<String>> = answers
        .into_iter()
        .map(|(name, file, answer)| vec![name, shown(answer), file.display().to_string()])
        .collect();
    print(&table(&["PLUGIN", "CNI VERSIONS", "PATH"], &lines, session.paint))
}

/// Removes directories of ordinary programs. Running each program there to find plugins is dangerous: /usr/sbin has
/// poweroff.
fn harmless(path: &[PathBuf]) -> Vec<PathBuf> {
    const ORDINARY: [&str; 6] =
        ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    let real = |dir: &Path| dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let own = std::env::var_os("PATH").unwrap_or_default();
    let ordinary: Vec<PathBuf> =
        std::env::split_paths(&own).chain(ORDINARY.map(PathBuf::from)).map(|dir| real(&dir)).collect();
    let (left_out, harmless): (Vec<&PathBuf>, Vec<&PathBuf>) =
        path.iter().partition(|dir| ordinary.contains(&real(dir)));
    for dir in left_out {
        log::warn!("{} holds ordinary programs (it is in PATH); they are not asked", dir.display());
    }
    harmless.into_iter().cloned().collect()
}

fn shown(answer: Result<Versions, PluginError>) -> String {
    match answer {
        Ok(versions) => span(&versions.supported),
        Err(PluginError::TimeLimit { .. }) => "no answer".to_owned(),
        Err(PluginError::Start { source, .. }) => source.to_string(),
        Err(_) => "not a CNI plugin?".to_owned(),
    }
}

/// Returns `0.1.0 to 1.1.0` for consecutive versions, or else all of them.
fn span(supported: &[String]) -> String {
    let known: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    match (supported.first(), supported.last()) {
        (Some(first), Some(last))
            if supported.len() > 2 && known.windows(supported.len()).any(|run| run == supported) =>
        {
            format!("{first} to {last}")
        }
        _ => supported.join(" "),
    }
}

pub(super) fn networks(session: &Session) -> Result<(), Report> {
    let what = "can't list the networks";
    let listing = session.conf.list().map_err(|err| Report::conf(what, &err))?;
    let plugins = |network: &cnimble_runtime::Network| -> Vec<String> {
        let list = network.list.plugins.iter();
        list.map(|plugin| plugin.plugin_type.clone()).collect()
    };
    if listing.networks.is_empty() && listing.problems.is_empty() {
        return Err(Report::new(Exit::Config, "there are no networks")
            .row("why", format!("{} has no file of one", session.conf.dir().display()))
            .hint("put a .conflist there, or name another directory with --conf-dir or NETCONFPATH"));
    }
    let mut seen = std::collections::BTreeSet::new();
    let hidden: Vec<bool> = listing.networks.iter().map(|network| !seen.insert(&network.list.name)).collect();
    if session.json {
        let good = listing.networks.iter().zip(&hidden).map(|(network, hidden)| {
            json!({
                "name": network.list.name,
                "cniVersion": network.list.version.as_str(),
                "plugins": plugins(network),
                "file": network.path,
                "hidden": hidden,
            })
        });
        let bad = listing.problems.iter().map(ToString::to_string);
        print_json(&json!({
            "networks": good.collect::<Value>(),
            "problems": bad.collect::<Value>(),
        }))?;
    } else {
        let lines: Vec<Vec<String>> = listing
            .networks
            .iter()
            .zip(&hidden)
            .map(|(network, hidden)| {
                let file = network.path.display();
                vec![
                    network.list.name.clone(),
                    network.list.version.to_string(),
                    plugins(network).join(" "),
                    match hidden {
                        true => format!("{file} (hidden by the one of this name above)"),
                        false => file.to_string(),
                    },
                ]
            })
            .collect();
        if !lines.is_empty() {
            print(&table(&["NETWORK", "CNI", "PLUGINS", "FILE"], &lines, session.paint))?;
        }
    }
    if listing.problems.is_empty() {
        return Ok(());
    }
    if session.json {
        // The listing already shows the problems.
        return Err(Report::new(Exit::Config, ""));
    }
    let report = Report::new(Exit::Config, "some files can't be used");
    let problems = listing.problems.iter();
    Err(problems.fold(report, |report, problem| report.row("why", problem.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        assert_eq!(span(&texts(&["0.3.1", "0.4.0", "1.0.0"])), "0.3.1 to 1.0.0");
        assert_eq!(span(&texts(&["0.1.0", "0.2.0"])), "0.1.0 0.2.0");
        assert_eq!(span(&texts(&["0.1.0", "1.0.0", "1.1.0"])), "0.1.0 1.0.0 1.1.0");
        assert_eq!(span(&[]), "");
    }
}
