//! A dat.conf that is being edited: locked against other runs of datinfo, and replaced by a rename, so that readers see
//! either the old or the new text.
//!
//! All steps use the directory's descriptor. A symbolic link in the last part of the path is refused. The new file gets
//! the owner, permissions and extended attributes (ACL, security label) of the old file.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

/// Maximum size of a dat.conf.
const MOST: u64 = 16 << 20;
/// Pause between attempts to lock.
const PAUSE: Duration = Duration::from_millis(20);

/// A file that is opened for editing and locked until this value is dropped, or the path of a file to create.
pub(super) struct EditedFile {
    path: PathBuf,
    directory: OwnedFd,
    name: OsString,
    /// The locked file and its status; `None` if the file does not exist. The directory is locked then.
    old: Option<(File, Stat)>,
    pub(super) text: Vec<u8>,
}

impl EditedFile {
    /// Opens and locks the file. Waits up to `patience` for other editors.
    pub(super) fn open(path: &Path, may_create: bool, patience: Duration) -> Result<Self, String> {
        let fail = |error: Errno| format!("{}: {}", path.display(), std::io::Error::from(error));
        let name = path.file_name().ok_or_else(|| format!("{}: is not a file name", path.display()))?.to_owned();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = fs::open(parent, flags, Mode::empty()).map_err(fail)?;
        let deadline = Instant::now() + patience;
        let mut has_directory = false;
        loop {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = match fs::openat(&directory, &name, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT) if may_create && has_directory => {
                    return Ok(EditedFile { path: path.into(), directory, name, old: None, text: Vec::new() });
                }
                // A file that does not exist cannot be locked. Its creator locks the directory instead, and then looks
                // for the file again.
                Err(Errno::NOENT) if may_create => {
                    match fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                        Ok(()) => has_directory = true,
                        Err(Errno::WOULDBLOCK) => wait(path, deadline, patience)?,
                        Err(error) => return Err(fail(error)),
                    }
                    continue;
                }
                Err(Errno::LOOP) => return Err(link(path)),
                Err(error) => return Err(fail(error)),
            };
            let stat = fs::fstat(&file).map_err(fail)?;
            check(path, &stat)?;
            match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&directory, &name, &stat) => {
                    fs::flock(&directory, FlockOperation::Unlock).map_err(fail)?;
                    let (mut file, mut text) = (File::from(file), Vec::new());
                    file.read_to_end(&mut text).map_err(|error| format!("{}: {error}", path.display()))?;
                    return Ok(EditedFile { path: path.into(), directory, name, old: Some((file, stat)), text });
                }
                // The locked file was replaced by another editor after the open: open the new file.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => wait(path, deadline, patience)?,
                Err(error) => return Err(fail(error)),
            }
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.old.is_some()
    }

    /// Replaces the file by a new file with this text.
    pub(super) fn write(self, text: &[u8]) -> Result<(), String> {
        let fail = |error: std::io::Error| format!("{}: not changed: {error}", self.path.display());
        let mut temporary = OsString::from(".");
        temporary.push(&self.name);
        temporary.push(format!(".{}.new", std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&self.directory, &temporary, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| fail(error.into()))?);
        let done = self.fill(file, text).and_then(|()| self.rename(&temporary));
        if done.is_err() {
            // The first error is reported. If this call fails too, the temporary file remains.
            let _ = fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        done.map_err(fail)
    }

    fn fill(&self, mut file: File, text: &[u8]) -> std::io::Result<()> {
        match &self.old {
            Some((old, stat)) => {
                let now = fs::fstat(&file)?;
                if (now.st_uid, now.st_gid) != (stat.st_uid, stat.st_gid) {
                    let (uid, gid) = (fs::Uid::from_raw(stat.st_uid), fs::Gid::from_raw(stat.st_gid));
                    fs::fchown(&file, Some(uid), Some(gid))?;
                }
                fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode))?;
                copy_attributes(old, &file)?;
            }
            None => fs::fchmod(&file, Mode::from_raw_mode(0o644))?,
        }
        file.write_all(text)?;
        file.sync_all()
    }

    fn rename(&self, temporary: &OsStr) -> std::io::Result<()> {
        let replaced = std::io::Error::other("another program has replaced it; try again");
        match &self.old {
            Some((_, stat)) if !is_at(&self.directory, &self.name, stat) => return Err(replaced),
            Some(_) => fs::renameat(&self.directory, temporary, &self.directory, &self.name)?,
            None => {
                let flags = RenameFlags::NOREPLACE;
                match fs::renameat_with(&self.directory, temporary, &self.directory, &self.name, flags) {
                    Err(Errno::EXIST) => return Err(replaced),
                    result => result?,
                }
            }
        }
        Ok(fs::fsync(&self.directory)?)
    }
}

