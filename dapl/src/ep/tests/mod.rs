//! Tests of endpoints, and of the service points, requests, RMRs and SRQs that they use, over the fake provider. They
//! call the C entries, and internal functions for what a program of 1.2 cannot do, such as extension operations and
//! reports of the provider.
//!
//! `World` acts as the consumer. The fake provider reports connection events only in `FakeProvider::deliver`, which
//! `World::deliver` calls. In `storm` a thread calls it all the time; in all other tests the test decides when events
//! are reported.

mod binding;
mod closing;
mod configuring;
mod connecting;
mod counting;
mod extensions;
mod failing;
mod points;
mod sharing;
mod storm;
mod watermarks;

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use dat_abi::*;

use crate::cr::dapl_cr::*;
use crate::ep::dapl_ep::*;
use crate::error::{Error, Handle, State};
use crate::evd::{dapl_evd::*, dapl_evd_wait};
use crate::fake::{FakeProvider, Opened};
use crate::ia::dapl_ia::*;
use crate::psp::dapl_psp::*;
use crate::pz::dapl_pz::*;
use crate::rsp::dapl_rsp::*;

/// Calls a C entry for the fake provider.
macro_rules! call {
    ($entry:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the entries accept any handle value, and the pointers refer to objects of the test case with the
        // types that the entry requires.
        unsafe { $entry::<FakeProvider>($($argument),*) }
    }};
}
pub(crate) use call;

type H = *mut c_void;
type Free = fn(H) -> DAT_RETURN;

/// An open IA with the objects that most tests need.
struct World {
    opened: Opened,
    pz: H,
    dto: H,
    conn: H,
    requests: H,
}

/// Result of `dat_cr_query`.
struct Asked {
    param: DAT_CR_PARAM,
    private_data: Vec<u8>,
}

impl World {
    fn new(name: &CStr) -> Self {
        Self::traced(name, c"")
    }

    /// Opens an IA with these `ia_params`.
    fn traced(name: &CStr, params: &CStr) -> Self {
        let opened = crate::fake::open_with(name, params);
        let mut pz = null_mut();
        assert_eq!(call!(dapl_pz_create(opened.ia_handle, &mut pz)), DAT_SUCCESS);
        let mut world = World { opened, pz, dto: null_mut(), conn: null_mut(), requests: null_mut() };
        world.dto = world.evd(DAT_EVD_DTO_FLAG);
        world.conn = world.evd(DAT_EVD_CONNECTION_FLAG);
        world.requests = world.evd(DAT_EVD_CR_FLAG);
        world
    }

    fn ia(&self) -> H {
        self.opened.ia_handle
    }

    fn evd(&self, flags: DAT_EVD_FLAGS) -> H {
        let mut evd = null_mut();
        assert_eq!(call!(dapl_evd_create(self.ia(), 16, null_mut(), flags, &mut evd)), DAT_SUCCESS);
        evd
    }

    fn ep_with(&self, pz: H, dto: H, conn: H) -> H {
        let mut ep = null_mut();
        assert_eq!(call!(dapl_ep_create(self.ia(), pz, dto, dto, conn, null(), &mut ep)), DAT_SUCCESS);
        ep
    }

    fn ep(&self) -> H {
        self.ep_with(self.pz, self.dto, self.conn)
    }

    fn psp(&self, qual: u64) -> H {
        let mut psp = null_mut();
        assert_eq!(call!(dapl_psp_create(self.ia(), qual, self.requests, 0, &mut psp)), DAT_SUCCESS);
        psp
    }

    fn deliver(&self) {
        self.opened.ia.provider.deliver();
    }

    fn connect_for(&self, ep: H, qual: u64, micros: u32, data: &[u8]) -> DAT_RETURN {
        let mut address = ipv4([127, 0, 0, 1]);
        let data_ptr = data.as_ptr().cast_mut().cast();
        call!(dapl_ep_connect(ep, address.as_mut_ptr().cast(), qual, micros, data.len() as i32, data_ptr, 0, 0))
    }

    fn connect(&self, ep: H, qual: u64, data: &[u8]) {
        assert_eq!(self.connect_for(ep, qual, DAT_TIMEOUT_INFINITE, data), DAT_SUCCESS);
        self.deliver();
    }

    /// Dequeues the next connection request and returns its CR.
    fn request(&self) -> H {
        let event = next(self.requests).expect("the EVD has a connection request");
        assert_eq!(event.event_number, DAT_CONNECTION_REQUEST_EVENT);
        // SAFETY: the event number selects the union member.
        unsafe { event.event_data.cr_arrival_event_data.cr_handle }
    }

    fn accept(&self, cr: H, ep: H, data: &[u8]) -> DAT_RETURN {
        let code = call!(dapl_cr_accept(cr, ep, data.len() as i32, data.as_ptr().cast_mut().cast()));
        self.deliver();
        code
    }

    /// Returns two connected EPs; their ESTABLISHED events have been dequeued.
    fn pair(&self, qual: u64) -> (H, H) {
        let (client, server) = (self.ep(), self.ep());
        let psp = self.psp(qual);
        self.connect(client, qual, &[]);
        assert_eq!(self.accept(self.request(), server, &[]), DAT_SUCCESS);
        assert_eq!(call!(dapl_psp_free(psp)), DAT_SUCCESS);
        assert_eq!(
            self.connection_events(),
            [(server, DAT_CONNECTION_EVENT_ESTABLISHED), (client, DAT_CONNECTION_EVENT_ESTABLISHED)]
        );
        (client, server)
    }

