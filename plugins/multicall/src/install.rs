//! `--install DIR` and `--uninstall DIR`: the binary installs itself under each plugin's name, and removes itself
//! again, on systems without a shell or a package manager, such as Talos and Flatcar.
//!
//! `scripts/install` does the same, and either undoes the other's work. Replaced files are in `.replaced-by-cnimble`.
//! The file `installed` there has a line "SHA-256, two spaces, path" for each installed file.
//!
//! Files are renamed into place, so a node can create pods meanwhile. After a kill, the next call removes unfinished
//! files and completes the work.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::{Display, Write as _};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cnimble_os::files::IfPresent as _;
use cnimble_plugins::PLUGINS;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use sha2::{Digest, Sha256};

const USAGE: &str = "usage: cnimble-plugins --list-plugins
       cnimble-plugins --install DIR [--copies] [--wait]
       cnimble-plugins --uninstall DIR

  --list-plugins   print the names of the plugins
  --install DIR    put the plugins into DIR, and cluster-local-store, if it lies beside this program;
                   what was there is kept in DIR/.replaced-by-cnimble
  --copies         make a file of its own for each plugin, instead of hard links of one file: for a
                   directory in which others write. 60 MB together, or as much as one file on a file
                   system that shares blocks (btrfs, xfs)
  --wait           then wait for SIGTERM: for the container of a DaemonSet
  --uninstall DIR  remove them, and put back what they replaced

Before plugins of another make are put back, `cnimble hand-over --yes` writes the packet rules of
living pods in the form that these remove.
";

/// The directory below DIR with the replaced files and the list `installed`.
const KEEP: &str = ".replaced-by-cnimble";
/// The program of the plugin `cluster-local`, installed if it is beside this one.
const CLUSTER: &str = "cluster-local-store";
/// The former name of `cluster-local-store`, a symbolic link to it. The plugin of an earlier build starts it by this
/// name.
const FORMER: &str = "cluster-local-etcd";
/// The beginning of the name of a file that is not complete yet.
const UNFINISHED: &str = ".cnimble.";

/// The text after `error:`: the action, the file and the reason.
type Failure = String;

/// Carries out the arguments if they are for this module, and returns the exit status. `None` for other arguments. The
/// umask of the process is changed as soon as there is an argument.
pub(crate) fn asked(args: &[OsString]) -> Option<i32> {
    let (first, rest) = args.split_first()?;
    // Root executes the installed files, so nobody else may write to them at any moment. The caller's umask does not
    // ensure that.
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    let done = match (first.to_str()?, rest) {
        ("--install", [dir, options @ ..]) => install_as(Path::new(dir), options),
        ("--uninstall", [dir]) => uninstall(Path::new(dir)),
        ("--help" | "-h", []) => {
            say(USAGE.trim_end());
            Ok(())
        }
        ("--install" | "--uninstall" | "--help" | "-h", _) => Err(wrong_arguments()),
        _ => return None,
    };
    match done {
        Ok(()) => Some(0),
        Err(failure) => {
            let _ = writeln!(io::stderr(), "error: {}", failure.trim_end());
            Some(1)
        }
    }
}

fn wrong_arguments() -> Failure {
    format!("wrong arguments\n{USAGE}")
}

/// Installs with these options, and with `--wait` then waits for the end of the container.
fn install_as(dir: &Path, options: &[OsString]) -> Result<(), Failure> {
    let (mut way, mut wait) = (InstallMode::Links, false);
    for option in options {
        match option.to_str() {
            Some("--copies") => way = InstallMode::Copies,
            Some("--wait") => wait = true,
            _ => return Err(wrong_arguments()),
        }
    }
    install(dir, way)?;
    if wait { wait_for_the_end() } else { Ok(()) }
}

/// Prints a line to stdout. A closed stdout does not stop the work.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Returns a function that puts the action and the file in front of an error.
fn doing<E: Display>(what: &str, path: &Path) -> impl Fn(E) -> Failure {
    let what = format!("{what} {}", path.display());
    move |err| format!("{what}: {err}")
}

