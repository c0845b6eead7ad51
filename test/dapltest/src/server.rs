//! The server: handles each client in a separate thread, until a client (`-T Q`) or a signal ends the server.
//!
//! A client that sends nothing or invalid messages is dropped without effect on other clients. SIGINT and SIGTERM
//! abort running tests; `-T Q` waits for them.
#![forbid(unsafe_code)]

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dat_abi::DAT_EVD_CR_FLAG;

use crate::channel::Channel;
use crate::common::Common;
use crate::dat::{Event, Handle, Ia, Object, WaitMethod, WaitPolicy, raw};
use crate::failure::{Failure, Result};
use crate::wire::Message;
use crate::{performance, stop, transaction};

/// Maximum number of concurrent clients. Further clients are rejected and may retry.
const MAX_CLIENTS: usize = 128;
/// Interval between checks for the end of the program.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// State shared by the sessions of all clients.
struct ServerState<'a> {
    ia: &'a Ia,
    common: &'a Common,
    is_over: AtomicBool,
    clients: AtomicUsize,
}

/// Serves clients until a client or a signal ends the server.
pub(crate) fn run(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let requests = ia.evd(MAX_CLIENTS, DAT_EVD_CR_FLAG)?;
    let psp = ia.psp(common.port, &requests).map_err(|refusal| Failure::from(refusal).at("the server's port"))?;
    println!("dapltest: listening on {}, port {}", common.device, common.port);
    // A parent process may wait for this line.
    let _ = std::io::stdout().flush();

    let (is_over, clients) = (AtomicBool::new(false), AtomicUsize::new(0));
    let state = ServerState { ia: &ia, common, is_over, clients };
    let wait_policy = WaitPolicy { how: WaitMethod::Sleep, limit: CHECK_INTERVAL };
    let served = thread::scope(|scope| {
        while !state.is_over.load(Ordering::Relaxed) {
            match wait_policy.look(&requests) {
                Ok(Some(Event::Request { cr, .. })) => {
                    if state.clients.load(Ordering::Relaxed) >= MAX_CLIENTS {
                        raw::cr_reject(cr)?;
                        continue;
                    }
                    state.clients.fetch_add(1, Ordering::Relaxed);
                    let state = &state;
                    scope.spawn(move || state.session(cr));
                }
                Ok(Some(event)) => {
                    eprintln!("dapltest: ignored the event {event:?}; a connection request was expected")
                }
                Ok(None) => {}
                Err(Failure::Interrupted) => break,
                Err(failure) => {
                    state.is_over.store(true, Ordering::Relaxed);
                    return Err(failure);
                }
            }
        }
        Ok(())
    });
    served?;
    psp.free()?;
    requests.free()?;
    // A graceful close is refused if a session has leaked an object.
    ia.close()?;
    println!("dapltest: {}", if stop::is_wanted() { "stopped" } else { "quit" });
    Ok(())
}

impl ServerState<'_> {
    fn session(&self, cr: Handle) {
        match self.serve(cr) {
            Ok(()) => {}
            Err(Failure::Interrupted) => {}
            Err(failure) => eprintln!("dapltest: a client is dropped: {failure}"),
        }
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    fn serve(&self, cr: Handle) -> Result {
        let mut channel = Channel::accept(self.ia, cr, self.common.limit)?;
        channel.greet(self.common.greeting)?;
        let request = channel.receive_within(self.common.greeting)?;
        if self.common.debug > 0 {
            println!("dapltest: a client requests {request:?}");
        }
        match request {
            Message::Quit => {
                channel.send(&Message::Over(Ok(())))?;
                self.is_over.store(true, Ordering::Relaxed);
                channel.await_end()
            }
            Message::Transaction(test) => transaction::serve(self.ia, channel, test, self.common),
            Message::Performance(test) => performance::serve(self.ia, channel, &test, self.common),
            Message::Connects => performance::serve_connects(self.ia, channel, self.common),
            message => channel.refuse(Failure::Message(format!("the client sent {message:?}; expected a request"))),
        }
    }
}
