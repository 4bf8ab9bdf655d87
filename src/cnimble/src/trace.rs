//! `trace`: follows a packet from a pod to its receiver and back, and names the station that stops it.

use std::net::IpAddr;

use cnimble_liveness::named::{NamedPod, Records};
use cnimble_trace::{Flow, Outcome, Protocol, Sender, Station, Target, Trace, Verdict, Way};

use super::args;
use super::cri::evidence;
use super::output::View;
use super::report::{Exit, Report, fail_with, must_be_root, usage};
use super::style::Paint;
use super::{Session, plain, target};

const WHAT: &str = "can't trace the packet";

/// Follows the packet, and prints the stations. It fails with [`Exit::Found`] if one stops the packet, and with
/// [`Exit::Unknown`] if that is uncertain.
pub(super) fn trace(session: &Session, given: &args::trace::Trace) -> Result<(), Report> {
    let (pod, receiver) = sender_and_receiver(given)?;
    let target: Target = receiver.parse().map_err(|why: String| usage(format!("{receiver}: {why}")))?;
    must_be_root(WHAT)?;
    let runtime = given.cri.as_ref().map(|socket| evidence::runtime(socket, WHAT)).transpose()?;
    let records = Records::read(&session.caches(), runtime.as_deref()).map_err(failed)?;
    let pod = pod.map(|word| pod_of(&records, word)).transpose()?;
    let (sender, to) = match &pod {
        Some(pod) => (Sender::Pod(pod), address(&records, pod, &target)?),
        None => (Sender::Outside, published_address(&target)?),
    };
    if given.from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
        return Err(usage("the sender and the receiver are of different families of IP"));
    }
    let size = match &pod {
        Some(pod) if given.full_size => full_size(pod, &target, to)?,
        _ => None,
    };
    let Target { protocol, port, .. } = target;
    let flow = Flow { from: given.from, to, protocol, from_port: 0, to_port: port, size };
    let trace = if given.no_probe {
        cnimble_trace::look(sender, flow, &records)
    } else {
        cnimble_trace::probe(sender, flow, &records, given.wait)
    };
    let trace = trace.map_err(failed)?;
    session.show(&trace)?;
    fail_with(match trace.outcome {
        Outcome::Answered | Outcome::Passes => None,
        Outcome::Stopped => Some(Exit::Found),
        Outcome::Unknown => Some(Exit::Unknown),
    })
}

/// Returns the sending pod as the user writes it, or `None` with `--from`, and the receiver.
fn sender_and_receiver(given: &args::trace::Trace) -> Result<(Option<&str>, &str), Report> {
    match (given.from, given.pod.as_deref(), given.to.as_deref()) {
        (None, Some(pod), Some(to)) => Ok((Some(pod), to)),
        (Some(_), Some(to), None) => Ok((None, to)),
        _ => Err(usage("trace takes either POD ADDRESS or --from ADDRESS HOST:PORT")),
    }
}

/// Returns the pod that sends the packet. It fails for a pod in the host's network namespace.
fn pod_of(records: &Records<'_>, word: &str) -> Result<NamedPod, Report> {
    let pod = named(records, word)?;
    if cnimble_trace::is_in_host_network(&pod).map_err(failed)? {
        let why = format!("{} is in the network namespace of the host", pod.name);
        return Err(
            Report::because(Exit::Usage, WHAT, why).hint("`ip route get ADDRESS` tells the host's routes")
        );
    }
    Ok(pod)
}

/// Returns the receiver of a packet from outside. It fails unless the user gives an IP address with a port. Whether the
/// address is one of this node is not checked.
fn published_address(target: &Target) -> Result<IpAddr, Report> {
    let ip = target
        .host
        .parse()
        .map_err(|_| usage(format!("{} is no address: --from takes HOST:PORT", target.host)))?;
    if target.port == 0 {
        return Err(usage("--from takes an address with a port, such as 10.7.0.2:8080"));
    }
    Ok(ip)
}

/// Returns the size of the largest packet that the pod sends to an address. It fails for a receiver with a port,
/// because a full datagram would reach the program there. Without a route a small packet is followed, which ends at the
/// same station.
fn full_size(pod: &NamedPod, target: &Target, to: IpAddr) -> Result<Option<u32>, Report> {
    if target.protocol != Protocol::Icmp {
        return Err(usage("--full-size sends an echo request: give the receiver without a port"));
    }
    Ok(cnimble_trace::link_mtu(pod, to).ok())
}

