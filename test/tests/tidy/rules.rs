//! The tables of the structure rules, with the exceptions and their reasons.
#![forbid(unsafe_code)]

/// A package, and the packages of this workspace that it may depend on.
pub(crate) const PACKAGES: &[(&str, &[&str])] = &[
    ("dat/abi", &[]),
    ("dat/counters", &[]),
    ("dat/udapl", &["dat-abi"]),
    ("dat/settings", &[]),
    ("dat", &["dat-abi", "dat-settings"]),
    ("dat/v1", &["dat", "dat-abi"]),
    ("dat/v2", &["dat", "dat-abi"]),
    ("dat/datinfo", &["dat-abi", "dat-counters", "dat-settings", "udapl"]),
    ("dapl", &["dat-abi", "dat-counters", "dat-settings"]),
    ("providers/common", &["dapl", "dat-settings"]),
    ("providers/ibverbs-sys", &[]),
    ("providers/link", &[]),
    ("providers/rdma-cm-sys", &["ibverbs-sys"]),
    ("providers/sm", &["dapl", "dapl-link", "dapl-software", "dat-abi"]),
    ("providers/usnic", &["dapl", "dapl-link", "dapl-software", "dat-abi"]),
    ("providers/verbs", &["dapl", "dapl-link", "dapl-software", "dat-abi", "ibverbs-sys", "rdma-cm-sys"]),
    ("test", &["dat-abi", "udapl"]),
    ("test/conformance", &["dat-abi"]),
    ("test/dapltest", &["dat-abi", "dat-settings", "udapl"]),
    ("test/faulty", &["dapl", "daplsm"]),
    ("test/loopback", &["dapl", "dapl-link", "dapl-software"]),
    ("test/xtask", &["dapl-test", "dat-settings"]),
];

/// Layers of `dapl`, from the bottom up. A file imports only modules of lower layers, and parts of its own module. A
/// module is named by the first part of its path, or by the first two (`runtime/wait`) in a folder that only groups
/// modules. `entries` are the files `dapl_*.rs`. The other tables have the same rules.
const DAPL: &[&[&str]] = &[
    &["error", "runtime/cancel", "runtime/slot_queue", "runtime/spin", "runtime/sync", "stats/watermark"],
    &["names"],
    &["runtime/address_ranges", "runtime/hazard", "runtime/pooled"],
    &["runtime/empty_check"],
    &["runtime/handle"],
    &["provider", "libdat"],
    &["ffi", "runtime/wait", "runtime/thread", "runtime/consumer_memory", "runtime/descriptor"],
    &["runtime/logger", "runtime/mappings"],
    &["runtime/timer", "stats/counters", "stats/publication"],
    &["stats/trace"],
    &["ia"],
    &["pz", "cno"],
    &["evd", "lmr", "srq"],
    &["rmr"],
    &["ep"],
    &["cr"],
    &["psp", "rsp", "csp"],
    &["cm"],
    &["v2/arguments", "v2/convert"],
    &["v2/segments"],
    &["context", "dapl_descriptor"],
    &["entries"],
    &["table", "v2/table", "runtime/fork"],
    &["registration"],
];

/// Layers of `providers/common`, from the bottom up. They agree with the list in its `lib.rs`.
const COMMON: &[&[&str]] = &[
    &["settings", "limits", "listener_retry", "overdue", "base_dir", "host_address"],
    &["shared_names"],
    &["memory", "cq", "engine"],
    &["srq"],
    &["simple"],
];

/// Layers of `providers/sm`, from the bottom up.
const SM: &[&[&str]] = &[
    &["proto", "memory/map"],
    &["memory/cma", "memory/mapped", "qp/line_allocator"],
    &["memory/knem"],
    &["settings", "memory/backing", "memory/imports", "dir", "engine/wake", "cm/receive", "memory/regions", "qp/ring"],
    &["engine/wake_flags", "delegation", "cm/socket"],
    &["qp/link"],
    &["memory/kernel_copy", "memory/calibration"],
    &["qp/single_copy"],
    &["engine/jobs", "engine/stalls"],
    &["cq", "srq"],
    &["cm/table"],
    &["memory/window"],
    &["qp/context"],
    &["qp/rx", "qp/tx", "device"],
    &["cm/peers"],
    &["cm/setup", "memory/exchange"],
    &["qp/queue_pair"],
    &["qp"],
    &["cm/request"],
    &["engine/thread"],
    &["engine"],
];

