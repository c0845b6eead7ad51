//! Looks up the GID of a peer that has not sent it, by the peer's IP address.
//!
//! The GID comes from `ibhosts`. On Ethernet, the GID of an address that is not listed is derived from the address. The
//! first lookup may block in the resolver, so it runs on a separate thread, which passes the result to the engine
//! thread.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;

use super::SocketContext;
use crate::cm::name_service::{Gid, NameService};
use crate::gid;

impl SocketContext {
    /// Looks up a GID without blocking the engine thread. Calls `then` with the result on the engine thread,
    /// immediately or later. `then` must hold only weak references to objects of the IA, so that a lookup in progress
    /// does not keep them alive. Called by the engine thread only.
    pub(in crate::cm) fn find_gid(
        &self,
        address: IpAddr,
        is_ethernet: bool,
        then: impl Fn(Option<Gid>) + Send + Sync + 'static,
    ) {
        let (names, engine) = (self.names.clone(), self.engine.clone());
        if names.is_read() {
            return then(gid_of(&names, address, is_ethernet));
        }
        let then = Arc::new(then);
        let later = then.clone();
        let look_up = move || {
            let gid = gid_of(&names, address, is_ethernet);
            engine.run_on_engine(move || later(gid));
        };
        if let Err(error) = dapl::runtime::thread::spawn("dapl-names", look_up) {
            log::error!(
                "cannot start a thread to look up the GID of {address}: {error}; the connect fails; allow more processes (ulimit -u)"
            );
            then(None);
        }
    }
}

fn gid_of(names: &NameService, address: IpAddr, is_ethernet: bool) -> Option<Gid> {
    match names.lookup(address) {
        None if is_ethernet => Some(gid::raw(address)),
        None => names.gid(address),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_on_ethernet_is_the_address_in_ipv6_form() {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 1];
        assert_eq!(gid::raw("192.0.2.1".parse().unwrap()), gid);
        assert_eq!(gid::raw("::ffff:192.0.2.1".parse().unwrap()), gid);
        assert_eq!(gid::raw("2001:db8::1".parse().unwrap())[..4], [0x20, 0x01, 0x0D, 0xB8]);
    }
}
