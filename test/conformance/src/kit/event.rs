//! Events: waits for and dequeues events, checks the next event of each kind, and checks that no event arrives.
#![forbid(unsafe_code)]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "handles go to the library under test as they are")]

use std::time::{Duration, Instant};

use dat_abi::*;

use crate::api::*;

use super::codes::{error, expect, ok, zeroed};
use super::object::Evd;
use super::raw::{self, context_bits};
use super::{SOON, bytes_at, scaled_timeout};

/// An event as the library returned it.
#[derive(Clone, Copy)]
pub(crate) struct Event(pub(crate) DAT_EVENT);

impl Event {
    pub(crate) fn number(&self) -> DAT_EVENT_NUMBER {
        self.0.event_number
    }

    /// The EVD that the event names.
    pub(crate) fn evd(&self) -> DAT_EVD_HANDLE {
        self.0.evd_handle
    }

    /// Returns the data of a DTO completion.
    #[track_caller]
    pub(crate) fn dto(&self) -> DAT_DTO_COMPLETION_EVENT_DATA {
        self.is(DAT_DTO_COMPLETION_EVENT);
        raw::dto(&self.0)
    }

    /// Returns the data of a bind completion.
    #[track_caller]
    pub(crate) fn rmr(&self) -> DAT_RMR_BIND_COMPLETION_EVENT_DATA {
        self.is(DAT_RMR_BIND_COMPLETION_EVENT);
        raw::rmr(&self.0)
    }

    /// Returns the data of a connection request event.
    #[track_caller]
    pub(crate) fn arrival(&self) -> DAT_CR_ARRIVAL_EVENT_DATA {
        self.is(DAT_CONNECTION_REQUEST_EVENT);
        raw::arrival(&self.0)
    }

    /// Returns the service point of a connection request, PSP or RSP.
    #[track_caller]
    pub(crate) fn service_point(&self) -> DAT_HANDLE {
        raw::service_point(self.arrival().sp_handle)
    }

    /// Returns the data of a connection event.
    #[track_caller]
    pub(crate) fn connection(&self) -> DAT_CONNECTION_EVENT_DATA {
        let is_one = (DAT_CONNECTION_EVENT_ESTABLISHED..=DAT_CONNECTION_EVENT_UNREACHABLE).contains(&self.number());
        assert!(is_one, "the event {} is not a connection event", number_name(self.number()));
        raw::connection(&self.0)
    }

    /// Returns the private data of a connection event.
    #[track_caller]
    pub(crate) fn private_data(&self) -> Vec<u8> {
        let data = self.connection();
        bytes_at(data.private_data, data.private_data_size.max(0) as usize)
    }

    /// Returns the object and the reason of an asynchronous error.
    #[track_caller]
    pub(crate) fn asynchronous(&self) -> DAT_ASYNCH_ERROR_EVENT_DATA {
        let is_one = (DAT_ASYNC_ERROR_EVD_OVERFLOW..=DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR).contains(&self.number());
        assert!(is_one, "the event {} is not an asynchronous error", number_name(self.number()));
        raw::asynchronous(&self.0)
    }

    /// Returns the pointer of a software event.
    #[track_caller]
    pub(crate) fn software(&self) -> DAT_PVOID {
        self.is(DAT_SOFTWARE_EVENT);
        raw::software(&self.0)
    }

    /// Checks that the event has this number.
    #[track_caller]
    pub(crate) fn is(&self, number: DAT_EVENT_NUMBER) {
        assert!(
            self.number() == number,
            "the event is {}, wanted {}{}",
            number_name(self.number()),
            number_name(number),
            self.details()
        );
    }

    fn details(&self) -> String {
        match self.number() {
            DAT_DTO_COMPLETION_EVENT => {
                let data = raw::dto(&self.0);
                format!(" (cookie {:#x}, {})", context_bits(data.user_cookie), status_name(data.status))
            }
            _ => String::new(),
        }
    }
}

/// Creates a software event for posting.
pub(crate) fn software_event(pointer: usize) -> DAT_EVENT {
    let mut event: DAT_EVENT = zeroed();
    event.event_number = DAT_SOFTWARE_EVENT;
    let pointer = std::ptr::without_provenance_mut(pointer);
    event.event_data = DAT_EVENT_DATA { software_event_data: DAT_SOFTWARE_EVENT_DATA { pointer } };
    event
}

/// Converts a duration to DAT microseconds.
pub(crate) fn micros(time: Duration) -> DAT_TIMEOUT {
    DAT_TIMEOUT::try_from(time.as_micros()).unwrap_or(DAT_TIMEOUT_INFINITE)
}

/// Waits on an EVD with threshold 1. Returns `None` on timeout.
#[track_caller]
pub(crate) fn wait(evd: DAT_EVD_HANDLE, time: Duration) -> Option<Event> {
    let (mut event, mut more) = (zeroed(), 0);
    let code = dat_evd_wait(evd, micros(scaled_timeout(time)), 1, &mut event, &mut more);
    if code == error(DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE) {
        return None;
    }
    ok(code);
    Some(Event(event))
}

/// Dequeues an event. Returns `None` if the queue is empty.
#[track_caller]
pub(crate) fn dequeue(evd: DAT_EVD_HANDLE) -> Option<Event> {
    let mut event = zeroed();
    let code = dat_evd_dequeue(evd, &mut event);
    if code == DAT_QUEUE_EMPTY {
        return None;
    }
    ok(code);
    Some(Event(event))
}