/// Layers of `providers/usnic`, from the bottom up.
const USNIC: &[&[&str]] = &[
    &["proto", "net", "engine/jobs", "memory/regions"],
    &["settings", "engine/polling", "counters", "srq"],
    &["qp/handler"],
    &["qp/connection_table"],
    &["device"],
    &["engine/progress", "cm"],
    &["cq", "limits", "engine/thread"],
    &["engine"],
    &["adapter", "qp/context"],
    &["qp/transport"],
    &["qp/closing"],
    &["qp/queue_pair"],
    &["qp"],
    &["qp/request", "qp/exit_handler"],
];

/// Layers of `providers/verbs`, from the bottom up.
const VERBS: &[&[&str]] = &[
    &["manager_kind"],
    &["addresses", "memory/binds", "refusal", "qp/gather", "ibv", "settings", "cm/name_service", "engine", "cq/status"],
    &["qp/work", "gid", "host", "memory/keys", "qp/state"],
    &["find", "memory", "rdma_cm"],
    &["limits", "shared_device"],
    &["device"],
    &["cq"],
    &["srq"],
    &["qp"],
    &["cm"],
    &["qp/queue_pair"],
    &["cm/request"],
    &["cm/rdma", "cm/socket"],
    &["cm/none"],
    &["cm/start"],
];

/// Layers of `dat`, the code of both libdats, from the bottom up.
const DAT: &[&[&str]] = &[
    &["api", "conf", "arena", "refused"],
    &["strerror"],
    &["matching", "loader"],
    &["discovery"],
    &["sources"],
    &["report"],
    &["registry"],
    &["handles"],
    &["fork"],
    &["thunk"],
];

/// The layers of each source folder.
pub(crate) const LAYERS: [(&str, &[&[&str]]); 6] = [
    ("dat/src/", DAT),
    ("dapl/src/", DAPL),
    ("providers/common/src/", COMMON),
    ("providers/sm/src/", SM),
    ("providers/usnic/src/", USNIC),
    ("providers/verbs/src/", VERBS),
];

/// Imports of a higher layer: the file, the imported module, the reason.
pub(crate) const UPWARD_IMPORTS: &[(&str, &str, &str)] = &[(
    "providers/verbs/src/cq/members.rs",
    "qp",
    "a completion belongs to the work of a queue pair, which is completed with the queue's lock held and without a dynamic call",
)];

/// Maximum number of files in an import cycle. Imports between a module and its own submodules do not count.
pub(crate) const MAX_CIRCLE: usize = 3;
/// Source folders that are checked for import cycles.
pub(crate) const CIRCLE_FOLDERS: &[&str] = &[
    "dat/src/",
    "dat/abi/src/",
    "dat/counters/src/",
    "dat/datinfo/src/",
    "dat/settings/src/",
    "dat/udapl/src/",
    "dapl/src/",
    "providers/common/src/",
    "providers/ibverbs-sys/src/",
    "providers/rdma-cm-sys/src/",
    "providers/sm/src/",
    "providers/usnic/src/",
    "providers/verbs/src/",
    "test/dapltest/src/",
];

