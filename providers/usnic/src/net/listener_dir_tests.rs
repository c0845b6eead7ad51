//! Tests of the directory of listeners: one listener per qualifier, forwarded requests and invalid datagrams, names of
//! exited processes and of other network namespaces, concurrent opens, and access rights of the directory.

use std::os::unix::net::UnixDatagram;

use dapl_software::base_dir::BaseDirKind;

use super::*;
use crate::net::handover::MAX_REQUEST;

const KIND: BaseDirKind = BaseDirKind { provider: "test", variable: "DAPL_DIR", default: "/tmp/dapl-listeners-test" };

/// The base directory of a test, and its directory of listeners.
struct Scratch(PathBuf, ListenerDir);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/tmp/dapl-listeners-{}-{name}", std::process::id()));
        let dir = ListenerDir::new(BaseDir::new(&KIND, path.to_str()));
        Scratch(path, dir)
    }

    /// The directory of listeners.
    fn path(&self) -> PathBuf {
        self.0.join(LISTENERS)
    }

    fn names(&self) -> usize {
        fs::read_dir(self.path()).map_or(0, Iterator::count)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file at the default path, in place of a directory that another user has created there.
struct Squatted(PathBuf);

impl Squatted {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/tmp/dapl-squatted-{}-{name}", std::process::id()));
        fs::write(&path, "").unwrap();
        Squatted(path)
    }

    /// The directory of listeners as a process that starts now finds it.
    fn dir(&self) -> ListenerDir {
        ListenerDir::new(BaseDir::as_default(&KIND, self.0.clone()))
    }

    /// The directories beside the default path.
    fn alternatives(&self) -> Vec<PathBuf> {
        BaseDir::as_default(&KIND, self.0.clone()).alternatives()
    }
}

impl Drop for Squatted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        for left in self.alternatives() {
            let _ = fs::remove_dir_all(left);
        }
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn here() -> SocketAddr {
    at("192.0.2.1:17471")
}

fn forwarded(from: &str, request: &[u8]) -> ForwardedRequest {
    ForwardedRequest { from: at(from), request: request.to_vec() }
}

#[test]
fn forwarded_request_has_the_source_of_the_original() {
    let scratch = Scratch::new("arrives");
    let socket = scratch.1.open(here(), 1).unwrap();
    assert_eq!(socket.receive(), None);
    for from in ["192.0.2.7:5", "[2001:db8::1]:65535", "[fe80::1%4]:9"] {
        let request = forwarded(from, b"please");
        assert!(scratch.1.forward(here(), 1, &request));
        assert_eq!(socket.receive(), Some(request));
    }
    assert!(scratch.1.forward(here(), 1, &forwarded("1.2.3.4:5", &[7; MAX_REQUEST])));
    assert_eq!(socket.receive().map(|forwarded| forwarded.request.len()), Some(MAX_REQUEST));
}

#[test]
fn qualifier_has_one_listener_and_is_free_after_its_close() {
    let scratch = Scratch::new("owner");
    let dir = &scratch.1;
    assert!(!dir.has_listener(here(), 2));
    let socket = dir.open(here(), 2).unwrap();
    assert!(dir.has_listener(here(), 2) && !dir.has_listener(here(), 3));
    assert_eq!(dir.open(here(), 2).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert!(dir.owns_port(here()) && !dir.owns_port(at("192.0.2.1:1747")) && !dir.owns_port(at("192.0.2.2:17471")));
    let longest = at("[2001:db8:1111:2222:3333:4444:5555:6666]:65535");
    let others = [(here(), 3), (at("192.0.2.1:17472"), 2), (at("192.0.2.2:17471"), 2), (longest, u64::MAX)];
    for (address, qual) in others {
        assert!(dir.open(address, qual).is_ok(), "the listener on {address}, qualifier {qual}, must open");
    }
    drop(socket);
    assert!(
        !dir.forward(here(), 2, &forwarded("1.2.3.4:5", b"hello")),
        "a request for a qualifier without a listener is not forwarded"
    );
    assert!(dir.open(here(), 2).is_ok());
    assert!(!fs::exists(scratch.path()).unwrap(), "the last listener removes the directory when it is dropped");
}

#[test]
fn forward_to_a_full_queue_succeeds_and_drops_the_request() {
    let scratch = Scratch::new("full");
    let socket = scratch.1.open(here(), 4).unwrap();
    (0..10_000).for_each(|_| assert!(scratch.1.forward(here(), 4, &forwarded("1.2.3.4:5", b"again"))));
    let received = std::iter::from_fn(|| socket.receive()).count();
    assert!(
        (1..10_000).contains(&received),
        "{received} of 10000 requests were received, but the full queue must drop some"
    );
}

#[test]
fn datagrams_of_invalid_length_are_dropped() {
    let scratch = Scratch::new("cut");
    let socket = scratch.1.open(here(), 5).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    let to = scratch.path().join(scratch.1.name(here(), 5));
    for bytes in [&[0; 21][..], &[0; 22 + MAX_REQUEST + 1], b""] {
        sender.send_to(bytes, &to).unwrap();
    }
    assert!(scratch.1.forward(here(), 5, &forwarded("1.2.3.4:5", b"")));
    assert_eq!(socket.receive(), Some(forwarded("1.2.3.4:5", b"")));
    assert_eq!(socket.receive(), None);
}

#[test]
fn names_of_exited_processes_are_replaced_and_removed() {
    let scratch = Scratch::new("dead");
    let first = scratch.1.open(here(), 1).unwrap();
    // Closes a socket without removing its name, like a process that is killed.
    for qual in [2, 3] {
        drop(UnixDatagram::bind(scratch.path().join(scratch.1.name(here(), qual))).unwrap());
    }
    assert_eq!(scratch.names(), 3);
    assert!(scratch.1.owns_port(here()));
    assert!(!scratch.1.has_listener(here(), 2) && !scratch.1.forward(here(), 2, &forwarded("1.2.3.4:5", b"hello")));
    let second = scratch.1.open(here(), 2).unwrap();
    assert!(scratch.1.has_listener(here(), 2));
    let newcomer = ListenerDir::new(scratch.1.base.clone());
    let third = newcomer.open(here(), 4).unwrap();
    assert_eq!(scratch.names(), 3, "only names of exited processes are removed");
    drop((first, second, third));
    assert!(!scratch.1.owns_port(here()));
}

#[test]
fn network_namespaces_do_not_share_names() {
    let scratch = Scratch::new("namespaces");
    let elsewhere = ListenerDir { base: scratch.1.base.clone(), namespace: 1, cleaned: Once::new() };
    let _socket = scratch.1.open(here(), 1).unwrap();
    assert!(scratch.1.has_listener(here(), 1) && !elsewhere.has_listener(here(), 1));
    assert!(elsewhere.open(here(), 1).is_ok());
}

#[test]
fn directory_accessible_by_other_users_is_rejected() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("rights");
    let _socket = scratch.1.open(here(), 1).unwrap();
    let mode = |mode| fs::set_permissions(scratch.path(), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o770);
    assert!(!scratch.1.has_listener(here(), 1) && !scratch.1.forward(here(), 1, &forwarded("1.2.3.4:5", b"")));
    assert_eq!(scratch.1.open(here(), 2).unwrap_err().kind(), ErrorKind::PermissionDenied);
    mode(0o700);
    // Replaces the directory of listeners by a symbolic link to another one.
    let elsewhere = Scratch::new("elsewhere");
    let _theirs = elsewhere.1.open(here(), 3).unwrap();
    fs::rename(scratch.path(), scratch.0.join("aside")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), scratch.path()).unwrap();
    assert!(!scratch.1.has_listener(here(), 3), "a symbolic link to a directory must not be followed");
}

