//! Events as Rust values, parsed from libdat's records, and software events to post. Also texts for connection events
//! and completion statuses.

use dat_abi::*;

use super::raw::Handle;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// A transfer or a receive has completed.
    Dto {
        ep: Handle,
        cookie: u64,
        status: DAT_DTO_COMPLETION_STATUS,
        length: u64,
    },
    /// A bind has completed.
    Bind {
        rmr: Handle,
        cookie: u64,
        status: DAT_DTO_COMPLETION_STATUS,
    },
    Request {
        cr: Handle,
        qual: DAT_CONN_QUAL,
    },
    /// A connection has changed its state.
    Connection {
        ep: Handle,
        number: DAT_EVENT_NUMBER,
    },
    Software {
        value: usize,
    },
    /// An event of any other kind.
    Other {
        number: DAT_EVENT_NUMBER,
    },
}

impl Event {
    pub(super) fn of(event: &DAT_EVENT) -> Self {
        let (number, data) = (event.event_number, &event.event_data);
        match number {
            DAT_DTO_COMPLETION_EVENT => {
                // SAFETY: the event number selects this union member.
                let dto = unsafe { data.dto_completion_event_data };
                // SAFETY: each bit pattern of the cookie is a valid integer.
                let cookie = unsafe { dto.user_cookie.as_64 };
                let (ep, status) = (Handle::of(dto.ep_handle), dto.status);
                Event::Dto { ep, cookie, status, length: dto.transfered_length }
            }
            DAT_RMR_BIND_COMPLETION_EVENT => {
                // SAFETY: the event number selects this union member, and every bit pattern is valid for it.
                let bind = unsafe { data.rmr_completion_event_data };
                // SAFETY: each bit pattern of the cookie is a valid integer.
                let cookie = unsafe { bind.user_cookie.as_64 };
                Event::Bind { rmr: Handle::of(bind.rmr_handle), cookie, status: bind.status }
            }
            DAT_CONNECTION_REQUEST_EVENT => {
                // SAFETY: the event number selects this union member, and every bit pattern is valid for it.
                let arrival = unsafe { data.cr_arrival_event_data };
                Event::Request { cr: Handle::of(arrival.cr_handle), qual: arrival.conn_qual }
            }
            DAT_CONNECTION_EVENT_ESTABLISHED..=DAT_CONNECTION_EVENT_UNREACHABLE => {
                // SAFETY: the event number selects this union member, and every bit pattern is valid for it.
                let connection = unsafe { data.connect_event_data };
                Event::Connection { ep: Handle::of(connection.ep_handle), number }
            }
            // SAFETY: the event number selects this union member, and every bit pattern is valid for it.
            DAT_SOFTWARE_EVENT => Event::Software { value: unsafe { data.software_event_data }.pointer.addr() },
            _ => Event::Other { number },
        }
    }

    pub(super) fn software(evd: DAT_EVD_HANDLE, pointer: DAT_PVOID) -> DAT_EVENT {
        let event_data = DAT_EVENT_DATA { software_event_data: DAT_SOFTWARE_EVENT_DATA { pointer } };
        DAT_EVENT { event_number: DAT_SOFTWARE_EVENT, evd_handle: evd, event_data }
    }
}

/// Describes a connection event as the result of a connect.
pub(crate) fn connection_word(number: DAT_EVENT_NUMBER) -> &'static str {
    match number {
        DAT_CONNECTION_EVENT_ESTABLISHED => "DAT_CONNECTION_EVENT_ESTABLISHED",
        DAT_CONNECTION_EVENT_PEER_REJECTED => "DAT_CONNECTION_EVENT_PEER_REJECTED: the peer's program rejected it",
        DAT_CONNECTION_EVENT_NON_PEER_REJECTED => {
            "DAT_CONNECTION_EVENT_NON_PEER_REJECTED: rejected, no program listens there"
        }
        DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR => {
            "DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR: accepted, but the peer had left"
        }
        DAT_CONNECTION_EVENT_DISCONNECTED => "DAT_CONNECTION_EVENT_DISCONNECTED: the peer disconnected, or has ended",
        DAT_CONNECTION_EVENT_BROKEN => "DAT_CONNECTION_EVENT_BROKEN: a transfer failed, or the peer does not answer",
        DAT_CONNECTION_EVENT_TIMED_OUT => "DAT_CONNECTION_EVENT_TIMED_OUT: the timeout of the connect expired",
        DAT_CONNECTION_EVENT_UNREACHABLE => {
            "DAT_CONNECTION_EVENT_UNREACHABLE: no answer; over usnic datinfo doctor HOST tests the path"
        }
        _ => "not an event of a connection",
    }
}

/// Name of a completion status.
pub(crate) fn status_word(status: DAT_DTO_COMPLETION_STATUS) -> &'static str {
    match status {
        DAT_DTO_SUCCESS => "DAT_DTO_SUCCESS",
        DAT_DTO_ERR_FLUSHED => "DAT_DTO_ERR_FLUSHED",
        DAT_DTO_ERR_LOCAL_LENGTH => "DAT_DTO_ERR_LOCAL_LENGTH",
        DAT_DTO_ERR_LOCAL_EP => "DAT_DTO_ERR_LOCAL_EP",
        DAT_DTO_ERR_LOCAL_PROTECTION => "DAT_DTO_ERR_LOCAL_PROTECTION",
        DAT_DTO_ERR_BAD_RESPONSE => "DAT_DTO_ERR_BAD_RESPONSE",
        DAT_DTO_ERR_REMOTE_ACCESS => "DAT_DTO_ERR_REMOTE_ACCESS",
        DAT_DTO_ERR_REMOTE_RESPONDER => "DAT_DTO_ERR_REMOTE_RESPONDER",
        DAT_DTO_ERR_TRANSPORT => "DAT_DTO_ERR_TRANSPORT",
        DAT_DTO_ERR_RECEIVER_NOT_READY => "DAT_DTO_ERR_RECEIVER_NOT_READY",
        DAT_DTO_ERR_PARTIAL_PACKET => "DAT_DTO_ERR_PARTIAL_PACKET",
        DAT_RMR_OPERATION_FAILED => "DAT_RMR_OPERATION_FAILED",
        _ => "unknown status",
    }
}
