//! Code shared by the software providers (sm, usnic): the parts of a transport that do not depend on how bytes get to
//! the peer. verbs uses some modules too: base directories, shared names, listener retries, addresses of interfaces, the
//! job queue and overdue sends.
//!
//! A module imports only modules that precede it in this list:
//! - [`settings`]: reads a provider's settings from `ia_params` and the environment
//! - [`base_dir`], [`shared_names`]: the directory that the processes of one user share, and the names of shared memory
//!   in it
//! - [`listener_retry`], [`limits`], [`interfaces`], [`host_address`], [`unix_datagram`]: delays between connection
//!   requests that find no listener, limits of an IA, addresses of this host, datagrams with descriptors and credentials
//! - [`memory`]: keys and rights of registrations, checks of mappings, copies from and to consumer memory, memory
//!   windows
//! - [`cq`], [`engine`]: the core of a completion queue, and the job queue of a provider's engine thread
//! - [`overdue`]: detects and logs sends that wait for a long time
//! - [`srq`]: the core of a shared receive queue
//! - [`simple`]: building blocks of a minimal provider
//!
//! No module of this crate sends network packets.

pub mod base_dir;
pub mod cq;
pub mod engine;
pub mod host_address;
pub mod interfaces;
pub mod limits;
pub mod listener_retry;
pub mod memory;
pub mod overdue;
pub mod settings;
pub mod shared_names;
pub mod simple;
pub mod srq;
pub mod unix_datagram;

use parking_lot::MutexGuard;

/// Drops a guard. Fast paths call this function where they fall back to the general path. It is cold and not inlined,
/// so the unlock code stays out of the fast path.
#[cold]
#[inline(never)]
pub fn unlock_rarely<T>(guard: MutexGuard<'_, T>) {
    drop(guard);
}
