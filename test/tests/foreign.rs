//! Combines Debian's DAT 2.0 (libdapl2) with this project's: this project's libdat2 loads Debian's providers, and
//! Debian's libdat2 loads this project's.

#[path = "foreign/debian.rs"]
mod debian;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dapl_test::run::{self, Sandbox};
use dapl_test::stage::{Profile, stage};

use debian::debian;

/// Watchdog, longer than any correct run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Debian's library directory.
fn libraries(debian: &Path) -> PathBuf {
    let folders = fs::read_dir(debian.join("usr/lib")).expect("the Debian package has usr/lib").flatten();
    let found = folders.map(|folder| folder.path()).find(|folder| folder.join("libdat2.so.2").exists());
    found.expect("the Debian package has libdat2.so.2")
}

/// A directory with only Debian's libdat2, to be searched before this project's.
fn its_libdat2(debian: &Path) -> PathBuf {
    let place = debian.join("libdat2");
    fs::create_dir_all(&place).expect("the target directory is writable");
    let file = libraries(debian).join("libdat2.so.2").canonicalize().expect("the Debian package has libdat2.so.2");
    fs::copy(file, place.join("libdat2.so.2")).expect("the target directory is writable");
    place
}

#[test]
fn libdat2_of_this_project_loads_debian_providers() {
    let Some(debian) = debian() else { return };
    let stage = stage(Profile::Dev);
    let libraries = libraries(debian);
    let line = |(name, params): (&str, &str)| {
        let file = libraries.join(format!("libdapl{name}.so.2"));
        format!("v2-{name} u2.0 nonthreadsafe default {} dapl.2.0 \"{params}\" \"\"\n", file.display())
    };
    let lines: String = [("ofa", "ib0 0"), ("oscm", "mlx4_0 1"), ("oucm", "mlx4_0 1")].map(line).concat();
    let (sandbox, program) = (Sandbox::new(&stage, Some(&lines)), run::program_2(&stage, "test/c/first.c"));
    for name in ["ofa", "oscm", "oucm"] {
        let finished = sandbox.start(&program, &[&format!("v2-{name}")]).finish(TIMEOUT);
        // The provider may refuse because the device is missing. The message then contains the provider's return code,
        // which shows that libdat2 has loaded the provider and called its open function.
        let refusal = format!("cannot open \"v2-{name}\": ");
        let is_its_own = finished.stderr.lines().any(|line| line.contains(&refusal) && line.contains(" returned DAT_"));
        assert!(finished.status.success() || is_its_own, "{finished:#?}");
        assert!(finished.status.code().is_some(), "the program was ended by a signal: {finished:#?}");
    }
}

#[test]
fn libdat2_of_debian_loads_the_providers_of_this_project() {
    let Some(debian) = debian() else { return };
    let stage = stage(Profile::Dev);
    let lines = "sm0 u2.0 nonthreadsafe default libdaplsm.so.1 dapl.2.0 \"\" \"\"\n\
                 usnic0 u2.0 nonthreadsafe default libdaplusnic.so.1 dapl.2.0 \"127.0.0.1\" \"\"\n";
    let place = its_libdat2(debian);
    for (source, said) in [("test/c/first.c", "messages of up to "), ("test/c/selfconnect.c", "selfconnect: OK")] {
        let program = run::program_2(&stage, source);
        for adapter in ["sm0", "usnic0"] {
            let sandbox = Sandbox::new(&stage, Some(lines));
            let mut command = sandbox.command(&program, &[adapter]);
            command.env("LD_LIBRARY_PATH", format!("{}:{}", place.display(), stage.lib.display()));
            run::Run::start(command).finish(TIMEOUT).expect_success(said);
        }
    }
}
