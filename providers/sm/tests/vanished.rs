//! Memory that is unmapped, protected or truncated after it was registered: a transfer that uses it ends with an error,
//! and no process crashes. Each case runs in its own process, which contains both end points, so that a fault at either
//! of them is detected.

#[path = "threads/entries.rs"]
#[expect(dead_code, reason = "the suite of threads uses more of it")]
mod entries;
#[path = "threads/pair.rs"]
mod pair;

use std::process::Command;
use std::ptr::null_mut;

use dat_abi::*;
use entries::{Entries, Handle, completion, cookie, dat, made, next, sure};
use pair::{End, connect};

const CASE: &str = "VANISHED_CASE";

/// Whose memory vanishes: that of the endpoint that posts, or that of its peer.
const SIDES: [&str; 2] = ["local", "remote"];
/// How the memory vanishes. `cut`: its file is truncated. `again`: it is unmapped after a first transfer has succeeded.
const WAYS: [&str; 4] = ["unmapped", "protected", "cut", "again"];
/// Lengths of transfers in bytes. Sends of these lengths use a slot, one fragment, and a rendezvous offer (many
/// fragments if cross-memory attach does not work).
const LENGTHS: [usize; 3] = [48, 9_000, 200_000];
const CAPACITY: usize = 1 << 18;

/// Registered memory: a shared mapping of a memfd.
struct Memory {
    at: *mut u8,
    file: i32,
    triplet: DAT_LMR_TRIPLET,
    remote: DAT_RMR_CONTEXT,
}

impl Memory {
    fn new(ia: Handle, pz: Handle) -> Self {
        // SAFETY: creates a file without a name, and maps it at an address that the kernel chooses.
        let (at, file) = unsafe {
            let file = libc::memfd_create(c"vanished".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(file, CAPACITY as i64), 0);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            (libc::mmap(null_mut(), CAPACITY, rights, libc::MAP_SHARED, file, 0).cast::<u8>(), file)
        };
        assert!(!at.is_null() && at as isize != -1);
        let region = DAT_REGION_DESCRIPTION { for_va: at.cast() };
        let (mut lmr, mut local, mut remote, mut length, mut start) = (null_mut(), 0, 0, 0, 0);
        let code = dat!(lmr_create_func(
            ia,
            DAT_MEM_TYPE_VIRTUAL,
            region,
            CAPACITY as u64,
            pz,
            DAT_MEM_PRIV_ALL_FLAG,
            &mut lmr,
            &mut local,
            &mut remote,
            &mut length,
            &mut start
        ));
        assert_eq!(code, DAT_SUCCESS, "{code:#x}");
        let triplet =
            DAT_LMR_TRIPLET { lmr_context: local, pad: 0, virtual_address: at as u64, segment_length: CAPACITY as u64 };
        Memory { at, file, triplet, remote }
    }

    fn first(&self, length: usize) -> DAT_LMR_TRIPLET {
        DAT_LMR_TRIPLET { segment_length: length as u64, ..self.triplet }
    }

    fn target(&self, length: usize) -> DAT_RMR_TRIPLET {
        let target_address = self.at as u64;
        DAT_RMR_TRIPLET { rmr_context: self.remote, pad: 0, target_address, segment_length: length as u64 }
    }

    /// Unmaps, protects or truncates the memory, so that neither a write nor a read of it succeeds.
    fn vanish(&self, way: &str) {
        // SAFETY: the range is the mapping of `new`, which this test does not access afterwards. The library must
        // detect that the memory has vanished.
        let done = unsafe {
            match way {
                "cut" => libc::ftruncate(self.file, 0),
                "protected" => libc::mprotect(self.at.cast(), CAPACITY, libc::PROT_NONE),
                _ => libc::munmap(self.at.cast(), CAPACITY),
            }
        };
        assert_eq!(done, 0);
    }
}

