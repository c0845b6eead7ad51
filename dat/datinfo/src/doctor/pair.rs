//! Checks the path to another host that runs a usnic listener or `datinfo doctor --serve`.
//!
//! `path` measures the path in both directions with probes, which both programs answer; this module rates the results.
//! Only `datinfo doctor --serve` also reports versions. Every wait for an answer has a time limit. Datagrams from other
//! hosts, and answers to other requests, are ignored.
#![forbid(unsafe_code)]

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::path::{self, LEAST, PathReport, ProbeResult};
use super::{Finding, Grade, serve, wire};

/// Time to wait for an answer.
const PATIENCE: Duration = Duration::from_millis(400);
/// Number of transmissions of the request for versions.
const TRIES: u64 = 3;
/// Number of small datagrams that are sent one after another to measure loss.
const LOSS_PROBES: usize = 50;

pub(super) fn check_pair(host: &str, port: u16, findings: &mut Vec<Finding>) -> Result<(), String> {
    let to = resolve(host, port)?;
    let failed = |error: io::Error| format!("{to}: {error}");
    let report = path::check(to, PATIENCE).map_err(failed)?;
    let ProbeResult::Came(trip) = report.outcome else {
        findings.push(silence(&report));
        return Ok(());
    };
    findings.push(Finding::good("path", format!("{to} answers, round trip {} us", trip.as_micros())));
    findings.push(match query_description(to).map_err(failed)? {
        Some(remote) => versions(&String::from_utf8_lossy(&remote), &serve::description()),
        None => Finding::note(
            "versions",
            "unknown: only datinfo doctor --serve answers this query, a usnic listener does not; compare datinfo \
             --version on both hosts",
        ),
    });
    findings.push(loss(&path::round_trips(to, PATIENCE, LOSS_PROBES).map_err(failed)?));
    findings.push(sizes(&report));
    Ok(())
}

/// Finding for a host that does not answer.
fn silence(report: &PathReport) -> Finding {
    let port = report.to.port();
    let without = format!(
        "{}. If no server program exists, run datinfo doctor --serve --port {port} on that host",
        report.remedy()
    );
    Finding::bad("path", format!("no answer from {}: {}", report.to, report.found()), without)
}

/// Finding about loss. `times` are the round-trip times of the answered datagrams.
fn loss(times: &[Duration]) -> Finding {
    let mut times = times.to_vec();
    times.sort();
    let median = times.get(times.len() / 2).map_or(0, Duration::as_micros);
    let count = times.len();
    let found = format!("{count} of {LOSS_PROBES} small datagrams were answered, median round trip {median} us");
    match times.len() {
        LOSS_PROBES => Finding::good("small datagrams", found),
        _ => Finding::warning(
            "small datagrams",
            found,
            "a path that loses packets is slow: check cables, duplex, and the counters of ip -s link",
        ),
    }
}

/// Finding about the MTU in both directions, from large datagrams.
fn sizes(report: &PathReport) -> Finding {
    let about = "large datagrams";
    let (forward, back) = (report.reach.forward, report.reach.back);
    let grade = match report {
        _ if forward.min(back) < LEAST => Grade::Bad,
        _ if report.carries_full_size() => return Finding::good(about, report.found()),
        _ if report.is_mtu_black_hole() || back < forward => Grade::Warning,
        _ => Grade::Note,
    };
    Finding::new(grade, about, report.found(), report.remedy())
}

/// Requests the version, kernel release and buffer limits of the other host from its `datinfo doctor --serve`. Returns
/// `None` if no answer arrives, because the other host does not run that command or the answers are lost.
fn query_description(to: SocketAddr) -> io::Result<Option<Vec<u8>>> {
    let socket = path::connected(to)?;
    for number in 1..=TRIES {
        socket.send(&wire::question(number))?;
        let description = |bytes: &[u8]| wire::answered(bytes, number).map(<[u8]>::to_vec);
        if let Some(description) = path::receive(&socket, Instant::now() + PATIENCE, description)? {
            return Ok(Some(description));
        }
    }
    Ok(None)
}

/// Compares the versions of datinfo on both hosts.
fn versions(remote: &str, local: &str) -> Finding {
    let version = |text: &str| text.split(' ').find_map(|word| word.strip_prefix("datinfo=").map(str::to_owned));
    let shown: String = remote.chars().filter(|c| !c.is_control()).take(300).collect();
    match version(remote) == version(local) {
        true => Finding::good("versions", format!("the same on both hosts ({shown})")),
        false => Finding::warning(
            "versions",
            format!("other host {shown}, this host {local}"),
            "install the same version on both hosts",
        ),
    }
}

