//! Writes events as the C structure `DAT_EVENT` of DAT 1.2, and the parts that are the same in DAT 2.0.

use dat_abi::*;

use super::dapli_evd::TakenEvent;
use super::event::Event;
use crate::ia::AsyncError;
use crate::provider::{Completion, ConnectionEvent, Status, Work};

/// A `DAT_EVENT` for a successful transfer. It is one struct with all fields, so that few stores write it.
#[repr(C)]
struct PlainEvent {
    number: DAT_EVENT_NUMBER,
    padding: u32,
    evd: DAT_EVD_HANDLE,
    ep: DAT_EP_HANDLE,
    cookie: u64,
    status: DAT_DTO_COMPLETION_STATUS,
    padding_2: u32,
    bytes: u64,
}

const _: () = {
    use std::mem::offset_of;
    const DATA: usize = offset_of!(DAT_EVENT, event_data);
    assert!(size_of::<PlainEvent>() == size_of::<DAT_EVENT>());
    assert!(offset_of!(PlainEvent, number) == offset_of!(DAT_EVENT, event_number));
    assert!(offset_of!(PlainEvent, evd) == offset_of!(DAT_EVENT, evd_handle));
    assert!(offset_of!(PlainEvent, ep) == DATA + offset_of!(DAT_DTO_COMPLETION_EVENT_DATA, ep_handle));
    assert!(offset_of!(PlainEvent, cookie) == DATA + offset_of!(DAT_DTO_COMPLETION_EVENT_DATA, user_cookie));
    assert!(offset_of!(PlainEvent, status) == DATA + offset_of!(DAT_DTO_COMPLETION_EVENT_DATA, status));
    assert!(offset_of!(PlainEvent, bytes) == DATA + offset_of!(DAT_DTO_COMPLETION_EVENT_DATA, transfered_length));
};

/// Like [`write_event`], for a dequeued event.
///
/// # Safety
/// `out` is writable.
#[inline(always)]
pub(super) unsafe fn write_taken(out: *mut DAT_EVENT, evd: DAT_EVD_HANDLE, taken: TakenEvent<'_>) {
    // SAFETY: the caller guarantees that `out` is writable.
    unsafe {
        match taken {
            TakenEvent::Plain(done) => write_plain(out, evd, done),
            TakenEvent::Done(done) => write_done(out, evd, done),
            TakenEvent::Other(event) => write_event(out, evd, event),
        }
    }
}

/// Like [`write_event`], for a successful transfer.
///
/// # Safety
/// `out` is writable.
#[inline(always)]
pub(super) unsafe fn write_plain(out: *mut DAT_EVENT, evd: DAT_EVD_HANDLE, done: &Completion) {
    let event = PlainEvent {
        number: DAT_DTO_COMPLETION_EVENT,
        padding: 0,
        evd,
        ep: done.token.ep as DAT_EP_HANDLE,
        cookie: done.token.cookie,
        status: DAT_DTO_SUCCESS,
        padding_2: 0,
        bytes: done.bytes,
    };
    // SAFETY: the caller guarantees that `out` is writable; the layouts are equal (asserted above), and the write is
    // unaligned.
    unsafe { out.cast::<PlainEvent>().write_unaligned(event) };
}

/// Like [`write_event`], for any completion.
///
/// # Safety
/// `out` is writable.
#[inline]
unsafe fn write_done(out: *mut DAT_EVENT, evd: DAT_EVD_HANDLE, done: &Completion) {
    if done.token.work == Work::Bind {
        // SAFETY: the caller also satisfies the contract of `write_event`.
        return unsafe { write_event(out, evd, &Event::Dto(*done)) };
    }
    // SAFETY: the caller guarantees that `out` is writable. Bytes need no alignment, and the fields are written one by
    // one, so that the padding keeps its zeros.
    unsafe {
        out.cast::<u8>().write_bytes(0, size_of::<DAT_EVENT>());
        (&raw mut (*out).event_number).write_unaligned(DAT_DTO_COMPLETION_EVENT);
        (&raw mut (*out).evd_handle).write_unaligned(evd);
        let data = &raw mut (*out).event_data.dto_completion_event_data;
        (&raw mut (*data).ep_handle).write_unaligned(done.token.ep as DAT_EP_HANDLE);
        (&raw mut (*data).user_cookie).write_unaligned(DAT_DTO_COOKIE { as_64: done.token.cookie });
        (&raw mut (*data).status).write_unaligned(done.status as DAT_DTO_COMPLETION_STATUS);
        (&raw mut (*data).transfered_length).write_unaligned(done.bytes);
    }
}

