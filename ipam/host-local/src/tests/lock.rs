//! Concurrent verbs and their locks.

use std::time::Duration;

use super::*;

#[test]
fn many_at_once_get_different_addresses() {
    let node = Node::new(json!({ "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]] }));
    let data_dir = node.dir.path().join("a/b");
    let given: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|n| {
                let (data_dir, ipam) = (&data_dir, &node.ipam);
                scope.spawn(move || {
                    let call = call(data_dir, ipam, &json!({}), Command::Add, &format!("c{n}"), "eth0");
                    addresses(&HostLocal.add(&call).unwrap())
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let different: BTreeSet<&String> = given.iter().collect();
    assert_eq!((given.len(), different.len()), (128, 128));
    assert_eq!(node.leases().len(), 128);
}

/// Failing ADDs remove the directory that they made. Others neither fail nor lose their lease.
#[test]
fn a_waiting_add_creates_a_removed_directory_again() {
    for round in 0..20 {
        let node = Node::new(json!({ "subnet": "10.0.0.0/24" }));
        let data_dir = node.dir.path().join("a/b");
        std::thread::scope(|scope| {
            for n in 0..12 {
                let (data_dir, ipam) = (&data_dir, &node.ipam);
                scope.spawn(move || {
                    let call = call(data_dir, ipam, &json!({}), Command::Add, &format!("c{n}"), "eth0");
                    HostLocal.add(&call).unwrap();
                    if n % 4 != 0 {
                        assert_eq!(call.undo.rollback(), [""; 0]);
                    }
                });
            }
        });
        let mut owners: Vec<String> =
            node.leases().iter().map(|name| fs::read_to_string(node.store().join(name)).unwrap()).collect();
        owners.sort();
        assert_eq!(owners, ["c0\r\neth0", "c4\r\neth0", "c8\r\neth0"], "round {round}");
    }
}

/// After a rollback gives its lock's name up, another process may work under the next one.
#[test]
fn a_rollback_leaves_the_lock_of_the_next() {
    let node = Node::small();
    fs::create_dir_all(node.store()).unwrap();
    let first = cnimble_leases::store::Store::lock(&node.store()).unwrap().unwrap();
    first.remove_if_empty().unwrap();
    let path = node.store();
    // Its own thread would pass the lock.
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let second = cnimble_leases::store::Store::lock(&path).unwrap().unwrap();
            send.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            drop(second);
        });
        receive.recv_timeout(cnimble_tests::LIMIT).unwrap();
        first.remove_if_empty().unwrap();
        assert!(node.store().join("lock").exists());
    });
}

/// The panic hook rolls back while the thread holds the lock.
#[test]
fn undo_doesnt_wait_for_the_lock_of_its_own_thread() {
    let node = Node::small();
    let (path, done) = (node.store(), std::sync::mpsc::channel());
    let (data_dir, ipam) = (node.dir.path().join("a/b"), node.ipam.clone());
    let thread = std::thread::spawn(move || {
        let call = call(&data_dir, &ipam, &json!({}), Command::Add, "c1", "eth0");
        HostLocal.add(&call).unwrap();
        let held = cnimble_leases::store::Store::lock(&path).unwrap().unwrap();
        assert_eq!(call.undo.rollback(), [""; 0]);
        assert!(held.leases().unwrap().list.is_empty());
        done.0.send(()).unwrap();
    });
    done.1.recv_timeout(cnimble_tests::LIMIT).expect("it waits for itself");
    thread.join().unwrap();
    // Afterwards the lock is free.
    let path = node.store();
    fs::create_dir_all(&path).unwrap();
    std::thread::spawn(move || cnimble_leases::store::Store::lock(&path).unwrap().is_some()).join().unwrap();
}
