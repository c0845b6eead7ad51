//! Runs the verbs provider without an RDMA device. `test/c/fake_verbs.c` replaces libibverbs and is preloaded into
//! programs. `test/c/raw_verbs.c` uses the same device without DAT.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Stage, workspace};

/// File name of the libibverbs replacement.
pub const LIBRARY: &str = "libibverbs.so.1";
/// Registry for runs over the fake device, whose network interface is the loopback interface.
pub const VERBS0: &str = "verbs0 u1.2 nonthreadsafe default libdaplverbs.so.1 dapl.1.2 \"fake0 1 cm=socket\" \"\"\n";

/// How the driver of the fake device posts requests and arms completion queues.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Driver {
    /// Through mapped memory, like drivers of adapters.
    User,
    /// By system calls that are thread cancellation points, like soft-RoCE. The vendor id is that of soft-RoCE.
    Kernel,
}

/// The compiled replacement.
pub struct FakeDevice {
    pub library: PathBuf,
    /// The directory that replaces `/sys/class/infiniband`.
    sysfs: PathBuf,
}

impl FakeDevice {
    /// Compiles the replacement. Needs the headers of rdma-core.
    ///
    /// # Panics
    /// If it does not compile, or if the stage is not writable.
    pub fn new(stage: &Stage) -> Self {
        // The replacement must not be in the stage's library directory, where every program would load it instead of
        // the real libibverbs.
        let directory = stage.root.join("fake");
        let sysfs = directory.join("infiniband");
        let writable = "the staging directory is writable";
        fs::create_dir_all(sysfs.join("fake0/ports/1")).expect(writable);
        // Names the network device, as software RDMA drivers do.
        fs::write(sysfs.join("fake0/parent"), "lo\n").expect(writable);
        let library = directory.join(LIBRARY);
        // Another program may be running with the old file.
        let fresh = directory.join(format!("{LIBRARY}.{}", std::process::id()));
        let sources =
            ["fake_verbs.c", "fake_objects.c", "fake_host.c"].map(|name| workspace().join("test/c").join(name));
        stage.compile_with(
            &[],
            &[],
            &fresh,
            &sources.each_ref().map(PathBuf::as_path),
            // Without this option the compiler turns the copy loop into a call of memcpy.
            &["-O2", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC", &format!("-Wl,-soname,{LIBRARY}")],
        );
        fs::rename(&fresh, &library).expect(writable);
        FakeDevice { library, sysfs }
    }

    /// Whether this machine has the headers of rdma-core, which the replacement needs.
    pub fn can_be_compiled() -> bool {
        Path::new("/usr/include/infiniband/verbs.h").exists()
    }

    /// Makes a command use the fake device.
    pub fn preload(&self, command: &mut Command, driver: Driver) {
        command.env("LD_PRELOAD", &self.library).env("FAKE_INFINIBAND", &self.sysfs);
        if driver == Driver::Kernel {
            command.env("FAKE_KERNEL_POSTS", "1");
        }
    }
}
