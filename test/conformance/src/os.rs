//! What the suite needs of the system and std does not give: signals to a whole group, death with the parent, exit at once.
//!
//! Each function is one call. Nothing here knows DAT.

/// This process dies when the one that started it does.
pub(crate) fn die_with_parent() {
    // SAFETY: sets an attribute of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Ends the process without its exit handlers.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: does not return; what is lost is lost on purpose.
    unsafe { libc::_exit(status) }
}

/// Kills a process group.
pub(crate) fn kill_group(leader: u32) {
    // SAFETY: sends a signal; that the group is gone already is no harm.
    unsafe { libc::kill(-(leader as i32), libc::SIGKILL) };
}

/// This process dies as by an accident: no exit handler, no closing.
pub(crate) fn die() -> ! {
    // SAFETY: sends a signal to ourselves, which nobody can hold off.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    loop {
        std::thread::park();
    }
}
