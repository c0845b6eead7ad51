//! The measured part of a test: starts after the warm-up, and ends after a number of operations or a time.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::amounts::Extent;
use crate::cpu::CpuTime;
use crate::report::Latency;
use crate::wire::Figures;

/// Measurements of one side.
pub(super) struct Measured {
    pub(super) figures: Figures,
    /// Latency of each measured operation that this side started.
    pub(super) latency: Latency,
}

/// A point in time, and the processor time of the process up to this point.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    cpu: CpuTime,
}

impl Mark {
    fn now() -> Self {
        Mark { at: Instant::now(), cpu: CpuTime::now() }
    }
}

/// Start and end of the measured part.
#[derive(Clone, Copy)]
pub(super) struct MeasuredInterval {
    begin: Mark,
    end: Mark,
}

impl MeasuredInterval {
    /// Starts the measurement at the current time.
    pub(super) fn started() -> Self {
        let now = Mark::now();
        MeasuredInterval { begin: now, end: now }
    }

    /// Ends the measurement.
    pub(super) fn end(&mut self) {
        self.end = Mark::now();
    }

    pub(super) fn figures(&self, operations: u64) -> Figures {
        let (time, cpu) = (self.end.at.duration_since(self.begin.at), self.end.cpu.since(self.begin.cpu));
        Figures { operations, time, cpu }
    }
}

/// Counts operations, and decides which are measured and when to stop.
pub(super) struct Counter {
    extent: Extent,
    warm_up: u64,
    done: u64,
    window: MeasuredInterval,
    latency: Latency,
    is_time_over: bool,
}

impl Counter {
    /// Starts the test at the current time. Without a warm-up, this also starts the measured part.
    pub(super) fn new(extent: Extent, warm_up: u32) -> Self {
        let (window, latency) = (MeasuredInterval::started(), Latency::default());
        Counter { extent, warm_up: warm_up.into(), done: 0, window, latency, is_time_over: false }
    }

    /// Whether another operation is to be started after `started` operations.
    pub(super) fn wants(&self, started: u64) -> bool {
        match self.extent {
            Extent::Operations(count) => started < self.warm_up + u64::from(count),
            Extent::Time(_) => !self.is_time_over,
        }
    }

    /// Counts a completed operation, with its latency if this side started it.
    pub(super) fn complete(&mut self, latency: Option<Duration>) {
        self.done += 1;
        if self.done == self.warm_up {
            self.window = MeasuredInterval::started();
        }
        if self.done <= self.warm_up {
            return;
        }
        if let Some(latency) = latency {
            self.latency.record(latency);
        }
        if let Extent::Time(time) = self.extent {
            self.is_time_over |= self.window.begin.at.elapsed() >= time;
        }
    }

    /// Ends the measured part.
    pub(super) fn end(&mut self) {
        self.window.end();
    }

    /// Returns the measurements. The measured part must have ended.
    pub(super) fn into_measured(self) -> Measured {
        Measured { figures: self.window.figures(self.done.saturating_sub(self.warm_up)), latency: self.latency }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_the_warm_up_are_not_measured() {
        let mut counter = Counter::new(Extent::Operations(3), 2);
        for started in 0..5 {
            assert!(counter.wants(started));
            counter.complete(Some(Duration::from_secs(if started < 2 { 100 } else { 1 })));
        }
        assert!(!counter.wants(5));
        counter.end();
        let measured = counter.into_measured();
        assert_eq!(measured.figures.operations, 3);
        let longest = measured.latency.json()["max"].as_f64().unwrap();
        assert!(longest < 2e6, "the longest latency is {longest} us");
    }

    #[test]
    fn measured_time_starts_at_the_end_of_the_warm_up() {
        let mut counter = Counter::new(Extent::Time(Duration::from_nanos(1)), 1);
        counter.complete(None);
        assert!(counter.wants(1), "warm-up operations are counted");
        while counter.wants(1) {
            counter.complete(None);
        }
        assert!(counter.into_measured().figures.operations >= 1);
    }
}