/// Waits for SIGTERM or SIGINT. The kernel ignores both for process 1 of a container unless it asks for them, and so
/// the container could not be stopped.
fn wait_for_the_end() -> Result<(), Failure> {
    let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    ends.thread_block().and_then(|()| ends.wait()).map(|_| ()).map_err(|err| format!("waiting: {err}"))
}

/// The way in which each plugin gets its file.
#[derive(Debug, Clone, Copy)]
enum InstallMode {
    /// All plugins are hard links of one file.
    Links,
    /// Each plugin is a file of its own. A program that overwrites one does not change the others.
    Copies,
}

/// A directory with plugins, locked against concurrent installs until the value is dropped.
struct PluginDirectory {
    dir: PathBuf,
    /// The directory [`KEEP`], which may be missing.
    keep: PathBuf,
    _lock: Flock<File>,
}

impl PluginDirectory {
    /// Waits for the lock of the directory, and removes the unfinished files of a killed call.
    fn open(dir: &Path) -> Result<Self, Failure> {
        let dir = fs::canonicalize(dir).map_err(doing("finding", dir))?;
        let file = File::open(&dir).map_err(doing("opening", &dir))?;
        let lock =
            Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, err)| doing("locking", &dir)(err))?;
        let place = PluginDirectory { keep: dir.join(KEEP), dir, _lock: lock };
        place.sweep(&place.dir)?;
        place.sweep(&place.keep)?;
        Ok(place)
    }

    /// Removes unfinished files from `dir`. The lock is held, so no other call is about to finish them. A missing
    /// directory is no error.
    fn sweep(&self, dir: &Path) -> Result<(), Failure> {
        let entries = fs::read_dir(dir).if_present().map_err(doing("reading", dir))?;
        for entry in entries.into_iter().flatten() {
            let entry = entry.map_err(doing("reading", dir))?;
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                fs::remove_file(entry.path()).map_err(doing("removing", &entry.path()))?;
            }
        }
        Ok(())
    }

    /// Returns the path of the list of installed files.
    fn manifest(&self) -> PathBuf {
        self.keep.join("installed")
    }

    /// Reads the lines of the list of installed files. Empty if there is no list.
    fn installed(&self) -> Result<BTreeSet<String>, Failure> {
        let read = fs::read_to_string(self.manifest()).if_present();
        let text = read.map_err(doing("reading", &self.manifest()))?.unwrap_or_default();
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns true if the file is in the list with its present content, or is another cnimble program: an ELF file
    /// that contains the name. The link that [`link_former`] makes counts as well. False for anything else that is no
    /// regular file. Fails if the path is missing.
    fn is_ours(&self, path: &Path, installed: &BTreeSet<String>) -> Result<bool, Failure> {
        if !fs::symlink_metadata(path).map_err(doing("reading", path))?.is_file() {
            return Ok(is_former_link(path));
        }
        let bytes = fs::read(path).map_err(doing("reading", path))?;
        let ours = bytes.starts_with(b"\x7fELF") && bytes.windows(7).any(|seven| seven == b"cnimble");
        Ok(ours || installed.contains(&line(&digest(&bytes), path)))
    }

    /// Puts `source` at `path` by a hard link, which replaces what is there in one step. Both are on one file system.
    fn put_link(&self, source: &Path, path: &Path) -> Result<(), Failure> {
        let new = unfinished(path);
        fs::hard_link(source, &new).map_err(doing("linking", path))?;
        let renamed = fs::rename(&new, path).map_err(doing("renaming to", path));
        // rename(2) does nothing if both are links to one file, and then leaves the new name behind.
        let _ = fs::remove_file(&new);
        renamed
    }

    /// Keeps files at `paths` that are not ours for --uninstall. They also stay at their place until they are replaced.
    fn keep_others(&self, paths: &[PathBuf], installed: &BTreeSet<String>) -> Result<(), Failure> {
        for path in paths {
            let kept = self.keep.join(path.file_name().unwrap_or_default());
            if exists(path)? && !self.is_ours(path, installed)? {
                self.put_link(path, &kept)?;
                say(&format!("keep {} as {}", path.display(), kept.display()));
            }
        }
        Ok(())
    }
}

