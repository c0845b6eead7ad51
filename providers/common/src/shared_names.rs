//! Who shares memory under which cookie: `<base>/shared/<the cookie in hexadecimal>`, whose text is the length.
//!
//! Every member holds a shared file lock of its own on the file, and the kernel drops it at any death. Who gets the
//! exclusive lock is alone with the file: it is new, or of the dead, and its text is theirs to write; or they are the last to
//! leave, and remove it. Nobody waits for a lock: whoever holds the exclusive one is done in a moment, so the others try
//! again, for a bounded time. A removed file is known by not being at its path any more.
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, openat};
use rustix::io::Errno;

use crate::base_dir::{self, BaseDir, is_at, lock};
use dapl::error::{Error, Result};
use dapl::provider::SharedCookie;

/// Far longer than anybody holds the exclusive lock, unless it was stopped in between.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// A little longer than that lock is held as a rule.
const RETRY: Duration = Duration::from_micros(100);

/// The names of one base directory.
#[derive(Clone, Debug)]
pub struct SharedNames {
    base: BaseDir,
    /// The names of the dead were removed.
    cleaned: Arc<Once>,
}

/// One of those who share memory. Dropping it leaves; the last one out removes the name.
#[derive(Debug)]
pub struct Membership {
    _member: Member,
}

/// A lock on the file at this path, held by this process.
#[derive(Debug)]
struct Member {
    base: BaseDir,
    path: PathBuf,
    file: Arc<File>,
    pid: u32,
}

/// What a try to join came to.
enum JoinOutcome {
    Joined(Member),
    /// Somebody is just making or removing the file.
    Again,
    OtherLength,
}

impl SharedNames {
    /// Those in this base directory, which is made when somebody joins; the first time, the names of the dead go.
    pub fn new(base: BaseDir) -> Self {
        SharedNames { base, cleaned: Arc::new(Once::new()) }
    }

    fn path(&self) -> PathBuf {
        self.base.path().join("shared")
    }

