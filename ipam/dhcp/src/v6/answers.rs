//! A DHCPv6 client takes the answers of servers here: RFC 8415, section 18.2.10.

use std::net::Ipv6Addr;

use cnimble_cni::hash;

use super::client::{AcquiringStep, Dhcp6, Offer};
use super::lease::Lease;
use super::message::{ServerMessage, Status, Type};
use crate::client::{Client, ClientAction, ClientState, REST};

/// The preference of an offer that is taken without waiting for other servers (RFC 8415, section 21.8).
const FIRST_CHOICE: u8 = 255;

impl Client<Dhcp6> {
    /// Takes an answer. Ignores answers to earlier messages, and those that do not fit the state, such as one of a
    /// server that was not chosen. The pause between two Solicits that a server sets is kept.
    pub(crate) fn answer(&mut self, now: u64, answer: &ServerMessage) -> Vec<ClientAction<Dhcp6>> {
        if answer.xid != self.protocol.xid || self.protocol.pauses.sent == 0 {
            return Vec::new();
        }
        self.tally.answered(format!("server {}", hash::hex(answer.server.iter().copied())));
        if let Some(seconds) = answer.longest_pause {
            self.protocol.solicit_pause = Some(u64::from(seconds) * 1000);
        }
        match (&self.state, answer.kind) {
            (ClientState::Acquiring(AcquiringStep::Soliciting(_)), Type::Advertise) => {
                self.advertised(now, answer)
            }
            (ClientState::Acquiring(AcquiringStep::Soliciting(_)), Type::Reply) if answer.rapid => {
                match Lease::from_answer(answer, now, None) {
                    Ok(lease) => self.take_lease(now, lease, None),
                    Err(why) => self.note_refusal(answer, why),
                }
            }
            (ClientState::Acquiring(AcquiringStep::Requesting { server, address, probed }), Type::Reply)
                if *server == answer.server =>
            {
                let probed = (*address, *probed);
                self.replied(now, answer, probed)
            }
            (ClientState::Acquiring(AcquiringStep::Declining { server, .. }), Type::Reply)
                if *server == answer.server =>
            {
                self.start(now, now + REST);
                Vec::new()
            }
            (ClientState::Renewing, Type::Reply) if self.has_lease_of(&answer.server) => {
                self.prolonged(now, answer)
            }
            (ClientState::Rebinding, Type::Reply) => self.prolonged(now, answer),
            _ => Vec::new(),
        }
    }

    /// Returns true if the client has a lease of the server with this DUID.
    fn has_lease_of(&self, server: &[u8]) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.server_id == server)
    }

    /// Takes an offer. During the first pause of the search, the client only keeps the one with the highest preference.
    /// After that pause it takes the first one.
    fn advertised(&mut self, now: u64, answer: &ServerMessage) -> Vec<ClientAction<Dhcp6>> {
        let lease = match Lease::from_answer(answer, now, None) {
            Ok(lease) => lease,
            Err(why) => return self.note_refusal(answer, why),
        };
        let offer = Offer { server: lease.server_id, preference: answer.preference, address: lease.address };
        if offer.preference == FIRST_CHOICE || self.protocol.pauses.sent > 1 {
            return self.choose(now, offer);
        }
        let ClientState::Acquiring(AcquiringStep::Soliciting(best)) = &mut self.state else {
            return Vec::new();
        };
        if best.as_ref().is_none_or(|best| best.preference < offer.preference) {
            *best = Some(offer);
        }
        Vec::new()
    }

    /// Requests the offered address from its server, and probes the link for it unless the client has it already.
    pub(super) fn choose(
        &mut self,
        now: u64,
        Offer { server, address, .. }: Offer,
    ) -> Vec<ClientAction<Dhcp6>> {
        let mut actions = Vec::new();
        if !self.has(address) {
            actions.push(ClientAction::Probe(address));
        }
        let step = AcquiringStep::Requesting { server: server.clone(), address, probed: now };
        self.enter(now, ClientState::Acquiring(step), now);
        actions.push(ClientAction::Send(self.message(now, Type::Request, Some(server), Some(address))));
        actions
    }

    /// Takes the answer to a Request: a lease, or a refusal. After a refusal the client searches again after a pause.
    fn replied(
        &mut self,
        now: u64,
        answer: &ServerMessage,
        probed: (Ipv6Addr, u64),
    ) -> Vec<ClientAction<Dhcp6>> {
        match Lease::from_answer(answer, now, self.lease.as_ref()) {
            Ok(lease) => self.take_lease(now, lease, Some(probed)),
            Err(why) => {
                let mut actions = self.note_refusal(answer, why);
                // The client had asked for its old lease again, which the server does not give back.
                if self.lease.is_some() {
                    actions.extend(self.lose(now, "the server has taken it back"));
                }
                self.start(now, now + REST);
                actions
            }
        }
    }

    /// Takes the answer to a Renew or a Rebind (RFC 8415, section 18.2.10.1). Depending on the refusal, the client
    /// requests its address again, loses the lease, or keeps it until its end.
    fn prolonged(&mut self, now: u64, answer: &ServerMessage) -> Vec<ClientAction<Dhcp6>> {
        let Some(before) = self.lease.clone() else { return Vec::new() };
        match Lease::from_answer(answer, now, Some(&before)) {
            Ok(lease) => self.take_lease(now, lease, None),
            Err(why) => {
                let mut actions = self.note_refusal(answer, why);
                let ia = answer.ia.as_ref();
                let gone =
                    ia.is_some_and(|ia| ia.addresses.iter().any(|given| given.address == before.address));
                match answer.refusal().map(|status| status.code) {
                    // The server may create the lease again, for the same address.
                    Some(Status::NO_BINDING) => {
                        let (server, address) = (answer.server.clone(), before.address);
                        actions.extend(self.choose(now, Offer { server, preference: 0, address }));
                    }
                    Some(Status::NOT_ON_LINK) => {
                        actions.extend(self.lose(now, "it does not belong to this link"));
                    }
                    None if gone => actions.extend(self.lose(now, "the server has taken it back")),
                    // The client keeps the lease and asks again in time.
                    _ => {}
                }
                actions
            }
        }
    }

    /// Notes why there is no lease, for the error of ADD, and returns the line for the log. A status of the server
    /// precedes `why`.
    fn note_refusal(&mut self, answer: &ServerMessage, why: &str) -> Vec<ClientAction<Dhcp6>> {
        let why = answer.refusal().map_or_else(|| why.to_owned(), Status::words);
        let kind = answer.kind.word();
        self.tally.note_refusal(why.clone());
        vec![ClientAction::log(format!("a server's {kind} is unusable: {why}"))]
    }
}
