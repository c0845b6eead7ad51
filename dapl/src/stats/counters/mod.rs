//! Counters per EP, EVD and IA, always on.
//!
//! A post adds to [`Posts`], in a cache line that the post has loaded already. A completion adds to the
//! [`CompletionsByEp`] of its EVD, under the EVD's lock. So a post and a completion write to different cache lines.
//! Connections are counted under the lock of their EP. Sums are computed when they are read, and written to a
//! [`Listing`]. Counters are never reset.
//!
//! A request that was posted with SUPPRESS and succeeds has no completion: it is counted in `posts.*`, and its bytes
//! are counted when it is posted.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::provider::{Segment, Work};

mod by_ep;
mod listing;

pub use by_ep::{Completed, CompletionsByEp};
pub use listing::Listing;

/// Declares a record of counters. Each line has the field, the displayed name, and the function that combines two
/// values.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident = $shown:literal $how:ident;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl $name {
            /// Number of counters.
            pub const LEN: usize = [$($shown),*].len();

            pub fn add(&mut self, other: &Self) {
                $(self.$field = $how(self.$field, other.$field);)*
            }

            /// Returns the name and the value of each counter.
            pub fn list(&self) -> [(&'static str, u64); Self::LEN] {
            [$(($shown, self.$field)),*]
            }
        }
    };
}

