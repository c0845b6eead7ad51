//! Tests of the entries of 2.0 over the fake provider. These entries are called through the table, as C calls them.
//!
//! `World` acts as the consumer. Each test decides when the provider reports events (`World::deliver`).

mod connecting;
mod events;
mod extending;
mod memory;
mod records;

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use dat_abi::v2::*;

use crate::fake::{self, FakeProvider, Opened};
use crate::table::table_v2;

type H = *mut c_void;

/// Calls an entry of the table.
macro_rules! call {
    ($slot:ident($($argument:expr),* $(,)?)) => {{
        let entry = table_v2::<FakeProvider>(std::ptr::null()).$slot.expect("no slot is empty");
        // SAFETY: the entries accept any handle value, and the pointers refer to objects of the test case with the
        // types that the entry requires.
        unsafe { entry($($argument),*) }
    }};
}
use call;

/// Calls an entry that writes a record. Returns the record.
fn written<T>(write: impl FnOnce(*mut T) -> DAT_RETURN) -> T {
    let mut out = MaybeUninit::zeroed();
    assert_eq!(write(out.as_mut_ptr()), DAT_SUCCESS);
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid; the entry has written the
    // record.
    unsafe { out.assume_init() }
}

fn error(kind: DAT_RETURN, subtype: DAT_RETURN) -> DAT_RETURN {
    DAT_CLASS_ERROR | kind | subtype
}

fn bad_argument(n: u32) -> DAT_RETURN {
    error(DAT_INVALID_PARAMETER, DAT_INVALID_ARG1 + n - 1)
}

fn bad_handle(subtype: DAT_RETURN) -> DAT_RETURN {
    error(DAT_INVALID_HANDLE, subtype)
}

/// An open IA with the objects that most tests need.
struct World {
    opened: Opened,
    pz: H,
    dto: H,
    conn: H,
    requests: H,
}

impl World {
    fn new(name: &CStr) -> Self {
        let opened = fake::open(name);
        let pz = written(|out| call!(pz_create_func(opened.ia_handle, out)));
        let mut world = World { opened, pz, dto: null_mut(), conn: null_mut(), requests: null_mut() };
        world.dto = world.evd(DAT_EVD_DTO_FLAG | DAT_IB_EVD_EXTENSION_FLAG | DAT_EVD_RMR_BIND_FLAG);
        world.conn = world.evd(DAT_EVD_CONNECTION_FLAG);
        world.requests = world.evd(DAT_EVD_CR_FLAG);
        world
    }

    fn ia(&self) -> H {
        self.opened.ia_handle
    }

    fn evd(&self, flags: DAT_EVD_FLAGS) -> H {
        written(|out| call!(evd_create_func(self.ia(), 16, null_mut(), flags, out)))
    }

    fn ep(&self) -> H {
        written(|out| call!(ep_create_func(self.ia(), self.pz, self.dto, self.dto, self.conn, null(), out)))
    }

    fn deliver(&self) {
        self.opened.ia.provider.deliver();
    }

    /// Returns two connected EPs; their ESTABLISHED events have been dequeued.
    fn pair(&self, qual: u64) -> (H, H) {
        let (client, server) = (self.ep(), self.ep());
        let psp = written(|out| call!(psp_create_func(self.ia(), qual, self.requests, DAT_PSP_CONSUMER_FLAG, out)));
        self.connect(client, qual);
        let cr = self.request().cr_handle;
        assert_eq!(call!(cr_accept_func(cr, server, 0, null_mut())), DAT_SUCCESS);
        self.deliver();
        assert_eq!(call!(psp_free_func(psp)), DAT_SUCCESS);
        let kinds = std::iter::from_fn(|| next(self.conn)).map(|event| event.event_number);
        assert_eq!(kinds.collect::<Vec<_>>(), [DAT_CONNECTION_EVENT_ESTABLISHED; 2]);
        (client, server)
    }

