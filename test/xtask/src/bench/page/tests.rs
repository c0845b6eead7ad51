//! Tests of the page, generated from example files in the format of the benches: charts, tables, missed targets,
//! missing results, and escaped text.

mod chromium;
mod drawn;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::html::{POLICY, page};
use super::results::{Failed, PROVIDERS, ResultFile, Section, of_files, parse};
use crate::bench::side::Effort;
use crate::bench::{found, sm, usnic, verbs};

/// Example result files of the three benches.
fn files() -> [String; 3] {
    let sm = found::example::results(&sm::BENCH, sm::lists(Effort::FULL), &["S1: <gone> & \"lost\""]);
    let usnic = found::example::results(&usnic::BENCH, usnic::lists(Effort::FULL), &[]);
    [sm, usnic, verbs::example::results()]
}

fn findings(text: &str) -> ResultFile {
    parse(text).unwrap_or_else(|reason| panic!("{reason}\n{text}"))
}

/// Sections of all three providers, from the example files. No bench has failed as a whole.
fn sections() -> Vec<Section> {
    let section =
        |(provider, text): (&'static str, String)| Section { provider, trouble: None, findings: Some(findings(&text)) };
    PROVIDERS.into_iter().zip(files()).map(section).collect()
}

/// A temporary directory, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(of: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("xtask-page-{process}-{next}-{of}"));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that cannot be removed is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_provider_has_its_charts() {
    let sections = sections();
    let charts = |n: usize| {
        let findings: &ResultFile = sections[n].findings.as_ref().unwrap();
        super::charts::curves(findings).into_iter().map(|chart| chart.section).collect::<Vec<_>>()
    };
    assert_eq!(
        charts(0),
        [
            "latency",
            "bandwidth",
            "rate",
            "percentiles",
            "wait-percentiles",
            "connections",
            "connects",
            "memory",
            "senders"
        ]
    );
    assert_eq!(
        charts(1),
        [
            "latency",
            "bandwidth",
            "rate",
            "loss",
            "percentiles",
            "wait-percentiles",
            "connections",
            "connects",
            "memory"
        ]
    );
    assert_eq!(charts(2), ["latency", "bandwidth", "rate", "connects"]);
    let page = page(&sections);
    for id in ["sm-ratios", "sm-latency", "usnic-loss", "verbs-ratios", "verbs-connects"] {
        assert_eq!(page.matches(&format!("<svg class=\"chart\" id=\"{id}\"")).count(), 1, "{id}");
    }
    let described = page.matches("<desc id=").count();
    assert_eq!((described, described), (page.matches("<svg ").count(), page.matches("<title id=").count()));
}

