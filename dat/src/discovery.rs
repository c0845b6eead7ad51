//! Generates dat.conf lines for the adapters of this machine: `sm0`, `usnic0`, one line for each network interface that
//! is up and has an IP address, and one for each port of an RDMA device.
//!
//! `sources` uses the lines if `DAT_OVERRIDE` is not set and neither a dat.conf nor a drop-in file exists; `datinfo
//! discover` prints them. Only names are read: no library is loaded and no device is opened. Names with special
//! characters are skipped, since they would have to be quoted, and so are names longer than 64 bytes. At most 64
//! interfaces and 64 ports get a line.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use crate::api::Api;
use crate::loader::host;

/// Maximum number of interfaces, and of ports, that get a line.
const MAX_DISCOVERED: usize = 64;
/// Maximum length in bytes of the name of a device or interface that gets a line. Names that the kernel permits are
/// shorter (`IB_DEVICE_NAME_MAX`, `IFNAMSIZ`).
const LONGEST: usize = 64;

/// Lines that apply to every machine, for this version of the API.
pub(crate) fn always(api: &Api) -> String {
    line(api, "sm0", "libdaplsm.so.1", "") + &line(api, "usnic0", "libdaplusnic.so.1", "")
}

/// Formats a line with `nonthreadsafe`. Most programs request `nonthreadsafe`, and other implementations of libdat
/// accept only a line with the requested word. This project's libdat knows that its providers are thread-safe.
fn line(api: &Api, name: &str, library: &str, params: &str) -> String {
    let version = api.version();
    format!("{name} u{version} nonthreadsafe default {library} dapl.{version} \"{params}\" \"\"\n")
}

/// All lines for this machine, for this version of the API.
pub(crate) fn lines(api: &Api) -> String {
    lines_for(api, host::interfaces(), ports(Path::new("/sys/class/infiniband")))
}

fn lines_for(api: &Api, interfaces: Vec<Vec<u8>>, ports: Vec<(String, u32)>) -> String {
    let mut names: Vec<String> = interfaces.into_iter().filter_map(|name| plain(&name)).collect();
    names.sort();
    names.dedup();
    let mut text = always(api);
    for name in names.iter().take(MAX_DISCOVERED) {
        text += &line(api, &format!("usnic-{name}"), "libdaplusnic.so.1", name);
    }
    for (device, port) in ports.iter().take(MAX_DISCOVERED) {
        text += &line(api, &format!("verbs-{device}-{port}"), "libdaplverbs.so.1", &format!("{device} {port}"));
    }
    text
}

/// The ports of all RDMA devices, in order: `<class>/<device>/ports/<number>`.
fn ports(class: &Path) -> Vec<(String, u32)> {
    let list = |path: &Path| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| plain(entry.file_name().as_encoded_bytes())).collect();
        names.sort();
        names
    };
    let mut found = Vec::new();
    for device in list(class) {
        let numbers = list(&class.join(&device).join("ports"));
        let mut numbers: Vec<u32> = numbers.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.retain(|number| (1..=255).contains(number));
        numbers.sort_unstable();
        found.extend(numbers.into_iter().map(|number| (device.clone(), number)));
    }
    found
}

/// Returns the name as text; `None` if it is empty or too long, begins with a dot, or contains special characters.
fn plain(name: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    let fits = (1..=LONGEST).contains(&name.len()) && !name.starts_with(b".") && name.iter().all(is_plain);
    fits.then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::{V1, V2};
    use crate::conf;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let conf = conf::parse(&Arc::from("discovered"), text.as_bytes());
        assert!(conf.diagnostics.is_empty() && conf.absent.is_empty(), "{conf:?}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        conf.records.into_iter().map(|record| (text(record.key.name), text(record.params))).collect()
    }

    #[test]
    fn interfaces_and_device_ports_get_dat_conf_lines() {
        let interfaces = ["eth1", "lo", "eth0", "eth1", "vlan0.12"].map(|name| name.as_bytes().to_vec()).to_vec();
        let entries = parsed(&lines_for(&V1, interfaces, vec![("mlx5_0".into(), 1), ("mlx5_0".into(), 2)]));
        let entries: Vec<_> = entries.iter().map(|(name, params)| (name.as_str(), params.as_str())).collect();
        assert_eq!(
            entries,
            [
                ("sm0", ""),
                ("usnic0", ""),
                ("usnic-eth0", "eth0"),
                ("usnic-eth1", "eth1"),
                ("usnic-lo", "lo"),
                ("usnic-vlan0.12", "vlan0.12"),
                ("verbs-mlx5_0-1", "mlx5_0 1"),
                ("verbs-mlx5_0-2", "mlx5_0 2"),
            ]
        );
    }

    #[test]
    fn discovered_lines_have_the_dat_version_of_libdat() {
        let text = lines_for(&V2, vec![b"eth0".to_vec()], vec![("mlx5_0".into(), 1)]);
        let conf = conf::parse(&Arc::from("discovered"), text.as_bytes());
        assert!(conf.diagnostics.is_empty(), "{conf:?}");
        let versions: Vec<_> = conf.records.iter().map(|record| (record.key.major, record.key.minor)).collect();
        assert_eq!(versions, [(2, 0); 4]);
    }

    #[test]
    fn discovery_skips_names_with_special_characters_and_limits_lines() {
        let hostile: [&[u8]; 11] =
            [b"", b"a b", b"a\"b", b"a#b", b"a\nb", b"key=x", b"\xff\xfe", b"a\\b", b"a/b", b"..", b"a\0b"];
        assert_eq!(parsed(&lines_for(&V1, hostile.iter().map(|name| name.to_vec()).collect(), vec![])).len(), 2);
        assert_eq!((plain(&[b'x'; 64]).is_some(), plain(&[b'x'; 65])), (true, None));
        let many = (0..10_000).map(|number| format!("eth{number}").into_bytes()).collect();
        assert_eq!(parsed(&lines_for(&V1, many, vec![("x".into(), 1); 10_000])).len(), 2 + 2 * MAX_DISCOVERED);
    }

    #[test]
    fn ports_are_read_from_sysfs_in_order_and_invalid_names_are_skipped() {
        let class = std::env::temp_dir().join(format!("dat-discovery-{}", std::process::id()));
        for path in [
            "rxe0/ports/1",
            "mlx5_0/ports/10",
            "mlx5_0/ports/2",
            "mlx5_0/ports/0",
            "mlx5_0/ports/x",
            "empty",
            "a b/ports/1",
        ] {
            fs::create_dir_all(class.join(path)).unwrap();
        }
        let found = ports(&class);
        fs::remove_dir_all(&class).unwrap();
        assert_eq!(found, [("mlx5_0".to_owned(), 2), ("mlx5_0".to_owned(), 10), ("rxe0".to_owned(), 1)]);
        assert_eq!(ports(&class), [], "no device, no directory");
    }

    #[test]
    fn discovered_lines_include_sm_usnic_and_the_loopback_interface() {
        let entries = parsed(&lines(&V1));
        assert_eq!((entries[0].0.as_str(), entries[1].0.as_str()), ("sm0", "usnic0"));
        assert!(entries.iter().any(|(name, _)| name == "usnic-lo"), "{entries:?}");
    }
}
