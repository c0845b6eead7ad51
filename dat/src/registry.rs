//! Maps names to providers: the static registry (files), the dynamic registry (registrations), and use counts.
//!
//! Each open IA counts as one use of its provider. Providers, or the program itself, add and remove registrations. The
//! registry's lock is never held while a library is loaded or called; `entry` serialises load, init and fini per
//! record. This module never calls through a provider's table, and never unloads a library.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dat_abi::*;

use crate::api;
use crate::arena::ARENAS;
use crate::conf::Key;
use crate::loader::host;
use crate::matching::{self, NoMatch};
use crate::refused::{CauseAndRemedy, RefusedOpen};
use crate::report::{self, Topic};
use crate::sources::{self, CollectedConf};

mod entry;
mod index;
pub(crate) mod query;
mod registrations;

use entry::{EntryRefusal, EntryState, ProviderEntry};
pub(crate) use entry::{note_hook, note_passed_on};
use index::NameIndex;
use registrations::Registrations;

/// The registration and record that an open IA uses; released when the IA is closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ProviderUse {
    /// Id of the registration ([`Registrations`]).
    pub(crate) registration: u64,
    /// The record whose library made the registration; `None` if the program itself made it.
    pub(crate) entry: Option<usize>,
}

/// The `ia_open` of a provider for one open, which is counted as a use of the provider.
pub(crate) struct OpenProvider {
    pub(crate) open: DAT_IA_OPEN_FUNC,
    pub(crate) provider_use: ProviderUse,
}

/// The registry. Its lock is never held across a call into a library.
pub(crate) struct Registry {
    /// Content of the files; `None` until the first open, list, or query of a tool.
    files: Option<CollectedConf>,
    /// The records of the files, in file order. Entries are never moved or freed, because providers keep pointers to
    /// them.
    entries: Vec<&'static ProviderEntry>,
    /// Indexes of records and unused lines by name, and cached names for the remedies of refused opens.
    index: NameIndex,
    /// State of each record, in the order of `entries`.
    states: Vec<EntryState>,
    /// Threads that wait for a record, as pairs of thread and record.
    waiting: Vec<(usize, usize)>,
    registrations: Registrations,
    /// Base addresses of the libraries that requested the hook and then registered a provider. The handles of these
    /// libraries are in arenas.
    hooked: BTreeSet<usize>,
}

/// A record of dat.conf that may match an open, with its index in `entries`.
#[derive(Clone, Copy)]
struct CandidateRecord {
    index: usize,
    entry: &'static ProviderEntry,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    files: None,
    entries: Vec::new(),
    index: NameIndex::new(),
    states: Vec::new(),
    waiting: Vec::new(),
    registrations: Registrations::new(),
    hooked: BTreeSet::new(),
});

/// Finds the provider for an open, loads it if necessary, and counts the use. Reports an error before returning it.
pub(crate) fn acquire(wanted: &Key) -> Result<OpenProvider, DAT_RETURN> {
    let choice = {
        let mut registry = lock();
        registry.read_files();
        let candidates = registry.candidates(&wanted.name);
        matching::choose(wanted, &candidates)
            .map(|order| order.into_iter().map(|(key, source)| (key.clone(), *source)).collect::<Vec<_>>())
            .map_err(|refusal| registry.explain(wanted, &refusal))
    };
    let order = choice.map_err(|(code, refused)| refuse(code, refused))?;
    let (mut causes, mut is_only_unsafe) = (Vec::new(), true);
    for (key, source) in order {
        let place = source.map_or(String::new(), |source| source.entry.record.place.to_string());
        match try_source(&key, source.map(|source| source.index), wanted.thread_safe) {
            Ok(provider) => return Ok(provider),
            Err(EntryRefusal::Reentrant) => {
                let cause = CauseAndRemedy::new(
                    "its library is being loaded, or its provider's init or fini runs, in this thread or in one that waits for it",
                    "",
                );
                let refused = RefusedOpen { kind: "busy", name: key.name, place, cause };
                return Err(refuse(error(DAT_INVALID_STATE, DAT_NO_SUBTYPE), refused));
            }
            Err(EntryRefusal::NotThreadSafe) => {
                causes.push((
                    place,
                    CauseAndRemedy::new(NoMatch::ThreadSafety.to_string(), NoMatch::ThreadSafety.remedy()),
                ));
            }
            Err(EntryRefusal::Unusable(cause)) => {
                is_only_unsafe = false;
                causes.push((place, cause));
            }
        }
    }
    if is_only_unsafe {
        let (code, refused) = lock().explain(wanted, &NoMatch::ThreadSafety);
        return Err(refuse(code, refused));
    }
    Err(refuse(error(DAT_PROVIDER_NOT_FOUND, DAT_NO_SUBTYPE), unusable(wanted, causes)))
}