/// Files in which `unsafe` is permitted. Also permitted: unit tests in files of their own, and entries (`dapl_*.rs`),
/// to which C passes pointers.
pub(crate) const UNSAFE_FILES: &[(&str, &str)] = &[
    ("dat/abi/src/attr.rs", "types of C functions"),
    ("dat/abi/src/hook.rs", "types of C functions"),
    ("dat/abi/src/table.rs", "types of C functions"),
    ("dat/abi/src/v2/table.rs", "types of C functions"),
    ("dat/src/loader.rs", "dlopen, and calls into what it finds"),
    ("dat/src/loader/host.rs", "calls into the C library"),
    ("dat/src/loader/other.rs", "dlopen, and calls into the other libdat"),
    ("dat/datinfo/src/libdat.rs", "dlopen, and calls into libdat, in a child"),
    ("dat/datinfo/src/system.rs", "options of sockets, and a copy across processes"),
    ("dat/src/thunk.rs", "the C boundary"),
    ("dat/src/thunk/own.rs", "the C boundary"),
    ("dat/src/thunk/pass.rs", "the C boundary"),
    ("dat/udapl/src/address.rs", "socket addresses as C has them"),
    ("dat/udapl/src/bytes.rs", "memory that others change"),
    ("dat/udapl/src/cno.rs", "calls of libdat"),
    ("dat/udapl/src/descriptor.rs", "calls of the provider, by their addresses"),
    ("dat/udapl/src/ep.rs", "calls of libdat"),
    ("dat/udapl/src/post.rs", "calls of libdat"),
    ("dat/udapl/src/readiness.rs", "calls of the provider"),
    ("dat/udapl/src/rmr.rs", "calls of libdat"),
    ("dat/udapl/src/shared.rs", "memfd and its seals"),
    ("dat/udapl/src/srq.rs", "calls of libdat"),
    ("dat/udapl/src/evd.rs", "calls of libdat, and unions of C"),
    ("dat/udapl/src/ia.rs", "calls of libdat"),
    ("dat/udapl/src/library.rs", "dlopen, and calls into what it finds"),
    ("dat/udapl/src/listener.rs", "calls of libdat"),
    ("dat/udapl/src/memory.rs", "calls of libdat, and slices of exclusively owned memory"),
    ("dat/udapl/src/owned.rs", "calls of libdat that free its handles"),
    ("dapl/src/lib.rs", "declares what export_provider! imports and exports"),
    ("dapl/src/names.rs", "a record with pointers of C in it, shared by all threads"),
    ("dapl/src/libdat.rs", "calls into libdat, and the hook into ours"),
    ("dapl/src/registration.rs", "the C boundary of dat_provider_init"),
    ("dapl/src/context.rs", "entries: C hands them pointers"),
    ("dapl/src/ffi.rs", "turns pointers of C into values"),
    ("dapl/src/v2/arguments.rs", "the layout of C's variable arguments"),
    ("dapl/src/v2/segments.rs", "lists of triplets of C"),
    ("dapl/src/runtime/sync/static_mutex.rs", "a lock, and its futex"),
    ("dapl/src/runtime/sync/access_check.rs", "a cell without content, shared by the threads of a model"),
    ("dapl/src/evd/event_record.rs", "writes events to the memory of C"),
    ("dapl/src/ep/post_lock.rs", "posts share the post state without a lock"),
    ("dapl/src/runtime/hazard/local.rs", "a word of thread-local storage in assembly"),
    ("dapl/src/runtime/address_ranges.rs", "mmap"),
    ("dapl/src/runtime/empty_check.rs", "pointers to words that stay readable for ever"),
    ("dapl/src/runtime/empty_check/interleavings.rs", "words that are never freed"),
    ("dapl/src/runtime/empty_check/tests.rs", "words that are never freed"),
    ("dapl/src/runtime/handle/mod.rs", "handle table, and the objects of its entries"),
    ("dapl/src/runtime/handle/arena.rs", "maps the handle table"),
    ("dapl/src/runtime/handle/creation.rs", "stores a new object in its entry, and releases it"),
    ("dapl/src/runtime/handle/refs.rs", "references to the objects of handles"),
    ("dapl/src/runtime/wait.rs", "cancellation of POSIX threads"),
    ("dapl/src/runtime/wait/futex.rs", "futex"),
    ("dapl/src/runtime/thread.rs", "signal masks"),
    ("dapl/src/runtime/cancel.rs", "the cancellation state of a thread"),
    ("dapl/src/runtime/logger.rs", "syslog"),
    ("providers/common/src/base_dir/exit_cleanup.rs", "atexit"),
    ("dat/counters/src/socket.rs", "asks the kernel whose a socket is"),
    ("providers/ibverbs-sys/src/load.rs", "dlopen, and calls into what it finds"),
    ("providers/ibverbs-sys/src/types.rs", "types of C functions, and zeroed structures"),
    ("providers/sm/src/memory/map.rs", "shared memory"),
    ("providers/sm/src/cm/receive.rs", "recvmsg, and what it has filled"),
    ("providers/common/src/memory/mapping_check.rs", "questions to the kernel about memory, and the time"),
    ("providers/sm/src/memory/kernel_copy.rs", "hands on copies, each side checked before"),
    ("providers/sm/src/memory/knem.rs", "calls of a device"),
    ("providers/sm/src/memory/knem/fake.rs", "copies of a device that is none"),
    ("providers/sm/src/memory/calibration.rs", "copies between buffers of its own"),
    ("providers/sm/src/memory/cma.rs", "process_vm_readv and process_vm_writev"),
    ("providers/sm/src/memory/mapped.rs", "mappings of a peer's memory, and System V segments"),
    ("providers/common/src/memory/scatter_gather.rs", "copies between a consumer's memory and a provider's"),
    ("providers/common/src/memory/atomic.rs", "atomic operations on memory that was checked"),
    ("providers/common/src/memory/user_copy/copying.rs", "copies between mapped ranges"),
    ("providers/common/src/memory/user_copy.rs", "copies of memory that was checked, and reads a counter"),
    ("providers/common/src/memory/vma_query.rs", "questions to the kernel about memory"),
    ("providers/sm/src/qp/rx/deliver.rs", "copies out of slots and areas, each range checked just above"),
    ("providers/sm/src/qp/rx/extensions.rs", "atomic operations on registered memory, checked just above"),
    ("providers/sm/src/qp/rx/fetch.rs", "copies off the stage, checked just above"),
    ("providers/sm/src/qp/rx/rma.rs", "copies between registered memory and the RMA buffer, both checked just above"),
    ("providers/sm/src/qp/single_copy.rs", "copies across, both sides checked just above"),
    ("providers/sm/src/qp/tx/offer.rs", "copies onto the stage, checked just above"),
    ("providers/sm/src/qp/tx/extensions.rs", "copies a value of its own"),
    ("providers/sm/src/qp/tx/responses.rs", "copies out of the RMA buffer, each range reserved before"),
    ("providers/sm/src/qp/tx/fast_path.rs", "copies to shared memory"),
    ("providers/sm/src/qp/tx/send.rs", "copies into slots and areas, each range reserved just above"),
    ("providers/sm/src/qp/tx/rma.rs", "copies into the RMA buffer, each range reserved just above"),
    ("providers/sm/src/engine/wake.rs", "SIGPIPE of one thread"),
    ("providers/sm/tests/threads.rs", "an agent, and a race on purpose"),
    ("providers/sm/tests/threads/entries.rs", "calls through the provider's table"),
    ("providers/sm/tests/vanished.rs", "mappings that are taken away"),
    ("providers/sm/tests/threads/sanitizer.rs", "passes on a call of the sanitizer's"),
    ("providers/usnic/src/qp/context.rs", "copies of registered memory, each held just above"),
    ("providers/usnic/src/qp/transport.rs", "hands memory that is held to a batch"),
    ("providers/usnic/src/net/address.rs", "getifaddrs"),
    ("providers/usnic/src/net/errors.rs", "recvmsg, and what it has filled"),
    ("providers/usnic/src/net/handover.rs", "recvmsg, and what it has filled"),
    ("providers/usnic/src/net/sockaddr.rs", "addresses as the kernel has them"),
    ("providers/usnic/src/net/receive.rs", "recvmmsg, and what it has filled"),
    ("providers/usnic/src/net/reuseport.rs", "a socket filter"),
    ("providers/usnic/src/net/send.rs", "sendmsg, of memory that its caller holds"),
    ("providers/usnic/src/net/short_packet.rs", "a packet that was not written before, and sendto"),
    ("providers/usnic/src/net/socket.rs", "options of sockets"),
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
    ("test/conformance/src/api/libdat2.rs", "functions of one C shape over functions of another one"),
    ("test/conformance/src/api/libdat2/added.rs", "calls through the table of a handle"),
    ("test/conformance/src/api/libdat2/calls.rs", "functions of one C shape over functions of another one"),
    ("test/conformance/src/api/libdat2/records.rs", "functions of one C shape over functions of another one"),
    ("test/conformance/src/flight.rs", "maps the record that the driver reads"),
    ("test/conformance/src/kit/cancel.rs", "signals, and cancellation of POSIX threads"),
    ("test/conformance/src/kit/raw.rs", "looks through pointers and into unions of C"),
    ("test/conformance/src/os.rs", "signals, fork, maps, the environment"),
    ("test/dapltest/src/cpu.rs", "getrusage"),
    ("test/dapltest/src/dat/event.rs", "unions of C"),
    ("test/dapltest/src/dat/raw.rs", "calls into libdat"),
    ("test/faulty/src/control.rs", "the C boundary, for tests"),
    ("providers/common/src/simple/per_process.rs", "references to values that are never freed"),
    ("providers/common/src/simple/registrations.rs", "copies of registered memory, each side checked before"),
    ("test/faulty/src/heap.rs", "counts around the system's allocator"),
    ("test/tests/abi_rust.rs", "reads C structures"),
];

