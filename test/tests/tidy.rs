//! The house rules: what may import what, where unsafe code may live, how a file begins, which names are public.
//!
//! The tables below are the rules; the code below them only compares. Each known step against a rule stands in a table with
//! its reason, and must still be needed. Reads sources only: nothing is built.
#![forbid(unsafe_code)]

#[path = "tidy/source.rs"]
mod source;

use std::collections::BTreeSet;
use std::fs;

use dapl_test::stage::workspace;
use source::{Source, files, imports, word};

/// A package, and those of ours it may depend on.
const PACKAGES: &[(&str, &[&str])] = &[
    ("dat/abi", &[]),
    ("dat/counters", &[]),
    ("dat/udapl", &["dat-abi"]),
    ("dat/knobs", &[]),
    ("dat", &["dat-abi", "dat-knobs"]),
    ("dat/datinfo", &["dapl-path-check", "dat-abi", "dat-counters", "dat-knobs"]),
    ("dapl", &["dat-abi", "dat-counters", "dat-knobs"]),
    ("providers/rdma-cm-sys", &[]),
    ("providers/sm", &["dapl", "dat-abi"]),
    ("providers/usnic", &["dapl", "dapl-path-check", "dat-abi"]),
    ("providers/usnic/path-check", &[]),
    ("providers/verbs", &["dapl", "dat-abi", "rdma-cm-sys"]),
    ("test", &["dat-abi", "udapl"]),
    ("test/conformance", &["dat-abi"]),
    ("test/dapltest", &["dat-abi"]),
    ("test/faulty", &["dapl", "daplsm"]),
    ("test/xtask", &["dapl-test"]),
];

/// Rooms from the ground up. A file imports rooms of lower floors, and its own. `entries` are `dapl_*.rs` and `context`.
const DAPL: &[&[&str]] = &[
    &["error", "sync", "watermark", "keys"],
    &["names"],
    &["handle"],
    &["provider", "libdat"],
    &["ffi", "wait", "thread", "shown", "debug", "mappings", "bell", "ready", "segments", "window"],
    &["timer", "counters", "published", "name_service", "base_dir", "knobs", "presence"],
    &["trace", "shared_names"],
    &["ia"],
    &["pz", "cno"],
    &["evd", "lmr", "srq"],
    &["rmr"],
    &["ep"],
    &["cr"],
    &["psp", "rsp"],
    &["cm"],
    &["entries", "context"],
    &["table", "fork"],
    &["registration"],
];

/// As its `lib.rs` has it.
const SM: &[&[&str]] = &[
    &["proto", "map"],
    &["cma", "mapped"],
    &["knem"],
    &["knobs", "backing", "loans", "dir", "wake", "recv", "regions", "ring", "wish", "help"],
    &["sock"],
    &["link"],
    &["by_kernel", "calibration"],
    &["across"],
    &["bell"],
    &["cq", "srq"],
    &["half", "book"],
    &["window"],
    &["rx", "tx", "device"],
    &["setup", "lend"],
    &["qp"],
    &["request"],
    &["engine"],
];

/// As its `lib.rs` has it.
const USNIC: &[&[&str]] = &[
    &["proto", "net", "bell", "regions"],
    &["knobs", "polling", "tally", "srq", "own"],
    &["pair", "farewell"],
    &["table"],
    &["device"],
    &["progress", "setups"],
    &["engine"],
    &["cq", "limits"],
    &["host"],
    &["line"],
    &["remains"],
    &["qp"],
    &["request", "fuzz"],
];

/// As its `lib.rs` has it.
const VERBS: &[&[&str]] = &[
    &["addresses", "binds", "explain", "gather", "ibv", "knobs", "reactor", "status", "work"],
    &["gid", "host", "keys", "state"],
    &["find", "memory", "rdma_cm"],
    &["limits"],
    &["device"],
    &["cq"],
    &["srq"],
    &["qp"],
    &["opened"],
    &["cm"],
    &["request"],
];

/// As its `lib.rs` has it.
const DAT: &[&[&str]] = &[
    &["conf", "strerror", "arena", "refused"],
    &["matching", "loader"],
    &["discovery"],
    &["sources"],
    &["report"],
    &["registry"],
    &["handles"],
    &["fork"],
    &["thunk"],
];

/// Where the rooms of each stand.
const HOUSES: [(&str, &[&[&str]]); 5] = [
    ("dat/src/", DAT),
    ("dapl/src/", DAPL),
    ("providers/sm/src/", SM),
    ("providers/usnic/src/", USNIC),
    ("providers/verbs/src/", VERBS),
];

