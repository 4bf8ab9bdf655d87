//! Reads the hardware address in a configuration.

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::Mac;

use crate::Call;

/// A text with its place, and the code of its error.
type Text<'a> = (&'a str, &'static str, Code);

/// Returns the first of these MACs that is not empty, in the Go plugins' order: `runtime`, then `MAC` of CNI_ARGS, then
/// `configured`. Returns `None` if all are empty. Fails with code 7 if it is invalid, and with code 4 if it is
/// CNI_ARGS'.
pub fn requested(call: &Call, runtime: &str, configured: &str) -> Result<Option<Mac>, Error> {
    let args = call.args()?;
    read_first([
        (runtime, "mac", Code::INVALID_CONFIG),
        (args.get("MAC").unwrap_or_default(), "CNI_ARGS: MAC", Code::INVALID_ENVIRONMENT),
        (configured, "mac", Code::INVALID_CONFIG),
    ])
}

fn read_first(texts: [Text<'_>; 3]) -> Result<Option<Mac>, Error> {
    let text = texts.into_iter().find(|(text, ..)| !text.is_empty());
    text.map_or(Ok(None), |(text, place, code)| read(text, place, code))
}

/// Reads the MAC of an interface. Returns `None` for an empty text. Fails with this code and place for an invalid, a
/// multicast or a zero address.
pub fn read(text: &str, place: &str, code: Code) -> Result<Option<Mac>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let why = match Mac::parse(text) {
        None => "expected six bytes like 02:00:5e:10:00:01",
        Some(mac) if mac.0.first().is_some_and(|byte| byte & 1 == 1) => "it is a multicast address",
        Some(mac) if mac.0 == [0; 6] => "it is all zero",
        Some(mac) => return Ok(Some(mac)),
    };
    Err(Error::new(code, format!("{place}: invalid hardware address \"{text}\"")).details(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_nonempty_address_wins() {
        let of = |texts: [&'static str; 3]| {
            let texts = texts.map(|text| (text, "mac", Code::INVALID_CONFIG));
            read_first(texts).unwrap().map(|mac| mac.to_string())
        };
        let (one, two) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
        assert_eq!(of([one, two, ""]).as_deref(), Some(one));
        assert_eq!(of(["", two, one]).as_deref(), Some(two));
        assert_eq!(of(["", "", one]).as_deref(), Some(one));
        assert_eq!(of(["", "", ""]), None);
    }

    #[test]
    fn unusable_addresses_are_refused() {
        for text in ["02:00:5e:10:00:01", "02-00-5E-10-00-01", "0200.5e10.0001"] {
            let mac = read(text, "mac", Code::INVALID_CONFIG).unwrap();
            assert_eq!(mac.unwrap().to_string(), "02:00:5e:10:00:01");
        }
        let unusable = ["01:00:5e:00:00:01", "00:00:00:00:00:00", "02:00", "x", "..", "0200.5e10.00é"];
        for text in unusable.into_iter().chain(["0200.5e10.0001.1"]) {
            let err = read(text, "mac", Code::INVALID_CONFIG).unwrap_err();
            let expected = format!("mac: invalid hardware address \"{text}\"");
            assert_eq!((err.code, err.msg), (Code::INVALID_CONFIG, expected));
        }
    }
}