/// Sleeps before the next attempt to lock. Returns an error after the deadline.
fn wait(path: &Path, deadline: Instant, patience: Duration) -> Result<(), String> {
    if Instant::now() >= deadline {
        let seconds = patience.as_secs();
        return Err(format!("{}: another program has locked it for {seconds} s; try again", path.display()));
    }
    std::thread::sleep(PAUSE);
    Ok(())
}

/// Refuses special files and files with several hard links, which a rename must not replace, and files of more than
/// [`MOST`] bytes.
fn check(path: &Path, stat: &Stat) -> Result<(), String> {
    let path = path.display();
    if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
        return Err(format!("{path}: is not a regular file"));
    }
    if stat.st_nlink > 1 {
        let names = stat.st_nlink;
        return Err(format!("{path}: has {names} hard links, and the edit would replace only one; edit a copy"));
    }
    if stat.st_size as u64 > MOST {
        return Err(format!("{path}: has {} bytes; datinfo edits files of at most {MOST} bytes", stat.st_size));
    }
    Ok(())
}

fn link(path: &Path) -> String {
    let target = std::fs::read_link(path).map_or("another file".to_owned(), |target| target.display().to_string());
    format!("{}: is a symbolic link to {target}; edit that file (--file)", path.display())
}

/// Whether the name still refers to this file.
fn is_at(directory: &OwnedFd, name: &OsStr, stat: &Stat) -> bool {
    fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Copies the extended attributes. An attribute that cannot be copied is skipped, except an ACL, which is an error.
fn copy_attributes(from: &File, to: &File) -> std::io::Result<()> {
    let mut names = vec![0_u8; 64 << 10];
    let length = match fs::flistxattr(from, names.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 64 << 10];
        let copied = fs::fgetxattr(from, name, value.as_mut_slice())
            .and_then(|length| fs::fsetxattr(to, name, &value[..length], fs::XattrFlags::empty()));
        match copied {
            Err(error) if name.starts_with(b"system.posix_acl") => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Path of a directory that is removed at the end of a test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("datinfo-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn open(path: &Path, may_create: bool) -> Result<EditedFile, String> {
        EditedFile::open(path, may_create, Duration::ZERO)
    }

    #[test]
    fn write_to_dat_conf_replaces_its_text_and_keeps_its_permissions() {
        let directory = Directory::new("replace");
        let path = directory.0.join("dat.conf");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let file = open(&path, false).unwrap();
        assert_eq!(file.text, b"old");
        file.write(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn file_is_created_only_if_allowed_and_never_replaces_a_newer_one() {
        let directory = Directory::new("create");
        let path = directory.0.join("dat.conf");
        assert!(open(&path, false).is_err_and(|error| error.contains("No such file")));
        let first = open(&path, true).unwrap();
        std::fs::write(&path, "other").unwrap();
        assert!(first.write(b"first").unwrap_err().contains("another program has replaced it"));
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
        assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 1);
    }

    #[test]
    fn second_creator_waits_for_the_first_and_edits_its_file() {
        let directory = Directory::new("creators");
        let path = directory.0.join("dat.conf");
        let first = open(&path, true).unwrap();
        assert!(open(&path, true).is_err_and(|error| error.contains("locked")));
        let second = std::thread::spawn({
            let path = path.clone();
            move || EditedFile::open(&path, true, Duration::from_secs(3600)).unwrap().text
        });
        first.write(b"first").unwrap();
        assert_eq!(second.join().unwrap(), b"first");
    }

    #[test]
    fn second_editor_waits_for_the_lock_and_reads_the_new_text() {
        let directory = Directory::new("lock");
        let path = directory.0.join("dat.conf");
        std::fs::write(&path, "old").unwrap();
        let first = open(&path, false).unwrap();
        assert!(open(&path, false).is_err_and(|error| error.contains("locked")));
        let second = std::thread::spawn({
            let path = path.clone();
            move || EditedFile::open(&path, false, Duration::from_secs(3600)).unwrap().text
        });
        first.write(b"new").unwrap();
        assert_eq!(second.join().unwrap(), b"new");
    }

    #[test]
    fn replaced_linked_and_special_files_are_refused() {
        let directory = Directory::new("link");
        let (path, other) = (directory.0.join("dat.conf"), directory.0.join("other"));
        std::fs::write(&path, "old").unwrap();
        std::fs::write(&other, "other").unwrap();
        let file = open(&path, false).unwrap();
        std::fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert!(file.write(b"new").unwrap_err().contains("another program has replaced it"));
        assert_eq!(std::fs::read(&other).unwrap(), b"other");
        let refused = open(&path, true).err().unwrap();
        assert!(refused.contains("is a symbolic link to ") && refused.contains("/other; edit that file"), "{refused}");
        std::fs::hard_link(&other, directory.0.join("third")).unwrap();
        assert!(open(&other, true).is_err_and(|error| error.contains("has 2 hard links")));
        assert!(open(&directory.0, true).is_err_and(|error| error.contains("not a regular file")));
        assert!(open(Path::new("/"), true).is_err() && open(Path::new("/dev/null"), true).is_err());
    }
}