/// Builds the refusal of an open whose candidates have all failed, and not all for lack of thread safety.
fn unusable(wanted: &Key, mut causes: Vec<(String, CauseAndRemedy)>) -> RefusedOpen {
    let (kind, name) = ("library", wanted.name.clone());
    if causes.len() == 1 {
        let (place, cause) = causes.remove(0);
        return RefusedOpen { kind, name, place, cause };
    }
    let causes =
        causes.into_iter().map(|(place, cause)| CauseAndRemedy::new(format!("{place}: {}", cause.cause), cause.remedy));
    RefusedOpen { kind, name, place: String::new(), cause: CauseAndRemedy::all(causes.collect()) }
}

/// Reports that a provider refused an open. The cause is the provider's explanation, or else the name of the returned
/// code.
pub(crate) fn refused_by_provider(wanted: &Key, provider_use: ProviderUse, code: DAT_RETURN, words: &str) {
    let entry = provider_use.entry.map(|index| lock().entries[index]);
    let (library, place) = match entry {
        Some(entry) => (entry.record.library.escape_ascii().to_string(), entry.record.place.to_string()),
        None => ("the program's own provider".to_owned(), String::new()),
    };
    let said = report::take_explanation();
    let cause = match said.is_empty() {
        false => CauseAndRemedy::new(said, ""),
        true => {
            CauseAndRemedy::new(format!("{library} returned {words}"), "set DAPL_DBG_TYPE=0xffff for more messages")
        }
    };
    let refused = RefusedOpen { kind: "device", name: wanted.name.clone(), place, cause };
    // If an argument is invalid, the return code says so. libdat then does not log the refusal, but only stores it for
    // tools.
    match code & DAT_TYPE_MASK {
        DAT_INVALID_PARAMETER | DAT_INVALID_HANDLE => report::store(refused),
        _ => report::refusal(refused),
    }
}

/// Ends the use of a provider by an IA, or by an open that failed. After the last use of a record, the library's fini
/// is called, and the registrations that fini left are removed.
pub(crate) fn release(provider_use: ProviderUse) {
    let mut registry = lock();
    if let Some(registration) = registry.registrations.with_id(provider_use.registration) {
        registration.uses -= 1;
    }
    drop(registry);
    if let Some(index) = provider_use.entry {
        entry::release_provider(index);
    }
}

/// Adds a registration. `image` is the base address of the library that contains the provider's functions.
pub(crate) fn add(key: Key, open: DAT_IA_OPEN_FUNC, image: Option<usize>) -> DAT_RETURN {
    let owner = entry::initialising();
    let mut registry = lock();
    if registry.registrations.get(&key).is_some() {
        return error(DAT_PROVIDER_ALREADY_REGISTERED, DAT_NO_SUBTYPE);
    }
    if entry::hook_was_requested() {
        registry.hooked.extend(image);
    }
    // A library that requested the hook is a provider of this project, and is therefore thread-safe.
    let is_hooked = entry::hook_was_requested() || image.is_some_and(|image| registry.hooked.contains(&image));
    if !is_hooked {
        ARENAS.expect_foreign();
    }
    report::debug(Topic::DynamicRegistry, || format!("{} is registered", describe(&key)));
    let is_thread_safe = is_hooked || key.thread_safe;
    registry.registrations.add(key, open, owner, is_thread_safe);
    DAT_SUCCESS
}

/// Removes a registration, unless an open IA or an open in progress uses it.
pub(crate) fn remove(key: &Key) -> DAT_RETURN {
    let mut registry = lock();
    match registry.registrations.get(key) {
        None => return error(DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED),
        Some(registration) if registration.uses > 0 => return error(DAT_PROVIDER_IN_USE, DAT_NO_SUBTYPE),
        Some(_) => registry.registrations.remove(key),
    }
    report::debug(Topic::DynamicRegistry, || format!("{} is removed", describe(key)));
    DAT_SUCCESS
}

/// Library (`lib_path`) of the record whose `dat_provider_init` this thread is executing.
pub(crate) fn library_in_init() -> Option<String> {
    let index = entry::initialising()?;
    Some(String::from_utf8_lossy(&lock().entries[index].record.library).into_owned())
}

/// Adapters for `dat_registry_list_providers`: each key in the files once. Keys of this libdat's major version come
/// first.
pub(crate) fn list() -> Vec<DAT_PROVIDER_INFO> {
    let mut registry = lock();
    registry.read_files();
    let mut seen = BTreeSet::new();
    let keys = registry.entries.iter().map(|entry| &entry.record.key);
    let mut keys: Vec<&Key> = keys.filter(|key| seen.insert(*key)).collect();
    keys.sort_by_key(|key| key.major != api::current().major); // stable: keeps the file order otherwise
    keys.into_iter().map(entry::info).collect()
}

