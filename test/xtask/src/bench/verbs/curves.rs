//! Figures of verbs over sizes, and over the number of concurrent operations. Each point is one run, because repeated
//! runs differ by a fraction of a percent with the guest's default clock, which advances by one nanosecond per executed
//! instruction.
#![forbid(unsafe_code)]

use super::contest::{OPERATIONS, Operation};
use super::sides::{Side, Sides};
use crate::Result;
use crate::bench::chart::HorizontalAxis;
use crate::bench::curve::{Curve, Family, Point};
use crate::bench::side::CommandLines;
use crate::guest::Guest;

/// Number of bytes that a run over sizes transfers, unless that takes fewer than 100 or more than 1,000 messages.
const BYTES: u32 = 4 << 20;

/// A family of lines, not yet measured.
pub(super) struct Plan {
    pub(super) section: &'static str,
    title: &'static str,
    up: &'static str,
    across: HorizontalAxis,
    id: &'static str,
    places: &'static [u32],
}

/// All families of lines of verbs: latency, bandwidth, connects.
pub(super) const PLANS: [Plan; 3] = [
    Plan {
        section: "latency",
        title: "Latency of messages: half a round trip, both sides polling",
        up: "microseconds of the guest",
        across: HorizontalAxis::Bytes,
        id: "V1",
        places: &[4, 64, 1_024, 4_096, 16_384],
    },
    Plan {
        section: "bandwidth",
        title: "Bandwidth of RDMA writes, 64 at a time",
        up: "MB per second of the guest",
        across: HorizontalAxis::Bytes,
        id: "V6",
        places: &[64, 1_024, 4_096, 16_384, 65_536],
    },
    Plan {
        section: "connects",
        title: "Connections made",
        up: "connections per second of the guest",
        across: HorizontalAxis::AtOnce,
        id: "V9",
        places: &[1, 4, 16, 64],
    },
];

impl Plan {
    fn operation(&self, place: u32) -> Operation {
        let base =
            OPERATIONS.iter().find(|operation| operation.id == self.id).expect("OPERATIONS has an entry for each plan");
        match self.across {
            HorizontalAxis::Bytes => {
                let count = (BYTES / place).clamp(100, 1_000);
                Operation { size: place, count, ..*base }
            }
            _ => Operation { depth: place, ..*base },
        }
    }

    /// Measures the family, point by point.
    pub(super) fn measure(&self, sides: &Sides, guest: &mut Guest) -> Result<Family> {
        self.family(|side, place| {
            let (operation, at) = (self.operation(place), self.across.at(place));
            let failed = |reason| format!("{}, {at}, {}: {reason}", self.section, side.name());
            let sample = sides.run(side, &operation, operation.count, guest).map_err(failed)?;
            let figure = operation.shown.figure(operation.size, sample.usec);
            eprintln!("{}, {at}: {} {figure:.3} {}", self.section, side.name(), operation.shown.unit());
            Ok((figure, sides.ends(side, &operation)))
        })
    }

    /// Measures the family, using `figure` for each point.
    pub(super) fn family(&self, mut figure: impl FnMut(Side, u32) -> Result<(f64, CommandLines)>) -> Result<Family> {
        let first = self.operation(self.places[0]);
        let able = |side: &Side| *side != Side::Dapltest && side.can(&first);
        let able: Vec<Side> = Side::ALL.into_iter().filter(able).collect();
        let mut curves: Vec<Curve> = able.iter().map(|side| Curve { name: side.title(), points: Vec::new() }).collect();
        for place in self.places {
            for (side, curve) in able.iter().zip(&mut curves) {
                let (figure, ends) = figure(*side, *place)?;
                curve.points.push(Point { size: *place, ends, samples: vec![figure] });
            }
        }
        let (section, title, up, across) = (self.section, self.title, self.up, self.across);
        Ok(Family { section, title, unit: first.shown.unit(), up, across, curves })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_position_sets_the_size_or_the_queue_depth() {
        let [latency, bandwidth, connects] = &PLANS;
        assert_eq!((latency.operation(4).size, latency.operation(4).count), (4, 1_000));
        assert_eq!((bandwidth.operation(65_536).size, bandwidth.operation(65_536).count), (65_536, 100));
        assert_eq!(bandwidth.operation(64).depth, 64);
        assert_eq!((connects.operation(16).depth, connects.operation(16).size), (16, 0));
    }
}
