//! Debian's DAT 2.0 (libdapl2), downloaded and unpacked once into the target directory; nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dapl_test::program::{is_program, skip};

/// The packages with Debian's libraries and programs.
const PACKAGES: [&str; 2] = ["libdapl2", "dapl2-utils"];

/// Directory of the unpacked packages. Returns `None`, with a message, if they cannot be downloaded.
pub(crate) fn debian() -> Option<&'static Path> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = PLACE.get_or_init(|| {
        if !is_program("apt-get") || !is_program("dpkg-deb") {
            skip("this is no Debian (apt-get, dpkg-deb)");
            return None;
        }
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian-dat2");
        if place.exists() {
            return Some(place);
        }
        // Two test programs may unpack at the same time, so the directory is renamed only when it is complete.
        let fresh = place.with_extension(std::process::id().to_string());
        fs::create_dir_all(&fresh).expect("the target directory is writable");
        let fetched = Command::new("apt-get").args(["-qq", "download"]).args(PACKAGES).current_dir(&fresh).output();
        if !fetched.is_ok_and(|output| output.status.success()) {
            let _ = fs::remove_dir_all(&fresh);
            skip(&format!("{} cannot be fetched", PACKAGES.join(" and ")));
            return None;
        }
        let files = fs::read_dir(&fresh).expect("the directory was created above").flatten().map(|entry| entry.path());
        for package in files.filter(|path| path.extension().is_some_and(|kind| kind == "deb")) {
            success(Command::new("dpkg-deb").arg("-x").arg(package).arg(&fresh));
        }
        if fs::rename(&fresh, &place).is_err() {
            // The other test program has finished first.
            let _ = fs::remove_dir_all(&fresh);
        }
        Some(place)
    });
    made.as_deref()
}

fn success(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
