//! Result of a path check as text: the cause if known, and the remedy.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::Duration;

/// Result of a path check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::doctor) struct PathReport {
    /// Address of the checked host.
    pub(in crate::doctor) to: SocketAddr,
    /// Result of the first probe, a small datagram.
    pub(in crate::doctor) outcome: ProbeResult,
    /// Sizes that the path carries. If the small datagram was not answered, `forward` and `back` are 0.
    pub(in crate::doctor) reach: Size,
}

/// Minimum datagram size that usnic needs: the maximum length of a connection request.
pub(in crate::doctor) const LEAST: usize = 1200;

/// Result of one probe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::doctor) enum ProbeResult {
    /// An answer arrived after this round trip.
    Came(Duration),
    /// No answer arrived in time.
    Nothing,
    /// ICMP: port unreachable.
    Refused,
    /// The kernel does not send the probe, because it exceeds the path's reported MTU.
    TooLarge,
    /// The network, or this host, reports that the checked host is unreachable, for example for lack of a route.
    Unreachable,
    /// This host does not send the probe (firewall or policy).
    Forbidden,
}

/// Largest datagram sizes that the path carries, in bytes of payload.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(in crate::doctor) struct Size {
    /// Largest size that this host sends.
    pub(in crate::doctor) local: usize,
    /// Largest size that arrives at the other host.
    pub(in crate::doctor) forward: usize,
    /// Largest size of an answer that arrives here, at most `forward`.
    pub(in crate::doctor) back: usize,
    /// Whether a router has reported by ICMP that larger datagrams exceed the MTU.
    pub(in crate::doctor) is_reported: bool,
}

impl PathReport {
    pub(in crate::doctor) fn answers(&self) -> bool {
        matches!(self.outcome, ProbeResult::Came(_))
    }

    /// Whether the largest datagram that this host sends arrives, and also an answer of the same size.
    pub(in crate::doctor) fn carries_full_size(&self) -> bool {
        self.answers() && self.reach.back == self.reach.local
    }

    /// Whether larger datagrams are lost without an ICMP report (an MTU black hole).
    pub(in crate::doctor) fn is_mtu_black_hole(&self) -> bool {
        self.answers() && self.reach.forward < self.reach.local && !self.reach.is_reported
    }

    /// Result in words.
    pub(in crate::doctor) fn found(&self) -> String {
        let Size { local, forward, back, is_reported } = self.reach;
        let way_back = match back == forward {
            true => String::new(),
            false => format!("; in the other direction only {back} bytes arrive"),
        };
        match self.outcome {
            ProbeResult::Refused => "the host answers, but no program listens on this port".to_owned(),
            ProbeResult::Nothing | ProbeResult::TooLarge => {
                "no answer from this port: the host is down, a firewall drops UDP, no program listens, or the \
                                 listener has a `key` and answers only programs with the same key"
                    .to_owned()
            }
            ProbeResult::Unreachable => {
                "the network reports that the host cannot be reached: it is down, there is no route, or \
                                     a firewall rejects UDP"
                    .to_owned()
            }
            ProbeResult::Forbidden => "the firewall of this host does not permit UDP to that host".to_owned(),
            ProbeResult::Came(trip) if self.carries_full_size() => {
                format!("datagrams of up to {back} bytes arrive and come back; round trip {} us", trip.as_micros())
            }
            ProbeResult::Came(_) if self.is_mtu_black_hole() => format!(
                "small datagrams arrive, {local} bytes do not: the path carries {forward}, and a device on the path drops \
                 larger ones without an ICMP report{way_back}"
            ),
            ProbeResult::Came(_) if is_reported && forward < local => format!(
                "the path carries {forward} bytes, of the {local} that this host would send, as a router reports \
                 by ICMP{way_back}"
            ),
            ProbeResult::Came(_) => format!("datagrams of {forward} bytes arrive{way_back}"),
        }
    }

    /// What to do; empty if the path carries the full size in both directions.
    pub(in crate::doctor) fn remedy(&self) -> String {
        let (to, Size { forward, back, .. }) = (self.to, self.reach);
        match self.outcome {
            ProbeResult::Refused => "start the server on that host first, and compare `port` on both hosts".to_owned(),
            ProbeResult::Nothing | ProbeResult::TooLarge => format!(
                "ping the host, start the server there, compare `port` and `key` on both hosts, and permit UDP to port {} \
                 in its firewall",
                to.port()
            ),
            ProbeResult::Unreachable => {
                format!("check the output of `ip route get {}`, and whether the host is up", to.ip())
            }
            ProbeResult::Forbidden => {
                format!(
                    "permit outgoing UDP to port {}: `nft list ruleset` and `iptables -L OUTPUT` show the rules",
                    to.port()
                )
            }
            ProbeResult::Came(_) if self.carries_full_size() => String::new(),
            ProbeResult::Came(_) if forward.min(back) < LEAST => {
                format!("usnic needs datagrams of {LEAST} bytes: raise the MTU of tunnels and VPNs on the path")
            }
            ProbeResult::Came(_) if self.is_mtu_black_hole() => {
                format!(
                    "give all interfaces and switches the same MTU, let ICMP through, or set `mtu={}`",
                    forward.min(back)
                )
            }
            ProbeResult::Came(_) if back < forward => {
                "the MTU of the other host, or of the return path, is smaller: set the same MTU on the \
                                                    interfaces of both hosts (ip link set ... mtu)"
                    .to_owned()
            }
            ProbeResult::Came(_) => "nothing to do: usnic detects the limit and sends smaller datagrams".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(outcome: ProbeResult, local: usize, forward: usize, back: usize, is_reported: bool) -> String {
        let to = ([192, 0, 2, 1], 17_471).into();
        let report = PathReport { to, outcome, reach: Size { local, forward, back, is_reported } };
        [report.found(), report.remedy()].join("; ")
    }

    #[test]
    fn each_path_check_outcome_is_reported_with_its_cause() {
        let answers = ProbeResult::Came(Duration::from_micros(120));
        assert_eq!(
            said(answers, 8972, 8972, 8972, false),
            "datagrams of up to 8972 bytes arrive and come back; round trip 120 us; "
        );
        let hole = said(answers, 8972, 1472, 1472, false);
        assert!(hole.contains("small datagrams arrive, 8972 bytes do not: the path carries 1472"), "{hole}");
        assert!(
            hole.contains("without an ICMP report") && hole.contains("mtu=1472") && !hole.contains("way back"),
            "{hole}"
        );
        let text = said(answers, 8972, 1400, 1300, true);
        assert!(
            text.contains("carries 1400") && text.contains("as a router reports") && text.contains("only 1300"),
            "{text}"
        );
        let back = said(answers, 8972, 8972, 1472, false);
        assert!(back.contains("datagrams of 8972 bytes arrive; in the other direction only 1472"), "{back}");
        assert!(said(ProbeResult::Refused, 1472, 0, 0, false).contains("no program listens"));
        assert!(said(ProbeResult::Nothing, 1472, 0, 0, false).contains("firewall"));
        assert!(said(ProbeResult::Unreachable, 0, 0, 0, false).contains("ip route get 192.0.2.1"));
        assert!(said(ProbeResult::Forbidden, 0, 0, 0, false).contains("permit outgoing UDP to port 17471"));
        let narrow = said(answers, 1472, 1000, 1000, false);
        assert!(narrow.contains("usnic needs datagrams of 1200 bytes") && !narrow.contains("mtu="), "{narrow}");
    }
}
