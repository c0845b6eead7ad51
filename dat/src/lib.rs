//! The registry of uDAPL, and the dispatch of `dat_*` calls to providers: the code shared by `libdat.so.1` and
//! `libdat2.so.2`.
//!
//! The packages `dat/v1` and `dat/v2` export the C functions. Each library has its own copy of this code and of its
//! state, and passes its version (`api`). A process may load both libraries.
//!
//! A consumer calls `dat_*`; `thunk` defines these symbols, except `dat_extension_op` (`dat/v2`). Most calls go through
//! the provider's table, to which the first word of every object points: `thunk/pass` finds the table and jumps. libdat
//! implements the other calls itself, in `thunk/own`.
//!
//! | module | purpose |
//! |---|---|
//! | `api` | differences between the versions |
//! | `conf` | parses dat.conf into records and diagnostics (pure) |
//! | `matching` | selects the records that may serve an open, or returns why none may (pure) |
//! | `strerror` | names of return codes (pure) |
//! | `refused` | the reason for a refused open, as a line and as fields (pure) |
//! | `arena` | address ranges of handles that may be read |
//! | `loader` | provider libraries; `loader/host`: C library calls, such as environment, fork, syslog, cancellation |
//! | `discovery` | adapters of this machine as lines of dat.conf |
//! | `report` | messages, limited in number; `report/lines`: debug variables and log destination |
//! | `sources` | selects the files and reads them |
//! | `registry` | static and dynamic registry, use counts, initialisation; `registry/query`: its content for tools |
//! | `handles` | IA numbers |
//! | `fork` | locks held across `fork` |
//! | `thunk` | the C boundary |
//!
//! A module imports only modules above it. Unsafe code is in `thunk` and `loader` alone. libdat does not interpret the
//! objects behind handles. A call that libdat passes to a provider takes no lock, except if the program passes the
//! provider's pointer of an IA instead of its number. libdat has no constructor, destructor or thread, never writes to
//! stdout, and never unloads itself or a provider.

pub mod api;
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