/// Copies `source` to `path` atomically, with its modification time.
fn copy(source: &Path, path: &Path) -> Result<(), Failure> {
    let mut from = File::open(source).map_err(doing("opening", source))?;
    // The modification time identifies a copy: plugins with the same one call each other in one process.
    let modified = from.metadata().and_then(|meta| meta.modified()).map_err(doing("reading", source))?;
    // copy_file_range(2) shares blocks if the file system can.
    write_by(path, 0o755, |file| io::copy(&mut from, file).and_then(|_| file.set_modified(modified)))
}

/// Returns the name that a file has beside `path` until it is complete. It has the process ID.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(UNFINISHED);
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

/// Returns true if something is at `path`, also a link that leads nowhere.
fn exists(path: &Path) -> Result<bool, Failure> {
    Ok(fs::symlink_metadata(path).if_present().map_err(doing("reading", path))?.is_some())
}

/// Returns the SHA-256 of the bytes in hex digits.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the line of the list for a file, in the form of sha256sum(1).
fn line(digest: &str, path: &Path) -> String {
    format!("{digest}  {}", path.display())
}

/// Writes a file atomically and syncs it to the disk.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    write_by(path, mode, |file| file.write_all(bytes))
}

/// Writes a file by `fill`, and syncs it. It gets its name and its place only when it is complete and on the disk.
/// After a failure, the unfinished file is removed and `path` is unchanged.
fn write_by(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Failure> {
    let new = unfinished(path);
    let written = File::create(&new).and_then(|mut file| {
        fill(&mut file)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&new, path)).map_err(|err| {
        let _ = fs::remove_file(&new);
        doing("writing", path)(err)
    })
}

/// Returns true if `path` has the name [`FORMER`] and is the symbolic link that [`link_former`] makes.
fn is_former_link(path: &Path) -> bool {
    path.ends_with(FORMER) && fs::read_link(path).is_ok_and(|to| to == Path::new(CLUSTER))
}

/// Makes `path` a symbolic link to [`CLUSTER`] in the same directory. Replaces what is there in one step, but fails on
/// a directory.
fn link_former(path: &Path) -> Result<(), Failure> {
    let new = unfinished(path);
    let linked = symlink(CLUSTER, &new).and_then(|()| fs::rename(&new, path));
    linked.map_err(|err| {
        let _ = fs::remove_file(&new);
        doing("linking", path)(err)
    })
}

/// Reads the program [`CLUSTER`] beside this one. Returns `None` if there is none.
fn cluster(own: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let path = fs::read_link(own).map_err(doing("reading", own))?.with_file_name(CLUSTER);
    fs::read(&path).if_present().map_err(doing("reading", &path))
}

/// Installs all plugins and, if it is beside this program, [`CLUSTER`]. Makes a missing directory. Fails, before it
/// installs anything, if a directory has the name of a file.
fn install(dir: &Path, way: InstallMode) -> Result<(), Failure> {
    let own = Path::new("/proc/self/exe");
    let program = fs::read(own).map_err(doing("reading", own))?;
    let cluster = cluster(own)?;
    fs::create_dir_all(dir).map_err(doing("making", dir))?;
    let place = PluginDirectory::open(dir)?;
    let mut installed = place.installed()?;
    let plugins: Vec<PathBuf> = PLUGINS.iter().map(|plugin| place.dir.join(plugin.name())).collect();
    let beside = [CLUSTER, FORMER].map(|name| place.dir.join(name));
    let of_cluster = cluster.iter().flat_map(|_| &beside);
    let all: Vec<PathBuf> = plugins.iter().chain(of_cluster).cloned().collect();
    if let Some(path) = all.iter().find(|path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())) {
        return Err(format!("{} is a directory", path.display()));
    }

    // The list is written before files are kept, so that --uninstall can undo any later interruption.
    fs::create_dir_all(&place.keep).map_err(doing("making", &place.keep))?;
    let of_plugins = digest(&program);
    installed.extend(plugins.iter().map(|path| line(&of_plugins, path)));
    if let Some(cluster) = &cluster {
        let of_cluster = digest(cluster);
        installed.extend(beside.iter().map(|path| line(&of_cluster, path)));
    }
    let manifest: String = installed.iter().map(|line| format!("{line}\n")).collect();
    write(&place.manifest(), manifest.as_bytes(), 0o644)?;
    place.keep_others(&all, &installed)?;

    // Before the plugin that runs it.
    let [store, former] = &beside;
    if let Some(cluster) = &cluster {
        write(store, cluster, 0o755)?;
        link_former(former)?;
        say(&format!("install {}", store.display()));
    } else {
        for path in &beside {
            if exists(path)? {
                say(&format!("{} stays as it is: none lies beside this program", path.display()));
            }
        }
    }
    // The file is synced to the disk before a runtime may call it.
    let source = place.dir.join(format!("{UNFINISHED}source"));
    write(&source, &program, 0o755)?;
    for path in &plugins {
        match way {
            InstallMode::Links => place.put_link(&source, path)?,
            InstallMode::Copies => copy(&source, path)?,
        }
        say(&format!("install {}", path.display()));
    }
    fs::remove_file(&source).map_err(doing("removing", &source))
}

