//! The help: verbs in groups, the options of all commands in one line, and the way from a wrong verb to the right one.

use clap::{Command, CommandFactory};

use super::Cli;

pub(crate) const COMMIT: &str = env!("CNIMBLE_COMMIT");

pub(crate) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("CNIMBLE_COMMIT"),
    ", CNI specification 0.1.0 to 1.1.0)"
);

/// The verbs by what a person wants. Each verb is in one group, and a test holds that.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Attach", &["add", "del", "check"]),
    ("Look", &["ls", "tree", "network", "plugins", "status", "stats", "events", "trace"]),
    ("Repair", &["doctor", "guard", "gc", "hand-over"]),
    ("Write configurations", &["init", "validate", "explain", "schema"]),
    ("Pods and clusters", &["pod", "run", "serve", "cri", "node", "ipam"]),
    ("This program", &["version", "completions", "man", "help"]),
];

/// Verbs of other programs, and what does their work here.
const RIGHT_VERBS: [(&str, &str); 4] = [
    ("list", "`cnimble ls` lists attachments, `cnimble network ls` networks"),
    ("inspect", "`cnimble tree POD` draws a pod, `cnimble network inspect NETWORK` shows a network"),
    ("remove", "`cnimble del NETWORK NETNS` detaches a pod, `cnimble network rm NETWORK` removes a network"),
    (
        "prune",
        "`cnimble doctor --repair` removes what dead pods left on this node, `cnimble gc NETWORK --gone` in one network",
    ),
];

/// Returns what to type instead of a verb that there is not.
pub(crate) fn right_verb(word: &str) -> Option<&'static str> {
    RIGHT_VERBS.iter().find(|(wrong, _)| *wrong == word).map(|(_, right)| *right)
}

/// The command line with its help in the form of this module. It takes a millisecond more to build than the plain one.
pub(crate) fn command() -> Command {
    let mut root = Cli::command();
    // Gives each command its own copy of the options of all commands.
    root.build();
    let line = line_of_common_options(&root);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{{options}}{{after-help}}",
        groups(&root)
    );
    let short = format!("{line}\n\n`cnimble --help` has examples and the exit status too.");
    root.mut_subcommands(|below| with_one_line(below, &line))
        .mut_args(|arg| if arg.is_global_set() { arg.hide_short_help(true) } else { arg })
        .help_template(template)
        .after_help(short)
}

fn with_one_line(command: Command, line: &str) -> Command {
    command
        .mut_subcommands(|below| with_one_line(below, line))
        .mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg })
        .help_template(format!(
            "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{{all-args}}\n\n{line}{{after-help}}"
        ))
}

fn line_of_common_options(root: &Command) -> String {
    let common = root.get_arguments().filter(|arg| arg.is_global_set());
    let names: Vec<String> =
        common.filter_map(|arg| arg.get_long()).map(|name| format!("--{name}")).collect();
    format!("Common options: {} (cnimble --help)", names.join(" "))
}

fn groups(root: &Command) -> String {
    let width = GROUPS.iter().flat_map(|(_, verbs)| *verbs).map(|verb| verb.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (heading, verbs) in GROUPS {
        // Clap takes the escape codes away where stdout is no terminal.
        text += &format!("\x1b[1m\x1b[4m{heading}:\x1b[0m\n");
        for verb in verbs {
            let about = root.find_subcommand(verb).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text += &format!("  \x1b[1m{verb:width$}\x1b[0m  {about}\n");
        }
        text.push('\n');
    }
    format!("{text}\x1b[1m\x1b[4mOptions:\x1b[0m\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A verb that is found under another one, and has no line of its own.
    const ELSEWHERE: &str = "networks";

    #[test]
    fn each_verb_stands_in_the_help_once() {
        let mut root = Cli::command();
        root.build();
        let mut known: Vec<&str> = root.get_subcommands().map(Command::get_name).collect();
        known.retain(|verb| *verb != ELSEWHERE);
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| *verbs).copied().collect();
        known.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, known);
        for help in [command().render_help(), command().render_long_help()] {
            let help = help.to_string();
            for verb in grouped.iter().chain([&ELSEWHERE]) {
                let lines = help.lines().filter(|line| line.starts_with(&format!("  {verb} ")));
                assert_eq!(lines.count(), usize::from(*verb != ELSEWHERE), "{verb}:\n{help}");
            }
        }
    }

    #[test]
    fn lines_of_verbs_fit_a_terminal() {
        for line in command().render_help().to_string().lines() {
            let is_of_verb = line.starts_with("  ") && !line.trim_start().starts_with('-');
            assert!(!is_of_verb || line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn options_of_all_commands_take_one_line() {
        fn walk(command: &Command, path: &str) {
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                let path = format!("{path} {}", below.get_name());
                for help in [below.clone().render_help(), below.clone().render_long_help()] {
                    let help = help.to_string();
                    let options = help.split("\nExamples:").next().unwrap_or_default();
                    assert_eq!(options.matches("--cni-path").count(), 1, "{path}:\n{help}");
                    assert_eq!(help.matches("Common options:").count(), 1, "{path}:\n{help}");
                }
                walk(below, &path);
            }
        }
        let command = command();
        walk(&command, "cnimble");
        assert_eq!(command.clone().render_help().to_string().matches("--lock-dir").count(), 1);
        assert!(command.clone().render_long_help().to_string().contains("--lock-dir <DIR>\n"));
    }

    #[test]
    fn wrong_verbs_lead_to_verbs_that_there_are() {
        let root = command();
        for (wrong, right) in RIGHT_VERBS {
            assert!(root.find_subcommand(wrong).is_none(), "{wrong}");
            for line in right.split('`').skip(1).step_by(2) {
                let mut words = line.split(' ').skip(1);
                let verb = root.find_subcommand(words.next().unwrap());
                let verb = verb.unwrap_or_else(|| panic!("{line}"));
                if verb.has_subcommands() {
                    assert!(verb.find_subcommand(words.next().unwrap()).is_some(), "{line}");
                }
            }
        }
    }
}
