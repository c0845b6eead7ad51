//! Which sizes are asked for, and what follows from the answers: the rule, without a socket.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::probe::SHORTEST;
use super::report::{Outcome, Report, Size};

/// Small enough for any path.
pub(super) const SMALL: usize = 64;

/// What became of a probe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    /// After this round trip.
    Came(Duration),
    /// Neither at once nor repeated.
    Nothing,
    /// The host says that nobody has the port.
    Refused,
    /// The system does not send it: it is larger than the path carries, as something on it has said.
    TooLarge,
    /// The network, or this host, says that there is no way.
    Unreachable,
    /// This host itself does not let it out.
    Forbidden,
}

/// Who asks.
pub(super) trait Ask {
    /// Bytes that the system would send now.
    fn most(&self) -> usize;
    /// Sends a probe of so many bytes. `as_long`: its answer has as many.
    fn ask(&mut self, size: usize, as_long: bool) -> io::Result<Answer>;
}

pub(super) fn run(to: SocketAddr, by: &mut impl Ask) -> io::Result<Report> {
    let local = by.most();
    let mut reach = Size { local, ..Size::default() };
    let outcome = match by.ask(SMALL.min(local), false)? {
        Answer::Came(trip) => Outcome::Answers(trip),
        other => outcome(other).unwrap_or(Outcome::Silent),
    };
    if let Outcome::Answers(_) = outcome {
        (reach.there, reach.is_told) = largest(by, local, false)?;
        (reach.back, _) = largest(by, reach.there, true)?;
    }
    Ok(Report { to, outcome, reach })
}

/// What it means that the first probe was not answered, if somebody has said so.
pub(super) fn outcome(answer: Answer) -> Option<Outcome> {
    match answer {
        Answer::Refused => Some(Outcome::Refused),
        Answer::Unreachable => Some(Outcome::Unreachable),
        Answer::Forbidden => Some(Outcome::Forbidden),
        Answer::Came(_) | Answer::Nothing | Answer::TooLarge => None,
    }
}

/// The largest size that is answered, and whether something on the way has said what is too large.
fn largest(by: &mut impl Ask, most: usize, as_long: bool) -> io::Result<(usize, bool)> {
    let (mut good, mut bad, mut is_told) = (SHORTEST, most.saturating_add(1), false);
    // All of it is likely, and then what something on the way has named.
    let mut next = most;
    while good + 1 < bad {
        match by.ask(next, as_long)? {
            Answer::Came(_) => good = next,
            Answer::Nothing | Answer::Refused | Answer::Unreachable | Answer::Forbidden => bad = next,
            Answer::TooLarge => {
                is_told |= !as_long;
                bad = next.min(by.most().saturating_add(1)).max(good + 1);
                if bad < next {
                    next = bad - 1;
                    continue;
                }
            }
        }
        next = good + (bad - good) / 2;
    }
    Ok((good, is_told))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path by its limits; `tells`: what is too large is said, and the system learns it.
    struct Path {
        local: usize,
        there: usize,
        back: usize,
        tells: bool,
        learnt: usize,
        asked: u32,
    }

    impl Ask for Path {
        fn most(&self) -> usize {
            self.local.min(self.learnt)
        }

        fn ask(&mut self, size: usize, as_long: bool) -> io::Result<Answer> {
            self.asked += 1;
            assert!((SHORTEST..=self.local).contains(&size));
            if size > self.most() {
                return Ok(Answer::TooLarge);
            }
            if size > self.there {
                if self.tells {
                    self.learnt = self.there;
                    return Ok(Answer::TooLarge);
                }
                return Ok(Answer::Nothing);
            }
            let answer = if as_long { size } else { SHORTEST };
            Ok(if answer <= self.back { Answer::Came(Duration::from_micros(100)) } else { Answer::Nothing })
        }
    }

    fn to() -> SocketAddr {
        ([192, 0, 2, 1], 17_471).into()
    }

    #[test]
    fn what_a_path_carries_is_found_to_the_byte() {
        for local in [SHORTEST, 1472, 8972, 65_507] {
            for there in [64, 65, 1400, 1472, 8972, 65_507] {
                for back in [64, 1400, 65_507] {
                    for tells in [false, true] {
                        let mut path = Path { local, there, back, tells, learnt: usize::MAX, asked: 0 };
                        let report = run(to(), &mut path).unwrap();
                        let Size { local: seen, there: found, back: returned, is_told } = report.reach;
                        let carries = there.min(local);
                        assert_eq!(
                            (seen, found, returned),
                            (local, carries, carries.min(back)),
                            "{there} {back} {tells}"
                        );
                        assert_eq!(is_told, tells && there < local);
                        assert!(path.asked <= 40, "{} probes", path.asked);
                    }
                }
            }
        }
    }

    #[test]
    fn who_does_not_answer_is_asked_once() {
        struct Nobody(Answer, u32);
        impl Ask for Nobody {
            fn most(&self) -> usize {
                1472
            }
            fn ask(&mut self, _: usize, _: bool) -> io::Result<Answer> {
                self.1 += 1;
                Ok(self.0)
            }
        }
        for (answer, outcome) in [
            (Answer::Nothing, Outcome::Silent),
            (Answer::Refused, Outcome::Refused),
            (Answer::Unreachable, Outcome::Unreachable),
            (Answer::Forbidden, Outcome::Forbidden),
        ] {
            let mut nobody = Nobody(answer, 0);
            let report = run(to(), &mut nobody).unwrap();
            assert_eq!((report.outcome, report.reach.there, nobody.1), (outcome, 0, 1));
        }
    }
}
