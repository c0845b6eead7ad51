//! The reference: Debian's packages of compat-dapl, the C implementation of DAT 2.0, downloaded and unpacked once into
//! the target directory.
//!
//! Not installed, because the package would add an /etc/dat.conf that other programs then read. The reference's
//! dependencies (libibverbs, librdmacm) are installed with perftest. The reference's programs run in guests.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::stage::{self, workspace};

use crate::quiet::text_of;
use crate::{Result, setup};

/// Debian packages with the reference's libraries, programs and headers.
const PACKAGES: [&str; 3] = ["libdapl2", "dapl2-utils", "libdapl-dev"];
/// Adapter of the reference's registry: over rdma_cm, on the guest's device.
pub(crate) const ADAPTER: &str = "ofa-v2-d0";
/// Adapter of the reference's registry: over its socket provider.
pub(crate) const SOCKET_ADAPTER: &str = "rxe2-oscm";
/// Registry line of `SOCKET_ADAPTER`, also used for this project's libraries.
pub(crate) const SOCKET_LINE: &str = "rxe2-oscm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"rxe0 1\" \"\"\n";

/// The unpacked reference.
pub(crate) struct Reference {
    root: PathBuf,
    /// Directory of the reference's libraries.
    pub(crate) lib: PathBuf,
    /// Registry with the reference's adapters.
    pub(crate) conf: PathBuf,
    /// Version of the Debian package.
    pub(crate) version: String,
}

impl Reference {
    /// Finds the reference in the target directory, or fetches it.
    pub(crate) fn find() -> Result<Self> {
        setup::require(&[setup::PERFTEST, setup::CC])?;
        let place = stage::target_directory().join("reference");
        if let Ok(found) = Reference::of(&place) {
            return Ok(found);
        }
        let fresh = place.with_extension(format!("fresh-{}", std::process::id()));
        let made = make(&fresh).and_then(|()| match fs::rename(&fresh, &place) {
            // Another process has already installed the same files.
            Err(_) if place.join("version").exists() => Ok(()),
            result => result.map_err(|error| format!("{}: {error}", place.display())),
        });
        // Remove the files of a failed download.
        let _ = fs::remove_dir_all(&fresh);
        made.and_then(|()| Reference::of(&place))
    }

    fn of(place: &Path) -> Result<Self> {
        let version = fs::read_to_string(place.join("version")).map_err(|error| format!("the reference: {error}"))?;
        let folders = fs::read_dir(place.join("usr/lib")).map_err(|error| format!("the reference: {error}"))?;
        let lib = folders.flatten().map(|folder| folder.path()).find(|folder| folder.join("libdat2.so.2").exists());
        let lib = lib.ok_or("the packages of compat-dapl contain no libdat2.so.2")?;
        let conf = place.join("dat.conf");
        write_registry(&conf)?;
        Ok(Reference { root: place.to_path_buf(), lib, conf, version })
    }

    /// Path of the reference's `dapltest`.
    pub(crate) fn dapltest(&self) -> PathBuf {
        self.program("dapltest")
    }

    /// Path of one of the reference's programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.root.join("usr/bin").join(name)
    }

    /// Returns a command that uses the reference's libraries.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.lib).env("DAT_OVERRIDE", &self.conf);
        command
    }

    /// Compiles a C program of this project, which is written for DAT 1.2, against the reference's DAT 2.0. The
    /// headers in `test/c/dat20` adapt the names.
    pub(crate) fn compile(&self, output: &Path, source: &Path) -> Result {
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-I"]);
        cc.arg(workspace().join("test/c/dat20")).arg("-I").arg(self.root.join("usr/include"));
        cc.arg("-o").arg(output).arg(source).arg("-L").arg(&self.lib);
        // The library's dependencies are found in the system at run time.
        text_of(cc.args(["-ldat2", "-Wl,--allow-shlib-undefined", "-pthread"])).map(drop)
    }
}

fn make(fresh: &Path) -> Result {
    let failed = |error: std::io::Error| format!("{}: {error}", fresh.display());
    fs::create_dir_all(fresh).map_err(failed)?;
    eprintln!("xtask: fetching {} for the guest", PACKAGES.join(", "));
    let download = || text_of(Command::new("apt-get").args(["-qq", "download"]).args(PACKAGES).current_dir(fresh));
    if download().is_err() {
        // The package lists may be missing, or older than the archive.
        setup::update()?;
        download()?;
    }
    let mut version = String::new();
    for entry in fs::read_dir(fresh).map_err(failed)?.flatten() {
        let package = entry.path();
        if package.extension().is_some_and(|kind| kind == "deb") {
            text_of(Command::new("dpkg-deb").arg("-x").arg(&package).arg(fresh))?;
            version = text_of(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Version"))?;
            fs::remove_file(&package).map_err(failed)?;
        }
    }
    // Written last: if this file exists, the directory is complete.
    fs::write(fresh.join("version"), version.trim()).map_err(failed)
}

/// Writes the registry unless its content is already right. Another process may be reading it.
fn write_registry(conf: &Path) -> Result {
    let lines = format!("{ADAPTER} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"d0 0\" \"\"\n{SOCKET_LINE}");
    if fs::read_to_string(conf).is_ok_and(|known| known == lines) {
        return Ok(());
    }
    let fresh = conf.with_extension(format!("fresh-{}", std::process::id()));
    let written = fs::write(&fresh, lines).and_then(|()| fs::rename(&fresh, conf));
    written.map_err(|error| format!("{}: {error}", conf.display()))
}
