//! Blocks in etcd. A session is a connection to one member, and each transaction compares the fence.

mod keys;
mod store;
mod trust;
mod watch;

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue, TlsOptions, Txn,
    TxnOp,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use cnimble_api::ClientIdentity;
use cnimble_cni::{Code, Error};
use cnimble_leases::cluster::config::{self, Cluster};
use cnimble_os::files::{self, Links};

use crate::record::{Fence, unix_now};
use crate::{BlocksError, Result};
use keys::Keys;

const NAME: &str = "etcd";
/// The time limit for a connection, and for an answer. A paused member costs this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many keys one answer has. The client refuses answers of 4 MiB, and a key with its value has less than 1 kB.
const PAGE: i64 = 1000;
/// How often the offset is read before it counts as fallen, because other writes between two reads change it.
const LOOKS: u32 = 10;
/// The largest size of a file with certificates or a key, in bytes.
const PEM_LIMIT: usize = 1 << 20;

/// A key as it was read or written.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    key: String,
    value: Vec<u8>,
    /// The revision of its last change.
    revision: i64,
    /// The revision at which it was made.
    created: i64,
}

impl From<&KeyValue> for Entry {
    fn from(kv: &KeyValue) -> Self {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        Entry { key, value: kv.value().to_vec(), revision: kv.mod_revision(), created: kv.create_revision() }
    }
}

/// A session with one member of etcd.
pub(crate) struct Etcd {
    client: Client,
    keys: Keys,
    /// The exact value of the fence, which every transaction compares. It is empty if there is no fence.
    sealed: Vec<u8>,
    fence: Fence,
    /// The revision at which the fence was made.
    created: i64,
    /// The latest revision of an answer.
    revision: i64,
}

/// Returns the error of an etcd that does not answer.
fn away(err: impl std::fmt::Display) -> BlocksError {
    BlocksError::Away(NAME, err.to_string())
}

/// Limits the time of a request, and converts the client's errors.
async fn in_time<T>(
    what: &str,
    asked: impl Future<Output = std::result::Result<T, etcd_client::Error>>,
) -> Result<T> {
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    answer.map_err(|_| away(format_args!("no {what} in time")))?.map_err(|err| failed(&err))
}

/// Converts the client's error. Its text is that of the system or of etcd if there is one.
fn failed(err: &etcd_client::Error) -> BlocksError {
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

/// Returns the text of the system's error among the causes.
fn of_system(err: &(dyn StdError + 'static)) -> Option<String> {
    let chain = std::iter::successors(Some(err), |&err| err.source());
    let mut found = chain.filter_map(|err| err.downcast_ref::<io::Error>());
    found.find(|err| err.raw_os_error().is_some()).map(ToString::to_string)
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|err| Error::new(Code::INTERNAL, err.to_string()).into())
}

/// Parses a value. An invalid one is an error that names the key.
fn parse<T: DeserializeOwned>(entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|err| {
        let why = format!("etcd has at {} what isn't ours: {err}", entry.key);
        Error::new(Code::NOT_AVAILABLE, why).into()
    })
}

