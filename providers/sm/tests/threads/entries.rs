//! Calls DAT functions through the provider's table, without libdat. Each test has its own registration of the
//! provider.
//!
//! The provider is linked into the test, so that a sanitizer built with the test sees all of it. This module defines
//! the three functions of libdat that the provider imports.

use std::ffi::{CString, c_void};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

use dat_abi::*;

// Linked only for its symbols.
use daplsm as _;

pub(crate) type Handle = *mut c_void;

static TABLE: AtomicPtr<DAT_PROVIDER> = AtomicPtr::new(null_mut());

/// Stores the table that the provider registers. All of its tables contain the same functions.
#[unsafe(no_mangle)]
extern "C" fn dat_registry_add_provider(table: *const DAT_PROVIDER, _: *const DAT_PROVIDER_INFO) -> DAT_RETURN {
    TABLE.store(table.cast_mut(), Ordering::Release);
    DAT_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn dat_registry_remove_provider(_: *const DAT_PROVIDER, _: *const DAT_PROVIDER_INFO) -> DAT_RETURN {
    DAT_SUCCESS
}

/// Fails for every handle. Without libdat there are no IA numbers, so the tests use the provider's pointers as handles.
#[unsafe(no_mangle)]
extern "C" fn dats_get_ia_handle(_: DAT_IA_HANDLE, _: *mut DAT_IA_HANDLE) -> DAT_RETURN {
    DAT_CLASS_ERROR | DAT_INVALID_HANDLE
}

unsafe extern "C" {
    fn dat_provider_init(info: *const DAT_PROVIDER_INFO, params: *const std::ffi::c_char);
}

pub(crate) fn table() -> &'static DAT_PROVIDER {
    // SAFETY: the table was set before any call, and tables are never freed.
    unsafe { &*TABLE.load(Ordering::Acquire) }
}

/// Calls a function of the table, for example `dat!(ep_free_func(ep))`. The value is its return code.
macro_rules! dat {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let function = $crate::entries::table().$function.expect("the table is full");
        // SAFETY: entries accept any value as a handle. Pointers are null, or valid during the call.
        unsafe { function($($argument),*) }
    }};
}

/// Calls a function whose last argument is the address of the new handle. The value is the return code and the handle.
macro_rules! made {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let mut handle: $crate::entries::Handle = std::ptr::null_mut();
        let code = dat!($function($($argument,)* &mut handle));
        (code, handle)
    }};
}

pub(crate) use {dat, made};

/// Returns the handle of a call that must succeed.
#[track_caller]
pub(crate) fn sure((code, handle): (DAT_RETURN, Handle)) -> Handle {
    assert_eq!(code, DAT_SUCCESS, "{code:#x}");
    handle
}

/// A registration of the provider under a name of its own, and the base directory of its IAs.
pub(crate) struct Entries {
    name: CString,
    base: PathBuf,
}

impl Entries {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = PathBuf::from(format!("/dev/shm/dapl-threads-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base); // A dead process with the same id may have left the directory.
        std::fs::DirBuilder::new().mode(0o700).create(&base).expect("a memory file system is writable");
        let name = CString::new(format!("threads{number}")).expect("no NUL");
        let mut info = DAT_PROVIDER_INFO {
            ia_name: [0; 256],
            dapl_version_major: 1,
            dapl_version_minor: 2,
            is_thread_safe: DAT_TRUE,
        };
        for (place, byte) in info.ia_name.iter_mut().zip(name.as_bytes_with_nul()) {
            *place = *byte as _;
        }
        let params = CString::new(base.to_str().expect("ASCII")).expect("no NUL");
        // SAFETY: `info` and `params` are readable during the call.
        unsafe { dat_provider_init(&info, params.as_ptr()) };
        Entries { name, base }
    }

    /// Opens an adapter and returns its handle.
    pub(crate) fn open(&self) -> Handle {
        let mut events = null_mut();
        let mut ia = null_mut();
        let code = dat!(ia_open_func(self.name.as_ptr().cast_mut(), 8, &mut events, &mut ia));
        assert_eq!(code, DAT_SUCCESS, "{code:#x}");
        ia
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// Returns the address of an adapter.
pub(crate) fn address(ia: Handle) -> DAT_IA_ADDRESS_PTR {
    let mut attr = std::mem::MaybeUninit::<DAT_IA_ATTR>::zeroed();
    assert_eq!(dat!(ia_query_func(ia, null_mut(), DAT_IA_FIELD_ALL, attr.as_mut_ptr(), 0, null_mut())), DAT_SUCCESS);
    // SAFETY: the query has filled in `attr`, and all zeros are a valid value too.
    unsafe { attr.assume_init() }.ia_address_ptr
}

pub(crate) fn cookie(value: u64) -> DAT_DTO_COOKIE {
    DAT_CONTEXT { as_64: value }
}

pub(crate) fn blank() -> DAT_EVENT {
    let data = DAT_EVENT_DATA { software_event_data: DAT_SOFTWARE_EVENT_DATA { pointer: null_mut() } };
    DAT_EVENT { event_number: 0, evd_handle: null_mut(), event_data: data }
}

/// Waits for the next event. The wait has no time limit of its own: the callers end a test that hangs.
#[track_caller]
pub(crate) fn next(evd: Handle) -> DAT_EVENT {
    let (mut event, mut more) = (blank(), 0);
    let code = dat!(evd_wait_func(evd, DAT_TIMEOUT_INFINITE, 1, &mut event, &mut more));
    assert_eq!(code, DAT_SUCCESS, "{code:#x}");
    event
}

/// Returns the cookie and the status of a completion.
#[track_caller]
pub(crate) fn completion(event: &DAT_EVENT) -> (u64, DAT_DTO_COMPLETION_STATUS) {
    assert_eq!(event.event_number, DAT_DTO_COMPLETION_EVENT);
    // SAFETY: the event number selects the union member. Every cookie is a number of 64 bits.
    unsafe {
        let done = event.event_data.dto_completion_event_data;
        (done.user_cookie.as_64, done.status)
    }
}

/// Returns the connection request that an event reports.
pub(crate) fn request(event: &DAT_EVENT) -> Option<Handle> {
    if event.event_number != DAT_CONNECTION_REQUEST_EVENT {
        return None;
    }
    // SAFETY: the event number selects the union member.
    Some(unsafe { event.event_data.cr_arrival_event_data.cr_handle })
}

/// Threads that are joined one by one. The sanitizer does not recognize how a scope of the standard library waits for
/// its threads.
pub(crate) struct Crew<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
}

impl<'scope> Crew<'scope, '_> {
    pub(crate) fn spawn(&mut self, task: impl FnOnce() + Send + 'scope) {
        self.threads.push(self.scope.spawn(task));
    }
}

/// Calls `body`, and waits for the threads that it has started.
pub(crate) fn crew<'env>(body: impl for<'scope> FnOnce(&mut Crew<'scope, 'env>)) {
    thread::scope(|scope| {
        let mut crew = Crew { scope, threads: Vec::new() };
        body(&mut crew);
        crew.threads.into_iter().for_each(|thread| thread.join().expect("it has printed the reason"));
    });
}
