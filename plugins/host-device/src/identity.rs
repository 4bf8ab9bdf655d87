//! Decides whether a link is the recorded device.

use cnimble_netlink::link::Link;

use crate::record::DeviceRecord;
use crate::seen::DeviceProof;

/// The link that every namespace has of its own and that cannot be moved.
pub(crate) const LOOPBACK: &str = "lo";

impl DeviceRecord {
    /// Returns true if the inode of the link's directory in sysfs proves that it is the recorded device.
    pub(crate) fn is_proven(&self, seen: &DeviceProof) -> bool {
        self.has_inode(seen) == Some(true)
    }

    /// Returns true if a link is the recorded device. A pod can give the device's name, alias, MAC address and index to
    /// other links. So the inode of the directory in sysfs decides.
    ///
    /// Hardware gets a new directory if its driver makes the link again. Then the permanent address and the place on
    /// the bus decide. If neither is known, the peer has to be the same, and two of four weaker properties have to
    /// agree.
    pub(crate) fn is(&self, seen: &DeviceProof) -> bool {
        let link = &seen.link;
        let loopback = seen.details.as_ref().is_some_and(|details| details.loopback);
        if link.kind != self.kind || link.name == LOOPBACK || loopback {
            return false;
        }
        match (self.has_inode(seen), self.has_hardware(seen)) {
            (Some(true), _) => true,
            (_, Some(has)) => has,
            (Some(false), None) => false,
            (None, None) => {
                let same_peer = self.marks.as_ref().is_none_or(|marks| marks.peer == link.peer);
                same_peer && self.is_alike(link)
            }
        }
    }

    /// Compares the inode of the directory in sysfs. `None` if either inode is unknown.
    fn has_inode(&self, seen: &DeviceProof) -> Option<bool> {
        let inode = self.marks.as_ref().map(|marks| marks.inode).filter(|inode| *inode != 0)?;
        Some(seen.device.as_ref()?.inode == inode)
    }

    /// Compares the permanent MAC address and, where both are known, the place on the bus. `None` if a permanent
    /// address is unknown, as for virtual devices.
    fn has_hardware(&self, seen: &DeviceProof) -> Option<bool> {
        let marks = self.marks.as_ref().filter(|marks| !marks.permanent_mac.is_empty())?;
        let permanent = seen.details.as_ref().map(|details| &details.permanent)?;
        let bus = seen.device.as_ref().map(|device| &device.bus);
        let same_bus = bus.is_none_or(|bus| marks.bus.is_empty() || *bus == marks.bus);
        (!permanent.is_empty()).then_some(*permanent == marks.permanent_mac && same_bus)
    }

    /// Returns true if two of four properties agree that a pod can forge: index, name, alias and MAC address. Name and
    /// index may match by accident, so those two suffice only for hardware, which no pod can make.
    fn is_alike(&self, link: &Link) -> bool {
        let (alias, mac) = (link.alias == self.name, link.mac.is_some() && link.mac == self.mac());
        let marks =
            [link.index == self.index, link.name == self.name || link.name == self.ifname, alias, mac];
        let known = marks.iter().filter(|mark| **mark).count() >= 2;
        known && (alias || mac || link.kind.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use cnimble_netlink::details::Details;
    use cnimble_netlink::link::Mac;
    use cnimble_netlink::sysfs::Device;

    use super::*;
    use crate::record::Marks;
    use crate::record::tests::record;

    fn link(index: u32, name: &str, alias: &str, mac: u8) -> Link {
        Link {
            index,
            name: name.to_owned(),
            alias: alias.to_owned(),
            mac: Some(Mac([2, 0, 0, 0, 0, mac])),
            ..Link::default()
        }
    }

    fn seen(link: Link) -> DeviceProof {
        DeviceProof { link, ..DeviceProof::default() }
    }

    #[test]
    fn without_proof_a_device_is_known_by_two_of_four_marks() {
        let record = record("one");
        for (index, name, alias, mac) in
            [(7, "eth7", "", 1), (9, "net1", "eth7", 1), (9, "dev9", "eth7", 7), (7, "x", "y", 7)]
        {
            assert!(record.is(&seen(link(index, name, alias, mac))), "{index} {name} {alias} {mac}");
        }
        for (index, name, alias, mac) in
            [(7, "x", "", 1), (9, "eth7", "", 1), (9, "x", "eth7", 1), (9, "x", "", 7)]
        {
            assert!(!record.is(&seen(link(index, name, alias, mac))), "{index} {name} {alias} {mac}");
        }
        let veth = |link| seen(Link { kind: "veth".to_owned(), ..link });
        assert!(!record.is(&veth(link(7, "eth7", "", 7))));
        // The pod's own interface with this index and name.
        let mut of_veth = DeviceRecord { kind: "veth".to_owned(), ..record };
        assert!(!of_veth.is(&veth(link(7, "eth7", "", 1))));
        assert!(of_veth.is(&veth(link(7, "eth7", "", 7))));
        of_veth.marks = Some(Marks { peer: Some(3), ..Marks::default() });
        assert!(!of_veth.is(&veth(link(7, "eth7", "", 7))));
        assert!(of_veth.is(&veth(Link { peer: Some(3), ..link(7, "eth7", "", 7) })));
    }

    #[test]
    fn the_inode_decides_and_hardware_is_also_known_by_its_own_address() {
        let device = |inode, bus: &str| Some(Device { index: 7, inode, bus: bus.to_owned() });
        let own = |mac: u8| vec![2, 0, 0, 0, 1, mac];
        let of = |inode, bus, permanent| DeviceProof {
            link: link(9, "x", "", 1),
            device: device(inode, bus),
            details: Some(Details { permanent, ..Details::default() }),
        };
        let marks = Marks { inode: 77, bus: "pci/1".to_owned(), permanent_mac: own(1), peer: None };
        let record = DeviceRecord { marks: Some(marks.clone()), ..record("one") };
        // In the last but one case the driver has made the link again.
        for seen in [of(77, "pci/1", own(1)), of(77, "", vec![]), of(78, "pci/1", own(1))] {
            assert!(record.is(&seen), "{seen:?}");
        }
        for seen in [of(78, "pci/1", own(2)), of(78, "pci/2", own(1)), of(78, "pci/1", vec![])] {
            assert!(!record.is(&seen), "{seen:?}");
        }
        // All weak marks, but another inode.
        let mut forged = of(78, "pci/1", vec![]);
        forged.link = link(7, "eth7", "eth7", 7);
        assert!(!record.is(&forged) && !record.is_proven(&forged));
        // The pod has no sysfs.
        forged.device = None;
        assert!(record.is(&forged));
        forged.details = Some(Details { permanent: own(2), ..Details::default() });
        assert!(!record.is(&forged));
        let mut loopback = of(77, "pci/1", own(1));
        loopback.details = Some(Details { loopback: true, ..Details::default() });
        assert!(!record.is(&loopback));
        // The inode alone decides.
        let virtual_one = DeviceRecord { kind: "veth".to_owned(), marks: Some(marks), ..record };
        let veth = |inode| DeviceProof {
            link: Link { kind: "veth".to_owned(), ..link(7, "eth7", "eth7", 7) },
            device: device(inode, "virtual"),
            details: None,
        };
        assert!(virtual_one.is(&veth(77)) && !virtual_one.is(&veth(78)));
    }
}