/// Removes the installed files and puts back what they replaced. A file that another program has written since is left
/// alone. If that keeps a replaced file from being put back, that file and the list stay for a later call. The outcome
/// is still `Ok`.
fn uninstall(dir: &Path) -> Result<(), Failure> {
    let place = PluginDirectory::open(dir)?;
    let installed = place.installed()?;
    if installed.is_empty() {
        say(&format!("nothing of ours is in {}", place.dir.display()));
        return Ok(());
    }
    let names = installed.iter().filter_map(|line| Path::new(line.get(66..)?).file_name());
    let mut left = false;
    for name in names.collect::<BTreeSet<_>>() {
        let (path, kept) = (place.dir.join(name), place.keep.join(name));
        if is_former_link(&kept) {
            // An earlier build took it for another's.
            fs::remove_file(&kept).map_err(doing("removing", &kept))?;
        }
        let present = exists(&path)?;
        if exists(&kept)? {
            if present && !same(&path, &kept)? && !place.is_ours(&path, &installed)? {
                say(&format!(
                    "leave {}, which is not ours any more; what was replaced stays",
                    path.display()
                ));
                left = true;
                continue;
            }
            place.put_link(&kept, &path)?;
            fs::remove_file(&kept).map_err(doing("removing", &kept))?;
            say(&format!("put back {}", path.display()));
        } else if present && place.is_ours(&path, &installed)? {
            fs::remove_file(&path).map_err(doing("removing", &path))?;
            say(&format!("remove {}", path.display()));
        }
    }
    if left {
        return Ok(());
    }
    fs::remove_file(place.manifest()).map_err(doing("removing", &place.manifest()))?;
    // scripts/install may have kept a command there, and restores it itself.
    match fs::remove_dir(&place.keep) {
        Err(err) if err.kind() != ErrorKind::DirectoryNotEmpty => Err(doing("removing", &place.keep)(err)),
        _ => Ok(()),
    }
}

/// Returns true if both paths are the same file. Links are not followed. Fails if one is missing.
fn same(one: &Path, other: &Path) -> Result<bool, Failure> {
    Ok(read_inode(one)? == read_inode(other)?)
}

/// Returns the device and the inode number of a file, which identify it. A link is not followed. Fails if the file is
/// missing.
fn read_inode(path: &Path) -> Result<(u64, u64), Failure> {
    fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino())).map_err(doing("reading", path))
}
