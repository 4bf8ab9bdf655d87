//! The wanted state of an attachment, as items that can be verified and put back. A plugin's CHECK names each item by
//! [`Call::wants`], and the [`Aim`] decides about an item that differs. A program that makes the check in its own
//! process ([`Examination`]) notes it, or has it put back.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cnimble_cni::{Code, Error, PluginConfig};
use cnimble_netlink::{NetNs, Netlink};

use super::{Call, Command, Plugin, Undo, delegate};

/// The place of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Packet rules on the host.
    Rules,
    /// Links, addresses, routes and switches of the host.
    Host,
    /// The pod's namespace. A difference can be the pod's own wish.
    Pod,
}

/// The treatment of an item that differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Aim {
    /// Makes the first one the error of CHECK.
    #[default]
    Verify,
    /// Notes all that differ in a list for the caller.
    Note,
    /// Does what [`Note`](Self::Note) does, for items outside the pod ([`Call::covers_pod`]).
    NoteHost,
    /// Puts back items outside the pod. Others may be noted.
    RepairHost,
    /// Puts back all items.
    RepairAll,
}

impl Aim {
    /// Returns whether items at this place are put back.
    fn repairs(self, place: Place) -> bool {
        match self {
            Aim::Verify | Aim::Note | Aim::NoteHost => false,
            Aim::RepairHost => place != Place::Pod,
            Aim::RepairAll => true,
        }
    }
}

/// An item that isn't as wanted, or that could not be put back.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The part of the attachment that it belongs to.
    pub place: Place,
    /// The error of CHECK for it, or why it could not be put back.
    pub error: Error,
    /// Whether nobody puts it back, because nothing proves which object of the host is the attachment's.
    pub left_alone: bool,
    /// Whether the plugin has a way to put the item back ([`Call::wants`]).
    pub is_mendable: bool,
    /// The item, for a comparison. The text of the error can have values that a pod chooses.
    pub item: Item,
}

/// An item of the wanted state. It is the place in the code that names it, in a plugin or in what plugins share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item(&'static str, u32);

impl Item {
    /// Returns the item of the caller.
    #[track_caller]
    pub fn from_caller() -> Self {
        let at = Location::caller();
        Item(at.file(), at.line())
    }
}

/// What CHECK does about differences, and those that it has noted.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    aim: Aim,
    faults: RefCell<Vec<Fault>>,
    has_put_back: Cell<bool>,
}

impl Call {
    /// Verifies an item of the wanted state with `verify`, and puts it back with `put_back` if that is the aim. Both
    /// get the sockets `on`. After a repair the item is verified again.
    ///
    /// # Errors
    /// CHECK returns the error of `verify`. An examination notes a difference (code 103) and a failed repair instead,
    /// and returns only other errors of `verify`.
    #[track_caller]
    pub fn wants<S>(
        &self,
        place: Place,
        on: &mut S,
        verify: impl Fn(&mut S) -> Result<(), Error>,
        put_back: impl FnOnce(&mut S) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let item = Item::from_caller();
        let outcome = match verify(on) {
            Err(err) if err.code == Code::CHECK_FAILED && self.wanted.aim.repairs(place) => {
                log::debug!("put back: {err}");
                let outcome = put_back(on).and_then(|()| verify(on));
                if outcome.is_ok() {
                    self.wanted.has_put_back.set(true);
                }
                outcome
            }
            Err(err) if err.code == Code::CHECK_FAILED && self.is_examined() => Err(err),
            verified => return verified,
        };
        outcome.or_else(|error| {
            self.note_fault(Fault { place, error, left_alone: false, is_mendable: true, item })
        })
    }

