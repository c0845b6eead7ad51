//! Finds the largest datagram sizes that a path carries, by binary search. Independent of sockets.
#![forbid(unsafe_code)]

use super::probe::SHORTEST;
use super::report::{PathReport, ProbeResult, Size};
use std::io;
use std::net::SocketAddr;

/// A size that every path carries.
pub(super) const SMALL: usize = 64;

/// A sender of probes: a socket, or in tests a model of a path.
pub(super) trait Prober {
    /// Largest payload that the kernel would send now.
    fn most(&self) -> usize;
    /// Sends a probe of `size` bytes. With `as_long` the answer must have the same size.
    fn probe(&mut self, size: usize, as_long: bool) -> io::Result<ProbeResult>;
}

pub(super) fn run(to: SocketAddr, by: &mut impl Prober) -> io::Result<PathReport> {
    let local = by.most();
    let mut reach = Size { local, ..Size::default() };
    let outcome = by.probe(SMALL.min(local), false)?;
    if let ProbeResult::Came(_) = outcome {
        (reach.forward, reach.is_reported) = largest(by, local, false)?;
        (reach.back, _) = largest(by, reach.forward, true)?;
    }
    Ok(PathReport { to, outcome, reach })
}

/// Finds the largest size up to `most` that is answered. Also returns whether a router has reported a smaller MTU, but
/// always false with `as_long`.
fn largest(by: &mut impl Prober, most: usize, as_long: bool) -> io::Result<(usize, bool)> {
    let (mut good, mut bad, mut is_reported) = (SHORTEST, most.saturating_add(1), false);
    // The full size is tried first, then a reported MTU, because these are the most likely results.
    let mut next = most;
    while good + 1 < bad {
        match by.probe(next, as_long)? {
            ProbeResult::Came(_) => good = next,
            ProbeResult::Nothing | ProbeResult::Refused | ProbeResult::Unreachable | ProbeResult::Forbidden => {
                bad = next
            }
            ProbeResult::TooLarge => {
                is_reported |= !as_long;
                bad = next.min(by.most().saturating_add(1)).max(good + 1);
                if bad < next {
                    next = bad - 1;
                    continue;
                }
            }
        }
        next = good + (bad - good) / 2;
    }
    Ok((good, is_reported))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Model of a path. `reports` states whether routers report datagrams that exceed the MTU.
    struct Path {
        local: usize,
        forward: usize,
        back: usize,
        reports: bool,
        learnt: usize,
        asked: u32,
    }

    impl Prober for Path {
        fn most(&self) -> usize {
            self.local.min(self.learnt)
        }

        fn probe(&mut self, size: usize, as_long: bool) -> io::Result<ProbeResult> {
            self.asked += 1;
            assert!((SHORTEST..=self.local).contains(&size));
            if size > self.most() {
                return Ok(ProbeResult::TooLarge);
            }
            if size > self.forward {
                if self.reports {
                    self.learnt = self.forward;
                    return Ok(ProbeResult::TooLarge);
                }
                return Ok(ProbeResult::Nothing);
            }
            let answer = if as_long { size } else { SHORTEST };
            Ok(if answer <= self.back { ProbeResult::Came(Duration::from_micros(100)) } else { ProbeResult::Nothing })
        }
    }

    fn to() -> SocketAddr {
        ([192, 0, 2, 1], 17_471).into()
    }

    #[test]
    fn path_mtu_is_found_to_the_byte() {
        for local in [SHORTEST, 1472, 8972, 65_507] {
            for forward in [64, 65, 1400, 1472, 8972, 65_507] {
                for back in [64, 1400, 65_507] {
                    for reports in [false, true] {
                        let mut path = Path { local, forward, back, reports, learnt: usize::MAX, asked: 0 };
                        let report = run(to(), &mut path).unwrap();
                        let Size { local: seen, forward: found, back: returned, is_reported } = report.reach;
                        let carries = forward.min(local);
                        assert_eq!(
                            (seen, found, returned),
                            (local, carries, carries.min(back)),
                            "{forward} {back} {reports}"
                        );
                        assert_eq!(is_reported, reports && forward < local);
                        assert!(path.asked <= 40, "{} probes", path.asked);
                    }
                }
            }
        }
    }

    #[test]
    fn host_that_does_not_answer_is_probed_once() {
        struct NoHost(ProbeResult, u32);
        impl Prober for NoHost {
            fn most(&self) -> usize {
                1472
            }
            fn probe(&mut self, _: usize, _: bool) -> io::Result<ProbeResult> {
                self.1 += 1;
                Ok(self.0)
            }
        }
        for outcome in [ProbeResult::Nothing, ProbeResult::Refused, ProbeResult::Unreachable, ProbeResult::Forbidden] {
            let mut no_host = NoHost(outcome, 0);
            let report = run(to(), &mut no_host).unwrap();
            assert_eq!((report.outcome, report.reach.forward, no_host.1), (outcome, 0, 1));
        }
    }
}
