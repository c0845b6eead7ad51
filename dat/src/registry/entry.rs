//! A record of dat.conf and its state. Loading, init and fini of a record are serialised without holding the registry's
//! lock.
//!
//! `registry` counts a use of the record at each open, and ends it at each close. The first use loads the library and
//! calls init; the end of the last use calls fini. Meanwhile other threads wait only if they need the same record. An
//! open whose wait would deadlock is refused.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::sync::{Condvar, OnceLock, PoisonError};

use dat_abi::{DAT_NAME_MAX_LENGTH, DAT_PROVIDER_INFO};

use super::{Registry, describe, lock};
use crate::conf::{Key, Record};
use crate::loader::{self, Library};
use crate::refused::CauseAndRemedy;
use crate::report::{self, Topic};

/// A record and the strings passed to its provider. Providers may keep the pointers, so an entry is never freed.
pub(super) struct ProviderEntry {
    pub(super) record: Record,
    info: DAT_PROVIDER_INFO,
    params: CString,
    /// The mapped library. It stays mapped after fini; a later open calls its init again.
    library: OnceLock<Library>,
}

/// State of a record: not initialised, owned by a thread that loads, initialises or finalises it, or initialised.
#[derive(Clone, Copy, Default)]
pub(super) enum EntryState {
    /// Not initialised.
    #[default]
    Idle,
    /// `thread` of `process` is loading the library, or executing its init or fini. A child of `fork` does not have
    /// that thread.
    Busy { thread: usize, process: u32 },
    /// Initialised. `uses` counts open IAs, and opens in progress.
    Ready { uses: usize },
}

/// Reason why a record cannot serve an open.
pub(super) enum EntryRefusal {
    /// The record's library is being loaded, initialised or finalised, either by this thread, or by one for which this
    /// thread cannot wait without a deadlock.
    Reentrant,
    /// A thread-safe provider was requested, but the line says `nonthreadsafe`, and the library is not one of this
    /// project.
    NotThreadSafe,
    /// The library cannot serve the open, for example because it cannot be loaded or does not register the name.
    Unusable(CauseAndRemedy),
}

/// Signalled when a thread stops being the owner of a record.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// Records whose init runs in this thread, innermost last.
    static INITS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// Number of libraries that this thread is mapping. While it is not 0, the thread holds the dynamic loader's lock,
    /// so it must not wait for other threads, which may need that lock.
    static MAPPING: Cell<usize> = const { Cell::new(0) };
    /// Set when the hook was requested in this thread during the init in progress, or by the program itself.
    static HOOK_REQUESTED: Cell<bool> = const { Cell::new(false) };
    /// The last registration that this thread has passed to the libdat of the other version. If an init does not
    /// register the record's key, the error may name this registration.
    static PASSED_ON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The record whose init this thread is running.
pub(super) fn initialising() -> Option<usize> {
    INITS.with_borrow(|inits| inits.last().copied())
}

/// Records that a library requests the hook in this thread. The handles of providers that this library registers later
/// are in arenas.
pub(crate) fn note_hook() {
    HOOK_REQUESTED.set(true);
}

/// Records that this thread has passed a registration to the libdat of the other version.
pub(crate) fn note_passed_on(key: &Key) {
    PASSED_ON.set(Some(describe(key)));
}

/// Whether the hook was requested in this thread, either by the provider that the thread initialises or by the program
/// itself.
pub(super) fn hook_was_requested() -> bool {
    HOOK_REQUESTED.get()
}

/// Counts a use; the first use loads the library and calls its init.
pub(super) fn acquire_provider(index: usize) -> Result<(), EntryRefusal> {
    let mut registry = lock();
    loop {
        match registry.states[index] {
            EntryState::Ready { uses } => {
                registry.states[index] = EntryState::Ready { uses: uses + 1 };
                return Ok(());
            }
            EntryState::Busy { thread, process } if process == std::process::id() => {
                if MAPPING.get() > 0 || registry.waits_for_caller(thread) {
                    return Err(EntryRefusal::Reentrant);
                }
                let me = (this_thread(), index);
                registry.waiting.push(me);
                registry = CHANGED.wait(registry).unwrap_or_else(PoisonError::into_inner);
                registry.waiting.retain(|waiter| *waiter != me);
            }
            EntryState::Idle | EntryState::Busy { .. } => break,
        }
    }
    let mut transition = Transition::take(&mut registry, index);
    let entry = registry.entries[index];
    drop(registry);
    start(index, entry).map_err(EntryRefusal::Unusable)?;
    transition.then = EntryState::Ready { uses: 1 };
    Ok(())
}

/// Ends a use; at the end of the last use the library's fini is called.
pub(super) fn release_provider(index: usize) {
    let mut registry = lock();
    match registry.states[index] {
        EntryState::Ready { uses } if uses > 1 => registry.states[index] = EntryState::Ready { uses: uses - 1 },
        EntryState::Ready { .. } => {
            let _mine = Transition::take(&mut registry, index);
            let entry = registry.entries[index];
            drop(registry);
            finish(index, entry);
        }
        // The open IA was inherited through `fork`, and this process has not initialised the provider: there is no
        // fini to call.
        EntryState::Idle | EntryState::Busy { .. } => {}
    }
}

/// Exclusive ownership of a record while its library is loaded, initialised or finalised. Dropping it sets the record's
/// state to `then`.
struct Transition {
    index: usize,
    then: EntryState,
}

impl Transition {
    fn take(registry: &mut Registry, index: usize) -> Self {
        registry.states[index] = EntryState::Busy { thread: this_thread(), process: std::process::id() };
        Self { index, then: EntryState::Idle }
    }
}

