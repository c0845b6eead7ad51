//! Text, tables and layout of the HTML report around the charts.
//!
//! All text from result files is escaped by `e`.
#![forbid(unsafe_code)]

use super::charts::{curve, curves, ratios};
use super::results::{Bound, Chart, Contest, Measure, ResultFile, Section};
use crate::bench::chart::{STYLE, escaped as e};
use crate::bench::found::rounded;
use crate::bench::report::is_busy;
use crate::bench::side::CommandLines;
use crate::bench::verbs::INSTRUCTIONS;

const LOOKS: &str = include_str!("page.css");

/// Content security policy: no external resources and no scripts.
pub(super) const POLICY: &str =
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";

/// Returns the HTML of the whole page.
pub(super) fn page(sections: &[Section]) -> String {
    let parts: Vec<String> = sections.iter().map(section).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{POLICY}\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>dapl-rs: benchmarks</title>\n\
         <style>\n{LOOKS}{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>dapl-rs beside its peers</h1>\n{}{}\
         <p>Each figure is the median of its runs, ours and the peer's in turn on the same machine. Every ratio, in tables and \
         charts, is our figure over the peer's: a target \u{201c}&lt;= 1.5x\u{201d} is met at 1.5 and below, \u{201c}&gt;= 0.7x\u{201d} at \
         0.7 and above. Charts have logarithmic axes; below each are its figures, and the commands of both ends. Figures of \
         two machines, or of two days, cannot be compared.</p>\n{}</main>\n</body>\n</html>\n",
        missed(sections),
        overview(sections),
        parts.concat()
    )
}

/// Lists missed targets with their figures, or states that all measured targets were met. Empty without contests.
fn missed(sections: &[Section]) -> String {
    let contests = |section: &Section| section.findings.iter().flat_map(|findings| &findings.contests).count();
    if sections.iter().map(contests).sum::<usize>() == 0 {
        return String::new();
    }
    let mut rows = String::new();
    for section in sections {
        let all = section.findings.iter().flat_map(|findings| &findings.contests);
        for contest in all.filter(|contest| contest.is_missed()) {
            let provider = e(section.provider);
            let words = contest.target.as_ref().map_or(String::new(), |target| e(&target.words));
            let figure = contest.against.map_or_else(
                || format!("{} {}", rounded(contest.ours.median()), e(&contest.unit)),
                |(_, ratio)| format!("{}x", rounded(ratio)),
            );
            rows += &format!(
                "<li><a href=\"#{provider}-targets\">{provider}</a> {} {}{}: <span class=\"missed\">{figure}</span>, target {words}</li>\n",
                e(&contest.id),
                e(&contest.title),
                beside(contest)
            );
        }
    }
    if rows.is_empty() {
        return "<h2>Missed targets</h2>\n<p>None: every target that was measured is met.</p>\n".to_owned();
    }
    format!("<h2>Missed targets</h2>\n<ul class=\"targets\">\n{rows}</ul>\n")
}

/// Formats the peers of a contest in parentheses.
fn beside(contest: &Contest) -> String {
    let names = peer_names(contest);
    if names.is_empty() { String::new() } else { format!(" (peer: {})", e(&names.join(" | "))) }
}

fn peer_names(contest: &Contest) -> Vec<&str> {
    let mut names: Vec<&str> = contest.peers.iter().map(|(name, _)| &**name).collect();
    names.dedup();
    names
}

fn overview(sections: &[Section]) -> String {
    let row = |section: &Section| {
        let provider = e(section.provider);
        let state = match (&section.findings, &section.trouble) {
            (Some(findings), None) if findings.not_measured.is_empty() && !findings.is_quick => "measured",
            (Some(findings), None) if findings.not_measured.is_empty() => "measured with --quick: not for comparison",
            (Some(_), _) => "measured in part",
            (None, _) => "no figures; its section gives the reason",
        };
        let (met, all, date) = section.findings.as_ref().map_or((0, 0, "-"), |findings| {
            let targets = || findings.contests.iter().filter_map(|contest| contest.target.as_ref());
            let date = findings.facts.iter().find(|(name, _)| name == "date").map_or("-", |(_, value)| value);
            (targets().filter(|target| target.is_met).count(), targets().count(), date)
        });
        let met = if all > 0 { format!("{met} of {all}") } else { "-".to_owned() };
        format!(
            "<tr><th scope=\"row\"><a href=\"#{provider}\">{provider}</a></th><td>{state}</td>\
             <td class=\"number\">{met}</td><td>{}</td></tr>\n",
            e(date)
        )
    };
    let rows: String = sections.iter().map(row).collect();
    let head = heads(&["provider", "state", "targets met", "date"]);
    table("All providers", &head, &rows)
}

