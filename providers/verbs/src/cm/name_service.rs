//! The file `ibhosts`: maps IP addresses to GIDs, for connection managers without address resolution (spec/endpoints
//! 12.1).
//!
//! Each line has the form `<host name> 0x<GID prefix> 0x<GUID>`. `#` begins a comment, and blank lines are ignored. A
//! line is for all IPv4 and IPv6 addresses of its host; the first line for an address counts. Invalid lines and lines
//! of unknown hosts are skipped, and the first 20 of them are logged. The file is `dapl/ibhosts` in the configuration
//! directory, or the file that `DAPL_IBHOSTS` names (ignored in a set-uid program). It is read once, at the first
//! lookup. Without the file, no lookup finds a GID.
//!
//! The first lookup may block in the resolver, so it must not run on the engine thread. [`NameService::is_read`]
//! returns whether the file was read.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use dapl::runtime::logger;

/// Directory of the system's configuration, chosen at build time.
const SYSCONFDIR: &str = match option_env!("DAPL_SYSCONFDIR") {
    Some(directory) => directory,
    None => "/etc",
};

/// Maximum size of the file in bytes, enough for 50,000 lines of 80 characters. A larger file is not read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Maximum number of invalid lines that are logged. Of further lines, only the number is logged.
const MAX_REPORTED: usize = 20;

/// A port's global identifier in network byte order: prefix, then GUID.
pub(crate) type Gid = [u8; 16];

/// The path of the file, and its content once it was read.
pub(crate) struct NameService {
    path: PathBuf,
    gids: OnceLock<Gids>,
}

/// The GIDs of the file, by the canonical form of the address.
type Gids = HashMap<IpAddr, Gid>;

impl Default for NameService {
    /// Uses the file that `DAPL_IBHOSTS` names, or the default file. Does not read it yet.
    fn default() -> Self {
        let chosen = logger::secure_variable("DAPL_IBHOSTS").filter(|path| !path.is_empty());
        Self::from_file(chosen.map_or_else(|| Path::new(SYSCONFDIR).join("dapl/ibhosts"), PathBuf::from))
    }
}

impl NameService {
    fn from_file(path: PathBuf) -> Self {
        NameService { path, gids: OnceLock::new() }
    }

    /// Returns the GID of the host with this address; logs an error if there is none. The first lookup reads the file
    /// and resolves its host names, which may block for seconds.
    pub(crate) fn gid(&self, address: IpAddr) -> Option<Gid> {
        let found = self.lookup(address);
        if found.is_none() {
            log::error!(
                "{address} has no GID: {} lists {} addresses, but not this one; add a line \"<host name> 0x<GID prefix> 0x<GUID>\"",
                self.path.display(),
                self.gids().len()
            );
        }
        found
    }

    /// Same as `gid`, but logs nothing if there is no GID.
    pub(crate) fn lookup(&self, address: IpAddr) -> Option<Gid> {
        find(self.gids(), address)
    }

    /// Whether the file was read. If so, lookups do not block.
    pub(crate) fn is_read(&self) -> bool {
        self.gids.get().is_some()
    }

    fn gids(&self) -> &Gids {
        self.gids.get_or_init(|| self.load())
    }

