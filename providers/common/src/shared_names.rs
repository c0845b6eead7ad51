//! Names of shared memory: the file `<base>/shared/<cookie in hexadecimal>` represents the group of processes that
//! share memory under a cookie. It contains the length of the memory in bytes.
//!
//! Each member has a shared lock (flock) on the file, which the kernel releases when the process dies. A process that
//! joins or leaves tries to acquire the exclusive lock:
//!
//! - When it joins, success means that the group has no member: the file is new, or all its members have died. The
//!   process then writes the length.
//! - When it leaves, success means that it is the last member. The process then removes the file.
//!
//! No process blocks on a lock. The exclusive lock is held only for a short time, so other processes try again for a
//! bounded time. Another process may remove the file before a process has locked it. So after the lock, the process
//! checks that the path still refers to this file.
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, openat};
use rustix::io::Errno;

use crate::base_dir::{self, BaseDir, is_open_at, lock};
use dapl::error::{Error, Result};
use dapl::provider::SharedCookie;

/// Time limit of the attempts to join. A process holds the exclusive lock for a much shorter time, unless it is stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts, a little longer than a process usually holds the exclusive lock.
const RETRY_PAUSE: Duration = Duration::from_micros(100);

/// The names of shared memory in one base directory.
#[derive(Clone, Debug)]
pub struct SharedNames {
    base: BaseDir,
    /// Ensures that only the first `join` removes the names of dead processes.
    cleaned: Arc<Once>,
}

/// Membership in a group of processes that share memory. Dropping it leaves the group. The last member removes the
/// name.
#[derive(Debug)]
pub struct Membership {
    base: BaseDir,
    path: PathBuf,
    /// The file of the group, with a shared lock of this process.
    file: Arc<File>,
    pid: u32,
}

/// Outcome of one attempt to join.
enum JoinOutcome {
    Joined(Membership),
    /// Another process is creating or removing the file, or has died before it wrote the length.
    Again,
    OtherLength,
}

impl SharedNames {
    /// Refers to the names in `base`. The first `join` creates the directory, and removes names of dead processes.
    pub fn new(base: BaseDir) -> Self {
        SharedNames { base, cleaned: Arc::new(Once::new()) }
    }

    fn path(&self) -> PathBuf {
        self.base.path().join("shared")
    }

    /// Joins the group of this cookie. The first member sets the length in bytes.
    ///
    /// Errors: `InvalidParameter(4)` if the group has another length, `Internal` if the file stays locked for 5 s, and
    /// those of [`BaseDir::create`].
    pub fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Membership> {
        let name: String = cookie.iter().map(|byte| format!("{byte:02x}")).collect();
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            let names = SharedNames { base: self.base.create()?, cleaned: self.cleaned.clone() };
            let path = names.path().join(&name);
            names.cleaned.call_once(|| names.clean(usize::MAX));
            let outcome = names.try_join(&path, length);
            match outcome.map_err(|error| names.base.report_failure("register shared memory in", &path, &error))? {
                JoinOutcome::Joined(member) => {
                    names.base.remove_at_exit_if_last(&member.path, &member.file);
                    return Ok(member);
                }
                JoinOutcome::OtherLength => return Err(Error::InvalidParameter(4)),
                JoinOutcome::Again if Instant::now() > until => {
                    log::error!(
                        "cannot register shared memory in {}: another process has kept the file locked for {} s (lslocks shows it); \
                         end that process, or continue it if it is stopped",
                        path.display(),
                        LOCK_TIMEOUT.as_secs()
                    );
                    return Err(Error::Internal);
                }
                JoinOutcome::Again => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    fn try_join(&self, path: &Path, length: u64) -> std::io::Result<JoinOutcome> {
        let _ = DirBuilder::new().mode(0o700).create(self.path());
        let mut file = match self.open(path) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(JoinOutcome::Again), // another process has just removed the empty directory
            Err(e) => return Err(e.into()),
        };
        if lock(&file) {
            if !is_open_at(&file, path) {
                return Ok(JoinOutcome::Again);
            }
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(length.to_string().as_bytes())?;
        }
        // The change from an exclusive to a shared lock is not atomic. In between, another process may acquire the
        // exclusive lock, and remove the file or write another length. So file and length are checked again.
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            return Ok(JoinOutcome::Again);
        }
        let (base, path, pid) = (self.base.clone(), path.to_path_buf(), std::process::id());
        let member = Membership { base, path, file: Arc::new(file), pid };
        if !is_open_at(&member.file, &member.path) {
            return Ok(JoinOutcome::Again);
        }
        Ok(match member.length() {
            Some(found) if found == length => JoinOutcome::Joined(member),
            Some(_) => JoinOutcome::OtherLength,
            // The creator died before it wrote the length. The next attempt writes it.
            None => JoinOutcome::Again,
        })
    }

