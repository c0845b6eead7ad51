//! The charts of a provider's figures, as pictures of the page.
#![forbid(unsafe_code)]

use super::results::{Chart, Contest, Findings, Line, Measure};
use crate::bench::chart::{Across, Dots, Line as Drawn, Panel, inline};

/// All charts over a variable. After a bandwidth chart follows the same data as messages per second.
pub(super) fn curves(findings: &Findings) -> Vec<Chart> {
    let mut charts = Vec::new();
    for chart in &findings.charts {
        charts.push(chart.clone());
        if chart.section == "bandwidth" && chart.across == Across::Bytes {
            charts.push(rate(chart));
        }
    }
    charts
}

/// Converts bandwidth to messages.
fn rate(bandwidth: &Chart) -> Chart {
    let point = |(size, measure): &(u32, Measure)| {
        // MB/s divided by bytes are millions of messages per second.
        let samples = measure.samples.iter().map(|sample| sample / f64::from((*size).max(1))).collect();
        (*size, Measure { samples, ends: measure.ends.clone() })
    };
    let line = |line: &Line| Line { name: line.name.clone(), points: line.points.iter().map(point).collect() };
    Chart {
        section: "rate".to_owned(),
        title: "Message rate: the runs of the chart above, in messages".to_owned(),
        up: "millions of messages per second".to_owned(),
        unit: "M/s".to_owned(),
        across: bandwidth.across,
        lines: bandwidth.lines.iter().map(line).collect(),
    }
}

/// One of them.
pub(super) fn curve(chart: &Chart, id: &str) -> String {
    let place = |(at, measure): &(u32, Measure)| (f64::from(*at), measure.median());
    let line = |line: &Line| Drawn { name: line.name.clone(), points: line.points.iter().map(place).collect() };
    let lines = chart.lines.iter().map(line).collect();
    let (title, up) = (chart.title.clone(), chart.up.clone());
    inline(Panel { title, across: chart.across, up, lines }, id)
}

/// Ratios to the peers, if there are any.
pub(super) fn standing(contests: &[Contest], id: &str) -> Option<String> {
    let row = |contest: &Contest| {
        let (_, ratio) = contest.against?;
        let bound = |bound: &Option<super::results::Bound>| bound.as_ref().map(|bound| contest.advantage(bound.value));
        let dots = vec![Some(contest.advantage(ratio)), bound(&contest.must), bound(&contest.stretch)];
        let namesakes = contests.iter().filter(|other| other.id == contest.id && other.title == contest.title);
        let peer = match &contest.peers[..] {
            [(peer, _)] if namesakes.count() > 1 => format!(": {peer}"),
            _ => String::new(),
        };
        Some((format!("{} {}{peer}", contest.id, contest.title), dots))
    };
    let rows: Vec<_> = contests.iter().filter_map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let dots = Dots {
        title: "dapl-rs beside its peers".to_owned(),
        across: "times as good as the peer (right is better, 1 is equal)".to_owned(),
        base: 2.0,
        names: ["measured", "promised", "hoped for"].map(str::to_owned).to_vec(),
        rows,
    };
    Some(dots.inline(id))
}
