//! Unexpected content of the base directory: symbolic links to other directories, invalid files of listeners, the
//! remains of an interrupted removal, and peers' directories of wrong mode or owner. The provider must read, write and
//! remove nothing outside the base directory, and no call may hang.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};

use super::*;

/// A directory outside the base directory, with files of the kinds that cleaning removes.
struct OutsideDir(PathBuf);

impl OutsideDir {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/dapl-sm-outside-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        for folder in ["", ".dead-1-1", ".new-1", "1", "1/conns"] {
            fs::create_dir(path.join(folder)).unwrap();
        }
        for file in ["lock", "7", "treasure", ".dead-1-1/treasure", ".new-1/treasure", "1/lock", "1/conns/treasure"] {
            fs::write(path.join(file), "").unwrap();
        }
        OutsideDir(path)
    }

    fn count(&self) -> usize {
        fn below(path: &Path) -> usize {
            let entries = fs::read_dir(path).unwrap().flatten();
            entries.map(|e| 1 + if e.file_type().unwrap().is_dir() { below(&e.path()) } else { 0 }).sum()
        }
        below(&self.0)
    }
}

impl Drop for OutsideDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a base directory in which `path` is a link to a directory outside, and this directory.
fn with_link(name: &str, path: &str) -> (TestBase, OutsideDir) {
    let (base, outside) = (TestBase::new(name), OutsideDir::new(name));
    drop(base.open());
    let link = Path::new(&base.0).join(path);
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(&outside.0, link).unwrap();
    (base, outside)
}

#[test]
fn cleaner_follows_no_symlink() {
    for (n, path) in ["4194303", "4194303/1", "4194303/.new-2", "quals", "shared"].into_iter().enumerate() {
        let (base, outside) = with_link(&format!("links-{n}"), path);
        let before = outside.count();
        drop(base.open());
        assert_eq!(outside.count(), before, "{path}");
    }
}

#[test]
fn linked_quals_directory_is_followed_by_neither_listen_nor_connect() {
    let (base, outside) = with_link("qual-link", "quals");
    let before = outside.count();
    let side = base.open();
    let id = ObjectId { handle: 4096, generation: 1 };
    assert!(side.ia.listen(8, id).is_err());
    assert_eq!(outside.count(), before);
    fs::write(outside.0.join("9"), side.ia.device.endpoint.path().as_os_str().as_encoded_bytes()).unwrap();
    refused(&side, 9, &here());
}

/// Checks that a connect to the qualifier at this address is reported as rejected.
fn refused(side: &Side, qual: u64, address: &PeerAddress) {
    let qp = side.qp();
    qp.connect(&ConnectSpec { address, qual, private_data: &[] }, conn(qual as usize)).unwrap();
    assert_eq!(side.sink.next(conn(qual as usize)), SinkEvent::Other("rejected"), "{qual}");
}

#[test]
fn connect_to_an_invalid_qualifier_file_is_rejected() {
    let (base, outside) = (TestBase::new("names"), OutsideDir::new("names"));
    let before = outside.count();
    let side = base.open();
    let quals = Path::new(&base.0).join("quals");
    fs::create_dir_all(&quals).unwrap();
    let texts: [(u64, &[u8]); 6] = [
        (11, b""),
        (12, b"\xFF\xFE"),
        (13, b"relative"),
        (14, b"/dev/shm/../../etc"),
        (15, outside.0.as_os_str().as_encoded_bytes()),
        (16, &[b'/'; 100_000]),
    ];
    for (qual, text) in texts {
        fs::write(quals.join(qual.to_string()), text).unwrap();
        refused(&side, qual, &here());
    }
    symlink(outside.0.join("7"), quals.join("17")).unwrap();
    rustix::fs::mkfifoat(CWD, quals.join("18"), Mode::RUSR | Mode::WUSR).unwrap();
    fs::create_dir(quals.join("19")).unwrap();
    let id = ObjectId { handle: 4096, generation: 1 };
    for qual in 17..20 {
        refused(&side, qual, &here());
        assert!(side.ia.listen(qual, id).is_err(), "{qual}");
    }
    drop(side);
    drop(base.open());
    assert_eq!(outside.count(), before);
}

#[test]
fn connect_to_a_foreign_path_removes_nothing() {
    let (base, outside) = (TestBase::new("no-order"), OutsideDir::new("no-order"));
    let before = outside.count();
    let side = base.open();
    refused(&side, 7, &PeerAddress::Path(outside.0.clone()));
    refused(&side, 8, &PeerAddress::Path(outside.0.join("1")));
    assert_eq!(outside.count(), before);
}

#[test]
fn interrupted_removal_of_an_end_point_is_completed_by_the_next_open() {
    let base = TestBase::new("half");
    let dead = Path::new(&base.0).join("4194303");
    for folder in ["1/conns/5", "2"] {
        fs::create_dir_all(dead.join(folder)).unwrap();
    }
    fs::set_permissions(&base.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(dead.join("1/sock"), "").unwrap();
    drop(base.open());
    assert_eq!(fs::read_dir(&base.0).unwrap().count(), 0);
}

#[test]
fn nothing_is_sent_to_a_directory_of_wrong_mode_or_owner() {
    use std::os::unix::fs::PermissionsExt;
    let base = TestBase::new("others");
    let side = base.open();
    let folder = Path::new(&base.0).join("client");
    fs::create_dir(&folder).unwrap();
    let socket = crate::cm::socket::SetupSocket::bind(&folder).unwrap();
    let address = PeerAddress::Path(folder.clone());
    for (n, mode) in [0o755, 0o770, 0o701].into_iter().enumerate() {
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        refused(&side, 20 + n as u64, &address);
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    if std::os::unix::fs::chown(&folder, Some(65_534), None).is_ok() {
        refused(&side, 30, &address);
    } else {
        eprintln!("skipped: no permission to change the owner of a directory");
    }
    symlink(&folder, Path::new(&base.0).join("link")).unwrap();
    refused(&side, 31, &PeerAddress::Path(Path::new(&base.0).join("link")));
    assert!(socket.receive().is_none(), "neither words nor descriptors");
}
