//! Asynchronous events of queue pairs, queues, ports and the device.

use std::io;
use std::mem::MaybeUninit;

use ibverbs_sys::*;

use super::Context;

/// An asynchronous event. Queue pairs are identified by their number, queues by the id passed at creation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AsyncEvent {
    Qp { number: u32, kind: QpEvent },
    Cq { id: usize },
    Srq { id: usize, kind: SrqEvent },
    Port { port: u8, kind: PortEvent },
    DeviceFatal,
    Other(i32),
}

/// Defines a kind of event with the type that each event has in libibverbs.
macro_rules! events {
    ($name:ident: $($event:ident = $number:ident,)*) => {
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(crate) enum $name {
            $($event,)*
        }

        impl $name {
            /// Returns the event of this type; `None` for an event of another kind.
            fn of(number: ibv_event_type) -> Option<Self> {
                match number {
                    $($number => Some($name::$event),)*
                    _ => None,
                }
            }
        }
    };
}

events! { QpEvent:
    Fatal = IBV_EVENT_QP_FATAL,
    RequestError = IBV_EVENT_QP_REQ_ERR,
    AccessError = IBV_EVENT_QP_ACCESS_ERR,
    CommEstablished = IBV_EVENT_COMM_EST,
    LastWqe = IBV_EVENT_QP_LAST_WQE_REACHED,
    SqDrained = IBV_EVENT_SQ_DRAINED,
    PathMigrated = IBV_EVENT_PATH_MIG,
    PathMigrationError = IBV_EVENT_PATH_MIG_ERR,
}

events! { SrqEvent:
    Limit = IBV_EVENT_SRQ_LIMIT_REACHED,
    Error = IBV_EVENT_SRQ_ERR,
}

events! { PortEvent:
    Active = IBV_EVENT_PORT_ACTIVE,
    Down = IBV_EVENT_PORT_ERR,
    LidChange = IBV_EVENT_LID_CHANGE,
    PkeyChange = IBV_EVENT_PKEY_CHANGE,
    SmChange = IBV_EVENT_SM_CHANGE,
    ClientReregister = IBV_EVENT_CLIENT_REREGISTER,
    GidChange = IBV_EVENT_GID_CHANGE,
}

impl Context {
    /// Reads, copies and acknowledges the next asynchronous event; `None` if none is pending. It is acknowledged here,
    /// because the destruction of its object waits for the acknowledgement.
    pub(crate) fn next_event(&self) -> io::Result<Option<AsyncEvent>> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and `event` is valid for writes.
        if unsafe { ibv_get_async_event(self.handle.as_ptr(), event.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: all fields are integers or nullable pointers, so they were initialised even before the call wrote
        // them.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: `event` was not acknowledged yet.
        let translated = unsafe { translate(&event) };
        // SAFETY: `event` was returned by `ibv_get_async_event`, and is acknowledged once.
        unsafe { ibv_ack_async_event(&mut event) };
        Ok(Some(translated))
    }
}

/// Reads the kind of an event, and the object that it is about.
///
/// # Safety
/// `event` has not been acknowledged.
unsafe fn translate(event: &ibv_async_event) -> AsyncEvent {
    let number = event.event_type;
    if let Some(kind) = QpEvent::of(number) {
        // SAFETY: an event of this type refers to a queue pair, which is not destroyed before the acknowledgement.
        return AsyncEvent::Qp { number: unsafe { (*event.element.qp).qp_num }, kind };
    }
    if let Some(kind) = PortEvent::of(number) {
        // SAFETY: an event of this type has the port number in the union.
        return AsyncEvent::Port { port: unsafe { event.element.port_num } as u8, kind };
    }
    if let Some(kind) = SrqEvent::of(number) {
        // SAFETY: an event of this type refers to a shared receive queue, which is not destroyed before the
        // acknowledgement.
        return AsyncEvent::Srq { id: unsafe { (*event.element.srq).srq_context } as usize, kind };
    }
    match number {
        // SAFETY: this event refers to a completion queue, which is not destroyed before the acknowledgement.
        IBV_EVENT_CQ_ERR => AsyncEvent::Cq { id: unsafe { (*event.element.cq).cq_context } as usize },
        IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        other => AsyncEvent::Other(other as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event_type: ibv_event_type, element: ibv_async_event_element) -> AsyncEvent {
        // SAFETY: the event is not acknowledged, and its object is a local variable of the test.
        unsafe { translate(&ibv_async_event { element, event_type }) }
    }

    #[test]
    fn events_carry_the_id_or_number_of_their_object() {
        let mut qp = ibv_qp { qp_num: 17, ..Default::default() };
        let of_qp = event(IBV_EVENT_QP_LAST_WQE_REACHED, ibv_async_event_element { qp: &mut qp });
        assert_eq!(of_qp, AsyncEvent::Qp { number: 17, kind: QpEvent::LastWqe });
        let mut srq = ibv_srq { srq_context: 5 as *mut _, ..Default::default() };
        let of_srq = event(IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event_element { srq: &mut srq });
        assert_eq!(of_srq, AsyncEvent::Srq { id: 5, kind: SrqEvent::Limit });
        let mut cq = ibv_cq { cq_context: 9 as *mut _, ..Default::default() };
        assert_eq!(event(IBV_EVENT_CQ_ERR, ibv_async_event_element { cq: &mut cq }), AsyncEvent::Cq { id: 9 });
        let port = || ibv_async_event_element { port_num: 2 };
        assert_eq!(event(IBV_EVENT_PORT_ERR, port()), AsyncEvent::Port { port: 2, kind: PortEvent::Down });
        assert_eq!(event(IBV_EVENT_DEVICE_FATAL, port()), AsyncEvent::DeviceFatal);
        assert_eq!(event(IBV_EVENT_WQ_FATAL, port()), AsyncEvent::Other(IBV_EVENT_WQ_FATAL as i32));
        assert_eq!(event(99, port()), AsyncEvent::Other(99));
    }
}
