//! Looks up the GID of an address for which no message carries one.
//!
//! The GID comes from `ibhosts`. On Ethernet, where GIDs are derived from addresses, an unlisted address is its own
//! GID. The first lookup may wait for a resolver, so it runs on a separate thread, which passes the result to the
//! engine.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;

use crate::cm::name_service::{Gid, NameService};
use parking_lot::Mutex;

use crate::engine::Reactor;

/// The lookup service.
pub(crate) struct GidLookup {
    names: Arc<NameService>,
    reactor: Arc<Reactor>,
}

impl GidLookup {
    pub(crate) fn new(reactor: &Arc<Reactor>) -> Self {
        GidLookup { names: Arc::default(), reactor: reactor.clone() }
    }

    /// Calls `then` with the result, immediately or later, on the engine's thread. `then` must not hold a reference
    /// that jobs of the engine must not hold. Engine only.
    pub(crate) fn find(&self, address: IpAddr, is_ethernet: bool, then: impl FnOnce(Option<Gid>) + Send + 'static) {
        let names = self.names.clone();
        if names.is_read() {
            return then(answer(&names, address, is_ethernet));
        }
        let reactor = self.reactor.clone();
        let then = Arc::new(Mutex::new(Some(then)));
        let later = then.clone();
        let ask = move || {
            let found = answer(&names, address, is_ethernet);
            reactor.soon(move || {
                let then = later.lock().take();
                then.into_iter().for_each(|then| then(found));
            });
        };
        if let Err(error) = dapl::runtime::thread::spawn("dapl-names", ask) {
            log::error!("{address}: cannot start a thread to look up its GID: {error}");
            let then = then.lock().take();
            then.into_iter().for_each(|then| then(None));
        }
    }
}

fn answer(names: &NameService, address: IpAddr, is_ethernet: bool) -> Option<Gid> {
    match names.lookup(address) {
        None if is_ethernet => Some(by_address(address)),
        None => names.gid(address),
        found => found,
    }
}

/// The GID that an address has on Ethernet.
pub(crate) fn by_address(address: IpAddr) -> Gid {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_ethernet_an_address_is_its_gid() {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 1];
        assert_eq!(by_address("192.0.2.1".parse().unwrap()), gid);
        assert_eq!(by_address("::ffff:192.0.2.1".parse().unwrap()), gid);
        assert_eq!(by_address("2001:db8::1".parse().unwrap())[..4], [0x20, 0x01, 0x0D, 0xB8]);
    }
}