fn sum(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

fn max(a: u64, b: u64) -> u64 {
    a.max(b)
}

counters! {
    /// Counters of an endpoint.
    EpCounts {
        sends = "posts.send" sum;
        recvs = "posts.recv" sum;
        reads = "posts.rdma_read" sum;
        writes = "posts.rdma_write" sum;
        binds = "posts.rmr_bind" sum;
        atomics = "posts.atomic" sum;
        ok = "completions.ok" sum;
        failed = "completions.failed" sum;
        flushed = "completions.flushed" sum;
        bytes_sent = "bytes.sent" sum;
        bytes_received = "bytes.received" sum;
        bytes_read = "bytes.read" sum;
        bytes_written = "bytes.written" sum;
        /// Connections that were established, from either side.
        connects = "connects" sum;
        /// Connections that ended, for any reason.
        disconnects = "disconnects" sum;
        resets = "resets" sum;
    }
}

counters! {
    /// Counters of an event dispatcher.
    EvdCounts {
        /// Events that the EVD has received, without those that are counted in `overflows`.
        events = "events" sum;
        /// Maximum number of queued events.
        highest = "highest_queue" max;
        waits = "waits" sum;
        sleeps = "sleeps" sum;
        /// Sleeping threads that were woken, because enough events were queued, the EVD was made unwaitable or closed,
        /// or its CQ could not be armed.
        wakeups = "wakeups" sum;
        timeouts = "timeouts" sum;
        overflows = "overflows" sum;
        cno_triggers = "cno_triggers" sum;
    }
}

counters! {
    /// Counters of an IA itself.
    IaEvents {
        /// Connection requests delivered to this process's consumer.
        requests = "requests" sum;
        /// Connection requests that the consumer, the free of their EVD or a close of the IA rejected.
        rejects = "rejects" sum;
        async_errors = "async_errors" sum;
    }
}

/// Counts the posts of an EP that the provider accepted. The first thread that posts requests and the first thread that
/// posts receives count in `owned`, without atomic read-modify-writes. All other threads, and posts without a thread
/// number, count in `shared`.
#[derive(Debug, Default)]
pub struct Posts {
    /// Thread numbers of the first thread that posted requests and the first thread that posted receives; 0 if no
    /// thread with a number has posted yet.
    owners: [AtomicUsize; 2],
    owned: PostCounts,
    shared: PostCounts,
}

#[derive(Debug, Default)]
struct PostCounts {
    /// Number of posts, by [`Work`].
    posts: [AtomicU64; Work::ALL.len()],
    /// Bytes of requests posted with SUPPRESS, whose completions are not counted, by [`Work`]: send, receive (always
    /// 0), read, write, write with immediate data.
    unseen: [AtomicU64; 5],
}

impl Posts {
    /// Counts a post. `unseen` contains the segments of a post whose completion is suppressed, otherwise nothing.
    /// `thread` is the number of the calling thread, if it has one (see `hazard`).
    #[inline(always)]
    pub fn count(&self, work: Work, unseen: &[Segment], thread: Option<usize>) {
        let is_owner = thread.is_some_and(|thread| self.is_owner(work, thread));
        let counts = if is_owner { &self.owned } else { &self.shared };
        let add = |counter: &AtomicU64, more: u64| {
            if is_owner {
                counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            } else {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        };
        add(&counts.posts[work as usize], 1);
        if !unseen.is_empty()
            && let Some(counter) = counts.unseen.get(work as usize)
        {
            add(counter, unseen.iter().map(|segment| segment.length).sum());
        }
    }

    /// Counts a post whose completion is not suppressed, with fewer instructions than [`Posts::count`].
    #[inline(always)]
    pub fn count_plain(&self, work: Work, thread: usize) {
        let owner = &self.owners[usize::from(work == Work::Recv)];
        if owner.load(Ordering::Relaxed) != thread {
            return self.count_shared(work, thread);
        }
        let counter = &self.owned.posts[work as usize];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn count_shared(&self, work: Work, thread: usize) {
        self.count(work, &[], Some(thread));
    }

    #[inline(always)]
    fn is_owner(&self, work: Work, thread: usize) -> bool {
        let owner = &self.owners[usize::from(work == Work::Recv)];
        let present = owner.load(Ordering::Relaxed);
        present == thread || present == 0 && become_owner(owner, thread)
    }

    /// Adds these posts to `counts`.
    pub fn add_to(&self, counts: &mut EpCounts) {
        for PostCounts { posts, unseen } in [&self.owned, &self.shared] {
            let posts = |work: Work| posts[work as usize].load(Ordering::Relaxed);
            let unseen = |work: Work| unseen[work as usize].load(Ordering::Relaxed);
            counts.add(&EpCounts {
                sends: posts(Work::Send),
                recvs: posts(Work::Recv),
                reads: posts(Work::Read),
                writes: posts(Work::Write) + posts(Work::WriteImmediate),
                binds: posts(Work::Bind),
                atomics: posts(Work::FetchAdd) + posts(Work::CompareSwap),
                bytes_sent: unseen(Work::Send),
                bytes_read: unseen(Work::Read),
                bytes_written: unseen(Work::Write) + unseen(Work::WriteImmediate),
                ..EpCounts::default()
            });
        }
    }
}

#[cold]
fn become_owner(owner: &AtomicUsize, thread: usize) -> bool {
    owner.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Counters of an IA itself, sums over its live and freed objects, and separately the counters of each live EVD.
#[derive(Clone, Debug, Default)]
pub struct IaSums {
    pub events: IaEvents,
    /// Sum over the EPs.
    pub eps: EpCounts,
    /// Sum over the EVDs; `highest_queue` is their maximum.
    pub evds: EvdCounts,
    /// Counters of live EVDs, with the handle of each EVD.
    pub each: Vec<(usize, EvdCounts)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_are_counted_by_kind_and_bytes_of_suppressed_posts_are_summed() {
        let posts = Posts::default();
        let segment = |length| Segment { length, ..Segment::default() };
        for work in [Work::Send, Work::Recv, Work::Recv, Work::Bind] {
            posts.count(work, &[], None);
        }
        posts.count(Work::Write, &[segment(5), segment(7)], None);
        let mut counts = EpCounts { sends: 10, ..EpCounts::default() };
        posts.add_to(&mut counts);
        assert_eq!(
            counts,
            EpCounts { sends: 11, recvs: 2, writes: 1, binds: 1, bytes_written: 12, ..EpCounts::default() }
        );
    }

    #[test]
    fn concurrent_posts_lose_no_counts() {
        let posts = Posts::default();
        let segment = Segment { length: 3, ..Segment::default() };
        std::thread::scope(|scope| {
            for thread in [Some(128), Some(256), Some(384), None] {
                let posts = &posts;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        posts.count(Work::Send, &[segment], thread);
                        posts.count(Work::Recv, &[], thread);
                    }
                });
            }
        });
        let mut counts = EpCounts::default();
        posts.add_to(&mut counts);
        assert_eq!(counts, EpCounts { sends: 40_000, recvs: 40_000, bytes_sent: 120_000, ..EpCounts::default() });
    }

    #[test]
    fn evd_counts_are_added_except_highest_queue_which_is_the_maximum() {
        let mut all = EvdCounts { events: 3, highest: 2, ..EvdCounts::default() };
        all.add(&EvdCounts { events: 4, highest: 9, waits: 1, ..EvdCounts::default() });
        assert_eq!(all.list()[..3], [("events", 7), ("highest_queue", 9), ("waits", 1)]);
        assert_eq!((EpCounts::LEN, EvdCounts::LEN), (16, 8));
    }
}
