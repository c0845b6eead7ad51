//! Builds the libraries and lays them out like an install: `lib/libdat.so.1`, `lib/libdat2.so.2`, the providers,
//! `include/dat`, `include/dat2`. All suites with real shared objects and the project's commands use this tree. If
//! several test programs stage at the same time, one builds and the others wait for the result. Nothing outside the
//! target directory is changed.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::{env, io};

/// A libdat, linked from its static library.
struct Library {
    /// Package that produces the static library `archive`.
    package: &'static str,
    archive: &'static str,
    /// Version script, relative to the sources.
    map: &'static str,
    /// C source of symbols that Rust cannot define, relative to the sources.
    source: Option<&'static str>,
    /// Folder of its headers, below `dat/include`.
    headers: &'static str,
    file: &'static str,
    soname: &'static str,
    /// Library name for the linker.
    link: &'static str,
}

/// The libraries `libdat.so.1` and `libdat2.so.2`.
const LIBDATS: [Library; 2] = [
    Library {
        package: "dat-v1",
        archive: "libdat1.a",
        map: "dat/libdat.map",
        source: None,
        headers: "dat",
        file: "libdat.so.1.2.0",
        soname: "libdat.so.1",
        link: "libdat.so",
    },
    Library {
        package: "dat-v2",
        archive: "libdat2.a",
        map: "dat/libdat2.map",
        source: Some("dat/v2/src/extension.c"),
        headers: "dat2",
        file: "libdat2.so.2.0.0",
        soname: "libdat2.so.2",
        link: "libdat2.so",
    },
];

/// The packages of the providers: `name` produces `libname.so.1`.
pub const PROVIDERS: [&str; 3] = ["daplsm", "daplusnic", VERBS_PACKAGE];

/// The package of the provider over rdma-core.
pub const VERBS_PACKAGE: &str = "daplverbs";

/// Library of the provider over rdma-core.
pub const VERBS: &str = "libdaplverbs.so.1";

/// Library names of a provider over rdma-core in old DAT 1.2 registries, for rdma_cm and for sockets; installed as
/// symbolic links.
pub const OLD_NAMES: [&str; 4] = ["libdaplcma.so.1", "libdaplcma.so", "libdaplscm.so.1", "libdaplscm.so"];

/// Library names in DAT 2.0 registries. The last two select connection managers that do not exist here; an IA whose
/// line has one of these two cannot be opened, and the log gives the reason.
pub const OLD_NAMES_2: [&str; 4] = ["libdaplofa.so.2", "libdaploscm.so.2", "libdaploucm.so.2", "libdaplomcm.so.2"];

/// Cargo profiles of a stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Profile {
    /// For tests and the demonstration: fast to build.
    Dev,
    /// For benches, installs and packages: one codegen unit, fully optimized.
    Dist,
}

impl Profile {
    /// Name of the profile for cargo.
    fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Dist => "dist",
        }
    }

    /// Directory of the profile below the target directory.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Dist => "dist",
        }
    }
}

/// A directory tree with the layout of an install.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stage {
    /// The tree's root.
    pub root: PathBuf,
    /// Directory of the shared objects.
    pub lib: PathBuf,
    /// Include directory for a C compiler.
    pub include: PathBuf,
}

/// Builds and lays out libdat and the providers.
///
/// # Panics
/// If the build fails; the message is the compiler's.
pub fn stage(profile: Profile) -> Stage {
    stage_with(profile, &PROVIDERS)
}

/// Same as `stage`, with only these provider packages.
///
/// # Panics
///
/// If the build fails; the message is the compiler's.
pub fn stage_with(profile: Profile, providers: &[&str]) -> Stage {
    // The programs are built in the same cargo call, so that cargo unifies features over the whole workspace and builds
    // each dependency once.
    stage_beside(profile, providers, &["dapltest", "datinfo"])
}

/// Same as `stage_with`, but does not also build the programs dapltest and datinfo. Faster if nothing else is built.
///
/// # Panics
///
/// If the build fails; the message is the compiler's.
pub fn stage_alone(profile: Profile, providers: &[&str]) -> Stage {
    stage_beside(profile, providers, &[])
}

