//! Failures that each surviving side must detect in time: a killed or stopped peer, a link that is down, a missing
//! host, a firewall. Also ICMP messages, which must not end a connection.
//!
//! A surviving side gets one disconnect event, all posted work completes, and no event follows (`test/c/net.c` checks
//! this, with its option `-e`).
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::{Duration, Instant};

use dapl_test::run::Run;

use super::Check;
use super::flows::SUCCESS_LINE;
use super::rule::Rule;
use super::setting::{Environment, Family, LIMIT, Setting, check_output};
use super::wire::{DEVICE, Wire};
use crate::Result;
use crate::quiet::run_quietly;

/// Time limit for detecting the end: longer than all retries with default settings.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Seconds for a client whose stream must not end before the check ends it.
const ENDLESS_SECONDS: &str = "600";
/// Text in the last output line after a connection has ended.
const DISCONNECTED: &str = "OK (disconnected;";
/// Number of ICMP host-unreachable messages after which the hosts deliver packets again.
const ICMP_MESSAGES: u64 = 12;

/// All checks of this module.
pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("ends::client_is_killed", |s, wire| killed(s, wire, 1)),
        Check::new("ends::server_is_killed", |s, wire| killed(s, wire, 0)),
        Check::new("ends::server_is_stopped", stopped),
        Check::new("ends::link_goes_down", |s, wire| {
            both_see(s, wire, DISCONNECTED, || wire.ip(0, &["link", "set", DEVICE, "down"]))
        }),
        Check::new("ends::host_is_unreachable", |s, wire| {
            both_see(s, wire, DISCONNECTED, || {
                wire.ip(0, &["addr", "flush", "dev", DEVICE])?;
                // The other host must now resolve the address again, and its ARP requests get no reply.
                wire.ip(1, &["neigh", "flush", "dev", DEVICE])
            })
        }),
        Check::new("ends::firewall", |s, wire| both_see(s, wire, DISCONNECTED, || wire.apply_to_both(Rule::Silence))),
        Check::new("ends::firewall_one_way", |s, wire| {
            both_see(s, wire, DISCONNECTED, || wire.apply(0, Rule::Silence))
        }),
        Check::new("ends::idle_behind_a_firewall", idle),
        Check::new("ends::host_unreachable_is_a_hint", hinted),
    ]
}

/// Kills server or client by SIGKILL. The survivor must detect the end of the connection.
fn killed(setting: &Setting, wire: &Wire, whom: usize) -> Result {
    let pair = setting.flow(wire, Family::V4, &["-2", "-e", "-t", ENDLESS_SECONDS]);
    let (mut server, mut client) = (pair.server, pair.client);
    let since = Instant::now();
    let (left, who) = if whom == 0 {
        server.kill();
        (client, "client")
    } else {
        client.kill();
        (server, "server")
    };
    sees(who, left, DISCONNECTED, since)
}

/// Stops the server by SIGSTOP: its host still receives packets, but the server does not respond. The client must
/// detect the end of the connection.
fn stopped(setting: &Setting, wire: &Wire) -> Result {
    let hasty: Environment<'_> = &[("DAPL_GIVE_UP_MS", "1000")];
    let pair = setting.flow_with(wire, Family::V4, &["-2", "-e", "-t", ENDLESS_SECONDS], [hasty; 2]);
    run_quietly(Command::new("kill").args(["-STOP", &pair.server.id().to_string()]))?;
    sees("client", pair.client, DISCONNECTED, Instant::now())
}

/// Applies a change after which at least one side does not reach its peer. Both sides must detect the end.
fn both_see<T>(setting: &Setting, wire: &Wire, last: &str, happens: impl FnOnce() -> Result<T>) -> Result {
    let pair = setting.flow(wire, Family::V4, &["-2", "-e", "-t", ENDLESS_SECONDS]);
    let since = Instant::now();
    let _kept = happens()?;
    sees("client", pair.client, last, since).and(sees("server", pair.server, last, since))
}

/// Checks that the program ends in time and that its last line contains `last`.
fn sees(who: &str, run: Run, last: &str, since: Instant) -> Result {
    let finished = run.finish(END_TIMEOUT.saturating_sub(since.elapsed()));
    check_output(who, &finished, last)
}

/// For some seconds both hosts reject UDP packets with ICMP host unreachable. The time is shorter than `give_up_ms`, so
/// the transfer continues.
fn hinted(setting: &Setting, wire: &Wire) -> Result {
    let patient: Environment<'_> = &[("DAPL_GIVE_UP_MS", "120000")];
    let pair = setting.flow_with(wire, Family::V4, &["-2", "-t", "3"], [patient; 2]);
    let rules = wire.apply_to_both(Rule::HostUnreachable)?;
    let since = Instant::now();
    // After an initial burst, the kernel sends one such message per second to each host.
    while wire.unreachables(1)? < ICMP_MESSAGES {
        if pair.client.has_ended() || pair.server.has_ended() {
            break;
        }
        if since.elapsed() > LIMIT {
            return Err(format!("fewer than {ICMP_MESSAGES} ICMP messages arrived within {LIMIT:?}"));
        }
    }
    drop(rules);
    pair.end_well(SUCCESS_LINE)
}

/// Drops all packets of an idle connection. No data is sent, so only keepalives can detect the loss.
fn idle(setting: &Setting, wire: &Wire) -> Result {
    let pair = setting.flow(wire, Family::V4, &["-2", "-e", "-i", "-t", "1"]);
    let _silence = wire.apply_to_both(Rule::Silence)?;
    let since = Instant::now();
    sees("client", pair.client, DISCONNECTED, since).and(sees("server", pair.server, DISCONNECTED, since))
}