/// Posts the transfer at `from`. For a send, also posts a receive into `remote_memory` at the peer.
fn post(transfer: &str, from: End, to: End, local_memory: &Memory, remote_memory: &Memory, length: usize) {
    let (mut local, remote) = (local_memory.first(length), remote_memory.target(length));
    let code = match transfer {
        "write" => dat!(ep_post_rdma_write_func(from.ep(), 1, &mut local, cookie(1), &remote, 0)),
        "read" => dat!(ep_post_rdma_read_func(from.ep(), 1, &mut local, cookie(1), &remote, 0)),
        _ => {
            let mut into = remote_memory.first(length);
            let code = dat!(ep_post_recv_func(to.ep(), 1, &mut into, cookie(2), 0));
            assert_eq!(code, DAT_SUCCESS, "{code:#x}");
            dat!(ep_post_send_func(from.ep(), 1, &mut local, cookie(1), 0))
        }
    };
    assert_eq!(code, DAT_SUCCESS, "{code:#x}");
}

/// Runs a case: `<transfer> <local or remote> <way> <length>`.
fn run(case: &str) {
    let mut words = case.split(' ');
    let mut word = || words.next().expect("a case has four words");
    let (transfer, side, way, length) = (word(), word(), word(), word().parse().expect("the fourth word is a length"));
    let entries = Entries::new();
    let ia = entries.open();
    let pz = sure(made!(pz_create_func(ia)));
    let (from, to) = (End::new(ia, pz), End::new(ia, pz));
    let (local_memory, remote_memory) = (Memory::new(ia, pz), Memory::new(ia, pz));
    connect(ia, from, to);
    let is_send = transfer == "send";
    if way == "again" {
        // The first transfer fills the caches of mappings and checked pages. They must not hide that the memory
        // vanishes afterwards.
        post(transfer, from, to, &local_memory, &remote_memory, length);
        assert_eq!(completion(&next(from.sent())), (1, DAT_DTO_SUCCESS));
        if is_send {
            assert_eq!(completion(&next(to.received())), (2, DAT_DTO_SUCCESS));
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    let gone = if side == "local" { &local_memory } else { &remote_memory };
    gone.vanish(way);
    post(transfer, from, to, &local_memory, &remote_memory, length);
    let sent = completion(&next(from.sent()));
    let received = is_send.then(|| completion(&next(to.received())));
    let (sends, receives) = match (side, is_send) {
        ("local", true) => (DAT_DTO_ERR_LOCAL_PROTECTION, Some(DAT_DTO_ERR_FLUSHED)),
        ("local", false) => (DAT_DTO_ERR_LOCAL_PROTECTION, None),
        (_, true) => (DAT_DTO_ERR_REMOTE_RESPONDER, Some(DAT_DTO_ERR_LOCAL_PROTECTION)),
        (_, false) => (DAT_DTO_ERR_REMOTE_ACCESS, None),
    };
    assert_eq!((sent, received.map(|(_, status)| status)), ((1, sends), receives));
    for end in [from, to] {
        let event = next(end.connected()).event_number;
        assert!([DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_DISCONNECTED].contains(&event), "{event:#x}");
    }
    assert_eq!(dat!(ia_close_func(ia, DAT_CLOSE_ABRUPT_FLAG)), DAT_SUCCESS);
}

/// Runs all cases of one transfer, with this RDMA method.
fn all(transfer: &str, rma: &str) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut failed = Vec::new();
    for case in SIDES.iter().flat_map(|side| {
        let lengths = move |way: &'static str| LENGTHS.map(|length| format!("{transfer} {side} {way} {length}"));
        WAYS.into_iter().flat_map(lengths)
    }) {
        let mut command = Command::new("timeout");
        command.arg("100").arg(&program).args(["--ignored", "--exact", "child_process_runs_one_case", "--nocapture"]);
        let output = command.env(CASE, &case).env("DAPL_SM_RMA", rma).output().expect("timeout is installed");
        if !output.status.success() {
            failed.push(format!("{case}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
#[ignore = "the other tests run this one in a child process"]
fn child_process_runs_one_case() {
    run(&std::env::var(CASE).expect("the parent process sets VANISHED_CASE"));
}

#[test]
fn vanished_send_memory_gives_an_error_and_no_crash() {
    all("send", "auto");
}

#[test]
fn rdma_write_by_the_kernel_gives_an_error_for_vanished_memory() {
    all("write", "auto");
}

#[test]
fn rdma_write_by_shared_buffers_gives_an_error_for_vanished_memory() {
    all("write", "mmap");
}

#[test]
fn rdma_read_by_the_kernel_gives_an_error_for_vanished_memory() {
    all("read", "auto");
}

#[test]
fn rdma_read_by_shared_buffers_gives_an_error_for_vanished_memory() {
    all("read", "mmap");
}