#[test]
fn concurrent_open_and_close_do_not_interfere() {
    let scratch = Scratch::new("race");
    let base = BaseDir::as_default(&KIND, scratch.0.clone());
    std::thread::scope(|scope| {
        for qual in 0..4 {
            let dir = ListenerDir::new(base.clone());
            scope.spawn(move || (0..500).for_each(|_| drop(dir.open(here(), qual).unwrap())));
        }
    });
    assert!(!scratch.0.exists());
    let taken = std::sync::atomic::AtomicU32::new(0);
    let rounds = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let socket = scratch.1.open(here(), 9).inspect_err(|e| assert_eq!(e.kind(), ErrorKind::AddrInUse));
                taken.fetch_add(socket.is_ok().into(), std::sync::atomic::Ordering::SeqCst);
                rounds.wait();
            });
        }
    });
    assert_eq!(taken.into_inner(), 1, "exactly one of the concurrent opens gets the name");
}

#[test]
fn processes_find_listeners_beside_a_default_path_that_is_taken() {
    let squatted = Squatted::new("found");
    let [server, other] = [squatted.dir(), squatted.dir()];
    let socket = server.open(here(), 1).unwrap();
    let second = other.open(here(), 2).unwrap();
    assert_eq!(squatted.alternatives().len(), 1, "both use one directory");
    assert_eq!(other.open(here(), 1).unwrap_err().kind(), ErrorKind::AddrInUse);
    for dir in [&server, &other, &squatted.dir()] {
        assert!(dir.has_listener(here(), 1) && dir.has_listener(here(), 2) && !dir.has_listener(here(), 3));
        assert!(dir.owns_port(here()));
        let request = forwarded("192.0.2.7:5", b"please");
        assert!(dir.forward(here(), 1, &request));
        assert_eq!(socket.receive(), Some(request));
    }
    drop((socket, second));
    assert_eq!(squatted.alternatives(), Vec::<PathBuf>::new(), "the empty directory is left");
}

#[test]
fn listener_is_found_after_the_default_path_becomes_free() {
    let squatted = Squatted::new("freed");
    let (server, socket) = (squatted.dir(), squatted.dir().open(here(), 1).unwrap());
    fs::remove_file(&squatted.0).unwrap();
    let other = squatted.dir();
    assert_eq!(other.open(here(), 1).unwrap_err().kind(), ErrorKind::AddrInUse);
    // A directory of this user at the default path, from a process that could not see the other one.
    DirBuilder::new().mode(0o700).create(&squatted.0).unwrap();
    let second = squatted.dir().open(here(), 2).unwrap();
    assert!(fs::exists(squatted.0.join(LISTENERS)).unwrap());
    assert_eq!(squatted.dir().open(here(), 1).unwrap_err().kind(), ErrorKind::AddrInUse);
    for dir in [&server, &other] {
        assert!(dir.has_listener(here(), 1) && dir.has_listener(here(), 2) && dir.owns_port(here()));
        assert!(dir.forward(here(), 1, &forwarded("192.0.2.7:5", b"please")));
    }
    assert!(socket.receive().is_some());
    drop((socket, second));
    assert!(!fs::exists(&squatted.0).unwrap(), "the empty directory is left");
}
