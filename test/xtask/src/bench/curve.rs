//! Charts of figures over one variable, here called size. At each size the programs of all lines run in alternation.
#![forbid(unsafe_code)]

use super::chart::{ChartLine, HorizontalAxis, Panel};
use super::median;
use super::network::{BenchNetwork, NetworkKind};
use super::ours::Perf;
use super::side::{CommandLines, Effort, FigureUnit, Side};
use crate::Result;

/// A line of a chart: its name, and the measured program with its arguments for each size.
pub(super) struct CurveSide {
    pub(super) name: &'static str,
    pub(super) side: Box<dyn Fn(u32) -> Side>,
    /// Whether the program may refuse a size, which ends its line. If not, a refusal is a failure of the measurement.
    pub(super) may_fail: bool,
}

/// Creates a line that supports all sizes.
pub(super) fn curve_side(name: &'static str, side: impl Fn(u32) -> Side + 'static) -> CurveSide {
    CurveSide { name, side: Box::new(side), may_fail: false }
}

/// A family of lines, not yet measured.
pub(super) struct Plan {
    pub(super) section: &'static str,
    pub(super) title: &'static str,
    pub(super) up: &'static str,
    pub(super) shown: FigureUnit,
    /// What the numbers in `sizes` are: bytes, or lost packets per thousand.
    pub(super) across: HorizontalAxis,
    pub(super) sizes: Vec<u32>,
    /// Network between server and client, depending on the size.
    pub(super) network_kind: fn(u32) -> NetworkKind,
    pub(super) all: Vec<CurveSide>,
}

/// A measured family of lines.
pub(super) struct Family {
    pub(super) section: &'static str,
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) up: &'static str,
    pub(super) across: HorizontalAxis,
    pub(super) curves: Vec<Curve>,
}

/// A line with its figures.
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) points: Vec<Point>,
}

/// The figure of a line at one size.
pub(super) struct Point {
    pub(super) size: u32,
    pub(super) ends: CommandLines,
    pub(super) samples: Vec<f64>,
}

/// Powers of four from 1 to this size.
pub(super) fn powers_of_four(last: u32) -> Vec<u32> {
    std::iter::successors(Some(1), |size: &u32| size.checked_mul(4)).take_while(|size| *size <= last).collect()
}

impl Plan {
    /// Measures all lines in alternating runs, size by size.
    pub(super) fn measure(self, perf: &Perf, effort: Effort) -> Result<Family> {
        let mut curves: Vec<Curve> =
            self.all.iter().map(|curve_side| Curve { name: curve_side.name, points: Vec::new() }).collect();
        let mut refused = vec![false; self.all.len()];
        for size in self.sizes {
            let network_kind = (self.network_kind)(size);
            let network = BenchNetwork::set_up(network_kind)?;
            let at = self.across.at(size);
            let mut samples = vec![Vec::new(); self.all.len()];
            for _ in 0..effort.few {
                for (n, (curve_side, samples)) in self.all.iter().zip(&mut samples).enumerate() {
                    if refused[n] {
                        continue;
                    }
                    match (curve_side.side)(size).measure(perf, &network, self.shown) {
                        Ok(sample) => samples.push(sample),
                        Err(reason) if curve_side.may_fail => {
                            // A program that refuses this size also refuses larger sizes.
                            eprintln!("{at}, {}: {}", curve_side.name, reason.lines().next().unwrap_or_default());
                            refused[n] = true;
                        }
                        Err(reason) => return Err(format!("{}, {at}, {}: {reason}", self.section, curve_side.name)),
                    }
                }
            }
            let mut line = format!("{}, {at}:", self.section);
            for ((curve_side, samples), curve) in self.all.iter().zip(samples).zip(&mut curves) {
                if !samples.is_empty() {
                    line += &format!(" {} {:.3}", curve_side.name, median(&samples));
                    curve.points.push(Point {
                        size,
                        ends: (curve_side.side)(size).ends(perf.adapter(), network_kind),
                        samples,
                    });
                }
            }
            eprintln!("{line} {}", self.shown.unit());
        }
        let (section, title, unit, up) = (self.section, self.title, self.shown.unit(), self.up);
        Ok(Family { section, title, unit, up, across: self.across, curves })
    }
}

impl Family {
    /// Converts the family to a chart.
    pub(super) fn panel(&self) -> Panel {
        let place = |point: &Point| (f64::from(point.size), median(&point.samples));
        let line =
            |curve: &Curve| ChartLine { name: curve.name.to_owned(), points: curve.points.iter().map(place).collect() };
        Panel {
            title: self.title.to_owned(),
            across: self.across,
            up: self.up.to_owned(),
            lines: self.curves.iter().map(line).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_four_include_the_last_size() {
        assert_eq!(powers_of_four(64), [1, 4, 16, 64]);
        assert_eq!(powers_of_four(16 << 20).len(), 13);
        assert_eq!(powers_of_four(1 << 20).last(), Some(&(1 << 20)));
    }

    #[test]
    fn chart_panel_shows_the_median_of_each_point() {
        let point = Point { size: 4, ends: CommandLines::default(), samples: vec![3.0, 1.0, 2.0] };
        let curves = vec![Curve { name: "one", points: vec![point] }];
        let family =
            Family { section: "latency", title: "t", unit: "us", up: "u", across: HorizontalAxis::Bytes, curves };
        assert_eq!(family.panel().lines[0].points, [(4.0, 2.0)]);
    }
}