impl Drop for Transition {
    fn drop(&mut self) {
        lock().states[self.index] = self.then;
        CHANGED.notify_all();
    }
}

/// Loads the library and calls its init. Init returns no result; it has succeeded if the record's key is registered.
fn start(index: usize, entry: &'static ProviderEntry) -> Result<(), CauseAndRemedy> {
    let found = match entry.library.get() {
        Some(library) => *library,
        None => {
            let place = &entry.record.place;
            report::debug(Topic::StaticRegistry, || format!("{place}: loads {}", entry.record.library.escape_ascii()));
            MAPPING.set(MAPPING.get() + 1);
            let loaded = loader::load(&entry.record.library, entry.record.key.major);
            MAPPING.set(MAPPING.get() - 1);
            let loaded = loaded?;
            *entry.library.get_or_init(|| loaded)
        }
    };
    report::debug(Topic::ProviderCalls, || format!("dat_provider_init for {}", describe(&entry.record.key)));
    let asked = HOOK_REQUESTED.replace(false);
    PASSED_ON.set(None);
    INITS.with_borrow_mut(|inits| inits.push(index));
    found.init(&entry.info, &entry.params);
    INITS.with_borrow_mut(Vec::pop);
    let is_of_this_project = HOOK_REQUESTED.replace(asked);
    // A provider of DAT 1.2 registers the version in its argument. Under a line for 2.0 it registers 2.0 with a table
    // of 1.2, so its registration is refused below.
    let is_old = entry.record.key.major > 1 && found.is_named_for_libdat1 && !is_of_this_project;
    let mut registry = lock();
    // A registration made by a thread that init has started has no owner yet. This record becomes the owner.
    let is_registered = registry.registrations.adopt(&entry.record.key, index);
    if is_registered && !is_old {
        return Ok(());
    }
    let instead = registry.registrations.of_owner(index).next().map(|one| describe(&one.key));
    drop(registry);
    let instead = instead.or_else(|| PASSED_ON.take());
    finish(index, entry);
    let (library, wanted) = (entry.record.library.escape_ascii(), describe(&entry.record.key));
    let params = entry.record.params.escape_ascii();
    if is_registered {
        return Err(CauseAndRemedy::new(
            format!("{library} is a library for libdat.so.1 (.so.1), but the line says u2"),
            "name the .so.2 library",
        ));
    }
    if entry.record.key.major > 1 && found.needs_libdat1 {
        return Err(CauseAndRemedy::new(
            format!("{library} needs libdat.so.1 and did not register {wanted}: it implements DAT 1.2 only"),
            "name a library for 2.0",
        ));
    }
    Err(match instead {
        Some(instead) => CauseAndRemedy::new(
            format!("{library} was loaded, but registered {instead} instead of {wanted}"),
            "correct the line, or name another library",
        ),
        None => CauseAndRemedy::new(
            format!("{library} was loaded, but did not register {wanted}"),
            format!("see its own message, and check ia_params (\"{params}\")"),
        ),
    })
}

/// Calls fini. Then removes the registrations that fini left, except those that an IA, or an open in progress, uses.
fn finish(index: usize, entry: &'static ProviderEntry) {
    report::debug(Topic::ProviderCalls, || format!("dat_provider_fini for {}", describe(&entry.record.key)));
    if let Some(library) = entry.library.get() {
        library.fini(&entry.info);
    }
    let registrations = &mut lock().registrations;
    let left = registrations.of_owner(index).filter(|one| one.uses == 0);
    let left: Vec<Key> = left.map(|one| one.key.clone()).collect();
    left.iter().for_each(|key| registrations.remove(key));
}

impl Registry {
    /// Whether `thread` is the calling thread, or waits, possibly through other threads, for a record that the calling
    /// thread owns.
    fn waits_for_caller(&self, mut thread: usize) -> bool {
        let me = this_thread();
        // Each step goes from a waiting thread to the owner of its record. More steps than waiting threads mean a cycle
        // that does not contain the calling thread.
        for _ in 0..=self.waiting.len() {
            if thread == me {
                return true;
            }
            let Some((_, record)) = self.waiting.iter().find(|(waiter, _)| *waiter == thread) else { return false };
            match self.states[*record] {
                EntryState::Busy { thread: next, .. } => thread = next,
                EntryState::Idle | EntryState::Ready { .. } => return false,
            }
        }
        false
    }
}

/// An id of this thread, unique among the threads that exist now.
fn this_thread() -> usize {
    thread_local! { static HERE: Cell<u8> = const { Cell::new(0) } }
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

impl ProviderEntry {
    pub(super) fn create(record: &Record) -> &'static Self {
        let params = CString::new(record.params.clone()).expect("conf drops records with NUL bytes");
        let entry = Self { record: record.clone(), info: info(&record.key), params, library: OnceLock::new() };
        Box::leak(Box::new(entry))
    }
}

/// Converts a key to the C record.
pub(super) fn info(key: &Key) -> DAT_PROVIDER_INFO {
    let mut ia_name: [c_char; DAT_NAME_MAX_LENGTH] = [0; DAT_NAME_MAX_LENGTH];
    for (to, from) in ia_name.iter_mut().zip(key.name.iter().take(DAT_NAME_MAX_LENGTH - 1)) {
        *to = c_char::from_ne_bytes([*from]);
    }
    let Key { major, minor, thread_safe, .. } = *key;
    DAT_PROVIDER_INFO {
        ia_name,
        dapl_version_major: major,
        dapl_version_minor: minor,
        is_thread_safe: thread_safe.into(),
    }
}
