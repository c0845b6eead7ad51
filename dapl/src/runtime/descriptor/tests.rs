//! Test of descriptors, and [`is_readable`], which tests of EVDs and CNOs also use.

use super::*;

/// Whether a descriptor is readable now. Its owner must be alive, since another file may get the number of a closed
/// descriptor.
pub(crate) fn is_readable(number: i32) -> bool {
    let mut polled = libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 };
    // SAFETY: the list has one record, a local variable.
    let ready = unsafe { libc::poll(&raw mut polled, 1, 0) };
    ready == 1 && polled.revents == libc::POLLIN
}

#[test]
fn descriptor_is_readable_until_set_not_readable() {
    let mut descriptor = Descriptor::new().unwrap();
    assert!(!is_readable(descriptor.number()));
    for _ in 0..2 {
        descriptor.set_readable(true);
        assert!(is_readable(descriptor.number()) && is_readable(descriptor.number()), "level-triggered");
    }
    for _ in 0..2 {
        descriptor.set_readable(false);
        assert!(!is_readable(descriptor.number()));
    }
    descriptor.set_readable(true);
    assert!(is_readable(descriptor.number()));
}
