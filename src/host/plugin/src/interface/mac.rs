//! The hardware address in a configuration.

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::Mac;

/// The origin of the text of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The key `mac` of the configuration.
    Config,
    /// The key `MAC` in CNI_ARGS.
    Args,
}

/// Returns the first of these texts that is not empty, as an address.
///
/// # Errors
/// Fails with code 7 for an invalid address, or with code 4 if it is from CNI_ARGS.
pub fn first<'a>(texts: impl IntoIterator<Item = (Source, &'a str)>) -> Result<Option<Mac>, Error> {
    let Some((source, text)) = texts.into_iter().find(|(_, text)| !text.is_empty()) else { return Ok(None) };
    let invalid = |why: &str| {
        let (place, code) = match source {
            Source::Config => ("mac", Code::INVALID_CONFIG),
            Source::Args => ("CNI_ARGS: MAC", Code::INVALID_ENVIRONMENT),
        };
        Error::new(code, format!("{place}: invalid hardware address \"{text}\"")).details(why)
    };
    let mac = Mac::parse(text).ok_or_else(|| invalid("expected six bytes like 02:00:5e:10:00:01"))?;
    if mac.0.first().is_some_and(|byte| byte & 1 == 1) {
        return Err(invalid("it is a multicast address"));
    }
    if mac.0 == [0; 6] {
        return Err(invalid("it is all zero"));
    }
    Ok(Some(mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_there_counts() {
        let (one, two) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
        let read = |texts: [(Source, &'static str); 2]| first(texts).unwrap().map(|mac| mac.to_string());
        assert_eq!(read([(Source::Config, one), (Source::Args, two)]).as_deref(), Some(one));
        assert_eq!(read([(Source::Config, ""), (Source::Args, two)]).as_deref(), Some(two));
        assert_eq!(read([(Source::Config, ""), (Source::Args, "")]), None);
    }

    #[test]
    fn what_no_interface_can_have_is_refused() {
        for text in ["01:00:5e:00:00:01", "00:00:00:00:00:00", "02:00", "x"] {
            assert_eq!(first([(Source::Config, text)]).unwrap_err().code, Code::INVALID_CONFIG, "{text}");
            assert_eq!(first([(Source::Args, text)]).unwrap_err().code, Code::INVALID_ENVIRONMENT, "{text}");
        }
    }
}
