//! Counts attempts without a lease, for ADD's error.

use std::fmt::Display;

/// The most servers that are named, because a hostile link may have any number.
const MOST: usize = 8;

/// The attempts of the client since it last had a lease, for the error text.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The number of DISCOVER or Solicit messages.
    sent: u32,
    /// The servers that have answered.
    servers: Vec<String>,
    /// The reason why the last unusable answer was refused.
    refusal: Option<String>,
    /// The reason why the last message of any kind could not be sent.
    unsent: Option<String>,
}

impl Tally {
    /// Counts a DISCOVER or Solicit message.
    pub(crate) fn search(&mut self) {
        self.sent = self.sent.saturating_add(1);
    }

    /// Notes a server that has answered, with whatever answer.
    pub(crate) fn answered(&mut self, server: String) {
        if self.servers.len() < MOST && !self.servers.contains(&server) {
            self.servers.push(server);
        }
    }

    /// Notes why an answer is of no use. The last reason is kept.
    pub(crate) fn note_refusal(&mut self, why: String) {
        self.refusal = Some(why);
    }

    /// Notes whether a message could be sent.
    pub(crate) fn sent<E: Display>(&mut self, outcome: &Result<(), E>) {
        self.unsent = outcome.as_ref().err().map(ToString::to_string);
    }

    /// Forgets everything, because there is a lease.
    pub(crate) fn clear(&mut self) {
        *self = Tally::default();
    }

    #[cfg(test)]
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns the text for the error. `message` is the name of the counted messages.
    pub(crate) fn words(&self, message: &str) -> String {
        let plural = if self.sent == 1 { "" } else { "s" };
        let tries = format!("{} {message}{plural}", self.sent);
        if let Some(why) = &self.unsent {
            return format!("{tries} tried, and the last message could not be sent: {why}");
        }
        let sent = format!("{tries} sent");
        if self.servers.is_empty() {
            return format!("{sent}, no server answered; hint: look for a DHCP server or relay on this link");
        }
        let refusal = self.refusal.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
        format!("{sent}, answers from {}{refusal}", self.servers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_the_number_of_messages_and_the_servers() {
        let mut tally = Tally::default();
        tally.search();
        assert!(tally.words("DISCOVER").starts_with("1 DISCOVER sent, no server answered"));
        tally.search();
        for n in [1, 2, 1] {
            tally.answered(format!("10.0.0.{n}"));
        }
        assert_eq!(tally.words("DISCOVER"), "2 DISCOVERs sent, answers from 10.0.0.1, 10.0.0.2");
        tally.note_refusal("10.0.0.2 refuses".into());
        assert_eq!(
            tally.words("Solicit"),
            "2 Solicits sent, answers from 10.0.0.1, 10.0.0.2; 10.0.0.2 refuses"
        );
        (0..100).for_each(|n| tally.answered(format!("10.0.1.{n}")));
        assert!(tally.words("DISCOVER").len() < 200);
        tally.clear();
        assert_eq!(tally.refusal(), None);
    }
}