    fn load(&self) -> Gids {
        let text = match read(&self.path) {
            Ok(text) => text,
            Err(error) => {
                // The file is optional. `gid` logs its path if a GID is missing.
                if error.kind() != ErrorKind::NotFound {
                    log::error!(
                        "cannot read {}: {error}; connects that need a GID from this file fail; correct the file or \
                         set DAPL_IBHOSTS to another one",
                        self.path.display()
                    );
                }
                return Gids::default();
            }
        };
        let (gids, errors) = parse(&text, resolve);
        let file = self.path.display();
        errors
            .iter()
            .take(MAX_REPORTED)
            .for_each(|error| log::error!("{file}:{error}; the line is skipped, correct it"));
        if let Some(more) = errors.len().checked_sub(MAX_REPORTED).filter(|more| *more > 0) {
            log::error!("{file}: {more} more invalid lines are skipped; correct the lines above to see them");
        }
        log::debug!("{file}: {} addresses", gids.len());
        gids
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Non-blocking, because the open of a FIFO would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("longer than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// Parses the file. Also returns the errors of invalid lines, as `<line number>: <error>`.
fn parse(text: &[u8], resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>>) -> (Gids, Vec<String>) {
    let (mut gids, mut errors) = (Gids::default(), Vec::new());
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if let Err(error) = add_line(&mut gids, line, &resolve) {
            errors.push(format!("{}: {error}", number + 1));
        }
    }
    (gids, errors)
}

/// Adds the addresses of one line.
fn add_line(gids: &mut Gids, line: &[u8], resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>>) -> Result<(), String> {
    let line = std::str::from_utf8(line).map_err(|_| "not text")?;
    let Some((name, gid)) = record(line)? else { return Ok(()) };
    let addresses = resolve(name).map_err(|error| format!("\"{}\" cannot be resolved: {error}", escape(name)))?;
    if addresses.is_empty() {
        return Err(format!("\"{}\" has no address", escape(name)));
    }
    for address in addresses {
        gids.entry(address.to_canonical()).or_insert(gid);
    }
    Ok(())
}

fn find(gids: &Gids, address: IpAddr) -> Option<Gid> {
    gids.get(&address.to_canonical()).copied()
}

/// Parses one line. Returns `None` for a line without a record.
fn record(line: &str) -> Result<Option<(&str, Gid)>, String> {
    let text = line.split('#').next().unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    let Some(name) = words.next() else { return Ok(None) };
    let (Some(prefix), Some(guid), None) = (words.next(), words.next(), words.next()) else {
        let count = text.split_ascii_whitespace().count();
        return Err(format!("{count} words where \"<host name> 0x<GID prefix> 0x<GUID>\" is expected"));
    };
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&parse_half("GID prefix", prefix)?);
    gid[8..].copy_from_slice(&parse_half("GUID", guid)?);
    if gid == [0; 16] {
        return Err("the GID is all zeros, which no port has".into());
    }
    Ok(Some((name, gid)))
}

/// Parses one half of a GID, named `what` in errors.
fn parse_half(what: &str, word: &str) -> Result<[u8; 8], String> {
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    digits
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .map(u64::to_be_bytes)
        .ok_or_else(|| format!("{what} \"{}\" is not 0x and at most 64 bits in hexadecimal digits", escape(word)))
}

/// Escapes and shortens text of the file for the log.
fn escape(word: &str) -> String {
    word.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake resolver: for literal addresses, for "two" (two addresses) and "none" (no address).
    fn literal(name: &str) -> io::Result<Vec<IpAddr>> {
        match name {
            "two" => Ok(vec![ip("192.0.2.7"), ip("2001:db8::7")]),
            "none" => Ok(Vec::new()),
            _ => Ok(vec![name.parse().map_err(io::Error::other)?]),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn gid(prefix: u64, guid: u64) -> Option<Gid> {
        Some((u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes())
    }

    #[test]
    fn hosts_file_records_give_gids_in_network_order() {
        let text = b"192.0.2.1 0xfe80000000000000 0x0001730000003d11\n\
            \t2001:db8::1\t0XFE80000000000000  0x1   # the second port\r\n\
            two 0x1 0x2";
        let (gids, errors) = parse(text, literal);
        assert!(errors.is_empty(), "{errors:?}");
        let bytes = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 0x73, 0, 0, 0, 0x3d, 0x11];
        assert_eq!(find(&gids, ip("192.0.2.1")), Some(bytes));
        assert_eq!(find(&gids, ip("::ffff:192.0.2.1")), Some(bytes), "the same host");
        assert_eq!(find(&gids, ip("2001:db8::1")), gid(0xfe80 << 48, 1));
        assert_eq!(
            [find(&gids, ip("192.0.2.7")), find(&gids, ip("2001:db8::7"))],
            [gid(1, 2); 2],
            "all addresses of a host"
        );
        assert_eq!(find(&gids, ip("192.0.2.2")), None);
    }

    #[test]
    fn first_gid_record_of_an_address_is_used() {
        let (gids, _) = parse(b"two 0x1 0x1\n192.0.2.7 0x2 0x2\n192.0.2.8 0x3 0x3\n", literal);
        assert_eq!(find(&gids, ip("192.0.2.7")), gid(1, 1));
        assert_eq!(find(&gids, ip("192.0.2.8")), gid(3, 3));
    }

    #[test]
    fn invalid_hosts_file_line_does_not_affect_others() {
        let wrong: [(&[u8], &str); 9] = [
            (b"192.0.2.1", "1 words"),
            (b"192.0.2.1 0x1 # 0x2", "2 words"),
            (b"192.0.2.1 0x1 0x2 0x3", "4 words"),
            (b"192.0.2.1 fe80 0x2", "GID prefix \"fe80\""),
            (b"192.0.2.1 0x1 0x12345678123456789", "GUID \"0x12345678123456789\""),
            (b"192.0.2.1 0x1 0x", "GUID \"0x\""),
            (b"192.0.2.1 0x1 0x+2", "GUID \"0x+2\""),
            (b"192.0.2.1 0x0 0x0", "zeros"),
            (b"\xff\xfe 0x1 0x2", "not text"),
        ];
        for (line, what) in wrong {
            let text = [b"# hosts\n\n  \n", line, b"\n192.0.2.9 0x1 0x9\n"].concat();
            let (gids, errors) = parse(&text, literal);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with("4: ") && errors[0].contains(what), "{errors:?}");
            assert_eq!((gids.len(), find(&gids, ip("192.0.2.9"))), (1, gid(1, 9)));
        }
    }

    #[test]
    fn hosts_file_line_with_an_unresolvable_host_is_skipped() {
        let (gids, errors) = parse(b"nowhere 0x1 0x1\nnone 0x1 0x1\n192.0.2.9 0x1 0x9\n", literal);
        assert_eq!(gids.len(), 1);
        assert!(errors[0].starts_with("1: \"nowhere\" cannot be resolved: "), "{errors:?}");
        assert_eq!(errors[1..], ["2: \"none\" has no address"]);
    }

    #[test]
    fn hosts_file_of_seventy_thousand_lines_is_parsed() {
        let line = |n: u32| format!("10.{}.{}.{} 0x1 {n:#x}\n", n >> 16, n >> 8 & 255, n & 255);
        let (gids, errors) = parse((0..70_000).map(line).collect::<String>().as_bytes(), literal);
        assert_eq!((gids.len(), errors.len()), (70_000, 0));
        assert_eq!(find(&gids, ip("10.1.17.111")), gid(1, 69_999));
    }

    #[test]
    fn hosts_file_is_read_once_at_the_first_lookup() {
        let path = std::env::temp_dir().join(format!("dapl-ibhosts-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let names = NameService::from_file(path.clone());
        std::fs::write(&path, "127.0.0.1 0x5 0x6\n").unwrap();
        assert!(!names.is_read());
        assert_eq!(names.gid(ip("127.0.0.1")), gid(5, 6));
        std::fs::remove_file(&path).unwrap();
        assert!(names.is_read());
        assert_eq!([names.gid(ip("127.0.0.1")), names.lookup(ip("127.0.0.2"))], [gid(5, 6), None]);
        let without = NameService::from_file(path);
        assert_eq!((without.gid(ip("127.0.0.1")), without.is_read()), (None, true));
    }

    #[test]
    fn hosts_file_that_is_too_long_or_not_a_regular_file_is_not_read() {
        let path = std::env::temp_dir().join(format!("dapl-ibhosts-long-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(MAX_FILE_BYTES).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MAX_FILE_BYTES);
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer"));
        std::fs::remove_file(&path).unwrap();
        assert!(read(Path::new("/dev/zero")).unwrap_err().to_string().contains("regular"));
    }
}