/// Writes all 48 bytes of an event. Unused bytes are zero.
///
/// # Safety
/// `out` is writable.
pub(super) unsafe fn write_event(out: *mut DAT_EVENT, evd: DAT_EVD_HANDLE, event: &Event) {
    // SAFETY: the caller guarantees that `out` is writable; bytes need no alignment.
    unsafe {
        match *event {
            Event::Dto(ref done) | Event::Failed(ref done) if done.token.work != Work::Bind => {
                return write_done(out, evd, done);
            }
            _ => out.cast::<u8>().write_bytes(0, size_of::<DAT_EVENT>()),
        }
        match *event {
            // In DAT 1.2 the event for a reject has no private data.
            Event::Connection { kind: kind @ ConnectionEvent::PeerRejected, ep, .. } => {
                write_same(out, evd, &Event::Connection { kind, ep, data_size: 0, data: 0 });
            }
            _ => write_same(out, evd, event),
        }
    }
}

/// Writes the fields of an event that have the same layout in DAT 1.2 and 2.0. A completion must be that of a bind.
///
/// # Safety
/// `out` is writable and zeroed.
pub(crate) unsafe fn write_same(out: *mut DAT_EVENT, evd: DAT_EVD_HANDLE, event: &Event) {
    // SAFETY: the caller guarantees that `out` is writable. The fields are written one by one, so that the padding
    // keeps its zeros. The fields of the data belong to the union member that the number selects.
    unsafe {
        (&raw mut (*out).evd_handle).write_unaligned(evd);
        let member = &raw mut (*out).event_data;
        let number = match *event {
            Event::Dto(done) | Event::Failed(done) => {
                let data = &raw mut (*member).rmr_completion_event_data;
                (&raw mut (*data).rmr_handle).write_unaligned(done.token.object as DAT_RMR_HANDLE);
                (&raw mut (*data).user_cookie).write_unaligned(DAT_RMR_COOKIE { as_64: done.token.cookie });
                (&raw mut (*data).status).write_unaligned(bind_status(done.status));
                DAT_RMR_BIND_COMPLETION_EVENT
            }
            Event::Request { sp, address, qual, cr, .. } => {
                let data = &raw mut (*member).cr_arrival_event_data;
                (&raw mut (*data).sp_handle).write_unaligned(DAT_SP_HANDLE { psp_handle: sp as DAT_PSP_HANDLE });
                (&raw mut (*data).local_ia_address_ptr).write_unaligned(address as DAT_IA_ADDRESS_PTR);
                (&raw mut (*data).conn_qual).write_unaligned(qual);
                (&raw mut (*data).cr_handle).write_unaligned(cr as DAT_CR_HANDLE);
                DAT_CONNECTION_REQUEST_EVENT
            }
            Event::Connection { kind, ep, data_size, data: private } => {
                let data = &raw mut (*member).connect_event_data;
                (&raw mut (*data).ep_handle).write_unaligned(ep as DAT_EP_HANDLE);
                (&raw mut (*data).private_data_size).write_unaligned(data_size as DAT_COUNT);
                (&raw mut (*data).private_data).write_unaligned(private as DAT_PVOID);
                kind as DAT_EVENT_NUMBER
            }
            Event::Async(AsyncError { kind, handle, reason }) => {
                let data = &raw mut (*member).asynch_error_event_data;
                (&raw mut (*data).dat_handle).write_unaligned(handle as DAT_HANDLE);
                (&raw mut (*data).reason).write_unaligned(reason);
                kind as DAT_EVENT_NUMBER
            }
            Event::Software { pointer } => {
                (&raw mut (*member).software_event_data.pointer).write_unaligned(pointer as DAT_PVOID);
                DAT_SOFTWARE_EVENT
            }
        };
        (&raw mut (*out).event_number).write_unaligned(number);
    }
}

/// Converts the status of a bind. A failed bind has one of two statuses (spec/events 9.2).
fn bind_status(status: Status) -> DAT_DTO_COMPLETION_STATUS {
    match status {
        Status::Success => DAT_RMR_BIND_SUCCESS,
        Status::Flushed => DAT_RMR_BIND_FAILURE,
        _ => DAT_RMR_OPERATION_FAILED,
    }
}
