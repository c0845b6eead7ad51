//! Reads the variable arguments of `dat_extension_op`, which are numbers and pointers, in the layout of the C calling
//! convention.
//!
//! Rust has no stable `va_list`. The layouts are those of the System V ABI for x86-64 (3.5.7) and of the procedure call
//! standard for AArch64 (appendix B). On other targets, extended operations are not supported ([`IS_SUPPORTED`]).

use dat_abi::v2::va_list;

/// Whether arguments can be read on this target.
pub(super) const IS_SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The `va_list` structure on x86-64. Reading an argument advances it.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct ListState {
    /// Offset in `saved` of the next argument that was passed in a general-purpose register.
    general: u32,
    _floating: u32,
    /// Address of the next argument that was passed in memory.
    overflow: *const u64,
    saved: *const u8,
}

#[cfg(target_arch = "x86_64")]
impl ListState {
    /// End of the saved general-purpose registers in `saved`: six registers of eight bytes.
    const GENERAL_END: u32 = 48;

    /// Address of the next argument.
    ///
    /// # Safety
    /// The list has one more argument, a number or pointer of at most eight bytes.
    unsafe fn next(&mut self) -> *const u64 {
        if self.general < Self::GENERAL_END {
            let at = self.saved.wrapping_add(self.general as usize);
            self.general += 8;
            return at.cast();
        }
        let at = self.overflow;
        self.overflow = at.wrapping_add(1);
        at
    }
}

/// The `va_list` structure on AArch64. Reading an argument advances it.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
struct ListState {
    /// Address of the next argument that was passed in memory.
    stack: *const u64,
    /// End of the saved general-purpose registers.
    general_end: *const u8,
    _vector_end: *const u8,
    /// Offset from `general_end` of the next argument that was passed in a general-purpose register; 0 or more if none
    /// is left.
    general: i32,
    _vector: i32,
}

#[cfg(target_arch = "aarch64")]
impl ListState {
    /// Address of the next argument.
    ///
    /// # Safety
    /// The list has one more argument, a number or pointer of at most eight bytes.
    unsafe fn next(&mut self) -> *const u64 {
        if self.general < 0 {
            let at = self.general_end.wrapping_offset(self.general as isize);
            self.general += 8;
            return at.cast();
        }
        let at = self.stack;
        self.stack = at.wrapping_add(1);
        at
    }
}

/// Returns the next arguments, as eight bytes each. The upper half of a 32-bit number is undefined. Where
/// [`IS_SUPPORTED`] is false, reads no argument and returns zeros.
///
/// # Safety
/// `list` is a live list with at least `N` arguments left, each a number or pointer of at most eight bytes.
pub(super) unsafe fn take<const N: usize>(list: va_list) -> [u64; N] {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        // SAFETY: a list that is passed as a parameter is a pointer to this structure, and no other code uses it
        // meanwhile.
        let state = unsafe { &mut *list.cast::<ListState>() };
        // SAFETY: the caller guarantees that the `va_list` contains these arguments.
        [(); N].map(|()| unsafe { state.next().read() })
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = list;
        [0; N]
    }
}
