//! Checks whether a descriptor is readable, for tests of the descriptor and of its owners.

use super::*;

/// Polls a descriptor once, for tests. Its object must be alive.
pub(crate) fn is_readable(number: i32) -> bool {
    let mut polled = libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 };
    // SAFETY: one record, which is a local variable.
    let ready = unsafe { libc::poll(&raw mut polled, 1, 0) };
    ready == 1 && polled.revents == libc::POLLIN
}

#[test]
fn it_is_readable_as_long_as_it_shows_something() {
    let mut descriptor = Descriptor::new().unwrap();
    assert!(!is_readable(descriptor.number()));
    for _ in 0..2 {
        descriptor.show(true);
        assert!(is_readable(descriptor.number()) && is_readable(descriptor.number()), "level-triggered");
    }
    for _ in 0..2 {
        descriptor.show(false);
        assert!(!is_readable(descriptor.number()));
    }
    descriptor.show(true);
    assert!(is_readable(descriptor.number()));
}
