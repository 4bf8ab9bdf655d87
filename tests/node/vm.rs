//! Tests scripts/vm: the parts that come back from the machine, and those that don't.

use std::process::Output;

use cnimble_tests::{skip, vm};

/// Runs a command in the machine. Returns its exit status, stdout and stderr.
fn run(options: &[&str], command: &[&str]) -> (i32, String, String) {
    said(vm::script().arg("run").args(options).arg("--").args(command).env("CNIMBLE_VM_WORD", "a 'b' $c\nd"))
}

fn said(command: &mut std::process::Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

#[test]
fn status_output_environment_and_files_go_in_and_come_out() {
    if let Err(why) = vm::set_up() {
        skip!("{why}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (kept, lost) = (dir.path().join("kept here"), dir.path().join("lost"));
    std::fs::create_dir(&kept).unwrap();
    let script = r#"
        printf %s "$CNIMBLE_VM_WORD$3"; echo err >&2
        [ -t 1 ] || [ -t 2 ] && echo terminal
        sleep 60 & id -u; pwd; cat "$0"; ls /run; ip -o link | wc -l
        echo changed >"$1/file"; echo changed >"$2"
        exit 7"#;
    let this = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let (kept_path, lost_path) = (kept.to_str().unwrap(), lost.to_str().unwrap());
    let (status, stdout, stderr) =
        run(&["-w", kept_path], &["sh", "-c", script, this, kept_path, lost_path, "e\"f g"]);
    let here = std::env::current_dir().unwrap();
    let content = std::fs::read_to_string(this).unwrap();
    let wanted = format!("a 'b' $c\nde\"f g0\n{}\n{content}vm\n1\n", here.display());
    assert_eq!((status, stdout.as_str(), stderr.as_str()), (7, wanted.as_str(), "err\n"));
    assert_eq!(std::fs::read_to_string(kept.join("file")).unwrap(), "changed\n");
    assert!(!lost.exists(), "what is written outside -w must not come back");
}

#[test]
fn a_megabyte_comes_back_whole() {
    if let Err(why) = vm::set_up() {
        skip!("{why}");
    }
    let (status, stdout, stderr) = run(&[], &["sh", "-c", "seq 150000; seq 150000 >&2"]);
    let wanted: String = (1..=150_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(status, 0);
    assert!(stdout == wanted, "stdout has {} bytes, not {}", stdout.len(), wanted.len());
    assert!(stderr == wanted, "stderr has {} bytes, not {}", stderr.len(), wanted.len());
}

#[test]
fn time_out_and_death_have_a_status_of_their_own() {
    if let Err(why) = vm::set_up() {
        skip!("{why}");
    }
    let (status, _, stderr) = run(&["-t", "3"], &["sleep", "60"]);
    assert_eq!((status, stderr.as_str()), (124, "error: it took longer than 3 seconds\n"));
    let (status, _, stderr) = run(&[], &["sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60"]);
    assert_eq!(status, 125, "{stderr}");
    assert!(stderr.ends_with("error: the machine died\n"), "{stderr}");
    assert!(stderr.contains("panic"), "the kernel's last words are missing: {stderr}");
    // A signal to the command doesn't count as a crash of the machine.
    assert_eq!(run(&[], &["sh", "-c", "kill -9 $$"]).0, 137);
    assert_eq!(run(&[], &["no-such-command-here"]).0, 127);
}

#[test]
fn a_half_made_or_foreign_directory_is_not_taken_for_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("linux"), "").unwrap();
    let (status, _, stderr) = said(vm::script().args(["run", "true"]).env("CNIMBLE_VM_DIR", dir.path()));
    assert_eq!(status, 125);
    assert!(stderr.starts_with("error: there is no kernel in "), "{stderr}");
    let (status, _, stderr) = said(vm::script().arg("setup").env("CNIMBLE_VM_DIR", dir.path()));
    assert_eq!(status, 1);
    assert!(stderr.contains("holds something else"), "{stderr}");
    assert!(dir.path().join("linux").exists());
}

#[test]
fn a_set_up_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("uml");
    let (status, _, stderr) = said(
        vm::script()
            .arg("setup")
            .env("CNIMBLE_VM_DIR", &target)
            .env("CNIMBLE_VM_MIRROR", "file:///no/such/mirror"),
    );
    assert_eq!(status, 1, "{stderr}");
    assert!(stderr.contains("error: "), "{stderr}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["uml.lock"], "only the lock may be left");
}

#[test]
fn wrong_calls_are_told_apart() {
    for (arguments, status, part) in [
        (&["fly"][..], 2, "unknown command \"fly\""),
        (&[], 2, "scripts/vm setup"),
        (&["setup", "now"], 2, "takes no arguments"),
        (&["run"], 125, "what is to be run?"),
        (&["run", "-t"], 125, "-t needs a value"),
        (&["run", "-t", "soon", "true"], 125, "-t soon: not a number of seconds"),
        (&["run", "-w", "/no/such/dir", "true"], 125, "-w /no/such/dir: not a directory"),
        (&["run", "-z", "true"], 125, "unknown option -z"),
    ] {
        let (got, stdout, stderr) = said(vm::script().args(arguments));
        assert_eq!((got, stdout.as_str()), (status, ""), "{arguments:?}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
    let (status, help, _) = said(vm::script().arg("--help"));
    assert_eq!(status, 0);
    assert!(help.contains("CNIMBLE_VM_DIR") && help.contains("Exit status"), "{help}");
}
