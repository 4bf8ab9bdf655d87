use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Condition, Reporter, SourceError, SourceKind};
use crate::manifest::{Defaults, MAX_SIZE, Manifest, Origin, Parsed};
use crate::watch::DirWatch;

/// A watched directory of manifests, or one file. Leaves out files that begin with a dot. A subdirectory is not read,
/// and is reported as an error. A missing directory has no pods, and is reported. If the directory becomes unreadable,
/// its pods stay.
#[derive(Debug, Clone)]
pub struct Directory {
    pub path: PathBuf,
    pub defaults: Defaults,
    /// How often the directory is read, although it is watched, too. The kubelet's default is 20 s.
    pub period: Duration,
}

impl Directory {
    /// Returns a directory that is read every 20 s, without the node's name.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Directory { path: path.into(), defaults: Defaults::default(), period: Duration::from_secs(20) }
    }
}

/// Reads the directory forever, and reports its pods.
pub(super) async fn read(directory: Directory, mut reporter: Reporter) {
    let path = directory.path.clone();
    // Most editors replace a file. Only a watch of its directory reports that.
    let parent = path.parent().filter(|_| !path.is_dir()).map(std::path::Path::to_owned);
    let mut watch = DirWatch::new([path].into_iter().chain(parent), directory.period);
    let mut scan = Scan { directory, files: BTreeMap::new() };
    loop {
        let done = tokio::task::spawn_blocking(move || {
            let found = scan.pass();
            (scan, found)
        });
        // This fails only at the end of the tokio runtime.
        let Ok((back, found)) = done.await else { return };
        scan = back;
        match found {
            Ok(complaints) => {
                reporter.complain(complaints);
                reporter.set(scan.pods()).await;
            }
            Err(err) => {
                let origin = Origin::File(scan.directory.path.clone());
                reporter.complain(vec![Condition::whole(SourceKind::File, &origin, err)]);
            }
        }
        tokio::select! {
            () = watch.changed() => {}
            () = reporter.wanted() => scan.files.values_mut().for_each(|file| file.stamp = None),
        }
    }
}

/// The files as they were read last.
struct Scan {
    directory: Directory,
    files: BTreeMap<PathBuf, File>,
}

#[derive(Default)]
struct File {
    /// Device, inode, size and times of the version that was read. It is `None` if it must be read again.
    stamp: Option<[i64; 7]>,
    pods: Vec<Arc<Manifest>>,
    complaints: Vec<Condition>,
}

impl Scan {
    fn pods(&self) -> Vec<Arc<Manifest>> {
        self.files.values().flat_map(|file| file.pods.iter().cloned()).collect()
    }

    /// Reads changed files. Returns the complaints of all files.
    fn pass(&mut self) -> Result<Vec<Condition>, SourceError> {
        let path = &self.directory.path;
        let paths = match list(path) {
            Ok(paths) => paths,
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                self.files.clear();
                let error = SourceError::Read { path: path.clone(), source };
                return Ok(vec![Condition::new(SourceKind::File, &Origin::File(path.clone()), error)]);
            }
            Err(source) => return Err(SourceError::Read { path: path.clone(), source }),
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let mut file = self.files.remove(&path).unwrap_or_default();
            if file.refresh(&path, &self.directory.defaults) {
                files.insert(path, file);
            }
        }
        self.files = files;
        Ok(self.files.values().flat_map(|file| file.complaints.iter().cloned()).collect())
    }
}

impl File {
    /// Reads the file if it has changed. Returns false for a missing file.
    fn refresh(&mut self, path: &Path, defaults: &Defaults) -> bool {
        let origin = Origin::File(path.to_owned());
        match self.load(path) {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                let parsed = Manifest::parse_each(&bytes, &origin, defaults);
                self.complaints = parsed
                    .errors
                    .iter()
                    .map(|err| Condition::new(SourceKind::File, &origin, err.clone().into()))
                    .collect();
                self.pods = keep_last_good(std::mem::take(&mut self.pods), parsed);
            }
            Err(SourceError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return false;
            }
            Err(err) => {
                self.stamp = None;
                self.complaints = vec![Condition::new(SourceKind::File, &origin, err)];
            }
        }
        true
    }

    /// Returns the content, or `None` if the file is unchanged.
    fn load(&mut self, path: &Path) -> Result<Option<Vec<u8>>, SourceError> {
        // To open a pipe would block, so the kind is checked before.
        let meta = std::fs::metadata(path);
        let meta = meta.map_err(|source| SourceError::Read { path: path.to_owned(), source })?;
        if !meta.is_file() {
            return Err(SourceError::NotAFile(path.to_owned()));
        }
        let stamp = stamp(&meta);
        if self.stamp == Some(stamp) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        // One byte more than allowed shows that the file is too large.
        let limit = MAX_SIZE as u64 + 1;
        std::fs::File::open(path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(|source| SourceError::Read { path: path.to_owned(), source })?;
        // Soon after a change, a second one may have the same time. So a young file is read again.
        let settled = meta.modified().ok().and_then(|time| time.elapsed().ok());
        self.stamp = settled.filter(|age| *age > Duration::from_secs(1)).map(|_| stamp);
        Ok(Some(bytes))
    }
}

fn stamp(meta: &std::fs::Metadata) -> [i64; 7] {
    [
        meta.dev().cast_signed(),
        meta.ino().cast_signed(),
        meta.len().cast_signed(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec(),
    ]
}

/// Returns the entries of a directory that don't begin with a dot, sorted, or the file itself. Subdirectories are among
/// them, and are refused later.
fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    if std::fs::metadata(dir)?.is_file() {
        return Ok(vec![dir.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the pods to use after a text was read. If it has an error, earlier pods that it lacks stay, because any of
/// them may be the invalid one.
pub(super) fn keep_last_good(before: Vec<Arc<Manifest>>, parsed: Parsed) -> Vec<Arc<Manifest>> {
    let Parsed { pods, errors } = parsed;
    let mut pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
    if !errors.is_empty() {
        for pod in before {
            if !pods.iter().any(|other| other.id == pod.id) {
                pods.push(pod);
            }
        }
    }
    pods
}