    /// Dequeues all events of the connect EVD.
    fn connection_events(&self) -> Vec<(H, DAT_EVENT_NUMBER)> {
        self.deliver();
        std::iter::from_fn(|| next(self.conn)).map(|event| (connection(&event).ep_handle, event.event_number)).collect()
    }

    /// Dequeues all completions. Returns their cookies and statuses.
    fn completions(&self) -> Vec<(u64, DAT_DTO_COMPLETION_STATUS)> {
        std::iter::from_fn(|| next(self.dto))
            .map(|event| {
                // SAFETY: this EVD receives DTO completions only, so this union member is set.
                let done = unsafe { event.event_data.dto_completion_event_data };
                // SAFETY: every union member of a cookie has eight bytes, and any bits are a valid integer.
                (unsafe { done.user_cookie.as_64 }, done.status)
            })
            .collect()
    }
}

fn ipv4(ip: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&ip);
    bytes
}

fn next(evd: H) -> Option<DAT_EVENT> {
    let mut event = MaybeUninit::uninit();
    match call!(dapl_evd_dequeue(evd, event.as_mut_ptr())) {
        // SAFETY: the call has succeeded, so it has written the record.
        DAT_SUCCESS => Some(unsafe { event.assume_init() }),
        code => {
            assert_eq!(code, DAT_QUEUE_EMPTY);
            None
        }
    }
}

fn connection(event: &DAT_EVENT) -> DAT_CONNECTION_EVENT_DATA {
    assert_eq!(event.event_number & 0x4000, 0x4000);
    // SAFETY: the event number selects the union member.
    unsafe { event.event_data.connect_event_data }
}

fn state(ep: H) -> DAT_EP_STATE {
    let mut state = 99;
    assert_eq!(call!(dapl_ep_get_status(ep, &mut state, null_mut(), null_mut())), DAT_SUCCESS);
    state
}

fn query(ep: H) -> DAT_EP_PARAM {
    let mut param = MaybeUninit::uninit();
    assert_eq!(call!(dapl_ep_query(ep, DAT_EP_FIELD_ALL, param.as_mut_ptr())), DAT_SUCCESS);
    // SAFETY: the call has succeeded, so it has written the record.
    unsafe { param.assume_init() }
}

fn asked(cr: H) -> Asked {
    let mut param = MaybeUninit::uninit();
    assert_eq!(call!(dapl_cr_query(cr, DAT_CR_FIELD_PRIVATE_DATA, param.as_mut_ptr())), DAT_SUCCESS);
    // SAFETY: the call has succeeded, so it has written the record.
    let param: DAT_CR_PARAM = unsafe { param.assume_init() };
    Asked { param, private_data: read(param.private_data, param.private_data_size as usize) }
}

fn read(from: H, size: usize) -> Vec<u8> {
    // SAFETY: the query returned the address of that many bytes.
    unsafe { crate::ffi::copy(from, size) }
}

fn recv(ep: H, cookie: u64) -> DAT_RETURN {
    call!(dapl_ep_post_recv(ep, 0, null_mut(), DAT_CONTEXT { as_64: cookie }, 0))
}

fn send(ep: H, cookie: u64) -> DAT_RETURN {
    call!(dapl_ep_post_send(ep, 0, null_mut(), DAT_CONTEXT { as_64: cookie }, 0))
}

fn disconnect(ep: H, flags: DAT_CLOSE_FLAGS) -> DAT_RETURN {
    call!(dapl_ep_disconnect(ep, flags))
}

fn bad(what: Handle) -> DAT_RETURN {
    Error::InvalidHandle(what).code()
}

fn wrong(n: u8) -> DAT_RETURN {
    Error::InvalidParameter(n).code()
}

fn in_state(state: State) -> DAT_RETURN {
    Error::InvalidState(state).code()
}

/// Frees the objects, and checks that a graceful close of the IA then succeeds.
fn finish(world: World, eps: &[H], points: &[(H, Free)]) {
    for ep in eps {
        assert_eq!(call!(dapl_ep_free(*ep)), DAT_SUCCESS);
    }
    for (point, free) in points {
        assert_eq!(free(*point), DAT_SUCCESS);
    }
    for evd in [world.dto, world.conn, world.requests] {
        assert_eq!(call!(dapl_evd_free(evd)), DAT_SUCCESS);
    }
    assert_eq!(call!(dapl_pz_free(world.pz)), DAT_SUCCESS);
    assert_eq!(call!(dapl_ia_close(world.ia(), DAT_CLOSE_GRACEFUL_FLAG)), DAT_SUCCESS);
}

fn free_psp(psp: H) -> DAT_RETURN {
    call!(dapl_psp_free(psp))
}

fn free_rsp(rsp: H) -> DAT_RETURN {
    call!(dapl_rsp_free(rsp))
}

fn wait(evd: H) -> DAT_EVENT {
    let (mut event, mut more) = (MaybeUninit::uninit(), 0);
    let code = call!(dapl_evd_wait(evd, 30_000_000, 1, event.as_mut_ptr(), &mut more));
    assert_eq!(code, DAT_SUCCESS);
    // SAFETY: the call has succeeded, so it has written the record.
    unsafe { event.assume_init() }
}