fn failed(err: impl ToString) -> Report {
    Report::because(Exit::Files, WHAT, err)
}

/// Returns the pod that the user names, or fails if there is none or several.
fn named(records: &Records<'_>, word: &str) -> Result<NamedPod, Report> {
    records.find(word).map_err(|unnamed| {
        target::unnamed(WHAT, word, unnamed, &format!("there is no pod, container or namespace {word}"))
            .hint("`cnimble ls` lists the pods, and --cri asks the container runtime")
    })
}

/// Returns the receiver's address: the one that the user gives, the `gateway` of the pod, the host's gateway for
/// `internet`, or that of another pod. Another pod's is of the family of the sender's first address if it has one of
/// it.
fn address(records: &Records<'_>, pod: &NamedPod, target: &Target) -> Result<IpAddr, Report> {
    let host = target.host.as_str();
    if let Ok(ip) = host.parse() {
        return Ok(ip);
    }
    let v4 = pod.addresses().first().is_none_or(IpAddr::is_ipv4);
    match host {
        "gateway" => of_route(cnimble_trace::gateway(pod, v4).map_err(failed)?, "the pod"),
        "internet" => of_route(cnimble_trace::internet(v4).map_err(failed)?, "the host"),
        _ => {
            let other = named(records, host)?;
            let addresses = other.addresses();
            let found = addresses.iter().find(|ip| ip.is_ipv4() == v4).or(addresses.first());
            found.copied().ok_or_else(|| {
                Report::because(Exit::Usage, WHAT, format!("no address of {} is on record", other.name))
            })
        }
    }
}

/// Returns the gateway of a default route that was looked for, or the report that there is none.
fn of_route(found: Option<IpAddr>, whose: &str) -> Result<IpAddr, Report> {
    found.ok_or_else(|| {
        Report::because(Exit::Usage, WHAT, format!("{whose} has no default route with a gateway"))
    })
}

impl View for Trace {
    fn text(&self, paint: Paint) -> String {
        let mut out = headline(self);
        let width = |column: fn(&Station) -> usize| self.stations.iter().map(column).max().unwrap_or(0);
        let (places, names) = (width(|of| of.place.len()), width(|of| of.name.len()));
        let mut way = Way::Out;
        for station in &self.stations {
            if station.way != way {
                out += "the answer\n";
                way = station.way;
            }
            let verdict = match station.verdict {
                Verdict::Ok => paint.good("ok     "),
                Verdict::Stops => paint.bad("STOPS  "),
                Verdict::Unknown => "unknown".to_owned(),
            };
            let (place, text) = (plain::line(&station.place), plain::line(&station.text));
            out += &format!("  {verdict}  {place:places$}  {:names$}  {text}\n", station.name);
            if let Some(remedy) = station.remedy.as_deref().filter(|_| station.verdict != Verdict::Ok) {
                out += &format!("  {:7}  {:places$}  {:names$}  try {}\n", "", "", "", plain::line(remedy));
            }
        }
        out + &conclusion(self)
    }
}

fn headline(trace: &Trace) -> String {
    let port = trace.port.map(|port| format!(" port {port}")).unwrap_or_default();
    let sender = match (&trace.pod, trace.from) {
        (Some(pod), Some(from)) => format!("{} ({from})", plain::line(pod)),
        (Some(pod), None) => plain::line(pod).to_string(),
        (None, from) => from.map(|from| from.to_string()).unwrap_or_default(),
    };
    format!("{} from {sender} to {}{port}\n", trace.protocol, trace.to)
}

/// Returns the last line.
fn conclusion(trace: &Trace) -> String {
    let text = match (trace.outcome, trace.answer) {
        (Outcome::Answered, Some(answer)) => return format!("the answer came back: {answer}\n"),
        (Outcome::Answered, None) => "the answer came back",
        (Outcome::Passes, _) => "no station stops it, and nothing was sent",
        (Outcome::Stopped, _) => "it is stopped",
        (Outcome::Unknown, _) => "no station is known to stop it, and some are unknown",
    };
    format!("{text}\n")
}
