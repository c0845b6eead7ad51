//! uDAPL for Rust, over any `libdat.so.1`: interface adapters, endpoints, registered memory and events, without unsafe
//! code.
//!
//! The library is opened at run time, as [`Library`], so programs build on hosts without it. [`Ia`] is an open adapter,
//! and all other objects are created on it. [`Pz`] groups objects that may be used together. [`Buffer`] and [`Window`]
//! are registered memory. [`Evd`] queues events, and [`Cno`] groups event queues for one wait. [`Ep`] is one end of a
//! connection, and [`Listener`] receives [`ConnectionRequest`]s. [`Srq`] holds receives for several endpoints. [`Rmr`]
//! gives a part of a window its own key, and [`SharedMemory`] is registered by several processes.
//!
//! # Guarantees
//! - While a transfer is outstanding, its [`Buffer`] belongs to the library: the post takes it, and the [`Completion`]
//!   returns it. The program cannot read, write or free it meanwhile.
//! - Memory that peers may access is a [`Window`]. It is never borrowed as a slice, because its bytes may change at any
//!   time.
//! - A [`Ticket`] (key, address and length of a window, for a peer) cannot outlive the window.
//! - A request without an event ([`PostFlags::SUPPRESS`]) keeps its buffers until a later completion of its endpoint,
//!   which returns them.
//! - Each object holds references to the objects it was created on. Objects may be dropped in any order.
//!
//! ```compile_fail,E0382
//! # fn f(ep: &udapl::Ep, buffer: udapl::Buffer) {
//! ep.send(buffer, ..);
//! println!("{}", buffer[0]); // The buffer was moved into the transfer.
//! # }
//! ```
//! ```compile_fail,E0505
//! # fn f(window: udapl::Window) {
//! let ticket = window.ticket();
//! drop(window); // Deregisters the memory,
//! println!("{ticket:?}"); // so its ticket cannot be used any more.
//! # }
//! ```
//!
//! # A client
//! ```no_run
//! use std::net::Ipv4Addr;
//! use std::time::Duration;
//! use udapl::{Access, Buffer, Event, Library, Streams};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let ia = Library::load()?.open("sm0")?;
//!     let pz = ia.pz()?;
//!     let events = ia.evd(64, Streams::DTO | Streams::CONNECTION)?;
//!     let ep = pz.ep(&events)?;
//!     ep.recv(Buffer::new(&pz, 4096)?, ..)?;
//!     ep.connect(Ipv4Addr::LOCALHOST.into(), 4711, Duration::from_secs(5), b"hello")?;
//!     while let Some(event) = events.wait(Duration::from_secs(10))? {
//!         match event {
//!             Event::Established { .. } => {
//!                 let mut message = Buffer::new(&pz, 5)?;
//!                 message.copy_from_slice(b"howdy");
//!                 ep.send(message, ..)?;
//!             }
//!             Event::Completed(done) => println!("{:?} bytes", done.result?),
//!             other => return Err(format!("unexpected event: {other:?}").into()),
//!         }
//!     }
//!     Ok(())
//! }
//! ```
#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod bytes;
mod cno;
mod descriptor;
mod ep;
mod error;
mod evd;
mod flight;
mod ia;
mod library;
mod limits;
mod listener;
mod memory;
mod owned;
mod post;
mod readiness;
mod rmr;
mod segment;
mod shared;
mod srq;
#[cfg(feature = "async")]
mod stream;

pub use address::{Address, SockAddr};
pub use cno::Cno;
pub use ep::{Ep, EpInfo, EpSpec, State};
pub use error::{CodeNames, Error, Result};
pub use evd::{Completion, End, Evd, Event, Finished, Streams, TransferError};
pub use flight::{Op, OpId};
pub use ia::{Attribute, Ia};
pub use library::{Functions, Library};
pub use limits::Limits;
pub use listener::{ConnectionRequest, Listener};
pub use memory::{Access, Buffer, Remote, Ticket, Window};
pub use owned::{BindId, EpId, EvdId, Pz};
pub use post::PostFlags;
pub use rmr::Rmr;
pub use segment::{PostError, Segment};
pub use shared::SharedMemory;
pub use srq::Srq;
#[cfg(feature = "async")]
pub use stream::EventStream;
