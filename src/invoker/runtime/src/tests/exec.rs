//! Single executions: what a plugin can do wrong, time limits, cancellation.

use std::fs;
use std::path::Path;
use std::process::{ExitStatus, Output};
use std::time::{Duration, Instant};

use crate::exec::{Exec, Parameters};
use crate::versions::versions;
use crate::{Attach, Error, Execute, Executed, Invocation, PluginError, Stderr, Verb};

use super::{Bench, network};

const PARAMETERS: Parameters<'static> = Parameters {
    verb: Verb::Add,
    container_id: "c",
    netns: "",
    ifname: "eth0",
    args: &[],
    env: &[],
    path: &[],
};

async fn run(script: &str, stdin: &[u8], exec: &Exec) -> Result<Vec<u8>, PluginError> {
    let bench = Bench::new(&[]);
    let file = bench.plugin("it", &format!("#!/bin/sh\n{script}\n"));
    exec.run(&file, &PARAMETERS, stdin).await
}

fn capture() -> Exec {
    Exec { limit: None, stderr: Stderr::Capture, ..Exec::default() }
}

fn limited(millis: u64) -> Exec {
    Exec { limit: Some(Duration::from_millis(millis)), stderr: Stderr::Capture, ..Exec::default() }
}

/// Whether this process runs or is a zombie.
pub(super) fn exists(pid: &str) -> bool {
    Path::new("/proc").join(pid.trim()).exists()
}