/// Explains how the figures of a provider were measured.
fn about(provider: &str) -> &'static str {
    match provider {
        "sm" => "Shared memory: two processes on one host, each on a processor of its own.",
        "usnic" => {
            "UDP: two processes on one host, each on a processor of its own, over the loopback interface; where packets are \
             lost, between two network namespaces."
        }
        _ => {
            "Soft-RoCE in an emulated guest. Unless its clock is time, the clock counts instructions, one per \
             nanosecond, including those of the kernel. The figures then show how much code runs, not how fast \
             hardware is."
        }
    }
}

fn section(section: &Section) -> String {
    let (provider, about) = (e(section.provider), about(section.provider));
    let trouble = section.trouble.as_deref().map_or(String::new(), trouble);
    let findings = section.findings.as_ref().map_or(String::new(), |findings| body(findings, &provider));
    let heading = format!("<h2 id=\"{provider}\">{provider}</h2>\n<p>{about}</p>\n");
    format!("<section aria-labelledby=\"{provider}\">\n{heading}{trouble}{findings}</section>\n")
}

fn trouble(text: &str) -> String {
    format!("<p class=\"trouble\">{}</p>\n", e_lines(text))
}

/// Same as `e`, but keeps line breaks.
fn e_lines(text: &str) -> String {
    text.lines().map(e).collect::<Vec<_>>().join("\n")
}

fn body(findings: &ResultFile, provider: &str) -> String {
    let mut text = facts(findings);
    text += &busy(&findings.facts).map_or(String::new(), |busy| trouble(&busy));
    if findings.is_quick {
        text += &trouble("Measured with --quick: few runs and few operations; not for comparison.");
    }
    for reason in &findings.not_measured {
        text += &trouble(&format!("Not measured: {reason}"));
    }
    if !findings.contests.is_empty() {
        text += &format!("<h3 id=\"{provider}-targets\">Targets</h3>\n");
        if let Some(svg) = ratios(&findings.contests, &format!("{provider}-ratios")) {
            text += &figure(&svg);
        }
        text += &targets(&findings.contests);
    }
    for chart in curves(findings) {
        text += &format!("<h3>{}</h3>\n", e(&chart.title));
        text += &figure(&curve(&chart, &format!("{provider}-{}", chart.section.replace(' ', "-"))));
        text += &medians(&chart);
        text += &everything(&chart);
    }
    text
}

/// Warning, if the load shows that other programs used the machine. `None` if instructions were counted, because load
/// does not affect them.
fn busy(facts: &[(String, String)]) -> Option<String> {
    let fact = |name| facts.iter().find(|(one, _)| one == name).map(|(_, value)| &**value);
    let load = fact("load before").filter(|load| load.parse().is_ok_and(is_busy))?;
    let warning =
        format!("Other programs used the machine when the run began (load {load}): do not compare these figures.");
    (fact("guest clock") != Some(INSTRUCTIONS)).then_some(warning)
}

fn figure(svg: &str) -> String {
    // Focusable, so that the keyboard can scroll the chart in a narrow window.
    format!("<figure><div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"chart\">\n{svg}</div></figure>\n")
}

fn table(caption: &str, head: &str, rows: &str) -> String {
    let caption = e(caption);
    format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"{caption}\">\n<table>\n<caption>{caption}</caption>\n\
         <thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    )
}

fn heads(names: &[&str]) -> String {
    names.iter().map(|name| format!("<th scope=\"col\">{}</th>", e(name))).collect()
}

fn facts(findings: &ResultFile) -> String {
    let fact = |(name, value): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>\n", e(name), e(value));
    format!("<dl class=\"facts\">\n{}</dl>\n", findings.facts.iter().map(fact).collect::<String>())
}

fn targets(contests: &[Contest]) -> String {
    let head = heads(&[
        "",
        "measurement",
        "unit",
        "ours",
        "peer's",
        "peer",
        "ours / peer's",
        "target",
        "result",
        "stretch target",
        "commands",
    ]);
    table("Targets and measured figures", &head, &contests.iter().map(target_row).collect::<String>())
}

