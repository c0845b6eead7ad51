//! DAT 2.0 entries for event dispatchers whose records or events differ from 1.2, and the layout of 2.0 events.
//!
//! Called through the provider table only. The dequeue is on the hot path.

use dat_abi::v2::*;

use super::convert;
use crate::error::{Error, Handle};
use crate::evd::dapl_evd as evd_1_2;
use crate::evd::event_record::write_same;
use crate::evd::{Evd, Event, TakenEvent, wait_as};
use crate::ffi::{guard_cancellable, require};
use crate::provider::{Completion, Provider, ReceivedOp, Status, Work};
use crate::runtime::handle::{EvdHandle, from_handle_for_post};

/// `dat_evd_create`. Unlike in 1.2, an EVD can also serve the stream of completions of extended operations.
///
/// # Safety
/// `ia` and `cno` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_evd_create<P: Provider>(
    ia: DAT_IA_HANDLE,
    length: DAT_COUNT,
    cno: DAT_CNO_HANDLE,
    flags: DAT_EVD_FLAGS,
    out: *mut DAT_EVD_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `create`.
    convert::code(unsafe {
        evd_1_2::create::<P>(ia, length, cno, flags, evd_1_2::STREAMS | DAT_EVD_EXTENSION_BASE, out)
    })
}

/// `dat_evd_wait`.
///
/// # Safety
/// `evd` may have any value; `event` and `more` are null or writable.
pub unsafe extern "C-unwind" fn dapl2_evd_wait<P: Provider>(
    evd: DAT_EVD_HANDLE,
    timeout: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut DAT_EVENT,
    more: *mut DAT_COUNT,
) -> DAT_RETURN {
    // SAFETY: the caller also satisfies the contract of `wait_as`.
    convert::code(unsafe { wait_as::<P, DAT_EVENT>(evd, timeout, threshold, event, more, write_done, write_event) })
}

/// `dat_evd_post_se`. In a software event, the event number and the pointer have the same offsets as in 1.2.
///
/// # Safety
/// `evd` may have any value; `event` is null or points at a record.
pub unsafe extern "C" fn dapl2_evd_post_se<P: Provider>(evd: DAT_EVD_HANDLE, event: *const DAT_EVENT) -> DAT_RETURN {
    // SAFETY: the caller guarantees that `event` is null or readable. The entry of 1.2 reads only the event number and
    // the pointer.
    convert::code(unsafe { evd_1_2::dapl_evd_post_se::<P>(evd, event.cast()) })
}

const _: () = {
    use dat_abi as v1;
    use std::mem::offset_of;
    assert!(offset_of!(DAT_EVENT, event_number) == offset_of!(v1::DAT_EVENT, event_number));
    assert!(offset_of!(DAT_EVENT, evd_handle) == offset_of!(v1::DAT_EVENT, evd_handle));
    assert!(offset_of!(DAT_EVENT, event_data) == offset_of!(v1::DAT_EVENT, event_data));
    // The other records that `write_same` writes have the same type in both versions.
    assert!(offset_of!(DAT_CR_ARRIVAL_EVENT_DATA, cr_handle) == offset_of!(v1::DAT_CR_ARRIVAL_EVENT_DATA, cr_handle));
};

/// `dat_evd_dequeue`.
///
/// # Safety
/// `evd` may have any value; `out` is null or writable.
pub unsafe extern "C" fn dapl2_evd_dequeue<P: Provider>(evd: DAT_EVD_HANDLE, out: *mut DAT_EVENT) -> DAT_RETURN {
    if EvdHandle::of(evd).is_some_and(|entry| !out.is_null() && entry.has_no_event()) {
        return convert::code(dat_abi::DAT_QUEUE_EMPTY);
    }
    // SAFETY: the caller also satisfies the contract of `dequeue_locked`.
    unsafe { dequeue_locked::<P>(evd, out) }
}

/// `dat_evd_dequeue` with all checks. Called unless the empty check has shown that the EVD has no event.
///
/// # Safety
/// `evd` may have any value; `out` is null or writable.
#[inline(never)]
unsafe fn dequeue_locked<P: Provider>(evd: DAT_EVD_HANDLE, out: *mut DAT_EVENT) -> DAT_RETURN {
    convert::code(guard_cancellable(|| {
        let Some(object) = from_handle_for_post::<Evd<P>>(evd) else { return Err(Error::InvalidHandle(Handle::Plain)) };
        require(out, 2)?;
        // SAFETY: `out` is not null, and the caller guarantees that it is writable.
        let result = object.dequeue(|taken| unsafe {
            match taken {
                TakenEvent::Plain(done) | TakenEvent::Done(done) => write_done(out, evd, done),
                TakenEvent::Other(event) => write_event(out, evd, event),
            }
        });
        object.release();
        result
    }))
}

