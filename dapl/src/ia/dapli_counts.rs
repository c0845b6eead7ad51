//! Counters of an IA: its own, and the sums over its live and freed objects.
//!
//! The sums are computed when they are read. No lock of the IA is held while the counters of an object are read. While
//! an object is being freed, its counters are missing from the sums for a short time.
#![forbid(unsafe_code)]

use std::sync::{OnceLock, Weak};

use dat_abi::DAT_NAMED_ATTR;
use dat_counters::text::Text;
use parking_lot::Mutex;

use super::{Child, CloseRank, Ia};
use crate::provider::Provider;
use crate::stats::counters::{EpCounts, EvdCounts, IaEvents, IaSums, Listing};
use crate::stats::publication::CounterSource;

/// The counters of an IA, and their list for queries.
#[derive(Debug, Default)]
pub(super) struct IaCounts {
    /// Counters of the IA itself, and the sums over its freed objects. They are not on a hot path, so a mutex suffices.
    sums: Mutex<IaSums>,
    /// Named attributes that `dat_ia_query` returns; allocated by the first query.
    listing: OnceLock<Listing>,
}

/// Maximum number of EVDs whose counters are listed separately: those with the lowest handles. The counters of all EVDs
/// are in the sums.
const MAX_LISTED_EVDS: usize = 64;

/// Maximum number of listed counters of the provider.
const MAX_PROVIDER_COUNTERS: usize = 64;

/// Maximum number of EPs reported on the counters socket.
const MAX_LISTED_EPS: usize = 256;

/// Names of the `alive.` counters (numbers of existing objects), by kind of object. `alive.psp` includes the CSPs.
const ALIVE: [(&str, &[CloseRank]); 10] = [
    ("alive.ep", &[CloseRank::Ep]),
    ("alive.evd", &[CloseRank::Evd, CloseRank::AsyncEvd]),
    ("alive.cno", &[CloseRank::Cno]),
    ("alive.pz", &[CloseRank::Pz]),
    ("alive.lmr", &[CloseRank::Lmr]),
    ("alive.rmr", &[CloseRank::Rmr]),
    ("alive.srq", &[CloseRank::Srq]),
    ("alive.psp", &[CloseRank::Psp]),
    ("alive.rsp", &[CloseRank::Rsp]),
    ("alive.cr", &[CloseRank::Cr]),
];

impl<P: Provider> Ia<P> {
    /// Changes the IA's own counters by `count`.
    pub(crate) fn count(&self, count: impl FnOnce(&mut IaEvents)) {
        count(&mut self.counts.sums.lock().events);
    }

    /// Adds the final counters of an object that is being freed.
    pub(crate) fn add_final_counts(&self, last: &IaSums) {
        let mut sums = self.counts.sums.lock();
        sums.eps.add(&last.eps);
        sums.evds.add(&last.evds);
    }

    /// Writes the provider attributes and counters to a list for the consumer. The list keeps its address for the life
    /// of the IA; each call updates it.
    pub(super) fn show_counts(&self) -> (i32, *mut DAT_NAMED_ATTR) {
        const CAPACITY: usize = IaEvents::LEN
            + EpCounts::LEN
            + EvdCounts::LEN * (1 + MAX_LISTED_EVDS)
            + ALIVE.len()
            + MAX_PROVIDER_COUNTERS;
        let listing = self.counts.listing.get_or_init(|| {
            Listing::new(
                self.named_attributes.iter().chain(self.descriptor_attributes.get().into_iter().flatten()).cloned(),
                CAPACITY,
            )
        });
        let (ranks, children): (Vec<_>, Vec<_>) = self.children.lock().known.values().cloned().unzip();
        let sums = self.sums(&children);
        let own = self
            .provider
            .counts()
            .into_iter()
            .take(MAX_PROVIDER_COUNTERS)
            .map(|count| (count.name.to_owned(), count.value));
        listing.write_counters(Self::totals(&sums).chain(alive(&ranks)).chain(own).chain(each_evd(&sums)))
    }

    /// Logs the IA's counters when it is closed, if info messages are enabled.
    pub(super) fn log_counts(&self, children: &[Weak<dyn Child>]) {
        if log::log_enabled!(log::Level::Info) {
            let sums = self.sums(children);
            let seen = Self::totals(&sums).filter(|(_, count)| *count > 0);
            let text: Vec<_> = seen.map(|(name, count)| format!("{name}={count}")).collect();
            log::info!("ia {} is closed: {}", self.registration.name, text.join(" "));
        }
    }

    fn sums(&self, children: &[Weak<dyn Child>]) -> IaSums {
        let mut sums = self.counts.sums.lock().clone();
        for child in children.iter().filter_map(Weak::upgrade) {
            child.add_counts(&mut sums);
        }
        sums
    }

    #[cfg(test)]
    pub(crate) fn totals_now(&self) -> IaSums {
        let children: Vec<_> = self.children.lock().known.values().map(|(_, child)| child.clone()).collect();
        self.sums(&children)
    }

    fn totals(sums: &IaSums) -> impl Iterator<Item = (String, u64)> {
        let of = |kind: &'static str| move |(name, count): (&str, u64)| (format!("{kind}.{name}"), count);
        let (eps, evds) = (sums.eps.list().map(of("ep")), sums.evds.list().map(of("evd")));
        sums.events.list().map(of("ia")).into_iter().chain(eps).chain(evds)
    }
}

impl<P: Provider> CounterSource for Ia<P> {
    fn show(&self, text: &mut Text) {
        let (ranks, children): (Vec<_>, Vec<_>) = self.children.lock().known.values().cloned().unzip();
        text.adapter(&self.registration.name, P::NAME, self.id.handle);
        for (name, value) in Self::totals(&self.sums(&children)).chain(alive(&ranks)) {
            let unit = if name.contains("bytes") { "bytes" } else { "" };
            // All other values are counters.
            let is_level = name.starts_with("alive.") || name.ends_with("highest_queue");
            text.count(&name, unit, is_level, value);
        }
        let own = self.provider.counts();
        own.iter().for_each(|count| text.count(count.name, count.unit, count.is_level, count.value));
        let eps = || ranks.iter().zip(&children).filter(|(rank, _)| **rank == CloseRank::Ep).map(|(_, child)| child);
        eps().take(MAX_LISTED_EPS).filter_map(Weak::upgrade).for_each(|ep| ep.describe(text));
        text.left_out(eps().count().saturating_sub(MAX_LISTED_EPS));
    }
}

fn alive(ranks: &[CloseRank]) -> impl Iterator<Item = (String, u64)> {
    let of_kind = |kinds: &[CloseRank]| ranks.iter().filter(|rank| kinds.contains(rank)).count() as u64;
    ALIVE.map(|(name, kinds)| (name.to_owned(), of_kind(kinds))).into_iter()
}

fn each_evd(sums: &IaSums) -> impl Iterator<Item = (String, u64)> {
    let mut each = sums.each.clone();
    each.sort_unstable_by_key(|(handle, _)| *handle);
    each.into_iter()
        .take(MAX_LISTED_EVDS)
        .flat_map(|(handle, counts)| counts.list().map(|(name, count)| (format!("evd.{handle:#x}.{name}"), count)))
}
