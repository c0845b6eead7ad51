//! Measures the path to a host: the datagram sizes that it carries in both directions, and round-trip times.
//!
//! Sends connectionless probes to a host on which a program listens over `usnic`, or `datinfo doctor --serve` runs.
//! Needs no adapter and no privileges. Datagrams are not fragmented, so a datagram that exceeds the MTU is lost. If a
//! router reports the loss (ICMP), the kernel lowers the path MTU, and the result mentions the ICMP report. The check
//! of sizes sends about 40 probes at most, each up to three times, and the wait for each answer has a time limit. Sizes
//! are bytes of UDP payload.
//!
//! `probe` encodes the datagrams, `search` selects the sizes, `report` composes the texts.
#![forbid(unsafe_code)]

mod probe;
mod report;
mod search;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

pub(super) use probe::answer;
use probe::{LONGEST, SHORTEST};
#[cfg(test)]
pub(super) use report::Size;
pub(super) use report::{LEAST, PathReport, ProbeResult};
use search::{Prober, SMALL};

use crate::system::{self, Fragments};

/// Number of transmissions of a datagram before it counts as lost.
const TRIES: u32 = 3;

/// Checks the path to a host. `patience` is the time to wait for an answer; it should be at least twice the round trip.
///
/// Errors: those of the socket. A missing answer is not an error, but part of the report.
pub(super) fn check(to: SocketAddr, patience: Duration) -> io::Result<PathReport> {
    match SocketProber::of(to, patience) {
        Ok(mut asking) => search::run(to, &mut asking),
        Err(error) => match ProbeResult::of(&error) {
            None | Some(ProbeResult::TooLarge) => Err(error),
            Some(outcome) => Ok(PathReport { to, outcome, reach: report::Size::default() }),
        },
    }
}

/// Sends `count` small probes, each once, and returns the round-trip times of the answered ones. Stops early if none of
/// the first [`TRIES`] + 1 probes is answered.
///
/// Errors: those of the socket.
pub(super) fn round_trips(to: SocketAddr, patience: Duration, count: usize) -> io::Result<Vec<Duration>> {
    let mut asking = SocketProber::of(to, patience)?;
    let mut times = Vec::with_capacity(count);
    for sent in 0..count {
        match asking.probe_once(SMALL, false)? {
            ProbeResult::Came(time) => times.push(time),
            _ if times.is_empty() && sent >= TRIES as usize => break,
            _ => {}
        }
    }
    Ok(times)
}

/// Opens a socket that sends to `to`, and receives only from there.
pub(super) fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket)
}

