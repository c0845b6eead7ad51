//! Counters for monitoring systems, in the text format of OpenMetrics 1.0.
//!
//! A value that only grows becomes a counter, a level becomes a gauge. The values of one name form a family for
//! adapters and one for endpoints, with a sample per object. Endpoints have samples on request only: endpoints are
//! short-lived, and a monitoring system stores every label set permanently. This module does no I/O.
//!
//! The queried processes supply names and label values; the text is valid whatever they contain. A duplicate sample is
//! omitted. So is a counter whose family consists of gauges, and a gauge whose family consists of counters.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use dat_counters::text::{Adapter, Count};

use super::Sample;

/// Suffixes of sample names in OpenMetrics, which the name of a family must not have.
const RESERVED: [&str; 8] = ["_total", "_created", "_count", "_sum", "_bucket", "_gcount", "_gsum", "_info"];

/// Formats the counters of all adapters, and with `with_endpoints` also those of each endpoint.
pub(super) fn exposition(sample: &Sample, with_endpoints: bool) -> String {
    let mut families = Families::default();
    for found in &sample.found {
        let process = Labels::default().with("pid", &found.pid.to_string()).with("library", &found.number.to_string());
        let answered = u64::from(found.result.is_ok());
        families.level(
            "dapl_process_answered",
            "whether a process that publishes its counters answers",
            &process,
            answered,
        );
        let Ok(counters) = &found.result else { continue };
        let process = process.with("program", &counters.program);
        counters.adapters.iter().for_each(|it| families.adapter(it, &process, with_endpoints));
    }
    families.text()
}

/// Labels with their values as OpenMetrics text, separated by commas.
#[derive(Clone, Debug, Default)]
struct Labels(String);

impl Labels {
    fn with(&self, name: &str, value: &str) -> Self {
        let comma = if self.0.is_empty() { "" } else { "," };
        Labels(format!("{}{comma}{name}=\"{}\"", self.0, escaped(value)))
    }
}

/// Escapes a label value or a help text.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[derive(Debug)]
struct Family {
    help: String,
    is_level: bool,
    /// Label sets of the samples, to detect duplicates.
    known: HashSet<String>,
    samples: String,
}

#[derive(Debug, Default)]
struct Families(BTreeMap<String, Family>);

impl Families {
    fn adapter(&mut self, adapter: &Adapter, process: &Labels, with_endpoints: bool) {
        let labels =
            process.with("adapter", &adapter.name).with("provider", &adapter.provider).with("ia", &adapter.handle);
        if with_endpoints {
            self.level(
                "dapl_ia_endpoints_left_out",
                "endpoints of an adapter for which samples are left out",
                &labels,
                adapter.left_out,
            );
        }
        adapter.counts.iter().for_each(|count| self.count("ia", "an adapter", &labels, count));
        for ep in adapter.eps.iter().filter(|_| with_endpoints) {
            let labels = labels.with("ep", &ep.handle);
            self.level("dapl_ep_state", "1 for the state that an endpoint is in", &labels.with("state", &ep.state), 1);
            ep.counts.iter().for_each(|count| self.count("ep", "an endpoint", &labels, count));
        }
    }

    fn count(&mut self, object: &str, whose: &str, labels: &Labels, count: &Count) {
        let Count { name, unit, value, is_level } = count;
        let unit_shown = if unit.is_empty() { String::new() } else { format!(", {unit}") };
        let help = format!("\"{name}\" of {whose}{unit_shown}");
        self.add(&format!("dapl_{object}_{}", family(name, unit)), &help, *is_level, labels, *value);
    }

    fn level(&mut self, name: &str, help: &str, labels: &Labels, value: u64) {
        self.add(name, help, true, labels, value);
    }

    fn add(&mut self, name: &str, help: &str, is_level: bool, labels: &Labels, value: u64) {
        let fresh = || Family { help: help.to_owned(), is_level, known: HashSet::new(), samples: String::new() };
        let family = self.0.entry(name.to_owned()).or_insert_with(fresh);
        if family.is_level == is_level && family.known.insert(labels.0.clone()) {
            let total = if is_level { "" } else { "_total" };
            // Writing to a string does not fail.
            let _ = writeln!(family.samples, "{name}{total}{{{}}} {value}", labels.0);
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { help, is_level, samples, .. }) in &self.0 {
            let kind = if *is_level { "gauge" } else { "counter" };
            let _ = write!(text, "# TYPE {name} {kind}\n# HELP {name} {}\n{samples}", escaped(help));
        }
        text + "# EOF\n"
    }
}

