//! Who is measured, and what its figure means.
#![forbid(unsafe_code)]

use crate::Result;
use crate::bench::ours::{Ask, Perf};
use crate::bench::peers::{Fabric, Ucx};

/// What a figure is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Shown {
    /// Of half a round trip.
    Microseconds,
    /// Millions of messages per second.
    Rate,
    /// Millions of bytes per second.
    Bandwidth,
    /// Of a processor.
    Percent,
    Milliseconds,
}

impl Shown {
    pub(super) fn unit(self) -> &'static str {
        match self {
            Shown::Microseconds => "us",
            Shown::Rate => "M/s",
            Shown::Bandwidth => "MB/s",
            Shown::Percent => "%",
            Shown::Milliseconds => "ms",
        }
    }

    pub(super) fn less_is_better(self) -> bool {
        !matches!(self, Shown::Rate | Shown::Bandwidth)
    }

    /// Where our program says it.
    fn field(self) -> &'static str {
        match self {
            Shown::Microseconds => "usec",
            Shown::Rate | Shown::Bandwidth => "mps",
            Shown::Percent => "cpu_percent",
            Shown::Milliseconds => "msec",
        }
    }
}

/// One side of a contest: a program and what it is told.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Ours(Ask),
    Ucx(Ucx),
    Fabric(Fabric),
}

impl Side {
    /// What one would type.
    pub(super) fn line(&self) -> String {
        match self {
            Side::Ours(ask) => ask.line(),
            Side::Ucx(ucx) => ucx.line(),
            Side::Fabric(fabric) => fabric.line(),
        }
    }

    /// One run.
    pub(super) fn measure(&self, perf: &Perf, shown: Shown) -> Result<f64> {
        let cannot = || Err(format!("{} says nothing in {}", self.line(), shown.unit()));
        match self {
            Side::Ours(ask) => {
                let figure = perf.figure(ask, shown.field())?;
                Ok(if shown == Shown::Bandwidth { figure * f64::from(ask.size) } else { figure })
            }
            Side::Ucx(ucx) => match shown {
                Shown::Microseconds => Ok(ucx.run()?.latency),
                Shown::Rate => Ok(ucx.run()?.rate),
                Shown::Bandwidth => Ok(ucx.run()?.bandwidth),
                Shown::Percent | Shown::Milliseconds => cannot(),
            },
            Side::Fabric(fabric) => match shown {
                Shown::Microseconds => fabric.run(),
                _ => cannot(),
            },
        }
    }
}

/// How much is done.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    /// So many runs of each side of a contest, in turns; the median counts.
    pub(super) rounds: usize,
    /// The same, where there is no promise.
    pub(super) few: usize,
    /// Of everything this part.
    part: u32,
}

impl Effort {
    pub(super) const FULL: Effort = Effort { rounds: super::ROUNDS, few: 3, part: 1 };
    /// To see that it can be measured.
    pub(super) const QUICK: Effort = Effort { rounds: 1, few: 1, part: 20 };

    /// How often, in place of so often.
    pub(super) fn count(self, full: u32) -> u32 {
        (full / self.part).max(full.min(20))
    }
}

/// Requests on their way at most: enough to hide the way, and not more bytes than a cache holds.
pub(super) fn depth(size: u32) -> u32 {
    const BYTES: u32 = 16 << 20;
    (BYTES / size.max(1)).clamp(8, 512)
}

/// So many messages of a size that one run moves about as many bytes as others, and takes a fraction of a second.
pub(super) fn stream_count(size: u32) -> u32 {
    const BYTES: u64 = 1 << 30;
    (BYTES / u64::from(size.max(1))).clamp(64, 1_000_000) as u32
}

/// Likewise, there and back.
pub(super) fn pingpong_count(size: u32) -> u32 {
    const BYTES: u64 = 256 << 20;
    (BYTES / u64::from(size.max(1))).clamp(100, 200_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_for_too_much_or_too_little() {
        assert_eq!([1, 65_536, 1 << 20, 16 << 20].map(depth), [512, 256, 16, 8]);
        assert_eq!([1, 65_536, 1 << 20, 16 << 20].map(stream_count), [1_000_000, 16_384, 1_024, 64]);
        assert_eq!([1, 65_536, 1 << 20].map(pingpong_count), [200_000, 4_096, 256]);
        assert_eq!([1_000_000, 64, 5].map(|full| Effort::QUICK.count(full)), [50_000, 20, 5]);
        assert_eq!(Effort::FULL.count(64), 64);
    }
}
