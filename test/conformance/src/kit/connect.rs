//! Endpoints for cases, with their EVDs and PZ: connected to the other role, connected to each other, or not connected.
//! Also posts on them.
//!
//! Both roles of a pair case call `ctx.connect()`. A local case calls `ctx.loopback()` and gets both endpoints.
#![forbid(unsafe_code)]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "handles go to the library under test as they are")]

use std::ptr::null_mut;

use dat_abi::*;

use crate::api::*;
use crate::ctx::Ctx;

use super::codes::ok;
use super::event::{expect_conn, expect_cr};
use super::memory::Memory;
use super::object::{Ep, Evd, Ia, Psp, Pz, cookie, ep_attr};
use super::raw::address_at;

/// A socket address for connect calls.
#[derive(Clone)]
pub(crate) struct Address([u64; 16]);

impl Address {
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let mut words = [0; 16];
        for (at, byte) in bytes.iter().enumerate() {
            words[at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        Address(words.map(u64::to_le))
    }

    /// Pointer for a call, valid as long as this value exists.
    pub(crate) fn pointer(&self) -> DAT_IA_ADDRESS_PTR {
        self.0.as_ptr().cast_mut().cast()
    }

    /// Overwrites the memory to which `pointer` points.
    pub(crate) fn overwrite(&mut self) {
        std::hint::black_box(&mut self.0).fill(u64::MAX);
    }

    /// Creates an IPv4 address with port 0.
    pub(crate) fn ipv4(address: [u8; 4]) -> Self {
        let family = (libc::AF_INET as u16).to_ne_bytes();
        Address::of_bytes(&[&family[..], &[0, 0], &address].concat())
    }
}

impl Ia {
    /// Returns the adapter's address for peers.
    #[track_caller]
    pub(crate) fn address(&self) -> Address {
        Address::of_bytes(&address_at(self.attr().ia_address_ptr))
    }
}

impl Ctx {
    /// Sends the adapter's address to the other role.
    #[track_caller]
    pub(crate) fn send_address(&self, ia: &Ia) {
        self.send(address_at(ia.attr().ia_address_ptr));
    }

    /// Receives the address from the other role.
    #[track_caller]
    pub(crate) fn receive_address(&self) -> Address {
        Address::of_bytes(&self.receive())
    }

    /// Returns this role's endpoint of a new connection; both roles must call it. The server role listens on the
    /// qualifier 0 of the run.
    #[track_caller]
    pub(crate) fn connect(&self) -> Conn {
        self.connect_with(&Setup::default())
    }

    /// Same as `connect`, with the EVD length, the EP attributes and the qualifier of `setup`.
    #[track_caller]
    pub(crate) fn connect_with(&self, setup: &Setup) -> Conn {
        let conn = Conn::unconnected(&self.ia(), setup);
        if self.is_client() {
            let address = self.receive_address();
            conn.connect(&address, self.qual(setup.qual));
        } else {
            conn.listen(self.qual(setup.qual), || self.send_address(&conn.ia));
        }
        conn.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        conn
    }

    /// Returns both endpoints of a connection over one IA, the connecting one first.
    #[track_caller]
    pub(crate) fn loopback(&self) -> (Conn, Conn) {
        self.loopback_with(&self.ia(), &Setup::default())
    }

    /// Same as `loopback`, over an open IA, with the EVD length, the EP attributes and the qualifier of `setup`.
    #[track_caller]
    pub(crate) fn loopback_with(&self, ia: &Ia, setup: &Setup) -> (Conn, Conn) {
        let (client, server) = (Conn::unconnected(ia, setup), Conn::unconnected(ia, setup));
        let qual = self.qual(setup.qual);
        server.listen(qual, || client.connect(&ia.address(), qual));
        client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
        (client, server)
    }
}

/// Parameters for both endpoints of a connection.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) attr: DAT_EP_ATTR,
    /// Length of the EVDs for completions.
    pub(crate) qlen: DAT_COUNT,
    /// Index of the connection qualifier, for [`Ctx::qual`].
    pub(crate) qual: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { attr: ep_attr(), qlen: 64, qual: 0 }
    }
}

/// One endpoint of a connection with all objects it uses. Declare memory after it, so that the memory is freed first.
pub(crate) struct Conn {
    pub(crate) ep: Ep,
    /// EVD for completions of receives.
    pub(crate) recv: Evd,
    /// EVD for completions of sends, RDMA and binds.
    pub(crate) request: Evd,
    /// EVD for connection events.
    pub(crate) events: Evd,
    pub(crate) pz: Pz,
    pub(crate) ia: Ia,
}

impl Conn {
    /// Creates all objects of an unconnected endpoint, on the adapter of [`Ctx::ia`].
    #[track_caller]
    pub(crate) fn alone(ctx: &Ctx) -> Self {
        Conn::on(&ctx.ia())
    }