    fn connect(&self, ep: H, qual: u64) {
        let mut address = ipv4(0);
        let to = address.as_mut_ptr().cast();
        // `MULTIPATH` requests several paths; the connect succeeds with one.
        let flags = DAT_CONNECT_MULTIPATH_FLAG;
        let code =
            call!(ep_connect_func(ep, to, qual, DAT_TIMEOUT_INFINITE, 0, null_mut(), DAT_QOS_BEST_EFFORT, flags));
        assert_eq!(code, DAT_SUCCESS);
        self.deliver();
    }

    /// Dequeues a connection request and returns its data.
    fn request(&self) -> DAT_CR_ARRIVAL_EVENT_DATA {
        let event = next(self.requests).expect("the EVD has a connection request");
        assert_eq!(event.event_number, DAT_CONNECTION_REQUEST_EVENT);
        // SAFETY: the event number selects the union member.
        unsafe { event.event_data.cr_arrival_event_data }
    }

    /// Dequeues a connection event and returns its number and data.
    fn connection(&self) -> (DAT_EVENT_NUMBER, DAT_CONNECTION_EVENT_DATA) {
        self.deliver();
        let event = next(self.conn).expect("the EVD has a connection event");
        // SAFETY: this EVD receives connection events only, so this union member is set.
        (event.event_number, unsafe { event.event_data.connect_event_data })
    }

    /// Dequeues a DTO completion and returns the event and its data.
    fn completion(&self) -> (DAT_EVENT, DAT_DTO_COMPLETION_EVENT_DATA) {
        let event = next(self.dto).expect("the EVD has a completion");
        // SAFETY: this EVD has only DTO completions when this function is called, so this union member is set.
        (event, unsafe { event.event_data.dto_completion_event_data })
    }
}

fn next(evd: H) -> Option<DAT_EVENT> {
    let mut event = MaybeUninit::uninit();
    match call!(evd_dequeue_func(evd, event.as_mut_ptr())) {
        // SAFETY: the call has succeeded, so it has written the record.
        DAT_SUCCESS => Some(unsafe { event.assume_init() }),
        code => {
            assert_eq!(code, DAT_QUEUE_EMPTY);
            None
        }
    }
}

/// 127.0.0.1 with this port.
fn ipv4(port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&[127, 0, 0, 1]);
    bytes
}

fn cookie(value: u64) -> DAT_DTO_COOKIE {
    DAT_DTO_COOKIE { as_64: value }
}

#[test]
fn v2_table_has_no_null_entry_and_more_than_70_distinct_ones() {
    let table = table_v2::<FakeProvider>(std::ptr::null());
    assert!(table.device_name.is_null() && table.extension.is_null());
    let words = size_of::<DAT_PROVIDER>() / size_of::<usize>();
    assert_eq!(words, 81);
    // SAFETY: the table consists of pointers and function pointers only, so it has this number of words.
    let slots = unsafe { std::slice::from_raw_parts((&raw const table).cast::<usize>(), words) };
    assert!(slots[2..].iter().all(|slot| *slot != 0));
    let mut distinct = slots[2..].to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 70, "{} entries", distinct.len());
}

#[test]
fn v2_entries_return_codes_of_2_0() {
    let world = World::new(c"v2 codes");
    let mut out = null_mut();
    assert_eq!(call!(get_consumer_context_func(null_mut(), null_mut())), bad_handle(DAT_INVALID_HANDLE1));
    assert_eq!(call!(pz_create_func(world.ia(), null_mut())), bad_argument(2));
    assert_eq!(call!(pz_create_func(null_mut(), &mut out)), bad_handle(DAT_INVALID_HANDLE_IA));
    let ep = world.ep();
    let unconnected = error(DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED);
    assert_eq!(call!(ep_post_send_func(ep, 0, null_mut(), cookie(1), 0)), unconnected);
    assert_eq!(call!(pz_free_func(world.pz)), error(DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE));
}
