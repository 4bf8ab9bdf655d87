use super::*;

fn sandbox(pod: &PodId, id: &str, attempt: u32) -> Sandbox {
    Sandbox { attempt, boot_id: "b".into(), ..unreadable(pod, id) }
}

#[test]
fn what_is_written_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = RecordDirectory::open(dir.path().join("a/b")).unwrap();
    let (web, db) = (PodId::new("default", "web"), PodId::new("default", "db"));
    for (pod, id, attempt) in [(&web, "22", 1), (&web, "11", 0), (&db, "33", 0)] {
        store.write_new(&sandbox(pod, id, attempt)).unwrap();
    }
    let ids = |found: &[Sandbox]| found.iter().map(|of| of.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&store.of_pod(&web).unwrap()), ["11", "22"]);
    assert_eq!(ids(&store.list().unwrap().sandboxes), ["33", "11", "22"]);
    assert_eq!(store.get("22").unwrap().unwrap(), sandbox(&web, "22", 1));
    assert_eq!(store.get("2").unwrap(), None);
    store.remove(&sandbox(&web, "22", 1)).unwrap();
    store.remove(&sandbox(&web, "22", 1)).unwrap();
    assert_eq!(ids(&store.of_pod(&web).unwrap()), ["11"]);
}

#[test]
fn records_of_one_directory_are_sorted_in_and_nothing_is_left_of_those_that_go() {
    let dir = tempfile::tempdir().unwrap();
    let web = PodId::new("default", "web");
    let record = sandbox(&web, "11", 0);
    let flat = dir.path().join(format!("{}-11.json", key(&web)));
    fs::write(&flat, serde_json::to_vec(&record).unwrap()).unwrap();
    let store = RecordDirectory::open(dir.path().to_owned()).unwrap();
    assert!(!flat.exists());
    assert_eq!(store.of_pod(&web).unwrap(), std::slice::from_ref(&record));
    assert_eq!(store.get("11").unwrap(), Some(record.clone()));
    assert_eq!(store.pods(|_| true).unwrap().pods, std::slice::from_ref(&web));
    // Another process takes it away, and makes another.
    let other = RecordDirectory::open(dir.path().to_owned()).unwrap();
    other.remove(&record).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!((store.get("11").unwrap(), store.of_pod(&web).unwrap().len()), (None, 0));
    other.write_new(&sandbox(&web, "22", 1)).unwrap();
    assert_eq!(store.pods(|of| of.attempt > 0).unwrap().pods, [web]);
    assert_eq!(store.get("22").unwrap().unwrap().attempt, 1);
}

#[test]
fn the_last_whole_document_of_a_record_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = RecordDirectory::open(dir.path().to_owned()).unwrap();
    let web = PodId::new("default", "web");
    let begun = sandbox(&web, "11", 0);
    let ready =
        Sandbox { state: SandboxState::Ready, ips: vec!["10.0.0.2".parse().unwrap()], ..begun.clone() };
    store.amend(&ready).unwrap_err();
    store.write_new(&begun).unwrap();
    let before = fs::read(store.path(&web, "11")).unwrap();
    store.amend(&ready).unwrap();
    let after = fs::read(store.path(&web, "11")).unwrap();
    assert!(after.starts_with(&before), "what was synced stays as it is");
    assert_eq!(store.get("11").unwrap().unwrap(), ready);
    // The power goes at any byte of it.
    for length in before.len()..=after.len() {
        let mut text = after[..length].to_vec();
        for zeroes in [0, 20] {
            text.resize(length + zeroes, 0);
            fs::write(store.path(&web, "11"), &text).unwrap();
            let whole = length == after.len();
            assert_eq!(store.get("11").unwrap().unwrap(), if whole { &ready } else { &begun }.clone());
        }
    }
    store.write_new(&begun).unwrap();
    assert_eq!(store.of_pod(&web).unwrap(), [begun]);
}

#[test]
fn a_bad_record_hides_no_other_and_is_to_be_taken_down() {
    let dir = tempfile::tempdir().unwrap();
    let store = RecordDirectory::open(dir.path().to_owned()).unwrap();
    let (web, db) = (PodId::new("default", "web"), PodId::new("default", "db"));
    store.write_new(&sandbox(&web, "11", 0)).unwrap();
    store.write_new(&sandbox(&db, "22", 0)).unwrap();
    for garbage in ["", "{", "[]", r#"{"id":"11"}"#] {
        fs::write(store.path(&web, "11"), garbage).unwrap();
        let listing = store.list().unwrap();
        assert_eq!(listing.sandboxes.len(), 1, "{garbage}");
        assert_eq!(listing.problems[0].0, "11");
        assert!(listing.problems[0].1.to_string().contains("checkpoint /"), "{:?}", listing.problems);
        let found = store.of_pod(&web).unwrap();
        assert_eq!((found[0].id.as_str(), found[0].state), ("11", SandboxState::SettingUp));
        assert_eq!(store.of_pod(&db).unwrap().len(), 1);
    }
}

#[test]
fn what_is_no_file_is_said_and_never_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = RecordDirectory::open(dir.path().to_owned()).unwrap();
    let web = PodId::new("default", "web");
    let path = store.path(&web, "11");
    let elsewhere = dir.path().join("elsewhere");
    fs::write(&elsewhere, serde_json::to_vec(&sandbox(&web, "11", 0)).unwrap()).unwrap();
    let plants: [(&str, &dyn Fn()); 4] = [
        ("is not a regular file", &|| nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
        ("is a symbolic link", &|| std::os::unix::fs::symlink(&elsewhere, &path).unwrap()),
        ("is not a regular file", &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap())),
        ("is larger than 67108864 bytes", &|| File::create(&path).unwrap().set_len(1 << 40).unwrap()),
    ];
    for (why, plant) in plants {
        fs::create_dir(path.parent().unwrap()).unwrap();
        plant();
        let said = format!("checkpoint {}: {why}", path.display());
        assert_eq!(store.get("11").unwrap_err().to_string(), said);
        assert_eq!(store.list().unwrap().problems[0].1.to_string(), said);
        let found = store.of_pod(&web).unwrap();
        assert_eq!(found[0].state, SandboxState::SettingUp);
        store.remove(&found[0]).unwrap();
        assert!(store.list().unwrap().problems.is_empty());
    }
    assert!(elsewhere.exists());
}