/// Waits for an event and fails if none arrives.
#[track_caller]
pub(crate) fn expect_event(evd: DAT_EVD_HANDLE, time: Duration) -> Event {
    // A closure would make the panic report the closure's line, not the caller's.
    match wait(evd, time) {
        Some(event) => event,
        None => panic!("no event after {time:?}"),
    }
}

/// Polls for the next event, for EVDs on which a wait is refused or not notified.
#[track_caller]
pub(crate) fn polled_event(evd: DAT_EVD_HANDLE) -> Event {
    let end = Instant::now() + scaled_timeout(SOON);
    loop {
        if let Some(event) = dequeue(evd) {
            return event;
        }
        assert!(Instant::now() < end, "no event after {SOON:?}");
        std::thread::yield_now();
    }
}

/// Checks that the next event is this DTO's completion. `length` is compared only after success.
#[track_caller]
pub(crate) fn expect_dto(
    evd: DAT_EVD_HANDLE,
    cookie: u64,
    status: DAT_DTO_COMPLETION_STATUS,
    length: u64,
) -> DAT_DTO_COMPLETION_EVENT_DATA {
    let data = expect_event(evd, SOON).dto();
    check_dto(&data, cookie, status, length);
    data
}

/// Same as [`expect_dto`], for an event already dequeued.
#[track_caller]
pub(crate) fn check_dto(
    data: &DAT_DTO_COMPLETION_EVENT_DATA,
    cookie: u64,
    status: DAT_DTO_COMPLETION_STATUS,
    length: u64,
) {
    let came = (context_bits(data.user_cookie), data.status);
    let words = |(cookie, status): (u64, u32)| format!("cookie {cookie:#x} {}", status_name(status));
    assert!(came == (cookie, status), "the request completed with {}, wanted {}", words(came), words((cookie, status)));
    if status == DAT_DTO_SUCCESS {
        assert!(data.transfered_length == length, "{} bytes were transferred, wanted {length}", data.transfered_length);
    }
}

/// Checks that these requests or receives complete as flushed, in this order.
#[track_caller]
pub(crate) fn expect_flushed(evd: &Evd, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        expect_dto(evd.h(), id, DAT_DTO_ERR_FLUSHED, 0);
    }
}

/// Checks that the next event is the completion of this bind.
#[track_caller]
pub(crate) fn expect_rmr(
    evd: DAT_EVD_HANDLE,
    rmr: DAT_RMR_HANDLE,
    cookie: u64,
    status: DAT_DTO_COMPLETION_STATUS,
) -> DAT_RMR_BIND_COMPLETION_EVENT_DATA {
    let data = expect_event(evd, SOON).rmr();
    let came = (data.rmr_handle, context_bits(data.user_cookie), status_name(data.status));
    assert_eq!(came, (rmr, cookie, status_name(status)), "RMR, cookie or status of the completion is wrong");
    data
}

/// Checks that the next event has this number and names this EP.
#[track_caller]
pub(crate) fn expect_conn(evd: DAT_EVD_HANDLE, ep: DAT_EP_HANDLE, number: DAT_EVENT_NUMBER) -> Event {
    let event = expect_event(evd, SOON);
    event.is(number);
    assert!(event.connection().ep_handle == ep, "the event is for another EP");
    event
}

/// Dequeues the next event, which must be a connection request.
#[track_caller]
pub(crate) fn expect_cr(evd: DAT_EVD_HANDLE) -> DAT_CR_ARRIVAL_EVENT_DATA {
    expect_event(evd, SOON).arrival()
}

/// Checks that the next event is an asynchronous event with this number and reason, for this object.
#[track_caller]
pub(crate) fn expect_async(evd: DAT_EVD_HANDLE, number: DAT_EVENT_NUMBER, about: DAT_HANDLE, reason: u32) {
    let event = expect_event(evd, SOON);
    event.is(number);
    let data = event.asynchronous();
    assert_eq!(
        (data.dat_handle, data.reason),
        (about, reason as DAT_COUNT),
        "object or reason of the asynchronous event is wrong"
    );
}

/// Checks that no event is queued.
#[track_caller]
pub(crate) fn expect_nothing(evd: DAT_EVD_HANDLE) {
    let mut event = zeroed();
    let code = dat_evd_dequeue(evd, &mut event);
    if code == DAT_SUCCESS {
        let event = Event(event);
        panic!("the event {} is queued, wanted none{}", number_name(event.number()), event.details());
    }
    expect(code, DAT_QUEUE_EMPTY);
}

/// Checks that no event is queued and that none arrives during this time. Always takes that long; 50 ms reveal most
/// bugs.
#[track_caller]
pub(crate) fn expect_quiet(evd: DAT_EVD_HANDLE, time: Duration) {
    if let Some(event) = wait(evd, time) {
        panic!("the event {} arrived, wanted none{}", number_name(event.number()), event.details());
    }
}

/// Dequeues all queued events.
#[track_caller]
pub(crate) fn drain(evd: DAT_EVD_HANDLE) -> Vec<Event> {
    std::iter::from_fn(|| dequeue(evd)).collect()
}

pub(crate) fn number_name(number: DAT_EVENT_NUMBER) -> String {
    name_of(crate::names::EVENTS, number)
}

pub(crate) fn status_name(status: DAT_DTO_COMPLETION_STATUS) -> String {
    name_of(crate::names::STATUSES, status)
}

fn name_of(names: &[(u32, &str)], number: u32) -> String {
    match names.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("unknown number {number:#x}"),
    }
}
