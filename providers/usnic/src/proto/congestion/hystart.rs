//! HyStart++ (RFC 9406): leaves slow start when round trips become longer, through a conservative phase (CSS) that can
//! return to slow start.

use crate::proto::{MILLIS, Nanos};

// Constants of RFC 9406, 4.3.
const MIN_RTT_THRESH: Nanos = 4 * MILLIS;
const MAX_RTT_THRESH: Nanos = 16 * MILLIS;
const MIN_RTT_DIVISOR: Nanos = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;

/// State of one slow start. The limit L on the growth per ack is not applied, because packets are paced (RFC 9406,
/// 4.3).
#[derive(Debug)]
pub(super) struct HyStart {
    last_round_min: Nanos,
    current_round_min: Nanos,
    samples: u32,
    /// In CSS, the round-trip time at the start of CSS (the baseline), and the number of rounds in CSS.
    css: Option<(Nanos, u32)>,
}

impl Default for HyStart {
    fn default() -> Self {
        HyStart { last_round_min: Nanos::MAX, current_round_min: Nanos::MAX, samples: 0, css: None }
    }
}

impl HyStart {
    /// Ends a round (RFC 9406, 4.2). Returns true if slow start ends with this round.
    pub(super) fn end_round(&mut self) -> bool {
        self.last_round_min = self.current_round_min;
        self.current_round_min = Nanos::MAX;
        self.samples = 0;
        self.css.as_mut().is_some_and(|(_, rounds)| {
            *rounds += 1;
            *rounds >= CSS_ROUNDS
        })
    }

    /// Records an ack of `bytes` in slow start. Returns the number of bytes by which the window grows.
    pub(super) fn acked(&mut self, bytes: u64, rtt: Option<Nanos>) -> u64 {
        if let Some(rtt) = rtt {
            self.current_round_min = self.current_round_min.min(rtt);
            self.samples = self.samples.saturating_add(1);
            self.check();
        }
        if self.css.is_some() { bytes / CSS_GROWTH_DIVISOR } else { bytes }
    }

    fn check(&mut self) {
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        match self.css {
            Some((baseline, _)) if self.current_round_min < baseline => self.css = None,
            Some(_) => {}
            None if self.last_round_min == Nanos::MAX => {}
            None => {
                let threshold = (self.last_round_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                if self.current_round_min >= self.last_round_min.saturating_add(threshold) {
                    self.css = Some((self.current_round_min, 0));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a round with `N_RTT_SAMPLE` acks of 1000 bytes and the round-trip time `rtt`. Returns the growth by
    /// the last ack, and whether slow start ended.
    fn round(hystart: &mut HyStart, rtt: Nanos) -> (u64, bool) {
        let growth = (0..N_RTT_SAMPLE).map(|_| hystart.acked(1000, Some(rtt))).last();
        (growth.unwrap_or(0), hystart.end_round())
    }

    #[test]
    fn slow_start_ends_after_five_rounds_of_longer_round_trips() {
        let mut hystart = HyStart::default();
        assert_eq!(round(&mut hystart, 20 * MILLIS), (1000, false));
        assert_eq!(
            round(&mut hystart, 23 * MILLIS),
            (1000, false),
            "an increase of 3 ms is below the threshold of 4 ms"
        );
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, 28 * MILLIS), (250, false));
        }
        assert_eq!(round(&mut hystart, 28 * MILLIS), (250, true));
    }

    #[test]
    fn shorter_round_trips_resume_slow_start() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 20 * MILLIS);
        assert_eq!(round(&mut hystart, 30 * MILLIS).0, 250);
        assert_eq!(round(&mut hystart, 25 * MILLIS).0, 1000);
    }
}
