//! The server: takes clients as they come, each in a thread of its own, until somebody says quit.
//!
//! A client that says nothing, or nonsense, is dropped; the others do not notice. On SIGINT and SIGTERM the tests that run
//! are given up; a client that asks for the end waits for them.
#![forbid(unsafe_code)]

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dat_abi::DAT_EVD_CR_FLAG;

use crate::channel::Channel;
use crate::dat::{Event, Handle, How, Ia, Object, Patience, raw};
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::wire::Message;
use crate::{performance, stop, transaction};

/// Clients at a time; more are rejected, and may ask again.
const MOST_CLIENTS: usize = 128;
/// Between two looks at whether this is the end.
const LOOK_UP: Duration = Duration::from_millis(200);

/// What the sessions share.
struct House<'a> {
    ia: &'a Ia,
    common: &'a Common,
    is_over: AtomicBool,
    clients: AtomicUsize,
}

/// Serves until the end.
pub(crate) fn run(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let requests = ia.evd(MOST_CLIENTS, DAT_EVD_CR_FLAG)?;
    let psp = ia.psp(common.port, &requests).map_err(|refusal| Failure::from(refusal).at("the server's port"))?;
    println!("dapltest: listening on {}, port {}", common.device, common.port);
    // Whoever started us may wait for this line.
    let _ = std::io::stdout().flush();

    let (is_over, clients) = (AtomicBool::new(false), AtomicUsize::new(0));
    let house = House { ia: &ia, common, is_over, clients };
    let patience = Patience { how: How::Sleep, limit: LOOK_UP };
    let served = thread::scope(|scope| {
        while !house.is_over.load(Ordering::Relaxed) {
            match patience.look(&requests) {
                Ok(Some(Event::Request { cr, .. })) => {
                    if house.clients.load(Ordering::Relaxed) >= MOST_CLIENTS {
                        raw::cr_reject(cr)?;
                        continue;
                    }
                    house.clients.fetch_add(1, Ordering::Relaxed);
                    let house = &house;
                    scope.spawn(move || house.session(cr));
                }
                Ok(Some(event)) => eprintln!("dapltest: {event:?} in place of a client"),
                Ok(None) => {}
                Err(Failure::Interrupted) => break,
                Err(failure) => {
                    house.is_over.store(true, Ordering::Relaxed);
                    return Err(failure);
                }
            }
        }
        Ok(())
    });
    served?;
    psp.free()?;
    requests.free()?;
    // Graceful: it is refused if a session has left something.
    ia.close()?;
    println!("dapltest: {}", if stop::is_wanted() { "stopped" } else { "quit" });
    Ok(())
}

impl House<'_> {
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
        let request = channel.hear_within(self.common.greeting)?;
        if self.common.debug > 0 {
            println!("dapltest: a client asks for {request:?}");
        }
        match request {
            Message::Quit => {
                channel.say(&Message::Over(Ok(())))?;
                self.is_over.store(true, Ordering::Relaxed);
                channel.await_end()
            }
            Message::Transaction(test) => transaction::serve(self.ia, channel, test, self.common),
            Message::Performance(test) => performance::serve(self.ia, channel, &test, self.common),
            message => channel.refuse(Failure::Said(format!("{message:?} in place of a request"))),
        }
    }
}