/// Files with rules and protocols: they must contain `#![forbid(unsafe_code)]`.
pub(crate) const FORBIDDEN_UNSAFE: &[&str] = &[
    "dat/src/api.rs",
    "dat/src/conf.rs",
    "dat/src/discovery.rs",
    "dat/src/matching.rs",
    "dat/src/refused.rs",
    "dat/src/sources.rs",
    "dat/src/strerror.rs",
    "providers/common/src/memory/keys.rs",
    "providers/common/src/settings.rs",
    "dapl/src/runtime/logger/limit.rs",
    "dat/counters/src/reader.rs",
    "dat/counters/src/text.rs",
    "dat/settings/src/lib.rs",
    "providers/verbs/src/cm/name_service.rs",
    "dapl/src/runtime/timer.rs",
    "dapl/src/stats/counters/by_ep.rs",
    "dapl/src/stats/trace/ring.rs",
    "dapl/src/stats/trace/text.rs",
    "dapl/src/table.rs",
    "dapl/src/ep/state.rs",
    "dapl/src/evd/queue.rs",
    "dapl/src/srq/capacity.rs",
    "dapl/src/stats/watermark.rs",
    "providers/sm/src/settings.rs",
    "providers/sm/src/proto/handshake.rs",
    "providers/sm/src/proto/machine.rs",
    "providers/sm/src/proto/message.rs",
    "providers/sm/src/proto/liveness.rs",
    "providers/sm/src/proto/reassembly.rs",
    "providers/usnic/src/settings.rs",
    "dat/datinfo/src/doctor/path/probe.rs",
    "providers/usnic/src/engine/polling.rs",
    // `#![forbid(unsafe_code)]` in this file covers all files of the module.
    "providers/usnic/src/proto/mod.rs",
    "providers/usnic/src/counters.rs",
    "providers/verbs/src/memory/binds.rs",
    "providers/verbs/src/cm/socket/gid_lookup.rs",
    "providers/verbs/src/cm/socket/protocol.rs",
    "providers/verbs/src/cm/socket/wire/address.rs",
    "providers/verbs/src/cm/socket/wire/dat12.rs",
    "providers/verbs/src/cm/socket/wire/dat20.rs",
    "providers/verbs/src/cm/socket/wire/mod.rs",
    "providers/verbs/src/qp/gather.rs",
    "providers/verbs/src/gid.rs",
    "providers/verbs/src/memory/keys.rs",
    "providers/verbs/src/settings.rs",
    "providers/verbs/src/qp/state.rs",
    "providers/verbs/src/cq/status.rs",
    "providers/verbs/src/qp/work.rs",
    "test/dapltest/src/operation.rs",
    "test/dapltest/src/options.rs",
    "test/dapltest/src/script.rs",
    "test/dapltest/src/wire.rs",
    "test/src/program.rs",
];

