//! Figures over sizes: ours and the peers' in turns at each size.
#![forbid(unsafe_code)]

use super::side::{Effort, Shown, Side, depth, pingpong_count, stream_count};
use crate::Result;
use crate::bench::chart::{Line, Panel};
use crate::bench::median;
use crate::bench::ours::{Ask, Perf};
use crate::bench::peers::{Fabric, Ucx};

/// The sections there are.
pub(super) const SECTIONS: [&str; 2] = ["latency", "bandwidth"];

/// One line: whose it is, and how it is asked for a size.
struct Who {
    name: &'static str,
    side: Box<dyn Fn(u32) -> Side>,
    /// It may refuse a size.
    may_fail: bool,
}

/// One family of lines, before it is measured.
pub(super) struct Plan {
    pub(super) section: &'static str,
    title: &'static str,
    up: &'static str,
    shown: Shown,
    sizes: Vec<u32>,
    all: Vec<Who>,
}

/// The same, measured.
pub(super) struct Family {
    pub(super) section: &'static str,
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    up: &'static str,
    pub(super) curves: Vec<Curve>,
}

/// One line of it.
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) points: Vec<Point>,
}

/// One size of it.
pub(super) struct Point {
    pub(super) size: u32,
    pub(super) command: String,
    pub(super) samples: Vec<f64>,
}

/// Both of them.
pub(super) fn plans(effort: Effort) -> Vec<Plan> {
    let who = |name, side: Box<dyn Fn(u32) -> Side>| Who { name, side, may_fail: false };
    let pingpong = move |size| effort.count(pingpong_count(size));
    let stream = move |size| effort.count(stream_count(size));
    let ours = move |mode, size| Side::Ours(Ask::new(mode, size, stream(size)).with(&["-d", &depth(size).to_string()]));
    let fabric = move |size| Side::Fabric(Fabric { provider: "shm", size, count: pingpong(size).div_ceil(4) });
    vec![
        Plan {
            section: "latency",
            title: "Latency: half a round trip, both sides polling",
            up: "microseconds",
            shown: Shown::Microseconds,
            sizes: powers_of_four(1 << 20),
            all: vec![
                who("dapl-rs", Box::new(move |size| Side::Ours(Ask::new("lat", size, pingpong(size))))),
                who("UCX tag", Box::new(move |size| Side::Ucx(Ucx::new("tag_lat", size, pingpong(size))))),
                Who { name: "libfabric shm", side: Box::new(fabric), may_fail: true },
            ],
        },
        Plan {
            section: "bandwidth",
            title: "Bandwidth: messages and RDMA writes in a stream",
            up: "MB/s (millions of bytes)",
            shown: Shown::Bandwidth,
            sizes: powers_of_four(16 << 20),
            all: vec![
                who("dapl-rs send", Box::new(move |size| ours("rate", size))),
                who("UCX tag", Box::new(move |size| Side::Ucx(Ucx::new("tag_bw", size, stream(size))))),
                who("dapl-rs write", Box::new(move |size| ours("write", size))),
                who("UCX put", Box::new(move |size| Side::Ucx(Ucx::new("ucp_put_bw", size, stream(size))))),
            ],
        },
    ]
}

fn powers_of_four(last: u32) -> Vec<u32> {
    std::iter::successors(Some(1), |size: &u32| size.checked_mul(4)).take_while(|size| *size <= last).collect()
}

impl Plan {
    /// Has all of it done in turns, size by size.
    pub(super) fn measure(self, perf: &Perf, effort: Effort) -> Result<Family> {
        let mut curves: Vec<Curve> = self.all.iter().map(|who| Curve { name: who.name, points: Vec::new() }).collect();
        let mut refused = vec![false; self.all.len()];
        for size in self.sizes {
            let mut samples = vec![Vec::new(); self.all.len()];
            for _ in 0..effort.few {
                for (n, (who, samples)) in self.all.iter().zip(&mut samples).enumerate() {
                    if refused[n] {
                        continue;
                    }
                    match (who.side)(size).measure(perf, self.shown) {
                        Ok(sample) => samples.push(sample),
                        Err(reason) if who.may_fail => {
                            // Nor will it take what is longer.
                            eprintln!("{size} bytes, {}: {reason}", who.name);
                            refused[n] = true;
                        }
                        Err(reason) => return Err(format!("{}, {size} bytes, {}: {reason}", self.section, who.name)),
                    }
                }
            }
            let mut line = format!("{}, {size} bytes:", self.section);
            for ((who, samples), curve) in self.all.iter().zip(samples).zip(&mut curves) {
                if !samples.is_empty() {
                    line += &format!(" {} {:.3}", who.name, median(&samples));
                    curve.points.push(Point { size, command: (who.side)(size).line(), samples });
                }
            }
            eprintln!("{line} {}", self.shown.unit());
        }
        Ok(Family { section: self.section, title: self.title, unit: self.shown.unit(), up: self.up, curves })
    }
}

impl Family {
    /// As a panel of a chart.
    pub(super) fn panel(&self) -> Panel {
        let place = |point: &Point| (f64::from(point.size), median(&point.samples));
        let line =
            |curve: &Curve| Line { name: curve.name.to_owned(), points: curve.points.iter().map(place).collect() };
        Panel {
            title: self.title.to_owned(),
            across: "bytes in one message or write".to_owned(),
            up: self.up.to_owned(),
            lines: self.curves.iter().map(line).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_to_the_last() {
        assert_eq!(powers_of_four(64), [1, 4, 16, 64]);
        assert_eq!(powers_of_four(16 << 20).len(), 13);
        assert_eq!(powers_of_four(1 << 20).last(), Some(&(1 << 20)));
    }

    #[test]
    fn sections_are_those_that_are_named() {
        let sections: Vec<_> = plans(Effort::FULL).iter().map(|plan| plan.section).collect();
        assert_eq!(sections, SECTIONS);
    }

    #[test]
    fn a_panel_shows_medians() {
        let point = Point { size: 4, command: String::new(), samples: vec![3.0, 1.0, 2.0] };
        let curves = vec![Curve { name: "one", points: vec![point] }];
        let family = Family { section: "latency", title: "t", unit: "us", up: "u", curves };
        assert_eq!(family.panel().lines[0].points, [(4.0, 2.0)]);
    }
}
