//! Requests to the API server, with time limits.

use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use cnimble_api::{Collection, HttpError, http};
use cnimble_cni::{Code, Error};

use super::objects::{deleted, name, preconditions, release_finalizer, revision};
use super::{Kind, Kubernetes, NAME, away};
use crate::store::Store;
use crate::{BlocksError, Result};

/// The time limit for the answer to a request. A whole task has 12 seconds.
const PATIENCE: Duration = Duration::from_secs(4);
/// The largest object in bytes. The server's own limit for etcd is 1.5 MiB.
const LIMIT: usize = 2 << 20;

/// Limits the time of a request.
pub(super) async fn in_time<T>(asked: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(PATIENCE, asked).await.map_err(|_| away("no answer in time"))?
}

/// Converts the client's error. Another try does not help if the server refuses the request (400 to 428), or if the
/// access can't be used. Both become an error with code 50. Anything else is [`BlocksError::Away`].
pub(super) fn failed(err: &cnimble_api::Error) -> BlocksError {
    match err {
        err if is_forbidden(err) => BlocksError::Forbidden(NAME, err.to_string()),
        cnimble_api::Error::Http { source: HttpError::Status { status: 400..429, .. }, .. }
        | cnimble_api::Error::Access(_)
        | cnimble_api::Error::Read { .. } => {
            Error::new(Code::NOT_AVAILABLE, format!("{NAME} can't be used: {err}")).into()
        }
        err => away(err),
    }
}

/// Returns whether the server has refused a request for lack of a right.
pub(super) fn is_forbidden(err: &cnimble_api::Error) -> bool {
    matches!(err, cnimble_api::Error::Http { source: HttpError::Status { status: 403, .. }, .. })
}

fn is_missing(err: &cnimble_api::Error) -> bool {
    matches!(err, cnimble_api::Error::Http { source: HttpError::Status { status: 404, .. }, .. })
}

/// The state of an object after a deletion.
pub(super) enum Deleted {
    /// A finalizer keeps it. This is its new state.
    Kept(Value),
    Gone,
}

impl Kubernetes {
    /// Lists a collection, and remembers the revision. An object that is no JSON is left out.
    pub(super) async fn list(&mut self, objects: &Collection) -> Result<Vec<Value>> {
        let mut found = Vec::new();
        self.read_each(objects, |object| found.push(object)).await?;
        Ok(found)
    }

    /// Passes each object of a collection to `take`, as [`Kubernetes::list`] lists them.
    pub(super) async fn read_each(
        &mut self,
        objects: &Collection,
        mut take: impl FnMut(Value),
    ) -> Result<()> {
        let listing = objects.list(&self.connection, |json| {
            serde_json::from_slice::<Value>(json).into_iter().for_each(&mut take);
            Ok::<_, cnimble_api::Error>(())
        });
        let listed = in_time(async { Ok(listing.await) }).await?;
        match listed {
            Ok(Some(version)) => self.saw(version.parse().ok())?,
            Ok(None) => return Err(away("the list was forgotten while it was read")),
            Err(err) if is_missing(&err) => {
                let why = format!(
                    "{NAME} has no kinds of ipam.cnimble.dev: run `kubectl apply -k deploy/cluster-local` once"
                );
                return Err(Error::new(Code::NOT_AVAILABLE, why).into());
            }
            Err(err) => return Err(failed(&err)),
        }
        Ok(())
    }

    /// Returns the collection of this network's pool alone.
    pub(super) fn own_pool(&self) -> Collection {
        Collection::new(Kind::Pool.path()).only("metadata.name", &self.pool)
    }

    /// Lists the objects of a kind with all of these labels.
    pub(super) async fn all(&mut self, kind: Kind, labels: &str) -> Result<Vec<Value>> {
        self.list(&kind.labelled(labels)).await
    }

    /// Reads an object. It returns `None` if there is none.
    pub(super) async fn get(&mut self, kind: Kind, name: &str) -> Result<Option<Value>> {
        self.ask(Method::GET, &kind.path_of(name), None).await
    }

    /// Returns the new object, or `None` if one of this name exists.
    pub(super) async fn create(&mut self, kind: Kind, object: &Value) -> Result<Option<Value>> {
        let created = self.ask(Method::POST, kind.path(), Some(object)).await?;
        self.wrote(created)
    }

    /// Returns the new object, or `None` if it has changed since it was read.
    pub(super) async fn update(&mut self, kind: Kind, object: &Value) -> Result<Option<Value>> {
        let updated = self.ask(Method::PUT, &kind.path_of(name(object)), Some(object)).await?;
        self.wrote(updated)
    }

    /// Deletes an object, and says whether a finalizer keeps it. It returns `None` if it has changed since it was read,
    /// or is gone. An object that was deleted before stays as it is.
    pub(super) async fn delete(&mut self, kind: Kind, object: &Value) -> Result<Option<Deleted>> {
        if deleted(object).is_some() {
            return Ok(Some(Deleted::Kept(object.clone())));
        }
        let answer =
            self.ask(Method::DELETE, &kind.path_of(name(object)), Some(&preconditions(object))).await?;
        // A removed object's answer is a Status.
        Ok(answer.map(|answer| if name(&answer).is_empty() { Deleted::Gone } else { Deleted::Kept(answer) }))
    }

    /// Deletes an object and removes its finalizer. Returns false if it has changed since it was read, or is gone.
    pub(super) async fn remove(&mut self, kind: Kind, object: &Value) -> Result<bool> {
        let mut object = match self.delete(kind, object).await? {
            Some(Deleted::Kept(object)) => object,
            deleted => return Ok(deleted.is_some()),
        };
        release_finalizer(&mut object);
        Ok(self.ask(Method::PUT, &kind.path_of(name(&object)), Some(&object)).await?.is_some())
    }

    /// Sends a request with an object. Returns `None` if the object does not exist (404), exists already or has changed
    /// (409).
    async fn ask(&mut self, method: Method, target: &str, object: Option<&Value>) -> Result<Option<Value>> {
        let connection = &self.connection;
        let asked = async {
            let response = match object {
                None => connection.get(target).await,
                Some(object) => {
                    let body = object.to_string().into_bytes();
                    connection.send(method, target, "application/json", body).await
                }
            };
            let response = response.map_err(|err| failed(&err))?;
            let body = match response.status().as_u16() {
                200..=202 => http::body(response.into_body(), LIMIT).await.map(Some),
                404 | 409 => Ok(None),
                _ => Err(http::refused(response).await),
            };
            body.map_err(|err| failed(&connection.error(target, err)))
        };
        let Some(body) = in_time(asked).await? else { return Ok(None) };
        serde_json::from_slice(&body).map(Some).map_err(away)
    }

    /// Checks that the revision of a written object is not before one that was seen.
    fn wrote(&mut self, object: Option<Value>) -> Result<Option<Value>> {
        if let Some(object) = &object {
            self.saw(revision(object))?;
        }
        Ok(object)
    }

    /// Remembers the revision of a list or write. Fails if it is before one that was seen: the server was restored.
    fn saw(&mut self, revision: Option<i64>) -> Result<()> {
        let revision = revision.ok_or_else(|| away("an answer without a resourceVersion"))?;
        if revision < self.revision {
            return Err(self.restored(&format!("its revision {revision} is before {}", self.revision)));
        }
        self.revision = revision;
        Ok(())
    }
}