#[test]
fn row_of_the_bench_page_has_peer_target_and_commands() {
    let page = page(&sections());
    for text in [
        "<th scope=\"row\">S1</th><td class=\"what\">8 B ping-pong, polling</td><td>us</td>",
        "3.00<br><small>2.62\u{2013}3.38, 3 runs</small></td>",
        "4.00<br><small>3.50\u{2013}4.50, 3 runs</small></td><td>ucx_perftest</td>",
        "<code>taskset -c 0 perf -s -P sm0 lat 8 1000000</code>",
        "<code>taskset -c 1 perf -h localhost -P sm0 lat 8 1000000</code>",
        "<code>taskset -c 1 env UCX_TLS=posix,cma,self ucx_perftest localhost -t tag_lat -s 8 -n 1000000 -w 10000</code>",
        "<td><span class=\"missed\">missed</span>",
        "on two network namespaces, 1 % of packets lost either way",
        "<code>taskset -c 1 iperf3 -t 4 -C cubic -c 192.0.2.1</code>",
        "fi_pingpong -p &#39;udp;ofi_rxd&#39; -e rdm -S 64 -I 50000 localhost",
        "<td class=\"what\">64 B messages, there and back</td><td>us</td>",
        "<td>2.0 reference</td>",
        ">V1 64 B messages, there and back: 2.0 reference \u{2190}</text>",
        ">S1 8 B ping-pong, polling \u{2190}</text>",
        "<code>perftest -h there</code>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    let lists = sm::lists(Effort::FULL);
    let [target, stretch] =
        lists.contests.iter().find(|contest| contest.id == "S1").map_or([None; 2], |s1| [s1.must, s1.stretch]);
    let row = format!(
        "<td class=\"number\">0.750x</td><td>&lt;= {}x</td><td><span class=\"met\">{}</span></td><td>&lt;= {}x</td>",
        target.unwrap(),
        if stretch >= Some(0.75) { "stretch target met" } else { "met" },
        stretch.unwrap()
    );
    assert!(page.contains(&row), "{row}");
    // A target for this project's figure, without a peer.
    assert!(page.contains("<td>none</td>") && page.contains("&lt; 100 ms"));
    let facts = ["date", "commit", "cpu", "processors", "kernel", "load before", "ucx-utils", "guest clock"];
    facts.iter().for_each(|fact| assert!(page.contains(&format!("<dt>{fact}</dt><dd>")), "{fact}"));
}

/// The first cells of a table's rows, in order.
fn row_heads(page: &str, caption: &str) -> Vec<String> {
    let (_, table) =
        page.split_once(&format!("<caption>{caption}</caption>")).expect("the page has a table with this caption");
    let (table, _) = table.split_once("</table>").unwrap();
    let heads = table.split("<th scope=\"row\">").skip(1);
    heads.map(|rest| rest.split_once("</th>").unwrap().0.to_owned()).collect()
}

#[test]
fn rows_of_the_bench_page_are_in_numeric_order() {
    for section in sections() {
        let ids = row_heads(&page(&[section]), "Targets and measured figures");
        let mut sorted = ids.clone();
        sorted.sort_by_key(|id| found::order(id));
        assert_eq!(ids, sorted);
        let numbered = ids.iter().filter(|id| id.ends_with(|c: char| c.is_ascii_digit())).count();
        assert!(ids[..numbered].iter().all(|id| id.ends_with(|c: char| c.is_ascii_digit())), "{ids:?}");
    }
    let shuffled = files()[2].replace("\"id\": \"V2\"", "\"id\": \"V21\"");
    let section = Section { provider: "verbs", trouble: None, findings: Some(findings(&shuffled)) };
    assert_eq!(row_heads(&page(&[section]), "Targets and measured figures").last().unwrap(), "V21");
}

#[test]
fn ratios_are_own_figure_over_peer_figure() {
    for section in sections() {
        let findings = section.findings.as_ref().unwrap();
        for contest in &findings.contests {
            let Some((peer, ratio)) = contest.against else { continue };
            assert!((ratio - contest.ours.median() / peer).abs() < 1e-9, "{}", contest.id);
            if let Some(target) = &contest.target {
                let is_met = if contest.less_is_better { ratio <= target.value } else { ratio >= target.value };
                assert_eq!(is_met, target.is_met, "{}", contest.id);
                assert!(target.words.starts_with(if contest.less_is_better { "<=" } else { ">=" }), "{}", target.words);
            }
        }
        // The shaded range is to the left of the target if lower is better, otherwise to its right.
        let chart = super::charts::ratios(&findings.contests, "x")
            .expect("the chart exists because the findings contain peers");
        let rects = chart.split("<rect class=\"permitted\" x=\"").skip(1);
        let lefts: Vec<&str> = rects.map(|rest| rest.split_once('"').unwrap().0).collect();
        let with_target =
            || findings.contests.iter().filter(|contest| contest.against.is_some() && contest.target.is_some());
        assert_eq!(lefts.len(), with_target().count());
        let edge = lefts.iter().copied().min_by(|a, b| a.parse::<f64>().unwrap().total_cmp(&b.parse().unwrap()));
        for (left, contest) in lefts.iter().zip(with_target()) {
            assert_eq!(Some(*left) == edge, contest.less_is_better, "{} {}", contest.id, contest.title);
        }
    }
}

#[test]
fn bench_page_names_missed_targets_first() {
    let sections = sections();
    let page = page(&sections);
    let (first, rest) = page.split_once("<caption>All providers</caption>").unwrap();
    let missed: Vec<_> = sections
        .iter()
        .flat_map(|section| &section.findings.as_ref().unwrap().contests)
        .filter(|contest| contest.is_missed())
        .collect();
    assert!(!missed.is_empty() && first.contains("<h2>Missed targets</h2>"));
    assert_eq!(first.matches("<li>").count(), missed.len());
    assert!(missed.iter().all(|contest| first.contains(&format!("</a> {} ", contest.id))));
    assert!(!rest.contains("Missed targets"));
    let mut met = super::tests::sections();
    for section in &mut met {
        section.findings.as_mut().unwrap().contests.retain(|contest| !contest.is_missed());
    }
    assert!(super::html::page(&met).contains("None: every target that was measured is met."));
    let none = Section { provider: "sm", trouble: None, findings: None };
    assert!(!super::html::page(&[none]).contains("Missed targets"), "a page without measurements lists missed targets");
}

#[test]
fn load_of_a_busy_machine_is_shown_for_timed_results_only() {
    let loaded = |file: &str| {
        let findings = findings(&file.replace("\"load_before\": 0.0,", "\"load_before\": 7.5,"));
        page(&[Section { provider: "sm", trouble: None, findings: Some(findings) }])
            .matches("used the machine when the run began (load 7.5)")
            .count()
    };
    let [sm, _, verbs] = files();
    assert_eq!((loaded(&sm), loaded(&verbs)), (1, 0), "a load is shown although instructions are counted");
    assert_eq!(loaded(&verbs.replace("a nanosecond per instruction", "time")), 1);
    assert!(!page(&sections()).contains("used the machine when the run began"));
}

#[test]
fn the_message_rate_is_the_bandwidth_over_the_size() {
    let sm = findings(&files()[0]);
    let charts = super::charts::curves(&sm);
    let [bandwidth, rate] =
        ["bandwidth", "rate"].map(|name| charts.iter().find(|chart| chart.section == name).unwrap());
    let median = |chart: &super::results::Chart| chart.lines[1].points[3].1.median();
    assert_eq!(rate.lines[1].points[3].0, 64);
    assert_eq!(median(rate), median(bandwidth) / 64.0);
}

#[test]
fn bench_page_names_missing_results() {
    let scratch = Scratch::new("missing");
    let [sm, usnic, _] = files();
    fs::write(scratch.0.join("sm.json"), sm).unwrap();
    fs::write(scratch.0.join("usnic.json"), usnic).unwrap();
    let failed = |has_written| [Failed { provider: "usnic", reason: "no <wire>".to_owned(), has_written }];
    let fresh = of_files(&scratch.0, &failed(true));
    assert!(fresh[0].findings.is_some() && fresh[0].trouble.is_none());
    assert!(fresh[1].findings.is_some() && fresh[2].findings.is_none());
    let whole = page(&fresh);
    assert!(whole.contains("<p class=\"trouble\">The bench failed: no &lt;wire&gt;</p>"), "{whole}");
    assert!(whole.contains("verbs.json; run cargo xtask bench verbs"));
    assert!(whole.contains("Not measured: S1: &lt;gone&gt; &amp; &quot;lost&quot;"));
    // Result files older than the failed run are not used.
    let stale = of_files(&scratch.0, &failed(false));
    assert!(stale[1].findings.is_none());
    assert!(!page(&stale).contains("id=\"usnic-latency\""));
    fs::write(scratch.0.join("sm.json"), "{\"machine\": {}, \"contests\": [{}]").unwrap();
    let broken = of_files(&scratch.0, &[]);
    let trouble = broken[0].trouble.as_ref().unwrap();
    assert!(trouble.contains("sm.json is not understood") && trouble.ends_with("cargo xtask bench sm writes it anew"));
}

#[test]
fn result_file_without_a_field_is_rejected_with_the_field_name() {
    let [sm, _, verbs] = files();
    parse(&sm).unwrap();
    for (lacks, reason) in [
        ("\"samples\": [", "\"samples\": invalid type: null, expected a sequence"),
        ("\"client\": ", "\"client\": invalid type: null, expected a string"),
        ("\"across\": ", "\"across\": invalid type: null, expected a string"),
        ("\"promise\": ", "\"promise\": invalid type: null, expected a string"),
        ("\"quick\": ", "\"quick\": invalid type: null, expected a boolean"),
    ] {
        let error = parse(&sm.replace(lacks, &lacks.replacen('"', "\"un", 1))).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    assert!(
        parse(&compact(&sm).replace("[3.375,3.0,2.625]", "[]")).unwrap_err().contains("samples of a figure is empty")
    );
    assert!(parse(&sm.replace("\"across\": \"senders\"", "\"across\": \"sea\"")).unwrap_err().contains("\"sea\""));
    assert!(parse(&sm.replace("\"across\": \"senders\"", "\"across\": 7")).is_err());
    assert!(parse(&verbs.replace("\"kept_over_perftest\"", "\"left\"")).unwrap_err().starts_with("V1: "));
    assert!(parse("").is_err() && parse("[]").is_err());
}

fn compact(text: &str) -> String {
    serde_json::from_str::<serde_json::Value>(text).unwrap().to_string()
}

#[test]
fn text_of_a_result_file_is_escaped_in_the_page() {
    let evil = "</title><script>alert(1)</script>\\\"' onload=x & {";
    let mut sections = sections();
    for text in files() {
        for name in ["title", "unit", "name", "what", "server", "client", "id", "program", "up", "cpu", "promise"] {
            let parts: Vec<&str> = text.split(&format!("\"{name}\": \"")).collect();
            let mut bad = parts[0].to_owned();
            for part in &parts[1..] {
                let rest = part.split_once("\"").unwrap().1;
                // A quoted string that contains escaped quotes is left unchanged.
                bad += &match part.split_once('"').unwrap().0.ends_with('\\') {
                    true => format!("\"{name}\": \"{part}"),
                    false => format!("\"{name}\": \"{evil}\"{rest}"),
                };
            }
            sections.push(Section { provider: "sm", trouble: Some(evil.to_owned()), findings: Some(findings(&bad)) });
        }
    }
    let page = page(&sections);
    assert!(!page.contains("<script") && !page.contains("\" onload") && !page.contains("' onload"));
    assert!(page.matches("&lt;script&gt;alert(1)&lt;/script&gt;").count() > 100);
}

#[test]
fn bench_page_is_self_contained() {
    let page = page(&sections());
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains(POLICY));
    for foreign in ["http:", "https:", "src=", "url(", "@import", "<link", "<script", "<img", "<iframe", "javascript:"]
    {
        assert!(!page.contains(foreign), "{foreign}");
    }
    let targets: Vec<&str> = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let expected = ["#sm", "#sm-targets", "#usnic", "#usnic-targets", "#verbs"];
    assert_eq!(targets.iter().copied().collect::<BTreeSet<_>>(), BTreeSet::from(expected));
    targets.iter().for_each(|target| assert!(page.contains(&format!("id=\"{}\"", &target[1..])), "{target}"));
    let ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let unique: BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len());
}