/// Receives datagrams until `accept` returns a value for one. Returns `None` if this is not so before `until`.
pub(super) fn receive<T>(
    socket: &UdpSocket,
    until: Instant,
    accept: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut bytes) {
            Ok(length) => {
                if let Some(accepted) = accept(&bytes[..length]) {
                    return Ok(Some(accepted));
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the start of the probe numbers. It differs between processes, so that an answer to a probe of another
/// process does not match a probe of this one.
fn seed() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (time.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40)) | 1
}

struct SocketProber {
    socket: UdpSocket,
    is_v4: bool,
    /// Bytes of the IP and UDP headers.
    headers: usize,
    patience: Duration,
    /// Number of the last probe.
    number: u64,
}

impl SocketProber {
    fn of(to: SocketAddr, patience: Duration) -> io::Result<Self> {
        let socket = connected(to)?;
        system::forbid_fragments(&socket, to.is_ipv4(), Fragments::ByPathMtu)?;
        let headers = if to.is_ipv4() { 28 } else { 48 };
        Ok(SocketProber { socket, is_v4: to.is_ipv4(), headers, patience, number: seed() })
    }

    /// Sends one probe of `size` bytes, and waits for its answer. `as_long`: the answer must have the same size.
    fn probe_once(&mut self, size: usize, as_long: bool) -> io::Result<ProbeResult> {
        self.number = self.number.wrapping_add(2);
        let sent = Instant::now();
        let is_answer = |bytes: &[u8]| probe::is_answer(bytes, self.number, size, as_long).then_some(());
        let came = self.socket.send(&probe::probe(self.number, size, as_long));
        match came.and_then(|_| receive(&self.socket, sent + self.patience, is_answer)) {
            Ok(Some(())) => Ok(ProbeResult::Came(sent.elapsed())),
            Ok(None) => Ok(ProbeResult::Nothing),
            // The error may be the ICMP report of an earlier probe. The kernel reports it only once, so it counts as
            // the result of this probe.
            Err(error) => ProbeResult::of(&error).ok_or(error),
        }
    }
}

impl Prober for SocketProber {
    fn most(&self) -> usize {
        // Without a path MTU from the kernel, the MTU of Ethernet is assumed.
        let mtu = system::path_mtu(&self.socket, self.is_v4).unwrap_or(1500);
        mtu.saturating_sub(self.headers).clamp(SHORTEST, LONGEST)
    }

    fn probe(&mut self, size: usize, as_long: bool) -> io::Result<ProbeResult> {
        let mut last = ProbeResult::Nothing;
        for _ in 0..TRIES {
            match self.probe_once(size, as_long)? {
                answer @ (ProbeResult::Came(_) | ProbeResult::TooLarge) => return Ok(answer),
                // If an earlier transmission got an ICMP report, the report stays the result.
                ProbeResult::Nothing => {}
                answer => last = answer,
            }
        }
        Ok(last)
    }
}

impl ProbeResult {
    /// Maps a socket error to the result of a probe. `None` for errors that are not about the path.
    fn of(error: &io::Error) -> Option<ProbeResult> {
        match error.raw_os_error()? {
            libc::EMSGSIZE => Some(ProbeResult::TooLarge),
            libc::ECONNREFUSED => Some(ProbeResult::Refused),
            libc::EHOSTUNREACH | libc::ENETUNREACH => Some(ProbeResult::Unreachable),
            libc::EPERM | libc::EACCES => Some(ProbeResult::Forbidden),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a listener that drops every `loses`th probe. A datagram of one byte ends it.
    fn listener(loses: usize) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = socket.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            for number in 1.. {
                let (length, from) = socket.recv_from(&mut bytes).unwrap();
                if length == 1 {
                    return;
                }
                let mut out = Vec::new();
                assert!(answer(&bytes[..length], &mut out));
                if number % loses != 0 {
                    socket.send_to(&out, from).unwrap();
                }
            }
        });
        (at, thread)
    }

    fn end((at, thread): (SocketAddr, std::thread::JoinHandle<()>)) {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().send_to(&[0], at).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn a_path_without_an_mtu_limit_carries_the_full_size() {
        let listener = listener(usize::MAX);
        let report = check(listener.0, Duration::from_secs(10)).unwrap();
        let times = round_trips(listener.0, Duration::from_secs(10), 20).unwrap();
        end(listener);
        assert!(report.carries_full_size() && report.reach.local >= 1400 && !report.reach.is_reported, "{report:?}");
        assert_eq!(times.len(), 20);
    }

    #[test]
    fn round_trips_omit_lost_datagrams_and_a_check_retransmits_them() {
        let listener = listener(3);
        let times = round_trips(listener.0, Duration::from_millis(100), 9).unwrap();
        let report = check(listener.0, Duration::from_millis(100)).unwrap();
        end(listener);
        assert!(times.len() <= 6 && report.carries_full_size(), "{} {report:?}", times.len());
    }

    #[test]
    fn closed_udp_port_is_reported_as_no_program_listening() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = socket.local_addr().unwrap();
        drop(socket);
        let report = check(at, Duration::from_millis(30)).unwrap();
        assert!(!report.answers() && report.found().contains("no program listens"), "{report:?}");
        assert!(round_trips(at, Duration::from_millis(30), 50).unwrap().is_empty());
    }

    #[test]
    fn socket_errors_map_to_unreachable_forbidden_or_none() {
        let of = |number| ProbeResult::of(&io::Error::from_raw_os_error(number));
        assert_eq!([libc::ENETUNREACH, libc::EHOSTUNREACH].map(of), [Some(ProbeResult::Unreachable); 2]);
        assert_eq!((of(libc::EPERM), of(libc::ENOBUFS)), (Some(ProbeResult::Forbidden), None));
        // The kernel refuses to send to the broadcast address without SO_BROADCAST.
        let report = check((Ipv4Addr::BROADCAST, 9).into(), Duration::from_millis(30)).unwrap();
        assert_eq!(report.outcome, ProbeResult::Forbidden);
    }
}
