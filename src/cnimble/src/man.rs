//! `man`: generates manual pages from the definition of the command line.

use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::args::Cli;
use super::args::config;
use super::print;
use super::report::{Exit, Report};

/// The variables that every verb uses.
const VARIABLES: [(&str, &str); 3] = [
    ("CNIMBLE_LOG", "The level of logs on stderr: off, error, warn, info, debug or trace."),
    ("NO_COLOR", "If it is not empty, output has no colours. Only a terminal gets colours."),
    ("TERM", "If it is dumb, output has no colours."),
];

/// Variables of single verbs: the name of an option or argument that such a verb has, the variable, and its meaning.
const VARIABLES_OF: [(&str, &str, &str); 4] = [
    ("ifname", "CNI_IFNAME", "The same as --ifname."),
    ("in_cluster", "KUBERNETES_SERVICE_HOST", "With --in-cluster: the address of the API server."),
    ("in_cluster", "KUBERNETES_SERVICE_PORT", "With --in-cluster: the port of the API server."),
    ("log_format", "NOTIFY_SOCKET", "The socket on which systemd learns that the service is ready."),
];

/// Files of single verbs: the name of an option or argument that such a verb has, the path, and its meaning.
const FILES: [(&str, &str, &str); 10] = [
    ("conf_dir", "/etc/cni/net.d", "Networks: one .conflist, .conf or .json file each."),
    ("cni_path", "/opt/cni/bin, /usr/lib/cni", "Plugins."),
    ("cache_dir", "/var/lib/cni/results", "The results of ADD, in the form of libcni."),
    ("lock_dir", "/run/cnimble/locks", "Locks of networks."),
    ("data_dir", "/var/lib/cni/networks", "Leases of host-local, one directory per network."),
    ("state_dir", "/var/lib/cnimble", "The records of pods of pod, run and serve."),
    ("run_dir", "/run/cnimble", "The network namespaces and resolv.conf files of these pods."),
    ("netns", "/run/netns", "Named network namespaces, as ip-netns(8) creates them."),
    ("cri", "/run/cnimble/cri.sock", "The socket of serve."),
    (
        "in_cluster",
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "With --in-cluster: the token of the service account and the certificate of the API server.",
    ),
];

/// Prints the manual page of the command, or writes the pages of all verbs to a directory.
pub(super) fn man(given: &config::Man) -> Result<(), Report> {
    let failed = |err: io::Error| {
        let report = Report::because(Exit::Files, "can't write the manual", err);
        given.dir.iter().fold(report, |report, dir| report.row("directory", dir.display().to_string()))
    };
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(dir) = &given.dir else {
        return print(&String::from_utf8_lossy(&page(&root).map_err(failed)?));
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    write(&root, dir).map_err(failed)
}

/// Writes the pages of a command and of all visible commands below it.
fn write(command: &Command, dir: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(below, dir)?;
    }
    std::fs::write(dir.join(Man::new(command.clone()).get_filename()), page(command)?)
}

/// Returns whether the command has an option or argument with this ID.
fn has_argument(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id().as_str() == name)
}

/// Returns the manual page of a command in roff.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let options = command.get_arguments().filter_map(|arg| {
        let variable = arg.get_env()?.to_str()?;
        Some((variable.to_owned(), format!("The same as --{}.", arg.get_long()?)))
    });
    let more = VARIABLES_OF
        .iter()
        .filter(|(name, ..)| has_argument(command, name))
        .map(|(_, variable, about)| (*variable, *about));
    let more = more.chain(VARIABLES).map(|(variable, about)| (variable.to_owned(), about.to_owned()));
    list(&mut out, "ENVIRONMENT", options.chain(more))?;
    let files = FILES.iter().filter(|(name, ..)| has_argument(command, name));
    list(&mut out, "FILES", files.map(|(_, file, about)| ((*file).to_owned(), (*about).to_owned())))?;
    text(&mut out, "EXIT STATUS", &after(&Cli::command(), "Exit status:\n"))?;
    text(&mut out, "EXAMPLES", &after(command, "Examples:\n"))?;
    if command.get_version().is_some() {
        man.render_version_section(&mut out)?;
    }
    Ok(out)
}

/// Writes a section of names with their meanings. Without items it writes the heading alone.
fn list(out: &mut dyn Write, heading: &str, items: impl Iterator<Item = (String, String)>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (name, about) in items {
        roff.control("TP", []).text([bold(name)]).text([roman(about)]);
    }
    roff.to_writer(out)
}

/// Writes a section whose lines stay as they are.
fn text(out: &mut dyn Write, heading: &str, lines: &str) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.to_writer(out)
}

/// Returns the part with this heading from the text after a command's help. It is empty if there is none.
fn after(command: &Command, heading: &str) -> String {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let part = text.split_once(heading).map(|(_, part)| part).unwrap_or_default();
    // The next heading begins in the first column.
    let own = part.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
    own.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_environment_files_exit_status_and_examples() {
        fn walk(command: &Command) -> usize {
            let page = String::from_utf8(page(command).unwrap()).unwrap();
            let section = |heading: &str| {
                let part =
                    page.split_once(&format!(".SH {heading}\n")).map(|(_, part)| part).unwrap_or_default();
                part.split("\n.SH ").next().unwrap_or_default().to_owned()
            };
            let name = command.get_display_name().unwrap_or("cnimble");
            for (heading, word) in [
                ("ENVIRONMENT", "CNI_PATH"),
                ("ENVIRONMENT", "NO_COLOR"),
                ("FILES", "/etc/cni/net.d"),
                ("\"EXIT STATUS\"", "129, 130, 143"),
                (
                    "EXAMPLES",
                    &name.replace('-', " ").replace("set pod cidr", "set").replace("hand over", "hand"),
                ),
            ] {
                let plain = section(heading).replace('\\', "");
                assert!(plain.contains(word), "{name}, {heading}: {plain}");
            }
            1 + command.get_subcommands().filter(|below| !below.is_hide_set()).map(walk).sum::<usize>()
        }
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        assert!(walk(&root) > 35);
    }
}
