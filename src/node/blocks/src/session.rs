//! A connection to one member of an unchanged etcd.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue, TlsOptions, Txn,
    TxnOp, WatchOptions, WatchStream,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use cnimble_cni::{Code, Error};
use cnimble_leases::cluster::config::{Cluster, Etcd};
use cnimble_leases::cluster::share;

use crate::keys::Keys;
use crate::record::{Fence, unix_now};
use crate::{BlocksError, Result, trust};

/// For a connection, and for an answer. A member that is paused takes as long.
const PATIENCE: Duration = Duration::from_secs(2);
/// Keys in one answer: the client refuses 4 MiB. A key and its value have less than 1 kB.
const PAGE: i64 = 1000;
/// How often the offset is read before it counts as fallen: others write in between.
const LOOKS: u32 = 10;

pub struct Session {
    client: Client,
    pub(crate) keys: Keys,
    /// The fence's value, to the letter, which every transaction compares.
    sealed: Vec<u8>,
    pub(crate) fence: Fence,
    /// The latest revision of an answer.
    pub(crate) revision: i64,
}

pub(crate) fn away(err: impl std::fmt::Display) -> BlocksError {
    BlocksError::Away(err.to_string())
}

async fn in_time<T>(
    what: &str,
    asked: impl Future<Output = std::result::Result<T, etcd_client::Error>>,
) -> Result<T> {
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    answer.map_err(|_| away(format_args!("no {what} in time")))?.map_err(|err| failed(&err))
}

/// The client's error, in the words of the system or of etcd if there are any.
pub(crate) fn failed(err: &etcd_client::Error) -> BlocksError {
    let words = match err {
        etcd_client::Error::GRpcStatus(status) => match status.source() {
            Some(source) => of_system(source),
            None => Some(format!("it says: {}", status.message())),
        },
        etcd_client::Error::TransportError(transport) => of_system(transport),
        _ => None,
    };
    away(words.unwrap_or_else(|| err.to_string()))
}

fn of_system(err: &(dyn StdError + 'static)) -> Option<String> {
    let chain = std::iter::successors(Some(err), |&err| err.source());
    let mut found = chain.filter_map(|err| err.downcast_ref::<io::Error>());
    found.find(|err| err.raw_os_error().is_some()).map(ToString::to_string)
}

pub(crate) fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|err| Error::new(Code::INTERNAL, err.to_string()).into())
}

pub(crate) fn parse<T: DeserializeOwned>(kv: &KeyValue) -> Result<T> {
    serde_json::from_slice(kv.value()).map_err(|err| {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        Error::new(Code::NOT_AVAILABLE, format!("etcd has at {key} what isn't ours: {err}")).into()
    })
}