    /// Joins those who share under this cookie; the first says the length.
    ///
    /// Errors: `InvalidParameter(4)` for another length.
    pub fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Membership> {
        let name: String = cookie.iter().map(|byte| format!("{byte:02x}")).collect();
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            let names = SharedNames { base: self.base.create()?, cleaned: self.cleaned.clone() };
            let path = names.path().join(&name);
            names.cleaned.call_once(|| names.clean(usize::MAX));
            let tried = names.try_join(&path, length);
            match tried.map_err(|error| names.base.report_failure("register shared memory in", &path, &error))? {
                JoinOutcome::Joined(member) => {
                    names.base.remove_at_exit_if_last(&member.path, &member.file);
                    return Ok(Membership { _member: member });
                }
                JoinOutcome::OtherLength => return Err(Error::InvalidParameter(4)),
                JoinOutcome::Again if Instant::now() > until => {
                    log::error!(
                        "cannot register shared memory in {}: another process keeps the file locked",
                        path.display()
                    );
                    return Err(Error::Internal);
                }
                JoinOutcome::Again => std::thread::sleep(RETRY),
            }
        }
    }

    fn try_join(&self, path: &Path, length: u64) -> std::io::Result<JoinOutcome> {
        let _ = DirBuilder::new().mode(0o700).create(self.path());
        let mut file = match self.open(path) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(JoinOutcome::Again), // an empty `shared` was just removed
            Err(e) => return Err(e.into()),
        };
        if lock(&file) {
            if !is_at(&file, path) {
                return Ok(JoinOutcome::Again);
            }
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(length.to_string().as_bytes())?;
        }
        // From the exclusive lock to a shared one is not one step: somebody else may have come between, so all is looked at
        // again.
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            return Ok(JoinOutcome::Again);
        }
        let member =
            Member { base: self.base.clone(), path: path.to_path_buf(), file: Arc::new(file), pid: std::process::id() };
        if !is_at(&member.file, path) {
            return Ok(JoinOutcome::Again);
        }
        Ok(match member.length() {
            Some(known) if known == length => JoinOutcome::Joined(member),
            Some(_) => JoinOutcome::OtherLength,
            None => JoinOutcome::Again, // its maker died over it: alone with it, the next try writes it
        })
    }

    /// By a handle of the directory: a link to another is not followed.
    fn open(&self, path: &Path) -> rustix::io::Result<File> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let names = open(self.path(), flags, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(names, path.file_name().unwrap_or_default(), flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    /// Removes the names of the dead, among `most` of all names. A link to another directory is not followed.
    pub fn clean(&self, most: usize) {
        base_dir::sample(base_dir::entries(&self.path()), most).iter().for_each(|name| base_dir::remove_unlocked(name));
    }

    /// Removes the directory of names, if there is none, and a base directory of our own if that is empty then.
    pub fn remove_if_empty(&self) {
        let _ = fs::remove_dir(self.path());
        self.base.remove_if_empty();
    }
}

impl Member {
    fn length(&self) -> Option<u64> {
        let (mut text, mut file) = (String::new(), &*self.file);
        file.rewind().ok()?;
        file.take(32).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        base_dir::cancel_exit_removal_of_lock(&self.file);
        // A forked child has the same lock: it must leave it to its parent.
        if std::process::id() == self.pid && lock(&self.file) && is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
            self.base.prune(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base_dir::BaseDirKind;

    const KIND: BaseDirKind =
        BaseDirKind { provider: "test", variable: "DAPL_TEST_DIR", default: "/tmp/dapl-shared-test" };

    struct Scratch(PathBuf, SharedNames);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = PathBuf::from(format!("/tmp/dapl-shared-{}-{name}", std::process::id()));
            let names = SharedNames::new(BaseDir::new(&KIND, path.to_str()));
            Scratch(path, names)
        }

        fn join(&self, cookie: u8, length: u64) -> Result<Membership> {
            self.1.join(&[cookie; 40], length)
        }

        fn names(&self) -> usize {
            fs::read_dir(self.1.path()).map_or(0, Iterator::count)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_name_is_there_from_the_first_to_the_last() {
        let scratch = Scratch::new("life");
        let (one, two) = (scratch.join(1, 100).unwrap(), scratch.join(1, 100).unwrap());
        let other = scratch.join(2, 5).unwrap();
        assert_eq!(scratch.names(), 2);
        assert_eq!(scratch.join(1, 101).err(), Some(Error::InvalidParameter(4)));
        drop(one);
        assert_eq!(scratch.join(1, 101).err(), Some(Error::InvalidParameter(4)), "one is left");
        drop(two);
        let one = scratch.join(1, 101).unwrap();
        drop((one, other));
        assert!(!scratch.1.path().exists());
    }

    #[test]
    fn what_the_dead_left_is_taken_over_or_cleaned() {
        let scratch = Scratch::new("dead");
        let member = scratch.join(1, 100).unwrap();
        let name = |byte: &str| scratch.1.path().join(byte.repeat(40));
        for (byte, text) in [("02", "7"), ("03", ""), ("04", "nonsense"), ("05", "7")] {
            fs::write(name(byte), text).unwrap();
        }
        assert_eq!(scratch.names(), 5, "only who comes anew looks for the dead");
        let taken: Vec<_> = (2..5).map(|cookie| scratch.join(cookie, 200).unwrap()).collect();
        scratch.1.clean(usize::MAX);
        assert_eq!(scratch.names(), 4, "the cleaner spares the living");
        assert!(!name("05").exists());
        fs::write(name("05"), "7").unwrap();
        let newcomer = SharedNames::new(scratch.1.base.clone());
        drop(newcomer.join(&[6; 40], 1).unwrap());
        assert_eq!(scratch.names(), 4, "so does whoever joins for the first time");
        drop((member, taken));
        assert!(!scratch.1.path().exists());
    }

    #[test]
    fn a_link_to_elsewhere_is_not_followed() {
        let (scratch, elsewhere) = (Scratch::new("link"), Scratch::new("elsewhere"));
        fs::create_dir(&elsewhere.0).unwrap();
        fs::write(elsewhere.0.join("treasure"), "").unwrap();
        scratch.1.base.create().unwrap();
        std::os::unix::fs::symlink(&elsewhere.0, scratch.1.path()).unwrap();
        assert!(scratch.join(1, 100).is_err());
        scratch.1.clean(usize::MAX);
        let left: Vec<_> = fs::read_dir(&elsewhere.0).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["treasure"], "nothing is removed there, and nothing made");
    }

    /// The other process of the next tests: joins twice, and stays until it is killed or has no more input.
    #[test]
    #[ignore = "runs as a process of its own"]
    fn another_process() {
        let Some(place) = std::env::var_os("DAPL_TEST_PLACE") else { return };
        let names = SharedNames::new(BaseDir::new(&KIND, place.to_str()));
        let _members = [100, 100].map(|length| names.join(&[1; 40], length).unwrap());
        println!("\njoined");
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0); // with everything open
    }

    #[test]
    fn a_process_that_exits_leaves_in_good_order() {
        let scratch = Scratch::new("exits");
        let (mut one, mut two) = (other_process(&scratch), other_process(&scratch));
        drop(one.stdin.take());
        one.wait().unwrap();
        assert_eq!(scratch.join(1, 7).err(), Some(Error::InvalidParameter(4)), "the other stays");
        drop(two.stdin.take());
        two.wait().unwrap();
        assert_eq!(scratch.names(), 0);
    }

    #[test]
    fn a_process_that_is_killed_leaves() {
        let scratch = Scratch::new("killed");
        for others in [1, 3] {
            let mut processes: Vec<_> = (0..others).map(|_| other_process(&scratch)).collect();
            let mine = scratch.join(1, 100).unwrap();
            drop(mine);
            assert_eq!(scratch.join(1, 7).err(), Some(Error::InvalidParameter(4)), "the others stay");
            for process in &mut processes {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            assert_eq!(scratch.names(), 1, "nobody was left to remove it");
            let member = scratch.join(1, 7).unwrap();
            drop(member);
            assert_eq!(scratch.names(), 0);
        }
    }

    fn other_process(scratch: &Scratch) -> std::process::Child {
        use std::io::BufRead;
        use std::process::{Command, Stdio};
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shared_names::tests::another_process", "--ignored", "--nocapture"])
            .env("DAPL_TEST_PLACE", &scratch.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(process.stdout.take().unwrap());
        assert!(out.lines().map_while(|line| line.ok()).any(|line| line == "joined"));
        process
    }

    #[test]
    fn comers_and_leavers_do_not_trip_over_each_other() {
        let scratch = Scratch::new("race");
        let rounds = || {
            for round in 0..300 {
                match scratch.join(1, 100 + round % 2) {
                    Ok(member) => drop(member),
                    Err(error) => assert_eq!(error, Error::InvalidParameter(4)),
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(rounds);
            }
            scope.spawn(|| (0..100).for_each(|_| scratch.1.clean(usize::MAX)));
        });
        assert_eq!(scratch.names(), 0);
    }

    #[test]
    fn a_base_of_our_own_choice_comes_with_the_first_and_goes_with_the_last() {
        let path = PathBuf::from(format!("/tmp/dapl-shared-{}-own", std::process::id()));
        let names = SharedNames::new(BaseDir::as_default(&KIND, path.clone()));
        assert!(!path.exists());
        let rounds = || (0..300).try_for_each(|_| names.join(&[1; 40], 100).map(drop));
        std::thread::scope(|scope| {
            let threads = [scope.spawn(rounds), scope.spawn(rounds), scope.spawn(rounds)];
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(())));
        });
        assert!(!path.exists());
    }
}
