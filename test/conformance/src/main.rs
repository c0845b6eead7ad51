//! The conformance suite: cases that check the specification against any `libdat.so.1` or `libdat2.so.2`, through the
//! C ABI alone. Against DAT 2.0 the same cases run through a translation (`api/libdat2`), and those of `cases/added`.
//!
//! ```text
//! dapl-conformance [run] [--provider NAME] [--api 1.2|2.0] [--libdat PATH] [--mode one|two|both] [--jobs N]
//!                  [--report DIR] [--complete] [--open] [--verbose] [--time-factor N] [--except FILE] [FILTER...]
//! dapl-conformance list [FILTER...]
//! dapl-conformance coverage [--report DIR]
//! ```
//!
//! Environment variables select the library and the dat.conf; `cargo xtask test conformance` sets them. A FILTER is a
//! part of a case's name or of its section. A full run fails if an item of [`expected`] was not observed, except with
//! `--open`. `--complete` fails cases that the provider does not support, and a full run over 2.0 in which an item of
//! `expected::of_2_0` was not observed. `--except` names a file of cases to omit, each line with a reason.
//! `--time-factor` multiplies the time limit of a case, for a slow machine.
//!
//! # Writing a case
//!
//! A case is in the directory of its area in `cases/`, in the file of its call or claim. It has a unique name that
//! begins with the call or claim, and names the section that requires the claim. It needs one `use crate::kit::*;`
//! and no unsafe code.
//!
//! A *local* case is a function. In mode `two` both processes run it at the same time.
//!
//! ```text
//! pub(crate) fn cases() -> Vec<Case> {
//!     cases![
//!         "spec/events 2.5": evd_wait_zero_timeout_returns_timeout_expired, // local: the function is the case
//!         "spec/consumers 13": connect_reports_to_both_sides => pair(client, server), // two roles
//!         "spec/events 9.2": rmr_binds => local(binds).needs(Need::Rmr).limit(40),
//!     ]
//! }
//!
//! fn evd_wait_zero_timeout_returns_timeout_expired(ctx: &Ctx) {
//!     let ia = ctx.ia();                                               // freed, and the freeing checked, at the end
//!     let evd = ia.evd(4, DAT_EVD_DTO_FLAG);
//!     let mut more = 0;
//!     let code = untouched(|event| dat_evd_wait(evd.h(), 0, 1, event, &mut more));
//!     refused(code, DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE);
//! }
//! ```
//!
//! A *pair* has two roles, `client` and `server`: two threads with an IA each in mode `one` (with `.shares_ia()`, one
//! IA), two processes in mode `two`. They communicate outside DAT: `ctx.send(bytes)`, `send_number`, `send_target`,
//! `send_address`, the same with `receive`, and `ctx.meet()`, a barrier. When one role fails, the other is also ended.
//!
//! ```text
//! fn client(ctx: &Ctx) {
//!     let conn = ctx.connect();                                        // both roles call it; the server listens
//!     let memory = conn.memory(4096);                                  // registered, all privileges
//!     memory.write_pattern(0, 1000, 7);
//!     conn.post_send(0x11, memory.segment(0, 1000));
//!     expect_dto(conn.request.h(), 0x11, DAT_DTO_SUCCESS, 1000);
//!     ctx.meet();                                                      // keeps the connection until both are done
//! }
//! ```
//!
//! Families come from tables: `local(move |ctx| ...).named(format!(...)).proves("spec/endpoints 4")`, pushed onto the
//! list.
//!
//! - Calls: all 73 functions by their own names, with raw values. `filled(|out| dat_x(.., out))` returns the output of
//!   a call that must succeed. `untouched(|out| dat_x(.., out))` returns the code, and checks that a failed call writes
//!   nothing.
//! - Codes: `ok(code)`, `refused(code, TYPE, SUBTYPE)`, `one_of(code, &[error(TYPE, SUBTYPE), ..])`, `bad_arg(code,
//!   1)`, `bad_handle(code, KIND)`. `expect(code, CODE)` compares the complete code: `DAT_QUEUE_EMPTY` has no error
//!   class bit, `DAT_NOT_IMPLEMENTED` includes the bit.
//! - Objects: `ctx.ia()`; `ia.pz() evd() evd_on() cno() cno_with() ep() ep_with() ep_on() srq() psp() rsp() memory()`,
//!   `pz.rmr()`; `Ep::own(handle)` takes ownership of a handle that the case created. `.h()` is the handle, `.free()`
//!   frees immediately and returns the stale handle, `.leak()` gives up ownership. Declare objects in the order of use:
//!   they are freed in reverse.
//! - Connected endpoints: `ctx.connect()`, `ctx.connect_with(&Setup { .. })`, `ctx.loopback()` (both endpoints in a
//!   local case); without a connection `Conn::alone(ctx)`, `Conn::on(&ia)`, `Conn::unconnected(&ia, &setup)`, then
//!   `established(&client, &server)`. Posts with an empty segment list: `post_empty_send` and `post_empty_recv`.
//! - Events: `expect_event expect_dto expect_conn expect_cr expect_async expect_rmr expect_flushed expect_nothing
//!   expect_quiet drain wait dequeue polled_event`, `evd.post(number)` of a software event; an [`Event`](kit::Event)
//!   has the methods `dto() connection() arrival() private_data() asynchronous()`.
//! - `ctx.qual(0..16)` are connection qualifiers that no other case of this driver uses. `ctx.file(name)` is the path
//!   of a file of this case.
//! - `ctx.step("..")` records the current step of a long case. A case has a time limit (20 s, `.limit(60)` at most). A
//!   wait for the other role ends 3 s before the limit, and a wait of a helper for an event after 5 s. A local case
//!   with steps counts as hanging only if it reports no step for the time of the limit.
//! - Threads: `std::thread::scope`; objects may be shared, and `Handle::of(h)` makes a raw handle shareable.
//! - Blocking calls: `evd_waiter(evd, time, threshold)`, `cno_waiter(cno, time)` and `blocked(|| call)` begin one in a
//!   thread; `.inside(evd)` and `.asleep()` wait until it blocks, `.interrupt()` sends signals, `.join()` returns its
//!   result. `Cancellable::on_evd(evd)` and `on_cno` may be cancelled at any moment.
//! - Agents of a CNO: `Agent::default()` records its calls, armed by `agent.arm()`; `agent(|evd| ..)` runs any closure.
//! - `OneOfEach::of(ctx)` holds one live object of each [`ObjectKind`](kit::ObjectKind), for properties of all kinds.
//! - System helpers in `os::`: `set_env` (before any other call, for a dat.conf in `ctx.file("dat.conf")`), `in_fork(||
//!   0)`, `Map` (private, read-only, shared, of a file).
//! - Access through pointers that the library returned: `bytes_at write_at address_at context_bits region_address
//!   named_attributes text_at`.
//! - Optional features: `.needs(Need::Srq)`, or `ctx.unsupported("why")` in the body.
//! - `ctx.die()` kills the process; such a case is `.only_two()`.
//!
//! No case sleeps to let something happen, asserts an upper bound on time, or depends on another case.
#![allow(dead_code, reason = "helpers for future cases stay, even if no case uses them")]

/// Prints a line to standard output. Unlike the macro of `std`, ignores a closed pipe, as after `... | head -1`.
macro_rules! println {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints text to standard output, and ignores a closed pipe.
macro_rules! print {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = write!(std::io::stdout(), $($text)*);
    }};
}

mod api;
mod case;
mod cases;
mod ctx;
mod driver;
mod ending;
mod expected;
mod flight;
mod kit;
mod names;
mod os;
mod report;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &words[..]
        && first == "worker"
        && let Some(task) = worker::Task::from_words(rest)
    {
        worker::main(&task);
    }
    driver::main(&words)
}
