//! The client's part of the control messages before and after each test: it compares versions, requests the test, and
//! exchanges the results with the server. Also `-T Q`, which ends the server.
#![forbid(unsafe_code)]

use std::net::{SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use dat_abi::*;

use crate::channel::Channel;
use crate::common::Common;
use crate::dat::{Address, Ia};
use crate::failure::{Failure, Result};
use crate::stop;
use crate::wire::{Figures, Message, Offer};

/// Time between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks for a signal that ends the program.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Control connection to a server, and the server's address.
pub(crate) struct Server {
    pub(crate) channel: Channel,
    pub(crate) address: Address,
}

impl Server {
    /// Connects to the server and exchanges versions. Repeats a connect that no server accepts, up to the number of
    /// attempts in `common`.
    pub(crate) fn find(ia: &Ia, host: &str, common: &Common) -> Result<Self> {
        let address = resolve(host)?;
        for tries in 1.. {
            match Channel::connect(ia, address, common.port, common.qos, common.limit) {
                Ok(mut channel) => {
                    channel.greet(common.limit)?;
                    return Ok(Server { channel, address });
                }
                Err(Failure::NotConnected(number, word)) if tries < common.tries && may_come(number) => {
                    if common.debug > 0 {
                        eprintln!("dapltest: {host}, port {}: {word}; trying again", common.port);
                    }
                }
                Err(failure) => return Err(failure.at(&format!("{host}, port {}, {tries} attempts", common.port))),
            }
            pause()?;
        }
        unreachable!("the last attempt returns from the loop")
    }

    /// Requests a test. Returns one offer for each thread of the server.
    pub(crate) fn ask(&mut self, request: &Message, threads: usize) -> Result<Vec<Offer>> {
        self.channel.send(request)?;
        match self.channel.receive()? {
            Message::Ready(offers) if offers.len() == threads => Ok(offers),
            Message::Refused(reason) => Failure::with_message(format!("the server refuses: {reason}")),
            message => Failure::with_message(format!(
                "the server sent {message:?}; expected its answer (Ready with {threads} offers, or Refused)"
            )),
        }
    }

    /// Sends this side's result, and waits at most `limit` for the server's result. Returns the server's figures if it
    /// sends any. Fails if the server has failed.
    pub(crate) fn compare(&mut self, ours: &Result<()>, limit: Duration) -> Result<Option<Figures>> {
        self.channel.send(&Message::Over(ours.clone().map_err(|failure| failure.to_string())))?;
        match self.channel.receive_within(limit)? {
            Message::Over(Ok(())) => Ok(None),
            Message::Measured(figures) => Ok(Some(figures)),
            Message::Over(Err(reason)) => Failure::with_message(format!("the server: {reason}")),
            message => {
                Failure::with_message(format!("the server sent {message:?}; expected its result (Over or Measured)"))
            }
        }
    }
}

/// Runs `-T Q`: sends the server a request to end.
pub(crate) fn quit(common: &Common, host: &str) -> Result {
    let ia = Ia::open(&common.device)?;
    let mut server = Server::find(&ia, host, common)?;
    server.channel.send(&Message::Quit)?;
    match server.channel.receive()? {
        Message::Over(Ok(())) => server.channel.end()?,
        message => {
            return Failure::with_message(format!("the server sent {message:?}; expected a confirmation (Over)"));
        }
    }
    Ok(ia.close()?)
}

/// Whether a later attempt may find a listener, according to this event.
fn may_come(number: DAT_EVENT_NUMBER) -> bool {
    [
        DAT_CONNECTION_EVENT_PEER_REJECTED,
        DAT_CONNECTION_EVENT_NON_PEER_REJECTED,
        DAT_CONNECTION_EVENT_UNREACHABLE,
        DAT_CONNECTION_EVENT_TIMED_OUT,
    ]
    .contains(&number)
}

fn pause() -> Result {
    for _ in 0..CONNECT_INTERVAL.as_millis() / CHECK_INTERVAL.as_millis() {
        stop::check()?;
        thread::sleep(CHECK_INTERVAL);
    }
    Ok(())
}

/// Resolves a host name. IPv4 addresses are preferred, because every provider supports them.
fn resolve(host: &str) -> Result<Address> {
    let found = (host, 0).to_socket_addrs().map_err(|error| Failure::Message(format!("{host}: {error}")))?;
    let found: Vec<SocketAddr> = found.collect();
    let best = found.iter().find(|address| address.is_ipv4()).or(found.first());
    match best {
        Some(best) => Ok((*best).into()),
        None => Failure::with_message(format!("{host}: the name has no address")),
    }
}
