//! `datinfo doctor --serve`: answers the checks of other hosts until it is killed or cannot receive any more.
//!
//! The server has one socket, no state per peer, and a limit on answers per second.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::{path, wire};
use crate::print_output;
use crate::system::{self, Fragments};

/// Maximum number of answers per second. One `datinfo doctor` needs about a hundred answers.
const MOST: u32 = 2_000;

pub(super) fn serve(port: u16) -> crate::Result {
    // Listens on IPv6 and IPv4, or on IPv4 alone if IPv6 is not available.
    let socket =
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)));
    let socket = socket.map_err(|error| {
        format!("UDP port {port}: {error}; if usnic listens on it, give another port with --port on both hosts")
    })?;
    let own = socket.local_addr().map_err(|error| error.to_string())?;
    for is_v4 in [true, own.is_ipv4()] {
        // An IPv6 socket also sends over IPv4, so it gets the options of both families. An error is ignored: long
        // answers could then be fragmented.
        let _ = system::forbid_fragments(&socket, is_v4, Fragments::Ignored);
    }
    print_output(&format!("listening on UDP port {}; on the other host: datinfo doctor HOST --port {0}\n", own.port()));
    Err(format!("cannot receive on UDP port {port}: {}", answer_all(&socket)))
}

/// Answers the datagrams of a socket until receiving fails. Returns the error.
fn answer_all(socket: &UdpSocket) -> std::io::Error {
    let description = description();
    let mut budget = ReplyBudget::new(Instant::now());
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return error,
        };
        let Some(answer) = answer(&buffer[..length], &description) else { continue };
        if budget.take(Instant::now()) {
            // An answer that cannot be sent is not repeated, because the other host measures loss.
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// Returns the answer to a datagram of `datinfo doctor` or to a path probe. The answer is never longer than the
/// datagram.
pub(super) fn answer(datagram: &[u8], description: &str) -> Option<Vec<u8>> {
    let mut echo = Vec::new();
    if path::answer(datagram, &mut echo) { Some(echo) } else { wire::answer(datagram, description) }
}

/// Version, kernel release and socket buffer limits of this host, for the other host.
pub(super) fn description() -> String {
    let read = |path: &str| std::fs::read_to_string(path).map_or("?".to_owned(), |text| text.trim().to_owned());
    format!(
        "datinfo={} kernel={} rmem_max={} wmem_max={}",
        env!("CARGO_PKG_VERSION"),
        read("/proc/sys/kernel/osrelease"),
        read("/proc/sys/net/core/rmem_max"),
        read("/proc/sys/net/core/wmem_max"),
    )
}

/// Number of answers left in this second.
struct ReplyBudget {
    since: Instant,
    left: u32,
}

impl ReplyBudget {
    fn new(now: Instant) -> Self {
        Self { since: now, left: MOST }
    }

    fn take(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            *self = Self::new(now);
        }
        let has = self.left > 0;
        self.left -= u32::from(has);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_server_limits_its_answers_per_second() {
        let now = Instant::now();
        let mut budget = ReplyBudget::new(now);
        let answered = |budget: &mut ReplyBudget, now| (0..10 * MOST).filter(|_| budget.take(now)).count() as u32;
        assert_eq!(answered(&mut budget, now), MOST);
        assert_eq!(answered(&mut budget, now + Duration::from_millis(999)), 0);
        assert_eq!(answered(&mut budget, now + Duration::from_millis(1000)), MOST);
    }

    #[test]
    fn doctor_server_ends_with_the_error_of_a_failed_receive() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let not_a_socket = UdpSocket::from(std::os::fd::OwnedFd::from(file));
        assert_eq!(answer_all(&not_a_socket).raw_os_error(), Some(libc::ENOTSOCK));
    }

    #[test]
    fn doctor_description_has_four_key_value_pairs() {
        assert_eq!(description().split(' ').filter(|word| word.contains('=')).count(), 4);
    }
}