/// Writes all 120 bytes of an event. Unused bytes are zero.
///
/// # Safety
/// `out` is writable.
unsafe fn write_event(out: *mut DAT_EVENT, evd: DAT_EVD_HANDLE, event: &Event) {
    // SAFETY: the caller guarantees that `out` is writable; bytes need no alignment. The fields that `write_same`
    // writes have the same offsets in both versions (asserted above).
    unsafe {
        match event {
            Event::Dto(done) | Event::Failed(done) if done.token.work != Work::Bind => write_done(out, evd, done),
            _ => {
                out.cast::<u8>().write_bytes(0, size_of::<DAT_EVENT>());
                write_same(out.cast(), evd, event);
            }
        }
    }
}

/// Like [`write_event`], for a completion.
///
/// # Safety
/// `out` is writable.
#[inline]
unsafe fn write_done(out: *mut DAT_EVENT, evd: DAT_EVD_HANDLE, done: &Completion) {
    if done.token.work == Work::Bind {
        // SAFETY: the caller also satisfies the contract of `write_event`.
        return unsafe { write_event(out, evd, &Event::Dto(*done)) };
    }
    let extension = extension(done);
    let number = if extension.is_some() { DAT_IB_DTO_EVENT } else { DAT_DTO_COMPLETION_EVENT };
    // SAFETY: the caller guarantees that `out` is writable. Bytes need no alignment, and the fields are written one by
    // one, so that the padding keeps its zeros.
    unsafe {
        out.cast::<u8>().write_bytes(0, size_of::<DAT_EVENT>());
        (&raw mut (*out).event_number).write_unaligned(number);
        (&raw mut (*out).evd_handle).write_unaligned(evd);
        let data = &raw mut (*out).event_data.dto_completion_event_data;
        (&raw mut (*data).ep_handle).write_unaligned(done.token.ep as DAT_EP_HANDLE);
        (&raw mut (*data).user_cookie).write_unaligned(DAT_DTO_COOKIE { as_64: done.token.cookie });
        (&raw mut (*data).status).write_unaligned(done.status as DAT_DTO_COMPLETION_STATUS);
        (&raw mut (*data).transfered_length).write_unaligned(convert::size(done.bytes));
        (&raw mut (*data).operation).write_unaligned(operation(done));
        (&raw mut (*data).rmr_context).write_unaligned(done.invalidated().unwrap_or(0));
        if let Some(kind) = extension {
            let data = (&raw mut (*out).event_extension_data).cast::<DAT_IB_EXTENSION_EVENT_DATA>();
            (&raw mut (*data).r#type).write_unaligned(kind);
            let status = if done.status == Status::Success { DAT_OP_SUCCESS } else { DAT_IB_OP_ERR };
            (&raw mut (*data).status).write_unaligned(status);
            let immediate = DAT_IB_IMMED_DATA { data: done.immediate().unwrap_or(0) };
            (&raw mut (*data).val.immed).write_unaligned(immediate);
        }
    }
}

/// The operation that a completion reports.
#[inline(always)]
fn operation(done: &Completion) -> DAT_DTOS {
    match (done.token.work, done.arrival) {
        (Work::Send, _) => DAT_DTO_SEND,
        (Work::Write, _) => DAT_DTO_RDMA_WRITE,
        (Work::Read, _) => DAT_DTO_RDMA_READ,
        (Work::Bind, _) => DAT_DTO_BIND_MW,
        (Work::WriteImmediate, _) => DAT_IB_DTO_RDMA_WRITE_IMMED,
        (Work::FetchAdd, _) => DAT_IB_DTO_FETCH_ADD,
        (Work::CompareSwap, _) => DAT_IB_DTO_CMP_SWAP,
        (Work::Recv | Work::SharedRecv, ReceivedOp::Send) => DAT_DTO_RECEIVE,
        (Work::Recv | Work::SharedRecv, ReceivedOp::SendInvalidate) => DAT_DTO_RECEIVE_WITH_INVALIDATE,
        (Work::Recv | Work::SharedRecv, ReceivedOp::SendImmediate) => DAT_IB_DTO_RECV_MSG_IMMED,
        (Work::Recv | Work::SharedRecv, ReceivedOp::WriteImmediate) => DAT_IB_DTO_RECV_IMMED,
    }
}

/// Returns the type of a completion's extension data. `None`: the completion has no extension data and is reported as a
/// DTO event.
#[inline(always)]
fn extension(done: &Completion) -> Option<DAT_IB_EXT_TYPE> {
    match (done.token.work, done.arrival) {
        (Work::WriteImmediate, _) => Some(DAT_IB_RDMA_WRITE_IMMED),
        (Work::FetchAdd, _) => Some(DAT_IB_FETCH_AND_ADD),
        (Work::CompareSwap, _) => Some(DAT_IB_CMP_AND_SWAP),
        (_, ReceivedOp::SendImmediate) => Some(DAT_IB_RECV_IMMED_DATA),
        (_, ReceivedOp::WriteImmediate) => Some(DAT_IB_RDMA_WRITE_IMMED_DATA),
        (_, ReceivedOp::Send | ReceivedOp::SendInvalidate) => None,
    }
}

const _: () = assert!(size_of::<DAT_IB_EXTENSION_EVENT_DATA>() == size_of::<[DAT_UINT64; 8]>());
