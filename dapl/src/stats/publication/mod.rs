//! Publishes the counters of this library's IAs to the user's tools, such as `datinfo top`.
//!
//! The first creation of an EP, an SRQ or a service point starts one thread, which sleeps on a local socket. The thread
//! ends when the last IA is closed. It sends the current counters of all IAs as text to each client of the same user or
//! the superuser, and reads nothing from clients. So publication adds no cost to counting, and only a client wakes an
//! idle process. The socket's name is abstract: there is no file, the name is visible within one network namespace, and
//! the kernel removes it when the process exits.
//!
//! The crate `dat_counters`, which tools use too, defines the format of the text. `DAPL_COUNTERS=off` disables
//! publication. A forked child publishes nothing until it creates an EP, an SRQ or a service point in an IA of its own.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use dat_counters::text::Text;

use crate::runtime::logger::secure_variable;
use crate::runtime::sync::{StaticMutex, StaticMutexGuard};

mod server;

/// Environment variable that disables publication.
pub const VARIABLE: &str = "DAPL_COUNTERS";

/// An IA whose counters are published. The trait does not name the provider's type, because one list contains all IAs
/// of this library.
pub trait CounterSource: Send + Sync {
    /// Writes the IA's counters to `text`.
    fn show(&self, text: &mut Text);
}

/// The sources of counters, and the thread that serves them.
pub(crate) struct PublishedCounters {
    /// Id of the process that opened the IAs in the list. A forked child inherits the list, but not the thread.
    pid: u32,
    sources: Vec<Weak<dyn CounterSource>>,
    server: Option<Server>,
}

#[derive(Debug)]
struct Server {
    thread: JoinHandle<()>,
    /// Closed to stop the thread.
    stop: OwnedFd,
}

/// Locked while the counters of IAs are read, so that no IA can be closed meanwhile.
static PUBLISHED: StaticMutex<PublishedCounters> =
    StaticMutex::new(PublishedCounters { pid: 0, sources: Vec::new(), server: None });

/// Locks the list of IAs while the process forks.
pub(crate) fn lock_for_fork() -> StaticMutexGuard<PublishedCounters> {
    PUBLISHED.lock()
}

/// Adds an IA that was opened.
pub(crate) fn add(source: Weak<dyn CounterSource>) {
    let mut published = lock_for_fork();
    published.reset_after_fork();
    published.sources.push(source);
}

/// Starts the thread, unless it is running or `DAPL_COUNTERS` is `off`. A failure is only logged, since it must not
/// make the creation of an object fail.
pub(crate) fn start() {
    let mut published = lock_for_fork();
    if published.server.is_none()
        && !published.sources.is_empty()
        && secure_variable(VARIABLE).is_none_or(|word| word != "off")
    {
        match server::start() {
            Ok(server) => published.server = Some(server),
            Err(error) => log::info!("cannot publish counters: {error}; datinfo top does not show this process"),
        }
    }
}

/// Removes an IA before it is closed. If it is the last one, ends the thread.
pub(crate) fn remove<S: CounterSource>(source: &S) {
    let address = std::ptr::from_ref(source) as usize;
    let mut published = lock_for_fork();
    published.reset_after_fork();
    published.sources.retain(|known| known.as_ptr().cast::<()>() as usize != address && known.strong_count() > 0);
    let server = if published.sources.is_empty() { published.server.take() } else { None };
    drop(published);
    if let Some(Server { thread, stop }) = server {
        drop(stop);
        // `join` fails only if the thread has panicked; then it has ended too.
        let _ = thread.join();
    }
}

/// Returns the counters of all IAs as text.
fn all() -> String {
    let published = lock_for_fork();
    let mut text = Text::new(std::process::id(), &program());
    let sources: Vec<Arc<dyn CounterSource>> = published.sources.iter().filter_map(Weak::upgrade).collect();
    sources.iter().for_each(|source| source.show(&mut text));
    drop(published);
    text.end()
}

/// Name of the program, as `ps` shows it.
fn program() -> String {
    std::fs::read_to_string("/proc/self/comm").map(|name| name.trim_end().to_owned()).unwrap_or_default()
}

impl PublishedCounters {
    /// In a forked child, drops the state inherited from the parent, because the server thread does not exist in the
    /// child.
    fn reset_after_fork(&mut self) {
        let pid = std::process::id();
        if self.pid != pid {
            self.pid = pid;
            self.sources.clear();
            std::mem::forget(self.server.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use dat_counters::{reader, text};

    use super::*;

    struct OneAdapter;

    impl CounterSource for OneAdapter {
        fn show(&self, text: &mut Text) {
            text.adapter("one0", "fake", 0x40);
            text.count("sent bytes", "bytes", false, 7);
        }
    }

    fn of_one() -> Vec<text::Adapter> {
        loop {
            let own = reader::processes().unwrap().into_iter().filter(|found| found.pid == std::process::id());
            // On a busy machine the client may time out before the thread answers.
            let Ok(counters) = own.map(|found| found.result).collect::<Result<Vec<_>, _>>() else { continue };
            return counters
                .into_iter()
                .flat_map(|counters| counters.adapters)
                .filter(|adapter| adapter.name == "one0")
                .collect();
        }
    }

    #[test]
    fn client_gets_counters_of_open_ias() {
        let one = Arc::new(OneAdapter);
        assert!(of_one().is_empty());
        let weak: Weak<dyn CounterSource> = Arc::downgrade(&(one.clone() as Arc<dyn CounterSource>));
        add(weak);
        start();
        for _ in 0..3 {
            let counters = of_one();
            assert_eq!(counters.len(), 1);
            assert_eq!(
                counters[0].counts[0],
                text::Count { name: "sent bytes".into(), unit: "bytes".into(), value: 7, is_level: false }
            );
        }
        remove(&*one);
        assert!(of_one().is_empty());
    }
}
