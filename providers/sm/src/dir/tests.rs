//! Tests of end point addresses, of the end point directory and the base directory (content, access rights, cleaning),
//! and of the names of listeners.

use super::*;

fn scratch(name: &str) -> String {
    format!("/tmp/dapl-sm-dir-{}-{name}", std::process::id())
}

#[test]
fn end_point_path_must_be_absolute_and_at_most_102_bytes() {
    assert_eq!(endpoint_path("sm:///tmp/cci/sm/4567/2"), Some("/tmp/cci/sm/4567/2".into()));
    assert_eq!(endpoint_path("/tmp/4567/2"), Some("/tmp/4567/2".into()));
    assert_eq!(endpoint_path("sm://tmp/1/2"), None);
    assert_eq!(endpoint_path("/tmp/../etc"), None);
    assert_eq!(endpoint_path(&format!("/{}", "a".repeat(102))), None);
    assert!(endpoint_path(&format!("/{}", "a".repeat(101))).is_some());
}

#[test]
fn dropped_end_point_leaves_no_files() {
    let dir = scratch("leave");
    let base = EndpointBase::open(Some(&dir)).unwrap();
    let endpoint = EndpointDir::create(base).unwrap();
    for name in ["fifo", "lock", "conns"] {
        assert!(endpoint.path().join(name).exists(), "{name}");
    }
    endpoint.add_conn(3, Path::new("/somewhere"));
    let name = endpoint.create_name(77).unwrap();
    assert_eq!(endpoint.base.find_listener(77).unwrap().as_deref(), Some(endpoint.path()));
    drop((name, endpoint));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn equal_pids_of_several_namespaces_do_not_conflict() {
    let dir = scratch("pid");
    let base = EndpointBase::open(Some(&dir)).unwrap();
    let open = || EndpointDir::create_as(base.clone(), 4_194_304).unwrap();
    let (one, two) = (open(), open());
    assert_eq!(one.path().parent(), Some(PathBuf::from(&dir).join("4194304").as_path()));
    assert_ne!(one.path(), two.path());
    base.clean(None);
    assert!(one.path().join("lock").exists(), "the lock shows that the end point is alive");
    let _name = one.create_name(5).unwrap();
    assert_eq!(two.create_name(5).err(), Some(Error::ConnQualTaken));
    drop((_name, one, two));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn qualifier_has_one_live_listener() {
    let dir = scratch("qual");
    let endpoint = EndpointDir::create(EndpointBase::open(Some(&dir)).unwrap()).unwrap();
    let first = endpoint.create_name(u64::MAX).unwrap();
    assert_eq!(endpoint.create_name(u64::MAX).err(), Some(Error::ConnQualTaken));
    drop(first);
    fs::write(endpoint.base.qualifiers_path().join("5"), "/left/by/1").unwrap();
    assert!(endpoint.create_name(5).is_ok(), "a file without a lock belongs to a dead process");
    drop(endpoint);
    let _ = fs::remove_dir_all(&dir);
}

#[test]
fn cleaner_removes_no_end_point_that_is_being_created() {
    let dir = scratch("made");
    let base = EndpointBase::open(Some(&dir)).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                base.clean(None);
            }
        });
        let whole = (0..3000).all(|_| {
            let endpoint = EndpointDir::create(base.clone()).unwrap();
            ["lock", "fifo", "conns"].iter().all(|name| endpoint.path().join(name).exists())
        });
        done.store(true, Ordering::Relaxed);
        assert!(whole);
    });
    let _ = fs::remove_dir_all(&dir);
}

#[test]
fn cleaner_does_not_block_listeners() {
    let dir = scratch("way");
    let base = EndpointBase::open(Some(&dir)).unwrap();
    let endpoint = EndpointDir::create(base.clone()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                base.clean(None);
            }
        });
        let claims: Vec<_> = (0..300).map(|qual| endpoint.create_name(qual).map(drop)).collect();
        done.store(true, Ordering::Relaxed);
        assert!(claims.iter().all(Result::is_ok), "{:?}", claims.iter().find(|claim| claim.is_err()));
    });
    drop(endpoint);
    let _ = fs::remove_dir_all(&dir);
}

#[test]
fn cleaner_removes_dead_and_keeps_live_end_points() {
    let dir = scratch("clean");
    let base = EndpointBase::open(Some(&dir)).unwrap();
    let living = EndpointDir::create(base.clone()).unwrap();
    let dead = PathBuf::from(&dir).join("1/1");
    fs::create_dir_all(dead.join("conns/5")).unwrap();
    fs::write(dead.join("lock"), "").unwrap();
    base.clean(None);
    assert!(!dead.exists() && !dead.parent().unwrap().exists());
    assert!(living.path().join("lock").exists());
    drop(living);
    let _ = fs::remove_dir_all(&dir);
}

