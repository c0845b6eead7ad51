//! libdat.so.1: the registry and front door of uDAPL 1.2. This page is the house.
//!
//! A consumer calls `dat_*`; every such symbol lives in `thunk`. Most calls go through the provider's table, which is the
//! first word of every handle: `thunk/pass` finds it and jumps. The rest libdat answers itself, in `thunk/own`.
//!
//! | room | what it knows |
//! |---|---|
//! | `conf` | dat.conf text -> records and complaints (pure) |
//! | `matching` | which records may serve an open, and why none may (pure) |
//! | `strerror` | numbers -> words (pure) |
//! | `refused` | why an open was refused, as a line and as fields (pure) |
//! | `discovery` | what this machine has -> lines of dat.conf |
//! | `arena` | which values may be read as handles |
//! | `loader` | provider libraries; `loader/host`: environment, fork, syslog, cancellation |
//! | `report` | lines on stderr, once each and few; `report/lines`: variables, and where the log goes |
//! | `sources` | which files are read |
//! | `registry` | static and dynamic registry, use counts, one init at a time per record; `registry/tell`: it all, for tools |
//! | `handles` | IA numbers |
//! | `fork` | locks across `fork` |
//! | `thunk` | the C boundary |
//!
//! Imports go up this list, never down (`report` asks `loader::host`, and `handles` names the registry's `Served`).
//! Unsafe code is in `thunk` and `loader` alone. Absent on purpose: any knowledge of an object behind a handle; a lock on
//! the path of a thunk; a constructor, destructor or thread; stdout; unloading, of libdat or of a provider.

mod arena;
pub mod conf;
mod discovery;
mod fork;
mod handles;
mod loader;
pub mod matching;
mod refused;
mod registry;
mod report;
pub mod sources;
pub mod strerror;
pub mod thunk;