/// The export that providers call and no public header declares.
pub(crate) const UNDECLARED: &str = "dats_get_ia_handle";

/// Functions that the 2.0 headers declare, but that neither this libdat2 nor the reference's exports. They are entries
/// of the provider table or inline functions of the header; `dat_registry_providers_related` is only declared.
pub(crate) const NOT_EXPORTED: &[&str] = &[
    "dat_cno_fd_create",
    "dat_cno_trigger",
    "dat_csp_create",
    "dat_csp_free",
    "dat_csp_query",
    "dat_ep_common_connect",
    "dat_ep_post_rdma_read_to_rmr",
    "dat_ep_post_send_with_invalidate",
    "dat_registry_providers_related",
    "dat_rmr_create_for_ep",
    "dat_strerror_ext_status",
    "dat_strerror_extension",
];

/// Type names that are too general to be defined in several product modules.
pub(crate) const SHORT_NAMES: &[&str] = &[
    "Core", "Door", "Found", "Held", "Inner", "Line", "Link", "Open", "Place", "Request", "Stage", "Step", "Table",
    "Wanted", "Window",
];

/// Exceptions: the short name, the files that define it, the reason.
pub(crate) const SHARED_NAMES: &[(&str, &[&str], &str)] = &[(
    "Request",
    &["dat/udapl/src/listener.rs", "providers/sm/src/qp/tx/mod.rs"],
    "a connection request in the public interface of udapl; a posted request inside sm, as in the terms of verbs",
)];

/// The paragraphs of the MIT licence. They are compared because a replacement in all files also changes the licence.
pub(crate) const MIT_LICENCE: [&str; 3] = [
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated \
     documentation files (the \"Software\"), to deal in the Software without restriction, including without limitation \
     the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to \
     permit persons to whom the Software is furnished to do so, subject to the following conditions:",
    "The above copyright notice and this permission notice shall be included in all copies or substantial portions of \
     the Software.",
    "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO \
     THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE \
     AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, \
     TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE \
     SOFTWARE.",
];