/// Imports that do not go down: the file, the room, why it is so today.
const STEPS_UP: &[(&str, &str, &str)] = &[
    ("providers/usnic/src/pair.rs", "setups", "tells of a request, for the layer above"),
    ("providers/usnic/src/pair.rs", "table", "hands on when the device will look"),
    ("providers/usnic/src/device.rs", "engine", "starts it, and waits for its end"),
    ("providers/usnic/src/device.rs", "progress", "owns what a pass works with"),
    ("providers/usnic/src/device.rs", "setups", "owns them, and tells them of hosts that do not answer"),
    ("providers/usnic/src/setups/mod.rs", "engine", "says events as the layer above has them"),
    ("providers/verbs/src/limits.rs", "device", "tells facts of an open one"),
    ("providers/verbs/src/device.rs", "cm", "starts the manager, and owns it"),
    ("providers/verbs/src/device.rs", "opened", "knows the queues of the other IAs over its device, for events"),
    ("providers/verbs/src/device.rs", "request", "makes one of what a manager tells"),
    ("providers/verbs/src/cq/mod.rs", "qp", "knows who completes here"),
    ("providers/verbs/src/cq/table.rs", "qp", "hands on completions"),
    ("providers/verbs/src/qp/mod.rs", "cm", "holds the link that a manager made"),
    ("providers/verbs/src/qp/life.rs", "cm", "asks the link for the way to the peer"),
];

