//! The lists of attachments that come with GC, which are as long as the node has pods.

use std::cell::RefCell;

use serde::Deserialize;
use serde_json::Value;

use super::{Error, json};

pub(crate) const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
/// The key in releases of libcni from before the specification was final.
pub(crate) const OLD_ATTACHMENTS: &str = "cni.dev/attachments";

/// A container's interface in a network: the key of GC and of leases. It names files and objects in the kernel, so it
/// gets no other fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Attachment {
    /// The value of CNI_CONTAINERID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface name inside the container.
    pub ifname: String,
}

/// What an attachment takes besides its two texts, in bytes: a slot in a list that grows by doubling, and the
/// allocator's overhead.
const ONE: usize = 160;

type List = Result<Vec<Attachment>, Error>;

/// The lists of a configuration, read one attachment at a time.
#[derive(Default)]
pub(super) struct Lists(RefCell<Vec<(String, List)>>);

impl Lists {
    /// Returns the list that stood at `key`. In the document, `value` stands for it now. Fails with code 7 and the
    /// path.
    pub(super) fn take_out(&self, value: &Value, key: &str) -> List {
        let number = value.as_array().and_then(|number| number.first()).and_then(Value::as_u64);
        let list = number.and_then(|number| {
            let mut lists = self.0.borrow_mut();
            let number = usize::try_from(number).ok()?;
            (number < lists.len()).then(|| lists.swap_remove(number).1)
        });
        // No list was taken out: the value is null or an error.
        list.unwrap_or_else(|| json::from_value(value, key))
    }
}

impl json::Lists for Lists {
    fn takes_out(&self, key: &str) -> bool {
        [VALID_ATTACHMENTS, OLD_ATTACHMENTS].iter().any(|one| one.eq_ignore_ascii_case(key))
    }

    fn begin(&self, key: &str) -> usize {
        let canonical =
            [VALID_ATTACHMENTS, OLD_ATTACHMENTS].into_iter().find(|one| one.eq_ignore_ascii_case(key));
        let mut lists = self.0.borrow_mut();
        lists.push((canonical.unwrap_or(key).to_owned(), Ok(Vec::new())));
        lists.len() - 1
    }

    fn push(&self, element: &Value) -> usize {
        let mut lists = self.0.borrow_mut();
        let Some((key, list)) = lists.last_mut() else { return 0 };
        let Ok(attachments) = list else { return 0 };
        match json::from_value::<Attachment>(element, "") {
            Ok(attachment) => {
                let texts = attachment.container_id.len() + attachment.ifname.len();
                attachments.push(attachment);
                ONE + texts
            }
            Err(_) => {
                let path = format!("{key}[{}]", attachments.len());
                *list = json::from_value::<Attachment>(element, &path).map(|_| Vec::new());
                0
            }
        }
    }
}
