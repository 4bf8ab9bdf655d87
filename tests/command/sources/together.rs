//! Tests several concurrent sources, and conditions that delay the clean-up.

use std::time::Duration;

use cnimble_pod::source::{Directory, UrlSource};
use cnimble_tests::http::TextServer;

use super::{Listener, directory, pod, run, taken_port, url, write};

#[test]
fn a_source_that_was_never_read_holds_the_clean_up_back() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        // A port that is bound without a listener refuses connections.
        let (_taken, port) = taken_port();
        let mut sources = directory(dir.path());
        sources.url = Some(UrlSource::new(format!("http://127.0.0.1:{port}/")));
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add file ");
        listener.wrong(&["onnection refused"]).await;
        assert!(!listener.ready());
    });
}

#[test]
fn the_first_source_keeps_a_name_and_reread_reads_at_once() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = TextServer::start(&pod("a").to_string());
        let mut sources = url(&server);
        sources.url.as_mut().unwrap().period = Duration::from_secs(3600);
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add http a");
        server.say(200, "", pod("b").to_string().as_bytes());
        listener.config.reread();
        assert_eq!(listener.next().await, "Remove http a");
        assert_eq!(listener.next().await, "Add http b");
        drop(listener);

        write(dir.path(), "b", pod("b").to_string());
        let mut both = url(&server);
        both.directory = Some(Directory::new(dir.path()));
        let mut listener = Listener::start(both);
        while !listener.ready() {
            listener.next().await;
        }
        listener.wrong(&["pod default/b is ignored"]).await;
        assert_eq!(listener.pods(), ["b"]);
    });
}