/// Where the word `unsafe` may stand, besides entries (`dapl_*.rs`: C hands them pointers) and `tests`. Everywhere else:
/// nowhere.
const UNSAFE_ROOMS: &[(&str, &str)] = &[
    ("dat/abi/src/attr.rs", "types of C functions"),
    ("dat/abi/src/hook.rs", "types of C functions"),
    ("dat/abi/src/table.rs", "types of C functions"),
    ("dat/src/loader.rs", "dlopen, and calls into what it finds"),
    ("dat/src/loader/host.rs", "calls into the C library"),
    ("dat/datinfo/src/libdat.rs", "dlopen, and calls into libdat, in a child"),
    ("dat/datinfo/src/system.rs", "options of sockets, and a copy across processes"),
    ("dat/src/thunk.rs", "the C boundary"),
    ("dat/src/thunk/own.rs", "the C boundary"),
    ("dat/src/thunk/pass.rs", "the C boundary"),
    ("dat/udapl/src/address.rs", "socket addresses as C has them"),
    ("dat/udapl/src/bytes.rs", "memory that others change"),
    ("dat/udapl/src/ep.rs", "calls of libdat"),
    ("dat/udapl/src/evd.rs", "calls of libdat, and unions of C"),
    ("dat/udapl/src/ia.rs", "calls of libdat"),
    ("dat/udapl/src/library.rs", "dlopen, and calls into what it finds"),
    ("dat/udapl/src/listener.rs", "calls of libdat"),
    ("dat/udapl/src/memory.rs", "calls of libdat, and slices of memory that nobody else has"),
    ("dapl/src/lib.rs", "declares what export_provider! imports and exports"),
    ("dapl/src/names.rs", "a record with pointers of C in it, shared by all threads"),
    ("dapl/src/libdat.rs", "calls into libdat, and the hook into ours"),
    ("dapl/src/registration.rs", "the C boundary of dat_provider_init"),
    ("dapl/src/context.rs", "entries: C hands them pointers"),
    ("dapl/src/ffi.rs", "turns pointers of C into values"),
    ("dapl/src/sync/lasting.rs", "a lock, and its futex"),
    ("dapl/src/sync/witness.rs", "a cell without content, shared by the threads of a model"),
    ("dapl/src/handle/mod.rs", "stubs, and the objects behind them"),
    ("dapl/src/handle/arena.rs", "maps the arena of stubs"),
    ("dapl/src/wait.rs", "cancellation of POSIX threads"),
    ("dapl/src/wait/futex.rs", "futex"),
    ("dapl/src/thread.rs", "signal masks"),
    ("dapl/src/debug.rs", "syslog"),
    ("dapl/src/base_dir/leavings.rs", "atexit"),
    ("dat/counters/src/socket.rs", "asks the kernel whose a socket is"),
    ("providers/rdma-cm-sys/src/lib.rs", "declares functions of C"),
    ("providers/rdma-cm-sys/tests/header.rs", "asks the library for its words"),
    ("providers/sm/src/map.rs", "shared memory"),
    ("providers/sm/src/recv.rs", "recvmsg, and what it has filled"),
    ("dapl/src/presence.rs", "questions to the kernel about memory, and the time"),
    ("providers/sm/src/by_kernel.rs", "hands on copies, each side checked before"),
    ("providers/sm/src/knem.rs", "calls of a device"),
    ("providers/sm/src/knem/double.rs", "copies of a device that is none"),
    ("providers/sm/src/calibration.rs", "copies between buffers of its own"),
    ("providers/sm/src/cma.rs", "process_vm_readv and process_vm_writev"),
    ("providers/sm/src/mapped.rs", "mappings of a peer's memory, and System V segments"),
    ("dapl/src/segments.rs", "copies between a consumer's memory and a provider's"),
    ("providers/sm/src/rx.rs", "copies out of slots and areas, each range checked just above"),
    ("providers/sm/src/rx/fetch.rs", "copies off the stage, checked just above"),
    ("providers/sm/src/across.rs", "copies across, both sides checked just above"),
    ("providers/sm/src/tx/offer.rs", "copies onto the stage, checked just above"),
    ("providers/sm/src/tx/mod.rs", "copies out of the RMA buffer, each range reserved before"),
    ("providers/sm/src/tx/send.rs", "copies into slots and areas, each range reserved just above"),
    ("providers/sm/src/tx/rma.rs", "copies into the RMA buffer, each range reserved just above"),
    ("providers/sm/src/wake.rs", "SIGPIPE of one thread"),
    ("providers/sm/tests/threads.rs", "an agent, and a race on purpose"),
    ("providers/sm/tests/threads/door.rs", "calls through the provider's table"),
    ("providers/sm/tests/vanished.rs", "mappings that are taken away"),
    ("providers/sm/tests/threads/sanitizer.rs", "passes on a call of the sanitizer's"),
    ("providers/usnic/src/host.rs", "copies of registered memory, each held just above"),
    ("providers/usnic/src/line.rs", "hands memory that is held to a batch"),
    ("providers/usnic/src/net/address.rs", "getifaddrs"),
    ("providers/usnic/src/net/errors.rs", "recvmsg, and what it has filled"),
    ("providers/usnic/src/net/handover.rs", "recvmsg, and what it has filled"),
    ("providers/usnic/src/net/name.rs", "addresses as the kernel has them"),
    ("providers/usnic/src/net/receive.rs", "recvmmsg, and what it has filled"),
    ("providers/usnic/src/net/send.rs", "sendmsg, of memory that its caller holds"),
    ("providers/usnic/src/net/socket.rs", "options of sockets"),
    ("providers/usnic/path-check/src/options.rs", "options of sockets"),
    ("providers/verbs/src/ibv/mod.rs", "libibverbs: what its objects share"),
    ("providers/verbs/src/ibv/context.rs", "libibverbs"),
    ("providers/verbs/src/ibv/channel.rs", "libibverbs"),
    ("providers/verbs/src/ibv/cq.rs", "libibverbs"),
    ("providers/verbs/src/ibv/event.rs", "libibverbs"),
    ("providers/verbs/src/ibv/memory.rs", "libibverbs"),
    ("providers/verbs/src/ibv/qp.rs", "libibverbs"),
    ("providers/verbs/src/ibv/srq.rs", "libibverbs"),
    ("providers/verbs/src/rdma_cm.rs", "librdmacm"),
    ("providers/verbs/src/addresses.rs", "getifaddrs"),
    ("providers/verbs/src/limits.rs", "reads an array of C's characters"),
    ("test/src/stage.rs", "flock"),
    ("test/conformance/src/api.rs", "dlopen, and every call into what it finds"),
    ("test/conformance/src/flight.rs", "maps the record that the driver reads"),
    ("test/conformance/src/kit/cancel.rs", "signals, and cancellation of POSIX threads"),
    ("test/conformance/src/kit/raw.rs", "looks through pointers and into unions of C"),
    ("test/conformance/src/os.rs", "signals, fork, maps, the environment"),
    ("test/dapltest/src/dat/event.rs", "unions of C"),
    ("test/dapltest/src/dat/import.rs", "declares what it imports of libdat"),
    ("test/dapltest/src/dat/raw.rs", "calls into libdat"),
    ("test/faulty/src/control.rs", "the C boundary, for tests"),
    ("test/faulty/src/heap.rs", "counts around the system's allocator"),
    ("test/tests/abi_rust.rs", "reads C structures"),
];