fn target_row(contest: &Contest) -> String {
    let result = match (&contest.target, &contest.stretch) {
        (Some(Bound { is_met: true, .. }), Some(Bound { is_met: true, .. })) => {
            "<span class=\"met\">stretch target met</span>"
        }
        (Some(Bound { is_met: true, .. }), _) => "<span class=\"met\">met</span>",
        (Some(_), _) => "<span class=\"missed\">missed</span>",
        (None, _) => "no target",
    };
    let bound = |bound: &Option<Bound>| bound.as_ref().map_or("-".to_owned(), |bound| e(&bound.words));
    let names = peer_names(contest);
    let peer = match (&contest.peers[..], contest.against) {
        ([], _) | (_, None) => "-".to_owned(),
        ([(_, measure)], _) => with_spread(measure),
        (_, Some((figure, _))) => format!("{}<br><small>the best of each round</small>", rounded(figure)),
    };
    let ratio = contest.against.map_or("-".to_owned(), |(_, ratio)| format!("{}x", rounded(ratio)));
    let mut ends = vec![("ours".to_owned(), &contest.ours)];
    ends.extend(contest.peers.iter().map(|(name, measure)| (name.clone(), measure)));
    let place = contest.place.as_ref().map_or(String::new(), |place| format!("<p><small>on {}</small></p>", e(place)));
    format!(
        "<tr><th scope=\"row\">{}</th><td class=\"what\">{}</td><td>{}</td><td class=\"number\">{}</td>\
         <td class=\"number\">{peer}</td><td>{}</td><td class=\"number\">{ratio}</td><td>{}</td><td>{result}</td><td>{}</td>\
         <td class=\"commands\"><details><summary>both sides</summary>{place}{}</details></td></tr>\n",
        e(&contest.id),
        e(&contest.title),
        e(&contest.unit),
        with_spread(&contest.ours),
        if names.is_empty() { "none".to_owned() } else { e(&names.join(" | ")) },
        bound(&contest.target),
        bound(&contest.stretch),
        ends.iter().map(|(name, measure)| commands(name, measure)).collect::<String>()
    )
}

/// Formats the median and the range of the runs.
fn with_spread(measure: &Measure) -> String {
    let (low, high) = measure.spread();
    let runs = measure.samples.len();
    let spread =
        if runs == 1 { "1 run".to_owned() } else { format!("{}\u{2013}{}, {runs} runs", rounded(low), rounded(high)) };
    format!("{}<br><small>{spread}</small>", rounded(measure.median()))
}

fn commands(name: &str, measure: &Measure) -> String {
    let CommandLines { server, client } = &measure.ends;
    format!("<p>{0}, server: <code>{1}</code></p><p>{0}, client: <code>{2}</code></p>", e(name), e(server), e(client))
}

/// Formats the data of a chart as a table.
fn medians(chart: &Chart) -> String {
    let names: Vec<&str> = chart.lines.iter().map(|line| &*line.name).collect();
    let row = |place: u32| {
        let cell = |measure: Option<&Measure>| {
            format!("<td class=\"number\">{}</td>", measure.map_or("-".to_owned(), with_spread))
        };
        let cells =
            chart.lines.iter().map(|line| cell(line.points.iter().find(|(at, _)| *at == place).map(|(_, m)| m)));
        let place = e(&chart.across.tick(f64::from(place)));
        format!("<tr><th scope=\"row\">{place}</th>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = chart.places().into_iter().map(row).collect();
    table(&format!("{}, {}", chart.title, chart.unit), &heads(&[&[chart.across.unit()], &names[..]].concat()), &rows)
}

/// Formats a table of figures with their commands.
fn everything(chart: &Chart) -> String {
    let mut rows = String::new();
    for line in &chart.lines {
        for (at, measure) in &line.points {
            rows += &format!(
                "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{} {}</td>\
                 <td class=\"commands\"><code>{}</code></td><td class=\"commands\"><code>{}</code></td></tr>\n",
                e(&line.name),
                e(&chart.across.tick(f64::from(*at))),
                rounded(measure.median()),
                e(&chart.unit),
                e(&measure.ends.server),
                e(&measure.ends.client)
            );
        }
    }
    let table = table("Commands", &heads(&["", chart.across.unit(), "median", "server", "client"]), &rows);
    format!("<details><summary>Commands of these figures</summary>\n{table}</details>\n")
}