    /// Creates all objects of an unconnected endpoint on this adapter.
    #[track_caller]
    pub(crate) fn on(ia: &Ia) -> Self {
        Conn::unconnected(ia, &Setup::default())
    }

    /// Same as `on`, with the EVD length and the EP attributes of `setup`.
    #[track_caller]
    pub(crate) fn unconnected(ia: &Ia, setup: &Setup) -> Self {
        let pz = ia.pz();
        let recv = ia.evd(setup.qlen, DAT_EVD_DTO_FLAG);
        let request = ia.evd(setup.qlen, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
        let events = ia.evd(8, DAT_EVD_CONNECTION_FLAG);
        let ep = ia.ep_with(&pz, &recv, &request, &events, &setup.attr);
        Conn { ep, recv, request, events, pz, ia: ia.clone() }
    }

    /// Connects without private data and without a timeout.
    #[track_caller]
    pub(crate) fn connect(&self, address: &Address, qual: DAT_CONN_QUAL) {
        let (ep, address, flags) = (self.ep.h(), address.pointer(), DAT_CONNECT_DEFAULT_FLAG);
        ok(dat_ep_connect(ep, address, qual, DAT_TIMEOUT_INFINITE, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
    }

    /// Listens, calls `ready`, and accepts the first request. The service point is freed afterwards.
    #[track_caller]
    pub(crate) fn listen(&self, qual: DAT_CONN_QUAL, ready: impl FnOnce()) {
        let requests = self.ia.evd(8, DAT_EVD_CR_FLAG);
        let psp: Psp = self.ia.psp(qual, &requests);
        ready();
        let cr = expect_cr(requests.h()).cr_handle;
        ok(dat_cr_accept(cr, self.ep.h(), 0, null_mut()));
        drop(psp);
    }

    /// Checks that the next connection event is this one.
    #[track_caller]
    pub(crate) fn expect(&self, number: DAT_EVENT_NUMBER) {
        expect_conn(self.events.h(), self.ep.h(), number);
    }

    /// Disconnects and dequeues the event. The peer must not disconnect concurrently.
    #[track_caller]
    pub(crate) fn disconnect(&self) {
        ok(dat_ep_disconnect(self.ep.h(), DAT_CLOSE_ABRUPT_FLAG));
        self.expect(DAT_CONNECTION_EVENT_DISCONNECTED);
    }

    /// Creates a registered buffer in this endpoint's PZ.
    #[track_caller]
    pub(crate) fn memory(&self, length: usize) -> Memory {
        self.ia.memory(&self.pz, length)
    }

    #[track_caller]
    pub(crate) fn post_send(&self, id: u64, segment: DAT_LMR_TRIPLET) {
        self.post_send_as(id, segment, DAT_COMPLETION_DEFAULT_FLAG);
    }

    #[track_caller]
    pub(crate) fn post_send_as(&self, id: u64, mut segment: DAT_LMR_TRIPLET, flags: DAT_COMPLETION_FLAGS) {
        ok(dat_ep_post_send(self.ep.h(), 1, &mut segment, cookie(id), flags));
    }

    #[track_caller]
    pub(crate) fn post_recv(&self, id: u64, mut segment: DAT_LMR_TRIPLET) {
        ok(dat_ep_post_recv(self.ep.h(), 1, &mut segment, cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
    }

    /// Posts an RDMA write of a local range to a range of the peer.
    #[track_caller]
    pub(crate) fn post_write(&self, id: u64, mut from: DAT_LMR_TRIPLET, to: DAT_RMR_TRIPLET) {
        ok(dat_ep_post_rdma_write(self.ep.h(), 1, &mut from, cookie(id), &to, DAT_COMPLETION_DEFAULT_FLAG));
    }

    /// Posts an RDMA read of a range of the peer into a local range.
    #[track_caller]
    pub(crate) fn post_read(&self, id: u64, mut into: DAT_LMR_TRIPLET, from: DAT_RMR_TRIPLET) {
        ok(dat_ep_post_rdma_read(self.ep.h(), 1, &mut into, cookie(id), &from, DAT_COMPLETION_DEFAULT_FLAG));
    }
}

/// Dequeues the ESTABLISHED events of both endpoints.
#[track_caller]
pub(crate) fn established(client: &Conn, server: &Conn) {
    client.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
    server.expect(DAT_CONNECTION_EVENT_ESTABLISHED);
}

/// Posts a send without data. It needs no memory, but the peer needs a receive.
#[track_caller]
pub(crate) fn post_empty_send(conn: &Conn, id: u64) {
    ok(dat_ep_post_send(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
}

/// Posts an empty receive.
#[track_caller]
pub(crate) fn post_empty_recv(conn: &Conn, id: u64) {
    ok(dat_ep_post_recv(conn.ep.h(), 0, null_mut(), cookie(id), DAT_COMPLETION_DEFAULT_FLAG));
}