/// Rules and protocols: the compiler itself refuses unsafe code in them.
const FORBIDDEN_UNSAFE: &[&str] = &[
    "dat/src/conf.rs",
    "dat/src/discovery.rs",
    "dat/src/matching.rs",
    "dat/src/refused.rs",
    "dat/src/sources.rs",
    "dat/src/strerror.rs",
    "dapl/src/keys.rs",
    "dapl/src/knobs.rs",
    "dapl/src/debug/limit.rs",
    "dat/counters/src/reader.rs",
    "dat/counters/src/text.rs",
    "dat/knobs/src/lib.rs",
    "dapl/src/name_service.rs",
    "dapl/src/timer.rs",
    "dapl/src/counters/ledger.rs",
    "dapl/src/trace/ring.rs",
    "dapl/src/trace/text.rs",
    "dapl/src/table.rs",
    "dapl/src/ep/state.rs",
    "dapl/src/evd/queue.rs",
    "dapl/src/srq/room.rs",
    "dapl/src/watermark.rs",
    "providers/sm/src/knobs.rs",
    "providers/sm/src/proto/handshake.rs",
    "providers/sm/src/proto/machine.rs",
    "providers/sm/src/proto/message.rs",
    "providers/sm/src/proto/pulse.rs",
    "providers/sm/src/proto/reassembly.rs",
    "providers/usnic/src/knobs.rs",
    "providers/usnic/path-check/src/probe.rs",
    "providers/usnic/src/polling.rs",
    // All of it.
    "providers/usnic/src/proto/mod.rs",
    "providers/usnic/src/tally.rs",
    "providers/verbs/src/binds.rs",
    "providers/verbs/src/cm/socket/guide.rs",
    "providers/verbs/src/cm/socket/talk.rs",
    "providers/verbs/src/cm/socket/wire.rs",
    "providers/verbs/src/gather.rs",
    "providers/verbs/src/gid.rs",
    "providers/verbs/src/keys.rs",
    "providers/verbs/src/knobs.rs",
    "providers/verbs/src/state.rs",
    "providers/verbs/src/status.rs",
    "providers/verbs/src/work.rs",
    "test/dapltest/src/operation.rs",
    "test/dapltest/src/options.rs",
    "test/dapltest/src/script.rs",
    "test/dapltest/src/wire.rs",
    "test/src/rdma_core.rs",
];

/// The one export that belongs to providers and has no prototype in a public header.
const UNDECLARED: &str = "dats_get_ia_handle";