/// Converts a name and its unit to a valid name of a family.
fn family(name: &str, unit: &str) -> String {
    let mut name = words(name);
    let unit = words(&unit.replace("/s", " per second"));
    if !unit.is_empty() && !name.split('_').any(|word| word == unit) {
        name = format!("{name}_{unit}");
    }
    while let Some(shorter) = RESERVED.iter().find_map(|end| format!("_{name}").strip_suffix(end).map(str::to_owned)) {
        name = shorter.trim_matches('_').to_owned();
    }
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Converts a text to lower-case words of letters and digits, joined by underscores.
fn words(text: &str) -> String {
    let is_word = |letter: char| letter.is_ascii_alphanumeric();
    let words: Vec<&str> = text.split(|letter| !is_word(letter)).filter(|word| !word.is_empty()).collect();
    words.join("_").to_ascii_lowercase()
}

#[cfg(test)]
mod grammar_tests;

#[cfg(test)]
mod tests {
    use dat_counters::reader::{PublishedProcess, ReadError};

    use super::super::table::tests::{count, sample_at};
    use super::*;

    #[test]
    fn sums_are_openmetrics_counters_and_levels_are_gauges() {
        let window = Count { is_level: true, unit: "bytes".into(), ..count("window", 9) };
        let sample = sample_at(0, 7, &[count("ep.posts.send", 5), window]);
        let text = exposition(&sample, true);
        let labels =
            "pid=\"7\",library=\"0\",program=\"a program of many letters\",adapter=\"sm0\",provider=\"sm\",ia=\"0x30\"";
        let wanted = [
            "# TYPE dapl_ia_ep_posts_send counter".to_owned(),
            "# HELP dapl_ia_ep_posts_send \\\"ep.posts.send\\\" of an adapter".to_owned(),
            format!("dapl_ia_ep_posts_send_total{{{labels}}} 5"),
            "# TYPE dapl_ia_window_bytes gauge".to_owned(),
            "# HELP dapl_ia_window_bytes \\\"window\\\" of an adapter, bytes".to_owned(),
            format!("dapl_ia_window_bytes{{{labels}}} 9"),
            "# TYPE dapl_process_answered gauge".to_owned(),
        ];
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.windows(wanted.len()).any(|some| some == wanted), "{text}");
        assert!(text.contains(&format!("dapl_ep_connects_total{{{labels},ep=\"0x40\"}} 1\n")), "{text}");
        assert!(text.contains(&format!("dapl_ep_state{{{labels},ep=\"0x40\",state=\"Connected\"}} 1\n")), "{text}");
        assert!(text.ends_with("dapl_process_answered{pid=\"7\",library=\"0\"} 1\n# EOF\n"), "{text}");
    }

    #[test]
    fn endpoint_metrics_are_written_only_on_request() {
        let text = exposition(&sample_at(0, 7, &[count("ep.posts.send", 5)]), false);
        assert!(text.contains("dapl_ia_ep_posts_send_total{"), "{text}");
        assert!(!text.contains("dapl_ep_") && !text.contains("left_out"), "{text}");
        assert_eq!(grammar_tests::samples(&text), Ok(2), "{text}");
    }

    #[test]
    fn openmetrics_family_names_never_end_with_a_sample_suffix() {
        let cases = [
            ("sent bytes", "bytes", "sent_bytes"),
            ("bytes.sent", "bytes", "bytes_sent"),
            ("rate", "bytes/s", "rate_bytes_per_second"),
            ("round trip", "ns", "round_trip_ns"),
            ("evd.0x7F.waits", "", "evd_0x7f_waits"),
            ("total", "", "unnamed"),
            ("a_total_total", "", "a"),
            ("a created", "", "a"),
            ("\u{e4}\u{4e2d}", "", "unnamed"),
            ("", "\u{e4}", "unnamed"),
        ];
        cases.into_iter().for_each(|(name, unit, wanted)| assert_eq!(family(name, unit), wanted, "{name:?}"));
    }

    #[test]
    fn openmetrics_text_is_valid_for_special_names_and_failed_queries() {
        let mut sample =
            sample_at(0, 7, &[count("a b", 1), count("a.b", 2), count("endpoints left out", 3), count("x", 4)]);
        let mut other = super::super::table::tests::sample_at(
            0,
            8,
            &[Count { is_level: true, ..count("x", 5) }, count("\"\n}", 1)],
        );
        let text = other.found[0].result.as_mut().unwrap();
        text.program = "\"}\\\n# EOF".into();
        sample.found.append(&mut other.found);
        sample.found.push(PublishedProcess { pid: 9, number: 1, program: None, result: Err(ReadError::Incomplete) });
        let text = exposition(&sample, true);
        assert!(text.contains("program=\"\\\"}\\\\\\n# EOF\""), "{text}");
        assert!(text.contains("dapl_ia_a_b_total{") && text.matches("dapl_ia_a_b_total{").count() == 1, "{text}");
        assert!(text.contains("dapl_process_answered{pid=\"9\",library=\"1\"} 0\n"), "{text}");
        assert_eq!(text.matches("\n# TYPE dapl_ia_x ").count(), 1, "{text}");
        assert!(!text.contains("dapl_ia_x{") && !text.contains("dapl_ia_endpoints_left_out_total"), "{text}");
        assert_eq!(grammar_tests::samples(&text), Ok(12), "{text}");
    }
}