/// Locks the registry; also locked while the process forks.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a return code in the numbers of this library's version. Type and subtype are given in the numbers of 1.2.
pub(crate) fn error(kind: DAT_RETURN_TYPE, subtype: DAT_RETURN_SUBTYPE) -> DAT_RETURN {
    DAT_CLASS_ERROR | kind | api::current().subtype(subtype)
}

/// Loads and initialises the library of one candidate, unless it is initialised, and counts the use. If the program
/// itself has registered the key, that registration is used and no library is loaded.
fn try_source(key: &Key, source: Option<usize>, thread_safe: bool) -> Result<OpenProvider, EntryRefusal> {
    let entry = match lock().registrations.get(key) {
        Some(registration) => registration.owner,
        None => source,
    };
    if let Some(index) = entry {
        entry::acquire_provider(index)?;
    }
    let acquired = match lock().registrations.get_mut(key) {
        Some(registration) if thread_safe && !registration.is_thread_safe => Err(EntryRefusal::NotThreadSafe),
        Some(registration) => {
            registration.uses += 1;
            Ok(OpenProvider {
                open: registration.open,
                provider_use: ProviderUse { registration: registration.id, entry },
            })
        }
        None => Err(EntryRefusal::Unusable(CauseAndRemedy::new(
            "its provider removed the registration during the open",
            "try again",
        ))),
    };
    acquired.inspect_err(|_| {
        if let Some(index) = entry {
            entry::release_provider(index);
        }
    })
}

fn refuse(code: DAT_RETURN, refused: RefusedOpen) -> DAT_RETURN {
    report::refusal(refused);
    code
}

fn describe(key: &Key) -> String {
    let Key { name, major, minor, thread_safe } = key;
    let safety = if *thread_safe { "threadsafe" } else { "nonthreadsafe" };
    format!("\"{}\" {major}.{minor} {safety}", name.escape_ascii())
}

impl Registry {
    /// Reads the files once per process: at the first open, list, or query of a tool, not when libdat is loaded. So a
    /// program may set its environment in `main`.
    fn read_files(&mut self) {
        if self.files.is_some() {
            return;
        }
        let gathered = sources::gather(host::environment("DAT_OVERRIDE").map(PathBuf::from));
        for trouble in &gathered.unreadable {
            report::file_error(trouble);
        }
        for diagnostic in &gathered.conf.diagnostics {
            if diagnostic.drops_record {
                report::file_error(diagnostic);
            } else {
                report::debug(Topic::StaticRegistry, || format!("{diagnostic} (accepted)"));
            }
        }
        log_sources(&gathered);
        self.entries = gathered.conf.records.iter().map(ProviderEntry::create).collect();
        self.states = gathered.conf.records.iter().map(|_| EntryState::default()).collect();
        self.index.fill(&gathered.conf);
        self.files = Some(gathered);
    }

    /// Records of a name in file order, then registrations of the name whose key no record has.
    fn candidates(&self, name: &[u8]) -> Vec<(Key, Option<CandidateRecord>)> {
        let source = |index: &usize| CandidateRecord { index: *index, entry: self.entries[*index] };
        let records = self.index.lines(name).iter().map(source);
        let mut candidates: Vec<_> = records.map(|source| (source.entry.record.key.clone(), Some(source))).collect();
        let keys: BTreeSet<Key> = candidates.iter().map(|(key, _)| key.clone()).collect();
        let own = self.registrations.named(name).filter(|registration| !keys.contains(&registration.key));
        candidates.extend(own.map(|registration| (registration.key.clone(), None)));
        candidates
    }
}

/// Writes debug lines: one for each file that is missing or was not read, one with the number of records, and one for
/// each record and each unused line.
fn log_sources(gathered: &CollectedConf) {
    let topic = Topic::StaticRegistry;
    for file in &gathered.missing {
        report::debug(topic, || format!("{}: does not exist", file.display()));
    }
    for file in &gathered.unread {
        if !gathered.missing.contains(file) {
            report::debug(topic, || {
                format!("{}: not read: only the first dat.conf that exists counts", file.display())
            });
        }
    }
    let records = &gathered.conf.records;
    report::debug(topic, || format!("records read: {}, from {}", records.len(), gathered.origin));
    for record in records {
        report::debug(topic, || {
            let (library, params) = (record.library.escape_ascii(), record.params.escape_ascii());
            format!("{}: {} by {library} with \"{params}\"", record.place, describe(&record.key))
        });
    }
    for absent in &gathered.conf.absent {
        report::debug(topic, || {
            let (name, cause) = (absent.name.escape_ascii(), &absent.cause);
            format!("{}: \"{name}\" is not used: the line {cause}; {}", absent.place, absent.remedy)
        });
    }
}