#[test]
fn packages_depend_downwards() {
    let manifests = files(&["toml"]).into_iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let manifests: Vec<_> = manifests.filter(|file| !file.path.starts_with("test/fuzz/")).collect();
    let ours: BTreeSet<String> = manifests.iter().filter_map(|file| value(&file.text, "name")).collect();
    let mut wrong = Vec::new();
    for manifest in &manifests {
        let package = manifest.path.strip_suffix("/Cargo.toml").unwrap();
        let Some((_, allowed)) = PACKAGES.iter().find(|(name, _)| *name == package) else {
            wrong.push(format!("{package} is not in the table"));
            continue;
        };
        for name in dependencies(&manifest.text).into_iter().filter(|name| ours.contains(name)) {
            if !allowed.contains(&name.as_str()) {
                wrong.push(format!("{package} depends on {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(manifests.len(), PACKAGES.len(), "the table names a package that is gone");
}

#[test]
fn imports_go_down_the_stairs() {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for (house, floors) in HOUSES {
        for file in files(&["rs"]) {
            let Some(rest) = file.path.strip_prefix(house) else { continue };
            let room = rest.split('/').next().unwrap().trim_end_matches(".rs");
            // lib.rs is the house in one page; doubles and tests stand outside.
            if room == "lib" || room == "double" || is_test(&file.path) {
                continue;
            }
            let own = if is_entry(&file.path) { "entries" } else { room };
            let Some(floor) = floor_of(floors, own) else {
                wrong.push(format!("{}: the room {own} is on no floor", file.path));
                continue;
            };
            // Capital letters are the provider itself, the root's type, in which sinks are generic.
            let named = imports(&file.product_code()).into_iter().filter(|name| name.starts_with(char::is_lowercase));
            for target in named.filter(|target| target != room).collect::<BTreeSet<_>>() {
                let known = STEPS_UP.iter().position(|(path, room, _)| *path == file.path && *room == target);
                match floor_of(floors, &target) {
                    Some(below) if below < floor => {}
                    Some(_) if known.is_some() => drop(used.insert(known)),
                    Some(_) => wrong.push(format!("{} imports {target}, which is not below it", file.path)),
                    None => wrong.push(format!("{} imports {target}, which is on no floor", file.path)),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let idle: Vec<_> = (0..STEPS_UP.len()).filter(|at| !used.contains(&Some(*at))).map(|at| STEPS_UP[at]).collect();
    assert!(idle.is_empty(), "no longer needed: {idle:#?}");
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    let sources = files(&["rs"]);
    let mut wrong = Vec::new();
    for file in &sources {
        let code = file.code();
        let is_allowed =
            is_entry(&file.path) || is_test(&file.path) || UNSAFE_ROOMS.iter().any(|(path, _)| *path == file.path);
        let places = word(&code, "unsafe");
        if !is_allowed && !places.is_empty() {
            let line = code[..places[0]].matches('\n').count() + 1;
            wrong.push(format!("{}:{line}: unsafe code outside its rooms", file.path));
        }
    }
    for (path, why) in UNSAFE_ROOMS {
        match sources.iter().find(|file| file.path == *path) {
            None => wrong.push(format!("{path} ({why}) is gone")),
            Some(file) if word(&file.code(), "unsafe").is_empty() => wrong.push(format!("{path} needs no unsafe code")),
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn rules_forbid_unsafe_code() {
    let open = |path: &&&str| {
        let text = fs::read_to_string(workspace().join(path)).unwrap_or_default();
        !text.contains("#![forbid(unsafe_code)]")
    };
    let wrong: Vec<_> = FORBIDDEN_UNSAFE.iter().filter(open).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_blocks_have_a_reason() {
    /// A reason of a few lines, and a statement that begins above its block.
    const ABOVE: usize = 8;
    let mut wrong = Vec::new();
    for file in files(&["rs"]) {
        let code = file.code();
        let lines: Vec<&str> = file.text.lines().collect();
        for at in word(&code, "unsafe") {
            let opens = code[at + "unsafe".len()..].trim_start();
            if opens.starts_with('{') || opens.starts_with("impl") {
                let line = code[..at].matches('\n').count();
                let near = &lines[line.saturating_sub(ABOVE)..=line];
                if !near.iter().any(|line| line.contains("SAFETY")) {
                    wrong.push(format!("{}:{}: no SAFETY above", file.path, line + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_open_with_what_they_are_for() {
    let has_head = |file: &Source| match file.path.ends_with(".rs") {
        true => file.text.starts_with("//! "),
        false => file.text.starts_with("/*") || file.text.starts_with("//"),
    };
    let wrong: Vec<_> = files(&["rs", "c", "cc", "h", "map"])
        .into_iter()
        .filter(|file| !has_head(file))
        .map(|file| file.path)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_map_names_what_the_headers_declare() {
    let map = fs::read_to_string(workspace().join("dat/libdat.map")).unwrap();
    let exported: BTreeSet<String> = map
        .lines()
        .filter_map(|line| Some(line.trim().strip_suffix(';')?.to_owned()))
        .filter(|name| name.starts_with("dat"))
        .collect();
    let mut declared = BTreeSet::from([UNDECLARED.to_owned()]);
    for header in files(&["h"]).into_iter().filter(|file| file.path.starts_with("dat/include/")) {
        for at in word(&header.text, "DAT_RETURN") {
            let name: String =
                header.text[at + "DAT_RETURN".len()..].trim_start().chars().take_while(|c| *c != '(').collect();
            let is_prototype = name.starts_with("dat_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if is_prototype {
                declared.insert(name);
            }
        }
    }
    assert_eq!(exported, declared);
    assert_eq!(exported.len(), 73);
}

#[test]
fn no_machine_is_named() {
    // In two pieces, or this file would be found.
    let forbidden = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let mut wrong = Vec::new();
    for file in files(&[]) {
        for (number, line) in file.text.lines().enumerate() {
            if forbidden.iter().any(|path| line.contains(path)) {
                wrong.push(format!("{}:{}: {line}", file.path, number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn floor_of(floors: &[&[&str]], room: &str) -> Option<usize> {
    floors.iter().position(|floor| floor.contains(&room))
}

/// A file of functions that C calls.
fn is_entry(path: &str) -> bool {
    path.starts_with("dapl/src/") && path.rsplit('/').next().is_some_and(|name| name.starts_with("dapl_"))
}

fn is_test(path: &str) -> bool {
    path.contains("/src/") && (path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs"))
}

/// `key = "value"` of a manifest.
fn value(manifest: &str, key: &str) -> Option<String> {
    let value = manifest.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// The names in `[dependencies]` and `[build-dependencies]`; tests may look at anything.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_wanted = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_wanted = line == "[dependencies]" || line == "[build-dependencies]";
        } else if is_wanted && line.contains('=') {
            found.push(line.split(['.', '=', ' ']).next().unwrap_or_default().to_owned());
        }
    }
    found
}
