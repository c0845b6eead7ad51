//! Runs the verbs provider without an RDMA device. `test/c/fake_verbs.c` replaces libibverbs and is preloaded into
//! the measured programs. `test/c/raw_verbs.c` uses the same device without DAT.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::stage::{Stage, workspace};

use crate::Result;

/// File name of the libibverbs replacement.
pub(super) const LIBRARY: &str = "libibverbs.so.1";
/// Registry for runs over the fake device, whose network interface is the loopback interface.
pub(super) const VERBS0: &str =
    "verbs0 u1.2 nonthreadsafe default libdaplverbs.so.1 dapl.1.2 \"fake0 1 cm=socket\" \"\"\n";

/// The compiled replacement and programs.
pub(super) struct FakeDevice {
    library: PathBuf,
    /// The directory that replaces `/sys/class/infiniband`.
    sysfs: PathBuf,
    pub(super) bare_program: PathBuf,
}

impl FakeDevice {
    /// Compiles the replacement and the programs. Writes the programs to the directory `programs`.
    pub(super) fn new(stage: &Stage, programs: &Path) -> Result<Self> {
        // The replacement must not be in the stage, where every program would load it instead of the real libibverbs.
        let directory = stage.root.join("fake");
        let sysfs = directory.join("infiniband");
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        fs::create_dir_all(sysfs.join("fake0/ports/1")).map_err(|error| failed(&sysfs, error))?;
        // Names the network device, as software RDMA drivers do.
        let parent = sysfs.join("fake0/parent");
        fs::write(&parent, "lo\n").map_err(|error| failed(&parent, error))?;
        let (source, library) = (|name: &str| workspace().join("test/c").join(name), directory.join(LIBRARY));
        let soname = format!("-Wl,-soname,{LIBRARY}");
        let sources = ["fake_verbs.c", "fake_objects.c", "fake_host.c"].map(source);
        stage.compile_with(
            &[],
            &[],
            &library,
            &sources.each_ref().map(PathBuf::as_path),
            // Without this option the compiler turns the copy loop into a call of memcpy.
            &["-O2", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC", &soname],
        );
        let bare_program = programs.join("raw_verbs");
        stage.compile_with(
            &[&library.to_string_lossy()],
            &[],
            &bare_program,
            &[&source("raw_verbs.c")],
            &["-O2", "-fno-ipa-icf"],
        );
        Ok(FakeDevice { library, sysfs, bare_program })
    }

    /// Makes a command use the fake device.
    pub(super) fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKE_INFINIBAND", &self.sysfs);
    }
}
