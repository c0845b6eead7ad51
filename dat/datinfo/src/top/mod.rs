//! `datinfo top`: the counters of running processes, as they tell them.
//!
//! A look asks all processes of this user that have an endpoint or a listener (`dat_counters`), and knows nothing of libdat. `rates`
//! holds it against the look before; `table`, `document` and `openmetrics` are what is printed. One that is stuck or talks
//! nonsense costs its own line. Ends when nobody reads any more, or is killed; nothing has to be put right then.
#![forbid(unsafe_code)]

mod document;
mod openmetrics;
mod rates;
mod screen;
mod table;

use std::time::{Duration, Instant, SystemTime};

use dat_counters::reader::{self, Found};
use dat_counters::text::Process;

use crate::options::{self, Options};
use crate::{say, tell};
use rates::Rates;

/// What all processes have told at one time.
struct Look {
    /// For people.
    at: SystemTime,
    /// For differences.
    when: Instant,
    found: Vec<Found>,
}

impl Look {
    fn take() -> Result<Self, String> {
        let found =
            reader::processes().map_err(|error| format!("the list of local sockets, /proc/net/unix: {error}"))?;
        Ok(Look { at: SystemTime::now(), when: Instant::now(), found })
    }

    /// Those that have told something.
    fn told(&self) -> impl Iterator<Item = (&Found, &Process)> {
        self.found.iter().filter_map(|found| Some((found, found.told.as_ref().ok()?)))
    }

    /// So many processes, adapters and endpoints.
    fn census(&self) -> [u64; 3] {
        let adapters = || self.told().flat_map(|(_, process)| &process.adapters);
        let mut pids: Vec<u32> = self.told().map(|(found, _)| found.pid).collect();
        pids.dedup();
        let eps = adapters().map(|adapter| (adapter.eps.len() as u64).saturating_add(adapter.left_out));
        [pids.len() as u64, adapters().count() as u64, eps.fold(0, u64::saturating_add)]
    }
}

/// Looks once, or again and again; once: whether some process has told something.
pub(crate) fn top(options: &Options, wanted: &options::Top) -> crate::Result {
    if wanted.once || wanted.openmetrics {
        let look = Look::take()?;
        say(&match (options.json, wanted.openmetrics) {
            (true, _) => format!("{:#}\n", document::document(&look, &Rates::default())),
            (_, true) => openmetrics::exposition(&look, wanted.endpoints),
            _ => table::table(&look, None, wanted.verbose).join(""),
        });
        return Ok(look.told().next().is_some());
    }
    let interval = wanted.interval;
    let (mut rates, mut screen) = (Rates::default(), screen::Screen::new());
    loop {
        let began = Instant::now();
        let look = Look::take()?;
        rates.next(&look);
        let is_read = match options.json {
            true => tell(&format!("{}\n", document::document(&look, &rates))),
            false => screen.show(&table::table(&look, Some((&rates, interval)), wanted.verbose)),
        };
        if !is_read {
            return Ok(true);
        }
        std::thread::sleep(interval.saturating_sub(began.elapsed()).max(Duration::from_millis(50)));
    }
}