fn stage_beside(profile: Profile, providers: &[&str], programs: &[&str]) -> Stage {
    /// Stages already made by this process.
    static DONE: Mutex<Vec<(Profile, String)>> = Mutex::new(Vec::new());
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let built = target_directory().join(profile.directory());
    let root = built.join("stage");
    let stage = Stage { lib: root.join("lib"), include: root.join("include"), root };
    let wanted: Vec<_> = ["dat"].iter().chain(providers).map(|name| (profile, (*name).to_owned())).collect();
    if wanted.iter().any(|one| !done.contains(one)) {
        let _lock = lock(&stage.root);
        build(profile, &[providers, programs].concat());
        stage.lay_out(&built, providers).unwrap_or_else(|error| panic!("{}: {error}", stage.root.display()));
        done.extend(wanted);
    }
    stage
}

/// Builds a program of the workspace and returns its path.
///
/// # Panics
/// If the build fails; the message is the compiler's.
pub fn built(package: &str, profile: Profile) -> PathBuf {
    build_program(&["--bin", package], profile, &[]);
    target_directory().join(profile.directory()).join(package)
}

/// Builds a program of the workspace as for a distribution package, and returns its path. The next build overwrites the
/// file.
///
/// # Panics
///
/// If the build fails; the message is the compiler's.
pub fn built_for_package(package: &str, profile: Profile) -> PathBuf {
    build_program(&["--bin", package], profile, &[("XTASK_PACKAGED", "1")]);
    target_directory().join(profile.directory()).join(package)
}

/// Builds an example of the workspace with these features, such as `udapl/async`, and returns its path.
///
/// # Panics
/// If the build fails; the message is the compiler's.
pub fn built_example(name: &str, features: &str, profile: Profile) -> PathBuf {
    build_program(&["--example", name, "--features", features], profile, &[]);
    target_directory().join(profile.directory()).join("examples").join(name)
}

fn build_program(what: &[&str], profile: Profile, environment: &[(&str, &str)]) {
    let mut cargo = cargo();
    cargo
        .args(["build", "--quiet", "--workspace", "--profile", profile.name()])
        .args(what)
        .envs(environment.iter().copied());
    run(&mut cargo);
}

impl Stage {
    /// Returns a command with the staged libraries in its search path, for programs that are linked with them or open
    /// them by name.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("LD_LIBRARY_PATH", &self.lib);
        command
    }

    /// Compiles C sources, linked with libdat, into a program or library at `output`. `arguments` come last.
    ///
    /// # Panics
    /// If they do not compile.
    pub fn compile(&self, output: &Path, sources: &[&Path], arguments: &[&str]) {
        self.compile_with(&["-ldat"], &[], output, sources, arguments);
    }

    /// Same as `compile`, linked with these libraries (`-ldat2` for a program of DAT 2.0), and with header
    /// directories that precede the stage's.
    ///
    /// # Panics
    /// If they do not compile.
    pub fn compile_with(
        &self,
        libraries: &[&str],
        includes: &[&Path],
        output: &Path,
        sources: &[&Path],
        arguments: &[&str],
    ) {
        let mut cc = compiler();
        // Debug information contains the current directory, which must not depend on the caller's.
        cc.current_dir(workspace());
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-g", "-O1", "-pthread"]);
        for directory in includes {
            cc.arg("-I").arg(directory);
        }
        cc.arg("-I").arg(&self.include);
        cc.arg("-o").arg(output).args(sources).arg("-L").arg(&self.lib).arg("-Wl,--as-needed").args(libraries);
        run(cc.args(arguments));
    }

    fn lay_out(&self, built: &Path, providers: &[&str]) -> io::Result<()> {
        fs::create_dir_all(&self.lib)?;
        let home = workspace();
        LIBDATS.iter().try_for_each(|library| self.link_libdat(library, built))?;
        for provider in providers {
            self.lay_out_provider(provider, built)?;
            if *provider == VERBS_PACKAGE {
                OLD_NAMES.iter().chain(&OLD_NAMES_2).try_for_each(|name| link(&self.lib.join(name), VERBS))?;
            }
        }
        LIBDATS.iter().try_for_each(|library| self.copy_headers(&home.join("dat/include"), library.headers))
    }

    /// Links a provider from its static library, because cargo's shared library has no version node. A provider
    /// without a static library is copied.
    fn lay_out_provider(&self, provider: &str, built: &Path) -> io::Result<()> {
        let (shared, archive) = (built.join(format!("lib{provider}.so")), built.join(format!("lib{provider}.a")));
        let soname = format!("lib{provider}.so.1");
        let to = self.lib.join(&soname);
        if !archive.exists() {
            return match is_stale(&to, &[&shared]) {
                true => replace(&to, |fresh| fs::copy(&shared, fresh).map(drop)),
                false => Ok(()),
            };
        }
        let map = workspace().join("dat/provider.map");
        if !is_stale(&to, &[&archive, &map]) {
            return Ok(());
        }
        replace(&to, |fresh| {
            let mut cc = linker(fresh, &archive, &map, &soname);
            // Links libdat even if the linker sees no reference to its symbols.
            cc.arg("-L").arg(&self.lib).args(["-Wl,--no-as-needed", "-l:libdat.so.1", "-Wl,--as-needed"]);
            run(cc.args(SYSTEM_LIBRARIES));
            Ok(())
        })
    }

    fn copy_headers(&self, from: &Path, folder: &str) -> io::Result<()> {
        let headers = self.include.join(folder);
        fs::create_dir_all(&headers)?;
        for header in fs::read_dir(from.join(folder))?.flatten() {
            let to = headers.join(header.file_name());
            if is_stale(&to, &[&header.path()]) {
                replace(&to, |fresh| fs::copy(header.path(), fresh).map(drop))?;
            }
        }
        Ok(())
    }

    /// Links the static library: only a direct link gives exactly the names and versions of the version script.
    fn link_libdat(&self, library: &Library, built: &Path) -> io::Result<()> {
        let (archive, map) = (built.join(library.archive), workspace().join(library.map));
        let source = library.source.map(|source| workspace().join(source));
        let made_of: Vec<&Path> = [&archive, &map].into_iter().chain(&source).map(PathBuf::as_path).collect();
        let file = self.lib.join(library.file);
        if is_stale(&file, &made_of) {
            replace(&file, |fresh| {
                let mut cc = linker(fresh, &archive, &map, library.soname);
                if let Some(source) = &source {
                    cc.args(["-std=c11", "-Wall", "-Wextra", "-I"]).arg(workspace().join("dat/include")).arg(source);
                }
                run(cc.args(SYSTEM_LIBRARIES));
                Ok(())
            })?;
        }
        [library.soname, library.link].iter().try_for_each(|name| link(&self.lib.join(name), library.file))
    }
}

