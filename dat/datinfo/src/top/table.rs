//! The table for display: one line per adapter, and one per process that could not be read. With `-v` also each value
//! that is not 0.
//!
//! Pure functions that convert a sample to lines. `--once` shows totals. The periodic display shows rates per second in
//! the columns SENT to DONE, and `-` for each rate until there is a previous sample.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::time::Duration;

use dat_counters::reader::PublishedProcess;
use dat_counters::text::{Adapter, Count, Process};

use super::Sample;
use super::rates::{CounterId, Rates};

/// The columns SENT to DONE. Each shows the sum of these counters of an adapter.
const COLUMNS: [(&str, &[&str]); 5] = [
    ("SENT", &["ep.bytes.sent"]),
    ("RECEIVED", &["ep.bytes.received"]),
    ("READ", &["ep.bytes.read"]),
    ("WRITTEN", &["ep.bytes.written"]),
    ("DONE", &["ep.completions.ok", "ep.completions.failed", "ep.completions.flushed"]),
];

/// Returns the lines of the table, with newlines. `rates`: the rates since the previous sample, and the interval.
pub(super) fn table(sample: &Sample, rates: Option<(&Rates, Duration)>, verbose: bool) -> Vec<String> {
    let [processes, adapters, eps] = sample.totals();
    let mut lines = vec![format!("{processes} processes, {adapters} adapters, {eps} endpoints")];
    if let Some((_, interval)) = rates {
        let _ = write!(lines[0], "; every {} s, rates per second", interval.as_secs_f64());
    }
    let rates = rates.map(|(rates, _)| rates);
    if sample.found.is_empty() {
        lines.push(
            "no process of this user publishes counters: none has an endpoint, an SRQ or a listener, or DAPL_COUNTERS \
             is off"
                .to_owned(),
        );
    } else if adapters > 0 {
        lines.push(head(rates.is_some()));
    }
    for found in &sample.found {
        match &found.result {
            Ok(process) => process.adapters.iter().for_each(|adapter| {
                lines.push(row(found, process, adapter, rates));
                if verbose {
                    all(&CounterId::of_adapter(found, adapter), adapter, rates, &mut lines);
                }
            }),
            Err(trouble) => {
                let program = truncated(found.program.as_deref().unwrap_or("-"), 15);
                lines.push(format!("{:>9}  {program:<15}  {trouble}", found.pid));
            }
        }
    }
    lines.iter_mut().for_each(|line| line.push('\n'));
    lines
}

fn head(by_second: bool) -> String {
    let mut line = format!("{:>9}  {:<15}  {:<15}  {:>5}", "PID", "PROGRAM", "ADAPTER", "EPS");
    for (name, _) in COLUMNS {
        let unit = if by_second { "/s" } else { "" };
        let _ = write!(line, "  {:>10}", format!("{name}{unit}"));
    }
    line + "  FAILED"
}

fn row(found: &PublishedProcess, process: &Process, adapter: &Adapter, rates: Option<&Rates>) -> String {
    let id = CounterId::of_adapter(found, adapter);
    let of = |name: &str| adapter.counts.iter().find(|count| count.name == name);
    let number = |name: &str| of(name).map_or("-".to_owned(), |count| short(count.value as f64));
    let (program, name) = (truncated(&process.program, 15), truncated(&adapter.name, 15));
    let mut line = format!("{:>9}  {program:<15}  {name:<15}  {:>5}", found.pid, number("alive.ep"));
    for (_, names) in COLUMNS {
        let value = |name: &&str| match rates {
            Some(rates) => of(name).and_then(|count| rates.of(&id, count)),
            None => of(name).map(|count| count.value as f64),
        };
        // An unknown value makes the sum unknown.
        let sum: Option<f64> = names.iter().map(value).sum();
        let _ = write!(line, "  {:>10}", sum.map_or("-".to_owned(), short));
    }
    let _ = write!(line, "  {:>6}", number("ep.completions.failed"));
    line
}

/// Appends a line for each value of an adapter and its endpoints that is not 0.
fn all(id: &CounterId, adapter: &Adapter, rates: Option<&Rates>, lines: &mut Vec<String>) {
    numbers(id, &adapter.counts, rates, 11, lines);
    for ep in &adapter.eps {
        lines.push(format!("{:11}endpoint {} {}", "", ep.handle, ep.state));
        numbers(&id.of_ep(ep), &ep.counts, rates, 13, lines);
    }
    if adapter.left_out > 0 {
        lines.push(format!("{:11}and {} endpoints that are not listed", "", adapter.left_out));
    }
}

fn numbers(id: &CounterId, counts: &[Count], rates: Option<&Rates>, indent: usize, lines: &mut Vec<String>) {
    for count in counts.iter().filter(|count| count.value > 0) {
        let mut line = format!("{:indent$}{:<28}  {:>20}", "", count.name, count.value);
        if !count.unit.is_empty() {
            let _ = write!(line, " {}", count.unit);
        }
        if let Some(rate) = rates.and_then(|rates| rates.of(id, count)) {
            let _ = write!(line, "  {}/s", short(rate));
        }
        lines.push(line);
    }
}