pub(super) async fn until(mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..12_000 {
        if done() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test]
async fn failures_without_a_cni_error_say_what_there_was() {
    let text = |outcome: Result<Vec<u8>, PluginError>| outcome.unwrap_err().to_string();
    let err = text(run("exit 3", b"", &capture()).await);
    assert!(err.contains("/bin/it: failed (exit status: 3) without a CNI error; stdout was empty"), "{err}");
    let err =
        text(run("echo; echo 'panic: oh \"no\"'; echo more; echo why >&2; exit 2", b"", &capture()).await);
    assert!(err.contains(r#"stdout began "panic: oh \"no\""; stderr: why"#), "{err}");
    let err = text(run("kill -9 $$", b"", &capture()).await);
    assert!(err.contains("signal: 9"), "{err}");
    let err =
        text(run(r#"echo '{"code":101,"msg":"full","details":"very"}'; exit 1"#, b"", &capture()).await);
    assert_eq!(err, "full; very (code 101)");
}

#[tokio::test]
async fn what_cannot_be_executed_is_named() {
    let bench = Bench::new(&[]);
    let err = capture().run(Path::new("/nonexistent/it"), &PARAMETERS, b"").await.unwrap_err();
    assert!(err.to_string().starts_with("/nonexistent/it: can't be executed: "), "{err}");
    bench.write("plain", "text");
    let err = capture().run(&bench.path().join("plain"), &PARAMETERS, b"").await.unwrap_err();
    assert!(matches!(err, PluginError::Start { .. }), "{err}");
}

#[tokio::test]
async fn input_and_output_of_any_size_pass() {
    let input = vec![b'x'; 3 << 20];
    let output = run("cat; echo done >&2", &input, &capture()).await.unwrap();
    assert!(output == input);
    // A plugin that reads nothing, and one that answers before it reads.
    assert_eq!(run("echo '{}'", &input, &capture()).await.unwrap(), b"{}\n");
    assert_eq!(run("exec 0<&-; sleep 0.1; echo '{}'", &input, &capture()).await.unwrap(), b"{}\n");
    let noise =
        run("head -c 1000000 /dev/zero | tr '\\0' n >&2; echo the end >&2; exit 1", b"", &capture()).await;
    let PluginError::NoError { stderr, .. } = noise.unwrap_err() else { panic!() };
    assert!(stderr.len() <= 4096 && stderr.ends_with("the end"), "{}", stderr.len());
}

#[tokio::test]
async fn output_without_end_is_cut_off() {
    let err = run("yes", b"", &capture()).await.unwrap_err();
    assert!(matches!(err, PluginError::TooLong { .. }), "{err}");
    // It may have ended by itself.
    let text = err.to_string();
    assert!(text.contains(" bytes to stdout") && !text.contains("killed"), "{text}");
}

#[tokio::test]
async fn a_process_left_behind_does_not_hold_us_up() {
    let bench = Bench::new(&[]);
    let file = bench.plugin(
        "it",
        &format!("#!/bin/sh\nsleep 1000 & echo $! >{}/pid; echo '{{}}'", bench.path().display()),
    );
    assert_eq!(capture().run(&file, &PARAMETERS, b"").await.unwrap(), b"{}\n");
    let pid = fs::read_to_string(bench.path().join("pid")).unwrap();
    assert!(exists(&pid), "a daemon that a plugin starts may live on");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.trim().parse().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
}

#[tokio::test]
async fn at_the_time_limit_the_plugin_may_clean_up() {
    // Builtins only: nothing here takes long.
    let script = |dir: &Path| {
        format!(
            "#!/bin/sh\ntrap ': >{0}/cleaned; exit 1' TERM\nsleep 1000 & echo $! >{0}/pid\n\
             echo started >&2; : >{0}/ready; wait\n",
            dir.display()
        )
    };
    // A limit that the plugin has begun to work within.
    for millis in [300, 3_000, 30_000] {
        let bench = Bench::new(&[]);
        let file = bench.plugin("it", &script(bench.path()));
        let err = limited(millis).run(&file, &PARAMETERS, b"").await.unwrap_err();
        if !bench.path().join("ready").exists() {
            continue;
        }
        let limit = Duration::from_millis(millis);
        let told = format!("bin/it: no answer within {limit:?}; killed; stderr: started");
        assert!(err.to_string().ends_with(&told), "{err}");
        assert!(bench.path().join("cleaned").exists());
        let pid = fs::read_to_string(bench.path().join("pid")).unwrap();
        assert!(until(|| !exists(&pid)).await, "its children go with it");
        return;
    }
    panic!("a shell takes half a minute to start");
}

#[tokio::test]
async fn a_plugin_that_ignores_sigterm_is_killed() {
    let err = run("trap '' TERM; while :; do sleep 0.1; done", b"", &limited(100)).await.unwrap_err();
    assert!(matches!(err, PluginError::TimeLimit { .. }), "{err}");
}

#[tokio::test]
async fn a_dropped_future_kills_the_plugin_and_its_children() {
    let bench = Bench::new(&[]);
    let script = format!(
        "#!/bin/sh\nsleep 1000 & echo $! >{0}/child; echo $$ >{0}/pid; wait\n",
        bench.path().display()
    );
    let file = bench.plugin("it", &script);
    let exec = capture();
    let pid = bench.path().join("pid");
    {
        let mut work = std::pin::pin!(exec.run(&file, &PARAMETERS, b""));
        let started = until(|| fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
        tokio::select! {
            outcome = &mut work => panic!("{outcome:?}"),
            started = started => assert!(started),
        }
    }
    let pid = fs::read_to_string(&pid).unwrap();
    assert!(until(|| !exists(&pid)).await, "killed, and reaped");
    let child = fs::read_to_string(bench.path().join("child")).unwrap();
    assert!(until(|| !exists(&child)).await);
}

#[tokio::test]
async fn a_file_that_is_being_written_is_waited_for() {
    let bench = Bench::new(&[]);
    let file = bench.plugin("it", "#!/bin/sh\necho '{}'\n");
    let writer = fs::OpenOptions::new().append(true).open(&file).unwrap();
    let exec = capture();
    let release = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(writer);
        Instant::now()
    };
    let run = async { (exec.run(&file, &PARAMETERS, b"").await.unwrap(), Instant::now()) };
    let (released, (answer, answered)) = tokio::join!(release, run);
    assert_eq!(answer, b"{}\n");
    assert!(answered > released);
}

#[tokio::test]
async fn versions_of_old_and_strange_plugins() {
    let ask = async |script: &str| {
        let bench = Bench::new(&[]);
        let file = bench.plugin("it", &format!("#!/bin/sh\n{script}\n"));
        versions(&capture(), &file, &["/x".into()]).await
    };
    let old = r#"echo '{"code":100,"msg":"unknown CNI_COMMAND: '$CNI_COMMAND'"}'; exit 1"#;
    assert_eq!(ask(old).await.unwrap().supported, ["0.1.0"]);
    // The shapes that libcni sends, for skeletons that insist on them.
    let strict = r#"[ "$CNI_NETNS$CNI_IFNAME$CNI_PATH" = dummydummy/x ] && grep -q cniVersion &&
        echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'"#;
    assert_eq!(ask(strict).await.unwrap().supported, ["1.0.0"]);
    assert!(matches!(ask("echo hello").await, Err(PluginError::BadOutput { .. })));
    assert!(matches!(ask("exit 1").await, Err(PluginError::NoError { .. })));
}

/// Answers ADD without a process, and no other verb.
#[derive(Debug)]
struct Fake;

impl Execute for Fake {
    fn execute<'a>(&'a self, invocation: Invocation<'a>) -> Executed<'a> {
        Box::pin(async move {
            if !invocation.env.contains(&("CNI_COMMAND", "ADD".into())) {
                std::future::pending::<()>().await;
            }
            assert!(invocation.stdin.starts_with(b"{") && invocation.file.ends_with("bin/one"));
            let stdout = br#"{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.7/24"}]}"#.to_vec();
            Ok(Output { status: ExitStatus::default(), stdout, stderr: Vec::new() })
        })
    }
}

#[tokio::test]
async fn an_executor_stands_for_the_kernel_and_ends_at_the_limit() {
    let bench = Bench::new(&["one"]);
    let (net, attach) = (network("1.1.0", &["one"]), Attach::new("c1", "/run/netns/x", "eth0"));
    let invoker = bench.invoker().with_executor(Fake).with_time_limit(Duration::from_millis(50));
    let added = invoker.add(&net, &attach).await.unwrap();
    assert_eq!(added.result.ips[0].address.to_string(), "10.0.0.7/24");
    let Err(Error::Plugins(failures)) = invoker.del(&net, &attach).await else { panic!() };
    assert!(matches!(failures.first.cause, PluginError::TimeLimit { .. }), "{failures}");
    assert_eq!(bench.calls(), Vec::<String>::new());
}