    /// Does what [`Call::wants`] does, for an item that can't be put back. `verified` is the result of its
    /// verification.
    ///
    /// # Errors
    /// CHECK returns the error of `verified`. An examination notes a difference (code 103) instead, and returns only
    /// other errors.
    #[track_caller]
    pub fn expects(&self, place: Place, verified: Result<(), Error>) -> Result<(), Error> {
        match verified {
            Err(error) if error.code == Code::CHECK_FAILED && self.is_examined() => {
                let item = Item::from_caller();
                self.note_fault(Fault { place, error, left_alone: false, is_mendable: false, item })
            }
            verified => verified,
        }
    }

    /// Notes that an item is left alone, because nothing proves which object is the attachment's.
    ///
    /// # Errors
    /// Returns `error`, unless a program makes this check for itself.
    #[track_caller]
    pub fn leaves_alone(&self, place: Place, error: Error) -> Result<(), Error> {
        if !self.is_examined() {
            return Err(error);
        }
        self.note_fault(Fault {
            place,
            error,
            left_alone: true,
            is_mendable: false,
            item: Item::from_caller(),
        })
    }

    /// Returns true if a program makes this check for itself. A caller of the verb may end a pod that fails, so the
    /// verb verifies less.
    pub fn is_examined(&self) -> bool {
        self.wanted.aim != Aim::Verify
    }

    /// Returns whether the items in the pod matter. If not, CHECK may leave them out, because the aim is the host
    /// alone.
    pub fn covers_pod(&self) -> bool {
        !matches!(self.wanted.aim, Aim::NoteHost | Aim::RepairHost)
    }

    /// Opens a socket in the namespace `netns` for CHECK. The examination of many pods reads no list of a length that
    /// one of them chooses.
    ///
    /// # Errors
    /// Fails if the kernel refuses a socket.
    pub fn look_inside(&self, netns: &NetNs) -> Result<Netlink, Error> {
        Ok(if self.is_examined() { Netlink::open_bounded(netns) } else { Netlink::open_in(netns) }?)
    }

    fn note_fault(&self, fault: Fault) -> Result<(), Error> {
        self.wanted.faults.borrow_mut().push(fault);
        Ok(())
    }
}

/// A CHECK in the process of its caller, which links the plugins.
#[derive(Debug)]
pub struct Examination<'a> {
    /// The value that a plugin reads from `CNI_CONTAINERID`.
    pub container_id: &'a str,
    /// The value that a plugin reads from `CNI_NETNS`.
    pub netns: &'a str,
    /// The value that a plugin reads from `CNI_IFNAME`.
    pub ifname: &'a str,
    /// The value that a plugin reads from `CNI_ARGS`.
    pub args: String,
    /// The directories of `CNI_PATH`.
    pub path: &'a [PathBuf],
    /// The plugin's configuration, with the result of ADD.
    pub config: Vec<u8>,
}

impl Examination<'_> {
    /// Runs CHECK of the plugin `name` among `plugins`. Returns `None` if it isn't one of them. The version of the
    /// configuration may be one without CHECK.
    pub fn run(&self, plugins: &'static [&'static dyn Plugin], name: &str, aim: Aim) -> Option<Examined> {
        let plugin = plugins.iter().copied().find(|plugin| plugin.name() == name)?;
        let undo = Undo::new();
        let config = match PluginConfig::parse(&self.config) {
            Ok(config) => config,
            Err(err) => return Some(Examined::failed(err, undo)),
        };
        let ipam = plugins.iter().copied().find(|plugin| Some(plugin.name()) == config.ipam());
        let call = Call {
            container_id: self.container_id.to_owned(),
            netns: self.netns.to_owned(),
            ifname: self.ifname.to_owned(),
            raw_args: self.args.clone(),
            path: self.path.to_vec(),
            undo,
            plugins,
            home: NetNs::current().ok().map(Arc::new),
            delegate: ipam.map(delegate::FoundDelegate::from_plugin).unwrap_or_default(),
            wanted: Wanted { aim, ..Wanted::default() },
            ..Call::new(Command::Check, config, self.config.clone())
        };
        Some(examine(plugin, &call))
    }
}