    /// Opens or creates the file. Follows no symbolic link at the path of the directory or of the file.
    fn open(&self, path: &Path) -> rustix::io::Result<File> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let names = open(self.path(), flags, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(names, path.file_name().unwrap_or_default(), flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    /// Removes the names of dead processes among at most `max` names, chosen at random. Does not follow a symbolic link
    /// to another directory.
    pub fn clean(&self, max: usize) {
        base_dir::random_sample(base_dir::entries(&self.path()), max)
            .iter()
            .for_each(|name| base_dir::remove_unlocked(name));
    }

    /// Removes the directory of names if it is empty, and then the base directory if it is empty and at the default
    /// path.
    pub fn remove_if_empty(&self) {
        let _ = fs::remove_dir(self.path());
        self.base.remove_if_empty();
    }
}

impl Membership {
    fn length(&self) -> Option<u64> {
        let (mut text, mut file) = (String::new(), &*self.file);
        file.rewind().ok()?;
        file.take(32).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        base_dir::cancel_exit_removal_of_lock(&self.file);
        // A forked child shares the lock with its parent, and must not end the parent's membership.
        if std::process::id() == self.pid && lock(&self.file) && is_open_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
            self.base.remove_empty_dirs(&self.path);
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
    fn shared_name_exists_from_its_first_to_its_last_member() {
        let scratch = Scratch::new("members");
        let (one, two) = (scratch.join(1, 100).unwrap(), scratch.join(1, 100).unwrap());
        let other = scratch.join(2, 5).unwrap();
        assert_eq!(scratch.names(), 2);
        assert_eq!(scratch.join(1, 101).err(), Some(Error::InvalidParameter(4)));
        drop(one);
        assert_eq!(scratch.join(1, 101).err(), Some(Error::InvalidParameter(4)), "one member is left");
        drop(two);
        let one = scratch.join(1, 101).unwrap();
        drop((one, other));
        assert!(!scratch.1.path().exists());
    }

    #[test]
    fn names_of_dead_processes_are_reused_or_removed() {
        let scratch = Scratch::new("dead");
        let member = scratch.join(1, 100).unwrap();
        let name = |byte: &str| scratch.1.path().join(byte.repeat(40));
        for (byte, text) in [("02", "7"), ("03", ""), ("04", "nonsense"), ("05", "7")] {
            fs::write(name(byte), text).unwrap();
        }
        assert_eq!(scratch.names(), 5, "only the first join of a process cleans");
        let reused: Vec<_> = (2..5).map(|cookie| scratch.join(cookie, 200).unwrap()).collect();
        scratch.1.clean(usize::MAX);
        assert_eq!(scratch.names(), 4, "the cleaner keeps names of living processes");
        assert!(!name("05").exists());
        fs::write(name("05"), "7").unwrap();
        let other = SharedNames::new(scratch.1.base.clone());
        drop(other.join(&[6; 40], 1).unwrap());
        assert_eq!(scratch.names(), 4, "the first join of a process keeps names of living processes");
        drop((member, reused));
        assert!(!scratch.1.path().exists());
    }

    #[test]
    fn symlink_to_another_directory_is_not_followed() {
        let (scratch, other) = (Scratch::new("link"), Scratch::new("other"));
        fs::create_dir(&other.0).unwrap();
        fs::write(other.0.join("file"), "").unwrap();
        scratch.1.base.create().unwrap();
        std::os::unix::fs::symlink(&other.0, scratch.1.path()).unwrap();
        assert!(scratch.join(1, 100).is_err());
        scratch.1.clean(usize::MAX);
        let files: Vec<_> = fs::read_dir(&other.0).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(files, ["file"], "nothing is removed or created in the other directory");
    }

    /// Code of the child processes of other tests: joins a group twice, and exits when standard input ends.
    #[test]
    #[ignore = "other tests start it as a child process"]
    fn child_joins_a_shared_name_twice() {
        let Some(base) = std::env::var_os("DAPL_TEST_PLACE") else { return };
        let names = SharedNames::new(BaseDir::new(&KIND, base.to_str()));
        let _members = [100, 100].map(|length| names.join(&[1; 40], length).unwrap());
        println!("\njoined");
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0); // without dropping the memberships
    }

    #[test]
    fn exiting_process_releases_its_name() {
        let scratch = Scratch::new("exits");
        let (mut one, mut two) = (other_process(&scratch), other_process(&scratch));
        drop(one.stdin.take());
        one.wait().unwrap();
        assert_eq!(scratch.join(1, 7).err(), Some(Error::InvalidParameter(4)), "the other process stays");
        drop(two.stdin.take());
        two.wait().unwrap();
        assert_eq!(scratch.names(), 0);
    }

    #[test]
    fn killed_process_does_not_hold_its_name() {
        let scratch = Scratch::new("killed");
        for others in [1, 3] {
            let mut processes: Vec<_> = (0..others).map(|_| other_process(&scratch)).collect();
            drop(scratch.join(1, 100).unwrap());
            assert_eq!(scratch.join(1, 7).err(), Some(Error::InvalidParameter(4)), "the other processes stay");
            for process in &mut processes {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            assert_eq!(scratch.names(), 1, "killed processes do not remove the name");
            let member = scratch.join(1, 7).unwrap();
            drop(member);
            assert_eq!(scratch.names(), 0);
        }
    }

    fn other_process(scratch: &Scratch) -> std::process::Child {
        use std::io::BufRead;
        use std::process::{Command, Stdio};
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shared_names::tests::child_joins_a_shared_name_twice", "--ignored", "--nocapture"])
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
    fn concurrent_join_and_leave_of_shared_names_do_not_interfere() {
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
    fn default_base_directory_exists_from_first_to_last_member() {
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
