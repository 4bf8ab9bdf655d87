//! Tests a directory of manifests, which is followed.

use std::time::Duration;

use super::{Listener, directory, pod, run, write};

#[test]
fn a_directory_is_followed() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, "b.json", pod("b").to_string());
        write(dir, ".hidden", pod("hidden").to_string());
        std::fs::create_dir(dir.join("sub")).unwrap();
        let mut listener = Listener::start(directory(dir));
        assert_eq!(listener.next().await, "Add file b");
        assert!(listener.ready());
        listener.wrong(&["sub is not a regular file"]).await;

        write(
            dir,
            "a.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: fixed}\nspec: {containers: []}\n",
        );
        assert_eq!(listener.next().await, "Add file a");
        write(
            dir,
            "a.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: fixed}\nspec: {hostNetwork: true}\n",
        );
        assert_eq!(listener.next().await, "Update file a");
        // A file is written under another name and renamed, as recommended.
        write(dir, ".new", pod("b").to_string().replace("n1", "n2"));
        std::fs::rename(dir.join(".new"), dir.join("b.json")).unwrap();
        assert_eq!(listener.next().await, "Remove file b");
        assert_eq!(listener.next().await, "Add file b");
        std::fs::remove_file(dir.join("a.yaml")).unwrap();
        assert_eq!(listener.next().await, "Remove file a");
    });
}

#[test]
fn bad_files_are_conditions_and_keep_what_they_had() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, "1.yaml", pod("good").to_string());
        write(dir, "2.yaml", pod("turns").to_string());
        write(dir, "3.yaml", pod("Bad").to_string());
        write(dir, "4.yaml", pod("good").to_string());
        write(dir, "5.yaml", vec![b' '; (10 << 20) + 1]);
        write(dir, "6.json", &pod("cut").to_string()[..40]);
        let mut listener = Listener::start(directory(dir));
        assert_eq!(listener.next().await, "Add file good,turns");
        let first = [
            "3.yaml:1:",
            "5.yaml: it is larger than",
            "6.json:1:40: EOF",
            "4.yaml: pod default/good is ignored: ",
        ];
        let conditions = listener.wrong(&first).await;
        let since = conditions[0].since;
        assert_eq!(conditions[0].pod.as_ref().unwrap().to_string(), "default/Bad");

        write(dir, "2.yaml", "kind: [");
        let more = ["2.yaml:", first[0], first[1], first[2], first[3]];
        assert_eq!(listener.wrong(&more).await[1].since, since, "what was known keeps its time");
        assert_eq!(listener.pods(), ["good", "turns"]);
        // The second of two equal pods replaces the removed first one. Corrected manifests count again.
        std::fs::remove_file(dir.join("1.yaml")).unwrap();
        assert_eq!(listener.next().await, "Remove file good");
        assert_eq!(listener.next().await, "Add file good");
        for name in ["2.yaml", "3.yaml", "5.yaml", "6.json"] {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        assert_eq!(listener.next().await, "Remove file turns");
        listener.wrong(&[]).await;
    });
}

#[test]
fn a_directory_that_comes_later_counts_from_then() {
    run(async {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("pods");
        let mut sources = directory(&dir);
        sources.directory.as_mut().unwrap().period = Duration::from_millis(20);
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add file ");
        assert!(listener.ready());
        std::fs::create_dir(&dir).unwrap();
        write(&dir, "a", pod("a").to_string());
        assert_eq!(listener.next().await, "Add file a");
    });
}
