//! Example results for tests, in the format of a bench.
#![forbid(unsafe_code)]

use super::{Bench, BenchResults, Lists};
use crate::bench::contest::{Contest, Measured};
use crate::bench::curve::{self, Curve, Family, Point};
use crate::bench::network::NetworkKind;
use crate::bench::scale::{self, Figure, PerfRun, Row};
use crate::bench::side::CommandLines;

/// JSON of a bench in which only the measurements `not_measured` failed.
pub(in crate::bench) fn results(bench: &Bench, lists: Lists, not_measured: &[&str]) -> String {
    let mut found = BenchResults {
        contests: lists.contests.into_iter().map(contest).collect(),
        rows: lists.plans.iter().map(|plan| row(plan, bench)).collect(),
        families: lists.families.iter().map(|plan| family(plan, bench)).collect(),
        ..BenchResults::default()
    };
    found.failures.0.extend(not_measured.iter().map(|reason| (*reason).to_owned()));
    found.json(bench)
}

/// Three samples whose median is this figure.
fn runs(figure: f64) -> Vec<f64> {
    vec![figure * 1.125, figure, figure * 0.875]
}

fn contest(contest: Contest) -> Measured {
    let peers = (0..contest.peers.len()).map(|n| runs(4.0 + n as f64)).collect();
    Measured { contest, ours: runs(3.0), peers }
}

fn row(plan: &scale::Plan, bench: &Bench) -> Row {
    let asked =
        plan.questions.iter().flat_map(|question| question.answers.iter().map(move |answer| (question, answer)));
    let figure = |(n, (PerfRun { ask, count, .. }, answer)): (usize, (&PerfRun, &scale::OutputField))| Figure {
        answer: *answer,
        count: *count,
        ends: CommandLines::of(ask, bench.adapter.name, NetworkKind::Loopback),
        samples: runs((n + 2) as f64 * f64::from(*count).sqrt()),
    };
    Row { section: plan.section, title: plan.title.clone(), figures: asked.enumerate().map(figure).collect() }
}

fn family(plan: &curve::Plan, bench: &Bench) -> Family {
    let point = |who: &curve::CurveSide, size: u32, figure: f64| {
        let ends = (who.side)(size).ends(bench.adapter.name, (plan.network_kind)(size));
        Point { size, ends, samples: runs(figure) }
    };
    let curve = |(n, who): (usize, &curve::CurveSide)| {
        let points = plan.sizes.iter().map(|size| point(who, *size, (n + 1) as f64 * f64::from(*size).sqrt()));
        Curve { name: who.name, points: points.collect() }
    };
    Family {
        section: plan.section,
        title: plan.title,
        unit: plan.shown.unit(),
        up: plan.up,
        across: plan.across,
        curves: plan.all.iter().enumerate().map(curve).collect(),
    }
}
