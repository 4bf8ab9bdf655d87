//! Tests a URL, which is polled.

use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::http::TextServer;

use super::{Listener, pod, run, url};

#[test]
fn a_url_is_followed_and_its_failures_change_nothing() {
    run(async {
        let list = |names: &[&str]| {
            let items: Vec<Value> = names.iter().map(|name| pod(name)).collect();
            json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
        };
        let server = TextServer::start("");
        server.say(200, "ETag: \"1\"\r\n", list(&["a", "b"]).as_bytes());
        let mut sources = url(&server);
        sources.url.as_mut().unwrap().headers = vec!["Manifest: yes".to_owned()];
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add http a,b");
        assert!(listener.ready());
        assert_eq!(server.requests()[0].headers["manifest"], "yes");
        assert_eq!(server.requests()[0].headers.get("if-none-match"), None);
        let tagged = || server.requests().iter().any(|request| request.headers.contains_key("if-none-match"));
        while !tagged() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.say(500, "", b"out of order");
        listener.wrong(&["status 500: out of order"]).await;
        server.say(200, "", b"<html>");
        listener.wrong(&["expected a Pod"]).await;
        server.say(200, "", &vec![b'x'; (10 << 20) + 1]);
        listener.wrong(&["larger than 10485760 bytes"]).await;
        server.say(302, "Location: file:///etc/shadow\r\n", b"");
        listener.wrong(&["bad redirection"]).await;
        server.say(302, "Location: /again\r\n", b"");
        listener.wrong(&["bad redirection"]).await;
        server.say(200, "", list(&["a", "B", "c"]).as_bytes());
        listener.wrong(&["items[1].metadata.name: \"B\""]).await;
        // The invalid pod may be b, so b stays.
        assert_eq!(listener.next().await, "Add http c");
        assert_eq!(listener.pods(), ["a", "b", "c"]);
        server.say(200, "", list(&["c"]).as_bytes());
        assert_eq!(listener.next().await, "Remove http a,b");
        listener.wrong(&[]).await;
        let elsewhere = TextServer::start(&pod("d").to_string());
        server.say(307, &format!("Location: {}\r\n", elsewhere.url()), b"");
        assert_eq!(listener.next().await, "Remove http c");
        assert_eq!(listener.next().await, "Add http d");
        assert_eq!(elsewhere.requests()[0].headers.get("manifest"), None, "headers are for one host");
        elsewhere.say(200, "", b"");
        assert_eq!(listener.next().await, "Remove http d");
    });
}