/// Parses `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`, or an address alone.
fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let alone = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = alone.parse::<std::net::IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let found = match host.contains(':') {
        true => host.to_socket_addrs(),
        false => (host, port).to_socket_addrs(),
    };
    let mut found = found.map_err(|error| format!("{host}: {error}"))?;
    found.next().ok_or_else(|| format!("{host} has no address"))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::super::path::Size;
    use super::*;

    #[test]
    fn host_of_the_doctor_is_parsed_with_and_without_a_port() {
        let text = |host| resolve(host, 7).unwrap().to_string();
        assert_eq!([text("192.0.2.1"), text("192.0.2.1:9")], ["192.0.2.1:7", "192.0.2.1:9"]);
        assert_eq!(
            [text("2001:db8::1"), text("[2001:db8::1]"), text("[2001:db8::1]:9")].map(|text| text.len()),
            [15; 3]
        );
        assert!(resolve("192.0.2.1:x", 7).is_err() && resolve("", 7).is_err());
    }

    #[test]
    fn path_mtu_finding_is_graded_by_both_directions_and_icmp_reports() {
        let grade = |forward, back, is_reported| {
            let (to, outcome) = (([192, 0, 2, 1], 7).into(), ProbeResult::Came(Duration::ZERO));
            let finding = sizes(&PathReport { to, outcome, reach: Size { local: 8972, forward, back, is_reported } });
            assert_eq!(finding.remedy.is_empty(), finding.grade == Grade::Good);
            finding.grade.grade_name()
        };
        assert_eq!([grade(8972, 8972, false), grade(1472, 1472, true)], ["ok", "note"]);
        assert_eq!([grade(1472, 1472, false), grade(8972, 1472, false), grade(1472, 1400, true)], ["warning"; 3]);
        assert_eq!([grade(1100, 1100, true), grade(1100, 1100, false), grade(8972, 1100, false)], ["bad"; 3]);
    }

    #[test]
    fn doctor_reports_a_missing_answer_with_cause_and_remedy() {
        for (outcome, found, remedy) in [
            (ProbeResult::Refused, "no program listens", "start the server on that host"),
            (ProbeResult::Nothing, "a firewall drops UDP", "permit UDP to port 7 in its firewall"),
            (ProbeResult::Unreachable, "cannot be reached", "ip route get 192.0.2.1"),
            (ProbeResult::Forbidden, "the firewall of this host", "permit outgoing UDP to port 7"),
        ] {
            let finding = silence(&PathReport { to: ([192, 0, 2, 1], 7).into(), outcome, reach: Size::default() });
            assert!(finding.grade == Grade::Bad && finding.found.contains(found), "{finding:?}");
            assert!(finding.remedy.contains(remedy), "{finding:?}");
        }
    }

    #[test]
    fn versions_of_another_host_are_shown_without_its_control_characters() {
        let finding = versions("datinfo=9 \u{1b}[2J\n", "datinfo=1");
        assert!(finding.grade == Grade::Warning && !finding.found.contains('\u{1b}'), "{finding:?}");
        assert_eq!(versions("datinfo=1 kernel=a", "datinfo=1 kernel=b").grade, Grade::Good);
    }

    /// Runs the check against a server that answers each datagram with `reply`.
    fn against(reply: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Vec<Finding> {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok((length, from)) = server.recv_from(&mut buffer) {
                for answer in reply(&buffer[..length]) {
                    let _ = server.send_to(&answer, from);
                }
            }
        });
        let mut findings = Vec::new();
        check_pair("127.0.0.1", port, &mut findings).unwrap();
        findings
    }

    fn grades(findings: &[Finding]) -> Vec<&'static str> {
        findings.iter().map(|finding| finding.grade.grade_name()).collect()
    }

    #[test]
    fn doctor_grades_everything_ok_against_a_valid_server() {
        let findings = against(|asked| serve::answer(asked, &serve::description()).into_iter().collect());
        assert_eq!(grades(&findings), ["ok"; 4], "{findings:?}");
    }

    #[test]
    fn usnic_listener_that_does_not_answer_the_doctor_gives_a_note() {
        let findings = against(|asked| {
            let mut answer = Vec::new();
            if path::answer(asked, &mut answer) { vec![answer] } else { Vec::new() }
        });
        assert_eq!(grades(&findings), ["ok", "note", "ok", "ok"], "{findings:?}");
    }

    #[test]
    fn doctor_ignores_noise_and_answers_to_other_requests() {
        let findings = against(|asked| {
            let mut answers = vec![Vec::new(), b"DATINFO2".to_vec(), vec![0xff; 2000], asked.to_vec()];
            answers.extend(wire::answer(&wire::question(u64::MAX), "forged"));
            answers.extend(serve::answer(asked, &serve::description()));
            answers
        });
        assert_eq!(grades(&findings), ["ok"; 4], "{findings:?}");
    }

    #[test]
    fn doctor_reports_a_path_that_is_narrow_in_one_direction() {
        let findings =
            against(|asked| serve::answer(asked, "").into_iter().filter(|answer| answer.len() <= 1_400).collect());
        assert_eq!(grades(&findings), ["ok", "warning", "ok", "warning"], "{findings:?}");
        assert!(findings[3].found.contains("in the other direction only 1400 bytes arrive"), "{findings:?}");
    }

    #[test]
    fn the_largest_datagram_of_a_path_is_found_to_the_byte() {
        let findings = against(|asked| serve::answer(asked, "").into_iter().filter(|_| asked.len() <= 1_472).collect());
        assert!(findings[3].grade == Grade::Warning && findings[3].remedy.contains("mtu=1472"), "{findings:?}");
        assert!(
            findings[3].found.contains("a device on the path drops larger ones without an ICMP report"),
            "{findings:?}"
        );
    }

    #[test]
    fn doctor_reports_a_peer_that_does_not_answer() {
        let findings = against(|_| Vec::new());
        assert!(findings.len() == 1 && findings[0].grade == Grade::Bad, "{findings:?}");
        assert!(findings[0].remedy.contains("run datinfo doctor --serve"), "{findings:?}");
    }
}
