//! `datinfo top`: shows the counters that running processes publish.
//!
//! A sample queries all processes of this user that publish counters (`dat_counters`); libdat is not used. `rates`
//! computes the differences between two samples; `table`, `document` and `openmetrics` format a sample, and `screen`
//! shows tables. A process that hangs or sends invalid data affects only its own line. With `--once` or `--openmetrics`
//! the program prints one sample; otherwise it prints samples until its output is closed or it is killed.
#![forbid(unsafe_code)]

mod document;
mod openmetrics;
mod rates;
mod screen;
mod table;

use std::time::{Duration, Instant, SystemTime};

use dat_counters::reader::{self, PublishedProcess};
use dat_counters::text::{Adapter, Process};

use crate::options::{self, Options};
use crate::{print_output, print_text};
use rates::Rates;

/// The counters of all processes at one time.
struct Sample {
    /// Wall-clock time, for display.
    at: SystemTime,
    /// Monotonic time, for intervals.
    when: Instant,
    found: Vec<PublishedProcess>,
}

impl Sample {
    fn take(has_endpoints: bool) -> Result<Self, String> {
        let mut found = reader::processes()
            .map_err(|error| format!("cannot read the list of local sockets, /proc/net/unix: {error}"))?;
        if !has_endpoints {
            let processes = found.iter_mut().filter_map(|found| found.result.as_mut().ok());
            processes.flat_map(|process| &mut process.adapters).for_each(Adapter::leave_out_endpoints);
        }
        Ok(Sample { at: SystemTime::now(), when: Instant::now(), found })
    }

    /// Processes whose counters could be read.
    fn readable(&self) -> impl Iterator<Item = (&PublishedProcess, &Process)> {
        self.found.iter().filter_map(|found| Some((found, found.result.as_ref().ok()?)))
    }

    /// Numbers of processes that have answered, of their adapters, and of their endpoints.
    fn totals(&self) -> [u64; 3] {
        let adapters = || self.readable().flat_map(|(_, process)| &process.adapters);
        let mut pids: Vec<u32> = self.readable().map(|(found, _)| found.pid).collect();
        pids.dedup();
        let eps = adapters().map(|adapter| (adapter.eps.len() as u64).saturating_add(adapter.left_out));
        [pids.len() as u64, adapters().count() as u64, eps.fold(0, u64::saturating_add)]
    }
}

/// With `--once` or `--openmetrics`, prints one sample and returns whether any process has answered. Otherwise prints a
/// sample per interval until stdout is closed.
pub(crate) fn top(options: &Options, wanted: &options::Top) -> crate::Result {
    if wanted.once || wanted.openmetrics {
        let sample = Sample::take(!wanted.no_endpoints)?;
        print_output(&match (options.json, wanted.openmetrics) {
            (true, _) => format!("{:#}\n", document::document(&sample, &Rates::default())),
            (_, true) => openmetrics::exposition(&sample, wanted.endpoints),
            _ => table::table(&sample, None, wanted.verbose).join(""),
        });
        return Ok(sample.readable().next().is_some());
    }
    let interval = wanted.interval;
    let (mut rates, mut screen) = (Rates::default(), screen::Screen::new());
    loop {
        let began = Instant::now();
        let sample = Sample::take(!wanted.no_endpoints)?;
        rates.next(&sample);
        let is_read = match options.json {
            true => print_text(&format!("{}\n", document::document(&sample, &rates))),
            false => screen.show(&table::table(&sample, Some((&rates, interval)), wanted.verbose)),
        };
        if !is_read {
            return Ok(true);
        }
        std::thread::sleep(interval.saturating_sub(began.elapsed()).max(Duration::from_millis(50)));
    }
}
