//! Code shared by the software providers: the parts of a transport that do not depend on how bytes get to the peer.
//!
//! Imports go down this list only:
//! - [`settings`]: reads a provider's settings from `ia_params` and the environment
//! - [`base_dir`], [`shared_names`]: the directory where processes of one user meet, and the names of shared memory in it
//! - [`listener_retry`]: the waits between requests that found no listener; [`limits`]: the limits of an IA;
//!   [`host_address`]: addresses of this host
//! - [`memory`]: keys and rights of registrations, checks of mappings, copies from and to consumer memory, memory windows
//! - [`cq`]: the core of a completion queue; [`engine`]: the job queue of a provider's engine thread
//! - [`overdue`]: the log line of a send that finds no receive
//! - [`srq`]: the core of a shared receive queue
//! - [`simple`]: parts for a first provider: the thread that reports, queues, registrations, execution of work
//!
//! No module of this crate uses a network.

pub mod base_dir;
pub mod cq;
pub mod engine;
pub mod host_address;
pub mod limits;
pub mod listener_retry;
pub mod memory;
pub mod overdue;
pub mod settings;
pub mod shared_names;
pub mod simple;
pub mod srq;

use parking_lot::MutexGuard;

/// Drops a guard in a separate function. A short path that gives up calls it, so that its common case tests no result.
#[cold]
#[inline(never)]
pub fn unlock_rarely<T>(guard: MutexGuard<'_, T>) {
    drop(guard);
}
