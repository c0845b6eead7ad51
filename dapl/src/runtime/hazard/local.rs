//! The thread-local word that points to the hazard slots of a thread.
//!
//! With glibc on x86-64, the word is in the static part of thread-local storage (model `initial-exec`), where two
//! instructions read it. With the default model, a library that was loaded at run time calls `__tls_get_addr` for each
//! access. glibc reserves static space for such libraries (glibc.rtld.optional_static_tls); each provider uses eight
//! bytes of it.

use super::HazardSlots;

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(tsan), not(miri)))]
mod kind {
    use std::arch::{asm, global_asm};

    use super::HazardSlots;

    global_asm!(
        ".pushsection .tbss.dapl_hazard_slots, \"awT\", @nobits",
        ".globl dapl_hazard_slots",
        ".hidden dapl_hazard_slots",
        ".type dapl_hazard_slots, @object",
        ".size dapl_hazard_slots, 8",
        ".balign 8",
        "dapl_hazard_slots: .zero 8",
        ".popsection",
    );

    /// The slots of this thread, if it has any.
    #[inline(always)]
    pub(in super::super) fn get() -> Option<&'static HazardSlots> {
        let slots: *const HazardSlots;
        // SAFETY: reads this thread's copy of the word declared above.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + dapl_hazard_slots@GOTTPOFF]",
                "mov {0}, qword ptr fs:[{0}]",
                out(reg) slots,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        // SAFETY: the word is null, or a reference that `set` has stored, to slots that are never freed.
        unsafe { slots.as_ref() }
    }

    pub(in super::super) fn set(slots: Option<&'static HazardSlots>) {
        let word = slots.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: writes this thread's copy of the word declared above; no reference to it exists.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + dapl_hazard_slots@GOTTPOFF]",
                "mov qword ptr fs:[{0}], {1}",
                out(reg) _,
                in(reg) word,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(tsan), not(miri))))]
mod kind {
    use std::cell::Cell;

    use super::HazardSlots;

    thread_local! {
        /// The word. Its type has no destructor, so a read needs no check whether the word still exists.
        static MINE: Cell<Option<&'static HazardSlots>> = const { Cell::new(None) };
    }

    /// The slots of this thread, if it has any.
    #[inline(always)]
    pub(in super::super) fn get() -> Option<&'static HazardSlots> {
        MINE.get()
    }

    pub(in super::super) fn set(slots: Option<&'static HazardSlots>) {
        MINE.set(slots);
    }
}

pub(super) use kind::{get, set};