pub(crate) fn is(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Compare {
    Compare::value(key, CompareOp::Equal, value)
}

pub(crate) fn is_absent(key: impl Into<Vec<u8>>) -> Compare {
    Compare::version(key, CompareOp::Equal, 0)
}

impl Session {
    /// Connects to the first member with a quorum, and checks the fence. `seen` is the latest epoch and revision that
    /// are known.
    pub async fn open(cluster: &Cluster, seen: (u64, i64)) -> Result<Self> {
        let session = Self::begin(cluster, seen).await?;
        match session.fence.suspect {
            Some(why) => Err(BlocksError::Restored(why)),
            None => Ok(session),
        }
    }

    /// Same as `open`, also for an etcd that was restored. The first session that notices this writes it to the fence.
    pub(crate) async fn begin(cluster: &Cluster, seen: (u64, i64)) -> Result<Self> {
        let mut session = Self::connect(cluster).await?;
        let kv = session.get(&session.keys.fence()).await?;
        let kv = kv.ok_or_else(|| BlocksError::Uninitialised(cluster.network.clone()))?;
        session.sealed = kv.value().to_vec();
        session.fence = parse(&kv)?;
        let fence = session.fence.clone();
        if fence.host_bits != cluster.host_bits {
            return Err(BlocksError::BlockSize {
                cluster: 32 - fence.host_bits,
                ours: 32 - cluster.host_bits,
            });
        }
        let why = match (fence.epoch, session.revision) < seen {
            true => Some(format!("its revision {} is before {}, which was seen", session.revision, seen.1)),
            // An earlier build has noticed it.
            false if fence.epoch == 0 && fence.suspect.is_some() => fence.suspect.clone(),
            false => session.difference(&fence).await?,
        };
        if let Some(why) = why {
            let (cluster, offset) = session.least_offset().await?;
            let epoch = unix_now().max(fence.epoch.max(seen.0) + 1);
            session.seal(Fence { cluster, offset, suspect: Some(why), epoch, ..fence }).await?;
        }
        Ok(session)
    }

    /// Changes the fence. No transaction with the earlier one succeeds any more.
    pub(crate) async fn seal(&mut self, fence: Fence) -> Result<()> {
        let sealed = json(&fence)?;
        let put = TxnOp::put(self.keys.fence(), sealed.clone(), None);
        if !self.commit(Vec::new(), vec![put]).await? {
            return Err(BlocksError::Contended);
        }
        (self.sealed, self.fence) = (sealed, fence);
        Ok(())
    }

    /// The difference between this etcd and that of the fence.
    async fn difference(&mut self, fence: &Fence) -> Result<Option<String>> {
        let mut why = None;
        for _ in 0..LOOKS {
            let (id, offset) = self.offset().await?;
            if id != fence.cluster {
                return Ok(Some(format!("the cluster's ID is {id:x}, it was {:x}", fence.cluster)));
            }
            if offset >= fence.offset {
                return Ok(None);
            }
            why = Some(format!("its log is shorter than its revisions tell, by {}", fence.offset - offset));
        }
        Ok(why)
    }

    pub(crate) async fn connect(cluster: &Cluster) -> Result<Self> {
        let mut failures = Vec::new();
        let count = cluster.etcd.endpoints.len();
        // Nodes begin at different members.
        let first = usize::try_from(unix_now() % count.max(1) as u64).unwrap_or(0);
        for url in cluster.etcd.endpoints.iter().cycle().skip(first).take(count) {
            match Self::connect_to(&cluster.etcd, url, Keys::of(cluster)).await {
                Ok(session) => return Ok(session),
                Err(BlocksError::Away(why)) => {
                    let why = trust::sentence(&cluster.etcd, url, &why).unwrap_or(why);
                    failures.push(format!("{url}: {why}"));
                }
                Err(err) => return Err(err),
            }
        }
        Err(BlocksError::Away(failures.join("; ")))
    }

    async fn connect_to(etcd: &Etcd, url: &str, keys: Keys) -> Result<Self> {
        let options = options(etcd, url)?;
        let client = in_time("connection", Client::connect([url], Some(options))).await?;
        let mut session = Session { client, keys, sealed: Vec::new(), fence: Fence::default(), revision: 0 };
        // Linearizable: a member without a quorum doesn't answer.
        session.get(&session.keys.fence()).await?;
        Ok(session)
    }

    pub(crate) async fn get(&mut self, key: &str) -> Result<Option<KeyValue>> {
        Ok(self.range(key, None).await?.into_iter().next())
    }

    pub(crate) async fn range(
        &mut self,
        key: impl Into<Vec<u8>>,
        options: Option<GetOptions>,
    ) -> Result<Vec<KeyValue>> {
        let mut answer = in_time("answer", self.client.get(key, options)).await?;
        self.saw(answer.header().map(etcd_client::ResponseHeader::revision));
        Ok(answer.take_kvs())
    }

    pub(crate) async fn list(&mut self, prefix: &str) -> Result<Vec<KeyValue>> {
        let mut all = Vec::new();
        self.each(prefix, |kv| all.push(kv)).await?;
        Ok(all)
    }

    /// Reads all keys of a prefix as they are at one revision, page by page, and returns the revision.
    pub(crate) async fn each(&mut self, prefix: &str, mut take: impl FnMut(KeyValue)) -> Result<i64> {
        let (mut from, end) = (prefix.as_bytes().to_vec(), format!("{prefix}~"));
        let mut revision = 0;
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
            let kvs = self.range(from, Some(options)).await?;
            // The first page decides.
            revision = if revision == 0 { self.revision } else { revision };
            from = kvs.last().map_or_else(Vec::new, |last| [last.key(), b"\0"].concat());
            let is_last = kvs.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
            kvs.into_iter().for_each(&mut take);
            if is_last {
                return Ok(revision);
            }
        }
    }

    /// All records of nodes.
    pub(crate) async fn identities(&mut self) -> Result<Vec<share::Identity>> {
        let mut found = Vec::new();
        for prefix in self.keys.records() {
            found.extend(self.list(&prefix).await?);
        }
        found.iter().map(parse).collect()
    }

    /// Does all `operations` if all `conditions` hold and the fence is unchanged. It may also have done so if no answer
    /// comes.
    pub(crate) async fn commit(&mut self, conditions: Vec<Compare>, operations: Vec<TxnOp>) -> Result<bool> {
        let mut conditions = conditions;
        conditions.push(match self.sealed.is_empty() {
            true => is_absent(self.keys.fence()),
            false => is(self.keys.fence(), self.sealed.clone()),
        });
        let txn = Txn::new().when(conditions).and_then(operations);
        let answer = in_time("answer", self.client.txn(txn)).await?;
        self.saw(answer.header().map(etcd_client::ResponseHeader::revision));
        Ok(answer.succeeded())
    }

    pub(crate) async fn watch(&mut self, prefix: &str, from: i64) -> Result<WatchStream> {
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        in_time("answer", self.client.watch(prefix, Some(options))).await
    }

    /// Checks that the member has a quorum, and that the fence is unchanged.
    pub(crate) async fn look(&mut self) -> Result<()> {
        let kv = self.get(&self.keys.fence()).await?;
        match kv.is_some_and(|kv| kv.value() == self.sealed) {
            true => Ok(()),
            false => Err(BlocksError::Restored("the fence has changed".to_owned())),
        }
    }

    pub(crate) fn saw(&mut self, revision: Option<i64>) {
        self.revision = self.revision.max(revision.unwrap_or(0));
    }

    /// The offset of a new fence. Writes in between make it look larger than it is.
    pub(crate) async fn least_offset(&mut self) -> Result<(u64, i64)> {
        let (mut id, mut offset) = self.offset().await?;
        for _ in 1..LOOKS {
            let (other, again) = self.offset().await?;
            (id, offset) = (other, offset.min(again));
        }
        Ok((id, offset))
    }

    /// The cluster's ID, and by how much the member's log exceeds the revision.
    async fn offset(&mut self) -> Result<(u64, i64)> {
        let status = in_time("status", self.client.status()).await.map_err(|err| match err {
            BlocksError::Away(why) if why.ends_with("permission denied") => {
                let why = "this version of etcd tells its status to root only; \
                           3.5.32, 3.6.12 and 3.7 tell it to each user";
                Error::new(Code::NOT_AVAILABLE, why).into()
            }
            err => err,
        })?;
        let header = status.header().ok_or_else(|| away("a status without a header"))?;
        let index = i64::try_from(status.raft_applied_index()).unwrap_or(i64::MAX);
        Ok((header.cluster_id(), index - header.revision()))
    }
}

fn options(etcd: &Etcd, url: &str) -> Result<ConnectOptions> {
    // The client's own time limits end in words about gRPC: each request has [`PATIENCE`] here.
    let options = ConnectOptions::new();
    if !url.starts_with("https://") {
        return Ok(options);
    }
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|err| BlocksError::Local(Error::io("reading", path, &err)))
    };
    let mut tls = TlsOptions::new();
    if let Some(ca) = &etcd.ca {
        tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
    }
    if let Some((certificate, key)) = &etcd.identity {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(options.with_tls(tls))
}