#[test]
fn a_bench_that_fails_does_not_stop_the_others() {
    static HERE: OnceLock<Scratch> = OnceLock::new();
    let here = &HERE.get_or_init(|| Scratch::new("measure")).0;
    let panics: super::Bench = ("usnic", |_| panic!("the compiler said: no"));
    let writes_in_part: super::Bench = ("verbs", |_| {
        fs::write(HERE.get().unwrap().0.join("verbs.json"), "{}").unwrap();
        Err("V1: gone".to_owned())
    });
    let is_quick: super::Bench =
        ("sm", |selection| if selection.quick && selection.names.is_empty() { Ok(()) } else { Err("slow".to_owned()) });
    fs::write(here.join("usnic.json"), "of yesterday").unwrap();
    let failed = super::measure(&[panics, writes_in_part, is_quick], true, here);
    let failed: Vec<_> = failed.iter().map(|one| (one.provider, &*one.reason, one.has_written)).collect();
    assert_eq!(failed, [("usnic", "the compiler said: no", false), ("verbs", "V1: gone", true)]);
    fs::remove_dir_all(here).unwrap();
}

#[test]
fn bench_page_command_fails_without_results() {
    let scratch = Scratch::new("command");
    let from = || Some(scratch.0.clone());
    assert!(super::report(from(), None).unwrap_err().contains("has no results"));
    fs::write(scratch.0.join("verbs.json"), &files()[2]).unwrap();
    super::report(from(), None).unwrap();
    let output = scratch.0.join("deep/page.html");
    super::report(from(), Some(output.clone())).unwrap();
    let page = fs::read_to_string(scratch.0.join("report.html")).unwrap();
    assert_eq!(page, fs::read_to_string(output).unwrap());
    assert!(page.contains("id=\"verbs-latency\"") && page.contains("there is no "));
}