/// The outcome of an [`Examination`].
pub struct Examined {
    /// The items that are not as wanted, or could not be put back.
    ///
    /// # Errors
    /// An error means that the check ended early for another reason than a difference. What it had noted until then is
    /// lost, so nothing is known about the items.
    pub faults: Result<Vec<Fault>, Error>,
    /// The difference (code 103) that ended the check early, because later items depend on what differs. These were not
    /// compared. It is among the faults only if nothing was noted before it, because it may only follow from those.
    pub ended_by: Option<Error>,
    /// Whether an item differed and was put back, also if the check failed later.
    pub has_put_back: bool,
    /// Takes back what was put back. The caller rolls it back or commits it.
    pub undo: Undo,
}

impl Examined {
    /// Returns the outcome of a check that did not begin.
    fn failed(err: Error, undo: Undo) -> Self {
        Examined { faults: Err(err), ended_by: None, has_put_back: false, undo }
    }
}

/// Runs CHECK, and returns what it has noted. Refuses the host's namespace as the pod's, with code 8.
///
/// A difference (code 103) that ends the check becomes a fault if none was noted. After any other error of CHECK the
/// noted faults are dropped.
fn examine(plugin: &dyn Plugin, call: &Call) -> Examined {
    let undo = call.undo.clone();
    if call.home.as_ref().is_some_and(|home| home.is_at(Path::new(&call.netns))) {
        let why = format!("{} is the host's namespace", call.netns);
        return Examined::failed(Error::new(Code::INVALID_NETNS, why), undo);
    }
    let outcome = super::run(plugin, call, Command::Check);
    let has_put_back = call.wanted.has_put_back.get();
    let mut faults = call.wanted.faults.take();
    let ended_by = match outcome {
        Ok(()) => None,
        Err(error) if error.code == Code::CHECK_FAILED => {
            if faults.is_empty() {
                let (place, item, error) = (Place::Host, Item::from_caller(), error.clone());
                faults.push(Fault { place, error, left_alone: false, is_mendable: false, item });
            }
            Some(error)
        }
        Err(error) => return Examined { faults: Err(error), ended_by: None, has_put_back, undo },
    };
    Examined { faults: Ok(faults), ended_by, has_put_back, undo }
}

#[cfg(test)]
mod tests {
    use cnimble_cni::CniResult;

    use super::super::Role;
    use super::*;

    /// A plugin whose CHECK notes a difference in the pod, and then finds one on which all else depends.
    struct Dependent;

    impl Plugin for Dependent {
        fn name(&self) -> &'static str {
            "dependent"
        }

        fn role(&self) -> Role {
            Role::Main
        }

        fn read_config(&self, _call: &Call) -> Result<(), Error> {
            Ok(())
        }

        fn add(&self, _call: &Call) -> Result<CniResult, Error> {
            Ok(CniResult::default())
        }

        fn del(&self, _call: &Call) -> Result<(), Error> {
            Ok(())
        }

        fn check(&self, call: &Call, _prev: &CniResult) -> Result<(), Error> {
            call.expects(Place::Pod, Err(Error::check("eth0 is down")))?;
            Err(Error::check("the bridge is missing"))
        }
    }

    #[test]
    fn a_check_that_ends_early_says_so() {
        let examination = Examination {
            container_id: "one",
            netns: "/proc/self/ns/none",
            ifname: "eth0",
            args: String::new(),
            path: &[],
            config: br#"{"cniVersion": "1.0.0", "name": "net", "type": "dependent", "prevResult": {}}"#
                .to_vec(),
        };
        let examined = examination.run(&[&Dependent], "dependent", Aim::NoteHost).unwrap();
        let faults = examined.faults.unwrap();
        let noted: Vec<(Place, String)> =
            faults.iter().map(|fault| (fault.place, fault.error.to_string())).collect();
        assert_eq!(noted, [(Place::Pod, "eth0 is down".to_owned())]);
        assert_eq!(examined.ended_by.unwrap().to_string(), "the bridge is missing");
        assert!(!examined.has_put_back);
    }
}
