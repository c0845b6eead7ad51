//! Random numbers from the kernel, and the pre-shared key.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use dapl::error::{Error, Resource, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::proto::seal::{MIN_SECRET, Psk};
use crate::proto::setup::Random;

/// Maximum size of a key file in bytes.
const MAX_KEY_FILE: u64 = 4096;

/// A source of random numbers: getrandom(2).
pub(super) struct OsRandom;

impl Random for OsRandom {
    fn fill(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            match rustix::rand::getrandom(&mut *out, GetRandomFlags::empty()) {
                Ok(count) => out = &mut out[count..],
                Err(Errno::INTR) => {}
                // `check_random` succeeded when the IA was opened. On Linux, later calls do not fail.
                Err(error) => panic!("cannot read random numbers from the system: {error}"),
            }
        }
    }
}

/// Returns 64 random bits, which make memory keys unpredictable. [`check_random`] has succeeded before.
pub(crate) fn random_seed() -> u64 {
    OsRandom.token()
}

/// Checks that getrandom(2) works. Error: `Internal`, which this function logs.
pub(super) fn check_random(name: &str) -> Result<()> {
    let mut some = [0u8; 8];
    rustix::rand::getrandom(&mut some, GetRandomFlags::empty()).map(drop).map_err(|error| {
        log::error!("{name}: cannot read random numbers from the system (getrandom): {error}; the IA cannot be opened");
        Error::Internal
    })
}

/// Reads a key file. A file that other users can access is an error. Logs its errors.
pub(super) fn read_key(name: &str, path: &str) -> Result<Psk> {
    read(path).map_err(|why| {
        log::error!("{name}: key file {path}: {why}");
        Error::Exhausted(Resource::Device)
    })
}

fn read(path: &str) -> std::result::Result<Psk, String> {
    // Without `NONBLOCK`, opening a FIFO without a writer would block forever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => {
            "does not exist; `key` names a file that all hosts share: create it once (umask 077; head -c 32 \
                         /dev/urandom | base64 >FILE) and copy it"
                .to_owned()
        }
        error => error.to_string(),
    })?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !metadata.is_file() {
        let kind = if metadata.file_type().is_fifo() { " (it is a FIFO)" } else { "" };
        return Err(format!("not a regular file{kind}; set `key` to the path of a regular file"));
    }
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(format!("owned by uid {}, not by uid {own} or 0; chown {own} {path}", metadata.uid()));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(format!("accessible to other users (mode {:o}); chmod 600 {path}", metadata.mode() & 0o777));
    }
    let mut secret = Vec::new();
    file.take(MAX_KEY_FILE + 1).read_to_end(&mut secret).map_err(|error| error.to_string())?;
    if secret.len() as u64 > MAX_KEY_FILE {
        return Err(format!(
            "it has more than {MAX_KEY_FILE} bytes; head -c 32 /dev/urandom | base64 makes a good one"
        ));
    }
    let key = Psk::new(self::secret(&secret));
    secret.fill(0);
    key.ok_or_else(|| {
        format!(
            "its secret has fewer than {MIN_SECRET} bytes (white space at the ends of a text does not count); head -c \
             32 /dev/urandom | base64 makes a good one"
        )
    })
}

/// Returns the secret in the bytes of a key file. In a text file (UTF-8 without control characters except white space),
/// leading and trailing white space does not count, such as the line end that an editor adds. In a binary file all
/// bytes count.
///
/// A binary file may look like text: of files with 16 random bytes, one in 300,000 does. This does no harm, because all
/// hosts interpret the same file in the same way.
fn secret(bytes: &[u8]) -> &[u8] {
    let is_plain = |character: char| !character.is_control() || character.is_ascii_whitespace();
    let is_text = std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(is_plain));
    if is_text { bytes.trim_ascii() } else { bytes }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn random_numbers_differ() {
        let (first, second) = (OsRandom.token(), OsRandom.token());
        assert_ne!(first, second);
        let mut many = [0; 1000];
        OsRandom.fill(&mut many);
        assert!(many[992..] != [0; 8], "the last 8 of 1000 bytes must be random, not zero");
    }

    #[test]
    fn key_file_needs_length_and_private_mode() {
        let path = std::env::temp_dir().join(format!("daplusnic-key-{}", std::process::id()));
        let text = path.to_str().unwrap();
        let with = |secret: &[u8], mode| {
            std::fs::write(&path, secret).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(text).map(drop)
        };
        assert_eq!(with(b"0123456789abcdef\n", 0o600), Ok(()));
        assert!(with(b"  0123456789abcde \n", 0o600).unwrap_err().contains("fewer than 16"));
        assert!(with(&[b'x'; 4097], 0o600).unwrap_err().contains("more than 4096"));
        assert!(with(b"0123456789abcdef", 0o640).unwrap_err().contains("chmod 600"));
        std::fs::remove_file(&path).unwrap();
        assert!(read(text).is_err() && read("/dev/null").unwrap_err().contains("not a regular file"));
    }

    #[test]
    fn fifo_as_key_file_is_refused_without_blocking() {
        let path = std::env::temp_dir().join(format!("daplusnic-fifo-{}", std::process::id()));
        let text = path.to_str().unwrap();
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, mode, 0).unwrap();
        let why = read(text).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(why.contains("not a regular file") && why.contains("FIFO"), "the error must name the FIFO: {why}");
    }

    #[test]
    fn white_space_is_trimmed_from_text_keys_only() {
        let raw = |ends: &[u8; 2]| [&ends[..1], &[0x80, 0xFF, 0, 7], b"0123456789", &ends[1..]].concat();
        for ends in [b" \n", b"\t\x0C", b"\r ", b"\x0B\0"] {
            let raw = raw(ends);
            assert_eq!((raw.len(), secret(&raw)), (MIN_SECRET, &raw[..]), "all bytes of a raw key count");
        }
        for text in
            [&b"0123456789abcdef"[..], "sch\u{fc}tzt alle Br\u{fc}cken".as_bytes(), b"two words\nand a line of them"]
        {
            let padded = [b" \t", text, b"\r\n"].concat();
            assert_eq!(secret(&padded), text);
        }
        assert_eq!(secret(b" \n"), b"");
    }
}