/// Formats a number with at most three digits and a decimal prefix: `999`, `1.23k`, `45.6M`.
fn short(number: f64) -> String {
    let mut rest = number.max(0.0);
    let mut names = ["", "k", "M", "G", "T", "P", "E"].into_iter();
    let mut name = names.next().unwrap_or_default();
    // From 999.5 on, the value would be printed as 1000.
    while rest >= 999.5 {
        let Some(next) = names.next() else { break };
        (rest, name) = (rest / 1000.0, next);
    }
    let digits = match rest {
        _ if name.is_empty() && rest.fract() == 0.0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{rest:.digits$}{name}")
}

/// Truncates a text to `most` characters; the last one is then `~`.
fn truncated(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['~']).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;
    use std::time::{Instant, SystemTime};

    use dat_counters::reader::ReadError;
    use dat_counters::text::Endpoint;

    use super::*;

    pub(in super::super) fn count(name: &str, value: u64) -> Count {
        Count { name: name.into(), value, ..Count::default() }
    }

    /// A sample at this second, with one process that has one adapter and one endpoint.
    pub(in super::super) fn sample_at(second: u64, pid: u32, counts: &[Count]) -> Sample {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let ep = Endpoint { handle: "0x40".into(), state: "Connected".into(), counts: vec![count("connects", 1)] };
        let adapter = Adapter {
            name: "sm0".into(),
            provider: "sm".into(),
            handle: "0x30".into(),
            counts: counts.to_vec(),
            eps: vec![ep],
            left_out: 2,
        };
        let process = Process { pid, program: "a program of many letters".into(), adapters: vec![adapter] };
        let when = *BEGAN.get_or_init(Instant::now) + Duration::from_secs(second);
        Sample {
            at: SystemTime::UNIX_EPOCH,
            when,
            found: vec![PublishedProcess { pid, number: 0, program: Some("stuck".into()), result: Ok(process) }],
        }
    }

    #[test]
    fn large_numbers_are_shown_with_three_digits_and_an_si_prefix() {
        let cases =
            [0.0, 1.0, 0.5, 999.0, 999.6, 1000.0, 9_994.0, 9_996.0, 99_960.0, 999_499.0, 999_500.0, 1.8e19, 1e30];
        let shown = cases.map(short);
        let wanted = ["0", "1", "0.50", "999", "1.00k", "1.00k", "9.99k", "10.0k", "100k", "999k", "1.00M", "18.0E"];
        assert_eq!(shown[..12], wanted);
        assert!(short(f64::NAN) == "0" && short(-1.0) == "0" && shown[12].ends_with('E'));
    }

    #[test]
    fn one_sample_shows_sums_and_two_show_rates() {
        let counts = |more: u64| {
            ["ep.bytes.sent", "ep.bytes.received", "ep.bytes.read", "ep.bytes.written", "ep.completions.ok"]
                .map(|name| count(name, 1000 + more))
                .into_iter()
                .chain([count("ep.completions.failed", 3), count("ep.completions.flushed", 4), count("alive.ep", 3)])
                .collect::<Vec<_>>()
        };
        let first = sample_at(0, 4711, &counts(0));
        let lines = table(&first, None, false);
        assert_eq!(lines[0], "1 processes, 1 adapters, 3 endpoints\n");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(&lines[1]), "PID PROGRAM ADAPTER EPS SENT RECEIVED READ WRITTEN DONE FAILED");
        assert_eq!(words(&lines[2]), "4711 a program of m~ sm0 3 1.00k 1.00k 1.00k 1.00k 1.01k 3");
        let mut rates = Rates::default();
        let every = Duration::from_secs(2);
        rates.next(&first);
        let lines = table(&first, Some((&rates, every)), false);
        assert!(
            lines[0].ends_with("; every 2 s, rates per second\n") && lines[2].ends_with("-       3\n"),
            "{lines:?}"
        );
        let second = sample_at(2, 4711, &counts(50));
        rates.next(&second);
        let lines = table(&second, Some((&rates, every)), false);
        assert_eq!(words(&lines[1]), "PID PROGRAM ADAPTER EPS SENT/s RECEIVED/s READ/s WRITTEN/s DONE/s FAILED");
        assert_eq!(words(&lines[2]), "4711 a program of m~ sm0 3 25 25 25 25 25 3");
    }

    #[test]
    fn verbose_table_of_top_shows_each_nonzero_counter() {
        let bytes = Count { unit: "bytes".into(), ..count("sent bytes", 123) };
        let sample = sample_at(0, 1, &[bytes, count("lost", 0)]);
        let lines = table(&sample, None, true);
        let rest: Vec<String> =
            lines[3..].iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let wanted =
            ["sent bytes 123 bytes", "endpoint 0x40 Connected", "connects 1", "and 2 endpoints that are not listed"];
        assert_eq!(rest, wanted);
    }

    #[test]
    fn table_has_a_line_for_a_failed_process_and_one_if_none_is_found() {
        let mut sample = sample_at(0, 1, &[]);
        sample.found[0].result = Err(ReadError::Version("2".into()));
        let lines = table(&sample, None, true);
        assert_eq!((lines.len(), lines[0].as_str()), (2, "0 processes, 0 adapters, 0 endpoints\n"));
        assert!(
            lines[1].starts_with("        1  stuck            the process publishes its counters in version \"2\""),
            "{lines:?}"
        );
        sample.found.clear();
        assert!(table(&sample, None, false)[1].starts_with("no process of this user publishes counters"));
    }
}
