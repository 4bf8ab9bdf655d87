//! Tests many concurrent calls.

use std::collections::BTreeSet;
use std::time::Instant;

use cnimble_cri::{Client, CriError};
use cnimble_tests::need;

use super::{Shop, bridge, pod};

/// Whether the stress variant runs; `scripts/stress serve` uses 200 pods.
pub(super) fn stress() -> bool {
    std::env::var_os("CNIMBLE_STRESS").is_some()
}

/// Runs `work` for many names concurrently over one connection.
async fn each<T, F>(
    client: Client,
    names: Vec<String>,
    work: impl Fn(Client, String) -> F,
) -> Result<Vec<T>, CriError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CriError>> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    for name in names {
        tasks.spawn(work(client.clone(), name));
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.push(done.unwrap()?);
    }
    Ok(all)
}

#[test]
fn many_sandboxes_at_once_are_each_made_once_and_removed() {
    need!("ip", "nft");
    let count = if stress() { 200 } else { 24 };
    let shop = Shop::new(&bridge("10.7.0.0/23", &[]));
    let serve = shop.start();
    let names: Vec<String> = (0..count).map(|number| format!("web-{number}")).collect();
    let start = Instant::now();
    let ids =
        shop.ok(|client| each(client, names, |client, name| async move { client.run(pod(&name), "").await }));
    let up = start.elapsed();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), count);
    assert_eq!(shop.list().iter().filter(|of| of.ready).count(), count);
    assert_eq!(shop.differences(), None);
    let start = Instant::now();
    shop.ok(|client| {
        each(client, ids, |client, id| async move {
            client.stop(&id).await?;
            client.remove(&id).await
        })
    });
    println!("{count} sandboxes: made in {up:?}, stopped and removed in {:?}", start.elapsed());
    shop.is_clean();
    serve.stop();
}
