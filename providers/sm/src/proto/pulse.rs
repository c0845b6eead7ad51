//! A peer's pulse: when it gave a sign of life last (transports.md CM-5).
//!
//! A word in the FIFO is one, and so is whatever else it did for the connection since somebody looked: a message of its that was
//! taken, one of ours that it took. The engine looks every now and then, and says what time it is.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// The pulse of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pulse {
    heard: Instant,
    /// What the peer had done then.
    deeds: u64,
}

impl Pulse {
    pub(crate) fn new(now: Instant) -> Self {
        Pulse { heard: now, deeds: 0 }
    }

    /// A sign of life.
    pub(crate) fn beats(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Looks what the peer has done so far; a change is a sign of life. Is it silent for longer than that?
    pub(crate) fn is_gone(&mut self, deeds: u64, now: Instant, silence: Duration) -> bool {
        if deeds != self.deeds {
            (self.heard, self.deeds) = (now, deeds);
        }
        now.saturating_duration_since(self.heard) > silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_peer_that_says_nothing_for_too_long_is_gone_and_not_before() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(begin);
        assert!(!pulse.is_gone(0, after(60), SILENCE));
        assert!(pulse.is_gone(0, after(61), SILENCE));
        pulse.beats(after(61));
        assert!(!pulse.is_gone(0, after(121), SILENCE));
        assert!(pulse.is_gone(0, after(122), SILENCE));
    }

    #[test]
    fn whatever_it_does_counts_as_life_from_then_on() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(begin);
        assert!(!pulse.is_gone(5, after(59), SILENCE));
        assert!(!pulse.is_gone(5, after(119), SILENCE), "its last deed is less than that ago");
        assert!(pulse.is_gone(5, after(120), SILENCE));
        assert!(!pulse.is_gone(6, after(500), SILENCE), "it was only not looked at");
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_kills_nobody() {
        let begin = Instant::now();
        let mut pulse = Pulse::new(begin + SILENCE);
        assert!(!pulse.is_gone(0, begin, Duration::ZERO));
    }
}
