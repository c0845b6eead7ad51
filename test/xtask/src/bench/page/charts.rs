//! Draws a provider's figures as SVG charts for the HTML report.
#![forbid(unsafe_code)]

use super::results::{Bound, Chart, Contest, Measure, MeasuredLine, ResultFile};
use crate::bench::chart::{ChartLine, DotRow, Dots, HorizontalAxis, Panel, Permitted, inline};

/// All line charts. A chart of bandwidth over sizes is followed by a chart of the same data in messages per second.
pub(super) fn curves(findings: &ResultFile) -> Vec<Chart> {
    let mut charts = Vec::new();
    for chart in &findings.charts {
        charts.push(chart.clone());
        if chart.section == "bandwidth" && chart.across == HorizontalAxis::Bytes {
            charts.push(rate(chart));
        }
    }
    charts
}

/// Converts a bandwidth chart to a chart of messages per second.
fn rate(bandwidth: &Chart) -> Chart {
    let point = |(size, measure): &(u32, Measure)| {
        // MB/s divided by the message size in bytes gives millions of messages per second.
        let samples = measure.samples.iter().map(|sample| sample / f64::from((*size).max(1))).collect();
        (*size, Measure { samples, ends: measure.ends.clone() })
    };
    let line =
        |line: &MeasuredLine| MeasuredLine { name: line.name.clone(), points: line.points.iter().map(point).collect() };
    Chart {
        section: "rate".to_owned(),
        title: "Message rate: the runs of the chart above, in messages".to_owned(),
        up: "millions of messages per second".to_owned(),
        unit: "M/s".to_owned(),
        across: bandwidth.across,
        lines: bandwidth.lines.iter().map(line).collect(),
    }
}

/// SVG of a chart.
pub(super) fn curve(chart: &Chart, id: &str) -> String {
    let place = |(at, measure): &(u32, Measure)| (f64::from(*at), measure.median());
    let line =
        |line: &MeasuredLine| ChartLine { name: line.name.clone(), points: line.points.iter().map(place).collect() };
    let lines = chart.lines.iter().map(line).collect();
    let (title, up) = (chart.title.clone(), chart.up.clone());
    inline(Panel { title, across: chart.across, up, lines }, id)
}

/// If the largest value on the axis (a ratio, a target or 1) exceeds the smallest by more than this factor, the axis is
/// labelled at powers of ten, to keep it readable.
const WIDE: f64 = 100.0;

/// Base of the axis; its labels are powers of the base.
fn base(rows: &[DotRow]) -> f64 {
    let all = || rows.iter().flat_map(|row| row.dots.iter().flatten().copied()).filter(|value| *value > 0.0);
    let (low, high) = (all().fold(1.0, f64::min), all().fold(1.0, f64::max));
    if high / low > WIDE { 10.0 } else { 2.0 }
}

/// Chart of the ratios to the peers, with their targets. `None` if there are no ratios.
pub(super) fn ratios(contests: &[Contest], id: &str) -> Option<String> {
    let row = |contest: &Contest| {
        let (_, ratio) = contest.against?;
        let bound = |bound: &Option<Bound>| bound.as_ref().map(|bound| bound.value);
        let namesakes = contests.iter().filter(|other| other.id == contest.id && other.title == contest.title);
        let peer = match &contest.peers[..] {
            [(peer, _)] if namesakes.count() > 1 => format!(": {peer}"),
            _ => String::new(),
        };
        let better = if contest.less_is_better { "\u{2190}" } else { "\u{2192}" };
        Some(DotRow {
            label: format!("{} {}{peer} {better}", contest.id, contest.title),
            dots: vec![Some(ratio), bound(&contest.target), bound(&contest.stretch)],
            permitted: bound(&contest.target).map(|value| match contest.less_is_better {
                true => Permitted::UpTo(value),
                false => Permitted::From(value),
            }),
        })
    };
    let rows: Vec<_> = contests.iter().filter_map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let dots = Dots {
        title: "Ratios: dapl-rs over its peer".to_owned(),
        across:
            "ours / peer's; \u{2190} less is better, \u{2192} more is better; the shaded part of a row meets its target"
                .to_owned(),
        base: base(&rows),
        names: ["measured", "target", "stretch target"].map(str::to_owned).to_vec(),
        rows,
    };
    Some(dots.inline(id))
}