/// Returns the condition that a key has this value.
fn is(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Compare {
    Compare::value(key, CompareOp::Equal, value)
}

/// Returns the condition that there is no such key.
fn is_absent(key: impl Into<Vec<u8>>) -> Compare {
    Compare::version(key, CompareOp::Equal, 0)
}

impl Etcd {
    /// Connects to the first member that answers with a quorum. Fails with the reasons of all members.
    async fn connect_to_any(cluster: &Cluster, etcd: &config::Etcd) -> Result<Self> {
        let mut failures = Vec::new();
        let count = etcd.endpoints.len();
        // Nodes begin at different members.
        let first = usize::try_from(unix_now() % count.max(1) as u64).unwrap_or(0);
        for url in etcd.endpoints.iter().cycle().skip(first).take(count) {
            match Self::connect_to(etcd, url, Keys::of(cluster, etcd)).await {
                Ok(session) => return Ok(session),
                Err(BlocksError::Away(_, why)) => {
                    let why = trust::sentence(etcd, url, &why).unwrap_or(why);
                    failures.push(format!("{url}: {why}"));
                }
                Err(err) => return Err(err),
            }
        }
        Err(away(failures.join("; ")))
    }

    async fn connect_to(etcd: &config::Etcd, url: &str, keys: Keys) -> Result<Self> {
        let options = options(etcd, url)?;
        let client = in_time("connection", Client::connect([url], Some(options))).await?;
        let (sealed, fence) = (Vec::new(), Fence::default());
        let mut session = Etcd { client, keys, sealed, fence, created: 0, revision: 0 };
        // A linearizable read shows whether the member has a quorum: without one it doesn't answer.
        session.get(&session.keys.fence()).await?;
        Ok(session)
    }

    async fn get(&mut self, key: &str) -> Result<Option<Entry>> {
        Ok(self.range(key, None).await?.into_iter().next())
    }

    async fn range(&mut self, key: impl Into<Vec<u8>>, options: Option<GetOptions>) -> Result<Vec<Entry>> {
        let answer = in_time("answer", self.client.get(key, options)).await?;
        self.saw(answer.header().map(etcd_client::ResponseHeader::revision));
        Ok(answer.kvs().iter().map(Entry::from).collect())
    }

    /// Reads all keys with a prefix.
    async fn list(&mut self, prefix: &str) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        self.read_each(prefix, |entry| all.push(entry)).await?;
        Ok(all)
    }

    /// Reads all keys with a prefix as they are at one revision, page by page, and returns the revision.
    async fn read_each(&mut self, prefix: &str, mut take: impl FnMut(Entry)) -> Result<i64> {
        let (mut from, end) = (prefix.as_bytes().to_vec(), format!("{prefix}~"));
        let mut revision = 0;
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
            let page = self.range(from, Some(options)).await?;
            // The revision of the first page counts for all.
            revision = if revision == 0 { self.revision } else { revision };
            from = page.last().map_or_else(Vec::new, |last| [last.key.as_bytes(), b"\0"].concat());
            let is_last = page.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
            page.into_iter().for_each(&mut take);
            if is_last {
                return Ok(revision);
            }
        }
    }

    /// Does all `operations` if all `conditions` hold and the fence is unchanged, and returns whether they did. After
    /// an error the operations may have been done, because the answer can get lost.
    async fn commit(&mut self, conditions: Vec<Compare>, operations: Vec<TxnOp>) -> Result<bool> {
        let mut conditions = conditions;
        conditions.push(if self.sealed.is_empty() {
            is_absent(self.keys.fence())
        } else {
            is(self.keys.fence(), self.sealed.clone())
        });
        let txn = Txn::new().when(conditions).and_then(operations);
        let answer = in_time("answer", self.client.txn(txn)).await?;
        self.saw(answer.header().map(etcd_client::ResponseHeader::revision));
        Ok(answer.succeeded())
    }

    /// Remembers the latest revision of an answer.
    fn saw(&mut self, revision: Option<i64>) {
        self.revision = self.revision.max(revision.unwrap_or(0));
    }

    /// Reads the cluster's ID and the offset for a new fence. Writes in between make the offset look larger than it is,
    /// so the least of several reads counts.
    async fn least_offset(&mut self) -> Result<(u64, i64)> {
        let (mut id, mut offset) = self.offset().await?;
        for _ in 1..LOOKS {
            let (other, again) = self.offset().await?;
            (id, offset) = (other, offset.min(again));
        }
        Ok((id, offset))
    }

    /// Returns the cluster's ID, and by how much the index of the member's log exceeds the revision.
    async fn offset(&mut self) -> Result<(u64, i64)> {
        let status = in_time("status", self.client.status()).await.map_err(|err| match err {
            BlocksError::Away(_, why) if why.ends_with("permission denied") => {
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

/// Returns the TLS settings for this URL. There are none without `https`.
fn options(etcd: &config::Etcd, url: &str) -> Result<ConnectOptions> {
    // The client's own time limits are not used, because their errors are about gRPC. Each request has [`PATIENCE`]
    // instead.
    let options = ConnectOptions::new();
    if !url.starts_with("https://") {
        return Ok(options);
    }
    let mut tls = TlsOptions::new();
    if let Some(ca) = &etcd.ca {
        tls = tls.ca_certificate(Certificate::from_pem(read_pem(ca)?));
    }
    if let Some((certificate, key)) = &etcd.identity {
        let client = ClientIdentity {
            chain: read_pem(certificate)?,
            key: read_pem(key)?,
            chain_source: format!("{} (ipam.etcd.certificate)", certificate.display()),
            key_source: format!("{} (ipam.etcd.key)", key.display()),
        };
        // The client's own error would name neither file. Another try may find both files replaced.
        client.check().map_err(|why| Error::new(Code::TRY_AGAIN_LATER, why))?;
        tls = tls.identity(Identity::from_pem(client.chain, client.key));
    }
    Ok(options.with_tls(tls))
}

fn read_pem(path: &std::path::Path) -> Result<Vec<u8>> {
    files::read(path, PEM_LIMIT, Links::Follow)
        .map_err(|err| BlocksError::Local(Error::io("reading", path, &err)))
}