/// System libraries that the Rust standard library needs.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"];

/// A compiler command that links this static library into a shared library with the version script's names and
/// versions.
fn linker(output: &Path, archive: &Path, map: &Path, soname: &str) -> Command {
    let mut cc = compiler();
    cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(output);
    cc.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    cc.arg(format!("-Wl,--version-script={}", map.display()));
    // nodelete: handles may refer to code of an unloaded provider. now: no lazy binding on the hot path.
    cc.arg(format!("-Wl,-soname,{soname}"));
    cc.args(["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro"]);
    cc.args(["-Wl,--gc-sections", "-Wl,--no-undefined", "-Wl,--as-needed"]);
    cc
}

fn link(at: &Path, target: &str) -> io::Result<()> {
    match fs::read_link(at).is_ok_and(|to| to == Path::new(target)) {
        true => Ok(()),
        false => replace(at, |fresh| symlink(target, fresh)),
    }
}

/// Creates a file under a temporary name and renames it, so that a program that has mapped the old file keeps it.
pub fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let fresh = path.with_extension("fresh");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    make(&fresh)?;
    fs::rename(&fresh, path)
}

fn is_stale(made: &Path, sources: &[&Path]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(made) = time(made) else { return true };
    sources.iter().any(|source| time(source).is_none_or(|source| source > made))
}

fn build(profile: Profile, packages: &[&str]) {
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--profile", profile.name()]);
    cargo.args(LIBDATS.iter().flat_map(|library| ["-p", library.package]));
    cargo.args(packages.iter().flat_map(|package| ["-p", package]));
    run(&mut cargo);
}

/// The target directory, as cargo reports it: an option, a variable or a file may set it.
pub fn target_directory() -> PathBuf {
    let output = run(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]));
    let text = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let rest = text.split_once("\"target_directory\":\"").expect("cargo names its target directory").1;
    let path = rest.split_once('"').expect("a JSON string has a closing quote").0;
    PathBuf::from(path.replace("\\\\", "\\"))
}

/// The root of the sources.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package directory is below the workspace root")
}

fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    cargo
}

fn compiler() -> Command {
    Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

/// Locks this tree against concurrent staging. Dropping the file releases the lock.
fn lock(root: &Path) -> File {
    fs::create_dir_all(root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    let path = root.join(".lock");
    let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock_file(&file).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file
}

/// Locks a file exclusively, until it is closed. Same as `File::lock`, which Rust 1.88 lacks.
pub fn lock_file(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open while `file` is borrowed.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