#[test]
fn concurrent_open_and_close_of_the_default_base_succeed() {
    let path = PathBuf::from(scratch("default"));
    let base = EndpointBase::from_base_dir(BaseDir::as_default(&KIND, path.clone()));
    let open_and_close =
        || (0..200).try_for_each(|_| base.create_if_missing().and_then(|base| EndpointDir::create(base).map(drop)));
    std::thread::scope(|scope| {
        let threads = [scope.spawn(open_and_close), scope.spawn(open_and_close), scope.spawn(open_and_close)];
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(())));
    });
    assert!(!path.exists());
}

#[test]
fn base_directory_with_wrong_mode_is_an_error() {
    let dir = scratch("rights");
    DirBuilder::new().mode(0o755).create(&dir).unwrap();
    assert_eq!(EndpointBase::open(Some(&dir)).err(), Some(Error::PermissionDenied));
    fs::remove_dir(&dir).unwrap();
    assert_eq!(EndpointBase::open(Some("relative")).map(|_| ()).err().map(Error::code), Some(0x8012_0061));
}

/// Puts a symbolic link at the default path of a base directory, as another user could do.
fn squatted(name: &str) -> (PathBuf, EndpointBase) {
    let path = PathBuf::from(scratch(name));
    std::os::unix::fs::symlink("/nowhere", &path).unwrap();
    (path.clone(), EndpointBase::from_base_dir(BaseDir::as_default(&KIND, path)))
}

#[test]
fn processes_share_an_alternative_to_a_squatted_default_path() {
    let (path, base) = squatted("squatted");
    let open = || EndpointDir::create(base.create_if_missing().unwrap()).unwrap();
    let (one, two) = (open(), open());
    let _name = one.create_name(7).unwrap();
    assert_eq!(two.base.find_listener(7).unwrap().as_deref(), Some(one.path()));
    assert_eq!(two.create_name(7).err(), Some(Error::ConnQualTaken));
    // The other user removes the link. Then a process that has not found the alternative directory creates the default
    // directory.
    fs::remove_file(&path).unwrap();
    DirBuilder::new().mode(0o700).create(&path).unwrap();
    let three = open();
    assert!(three.path().starts_with(&path) && !one.path().starts_with(&path));
    assert_eq!(three.base.find_listener(7).unwrap().as_deref(), Some(one.path()));
    assert_eq!(three.create_name(7).err(), Some(Error::ConnQualTaken));
    assert!(!path.join("quals/7").exists());
    let _other = three.create_name(8).unwrap();
    assert_eq!(one.base.find_listener(8).unwrap().as_deref(), Some(three.path()));
    let bases = [&one, &three].map(|endpoint| endpoint.base.dir.path().to_path_buf());
    drop((_name, _other, one, two, three));
    assert!(bases.iter().all(|base| !base.exists()), "{bases:?}");
}

#[test]
fn default_base_directory_is_kept_while_an_end_point_is_open() {
    let path = PathBuf::from(scratch("held"));
    let base = EndpointBase::from_base_dir(BaseDir::as_default(&KIND, path.clone())).create_if_missing().unwrap();
    let endpoint = EndpointDir::create(base.clone()).unwrap();
    drop(endpoint.create_name(5).unwrap());
    drop(EndpointDir::create(base.clone()).unwrap());
    base.clean(None);
    base.remove_empty_dirs();
    assert!(path.exists() && endpoint.path().exists());
    drop(endpoint);
    assert!(!path.exists());
}

#[test]
fn cleaner_probes_all_dead_and_few_live_processes() {
    let dir = scratch("many");
    let base = EndpointBase::open(Some(&dir)).unwrap();
    let left = |process: u32| {
        let endpoint = PathBuf::from(&dir).join(process.to_string()).join("1");
        fs::create_dir_all(&endpoint).unwrap();
        fs::write(endpoint.join("lock"), "").unwrap();
    };
    // The locks are free. 100 directories have the ids of live threads as names, so they count as those of live
    // processes. The names of 50 others are ids that do not exist.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let end: Vec<_> = (0..100)
            .map(|_| {
                let (sender, (end, ended)) = (sender.clone(), std::sync::mpsc::channel::<()>());
                scope.spawn(move || {
                    sender.send(rustix::thread::gettid().as_raw_pid() as u32).unwrap();
                    let _ = ended.recv();
                });
                end
            })
            .collect();
        receiver.iter().take(100).for_each(left);
        (0..50).for_each(|n| left(4_194_200 + n));
        base.clean(None);
        assert_eq!(
            entries(Path::new(&dir)).len(),
            100 - MAX_PROBES,
            "all dead processes and `MAX_PROBES` others are removed"
        );
        drop(end);
    });
    let _ = fs::remove_dir_all(&dir);
}
