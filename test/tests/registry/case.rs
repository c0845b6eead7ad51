//! One case of the registry suite: a directory with a dat.conf, its compiled providers, and a probe program.
//!
//! Used by `tests/registry.rs` and the suites of datinfo. A run checks only that the program exits with status 0.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl_test::run::without_origin;
use dapl_test::stage::{Profile, Stage, stage_with, workspace};

/// One case: a directory with a dat.conf and the providers in it.
pub(crate) struct Case {
    pub(crate) directory: PathBuf,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Whether providers and probe are those of DAT 2.0.
    is_version_2: bool,
}

pub(crate) struct ProbeOutput {
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Case {
    /// Creates a directory that no other case and no other run of the suite uses. `{}` in the text is replaced by the
    /// path of the directory. The drop removes the directory unless the test has failed.
    pub(crate) fn new(name: &str, conf: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = format!("registry/{name}.{}.{count}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(directory);
        let _ = fs::remove_dir_all(&directory); // left by an earlier process with the same id
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("dat.conf");
        fs::write(&file, conf.replace("{}", directory.to_str().unwrap())).unwrap();
        Self { directory, environment: vec![("DAT_OVERRIDE", file.to_str().unwrap().to_owned())], is_version_2: false }
    }

    /// Switches to `libdat2.so.2`: for providers compiled from now on, and for the probe.
    pub(crate) fn version_2(mut self) -> Self {
        self.is_version_2 = true;
        self
    }

    /// Compiles a provider as `file` with these defines. Like foreign providers, it is not linked with libdat.
    pub(crate) fn provider(self, file: &str, defines: &[&str]) -> Self {
        self.provider_linked(file, defines, &[])
    }

    pub(crate) fn provider_linked(self, file: &str, defines: &[&str], arguments: &[&str]) -> Self {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        // No variant uses all functions of the source.
        cc.args(["-Wno-unused-function", "-Wno-unused-variable"]);
        if self.is_version_2 {
            cc.arg("-I").arg(adapted());
        }
        cc.arg("-I").arg(&stage().include).arg("-o").arg(self.directory.join(file));
        cc.args(defines.iter().map(|define| format!("-D{define}")));
        cc.arg(workspace().join("test/c/dummy_provider.c")).arg("-L").arg(&stage().lib).args(arguments);
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self
    }

    /// Removes the variables of this case, of which one names the dat.conf.
    pub(crate) fn bare(mut self) -> Self {
        self.environment.clear();
        self
    }

    pub(crate) fn with(mut self, variable: &'static str, value: &str) -> Self {
        self.environment.push((variable, value.to_owned()));
        self
    }

    /// Runs the probe with these arguments.
    pub(crate) fn run(&self, words: &str) -> ProbeOutput {
        self.run_program(&probe(if self.is_version_2 { "registry_probe-2" } else { "registry_probe" }), words)
    }

    pub(crate) fn run_program(&self, program: &Path, words: &str) -> ProbeOutput {
        let mut command = Command::new(program);
        for variable in ["DAT_OVERRIDE", "DAT_DBG_TYPE", "DAT_DBG_LEVEL", "DAT_DBG_DEST", "LD_LIBRARY_PATH"] {
            command.env_remove(variable);
        }
        let output = command.envs(self.environment.iter().cloned()).args(words.split_whitespace()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().replace(self.directory.to_str().unwrap(), "{}");
        let answer = ProbeOutput { out: text(output.stdout), err: without_origin(&text(output.stderr)) };
        assert!(output.status.success(), "{}: {}\n{}\n{}", words, output.status, answer.out, answer.err);
        answer
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl ProbeOutput {
    #[track_caller]
    pub(crate) fn says(&self, lines: &[&str]) -> &Self {
        assert_eq!(self.out.lines().collect::<Vec<_>>(), lines, "stderr: {}", self.err);
        self
    }

    /// The only line on stderr, without its prefix `libdat: `.
    #[track_caller]
    pub(crate) fn reason(&self) -> &str {
        self.reason_of("libdat: ")
    }

    /// Same as `reason`, for another library's prefix.
    #[track_caller]
    pub(crate) fn reason_of(&self, library: &str) -> &str {
        let mut lines = self.err.lines();
        let line = lines.next().unwrap_or_default().strip_prefix(library).unwrap_or_else(|| panic!("{}", self.err));
        assert_eq!(lines.next(), None, "more than one line: {}", self.err);
        line
    }

    #[track_caller]
    pub(crate) fn quiet(&self) -> &Self {
        assert_eq!(self.err, "");
        self
    }
}

/// The include folder that lets a 1.2 source compile for 2.0.
fn adapted() -> PathBuf {
    workspace().join("test/c/dat20")
}

pub(crate) fn stage() -> Stage {
    stage_with(Profile::Dev, &[])
}

/// A program from `test/c`, compiled once per test process.
pub(crate) fn probe(name: &'static str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let directory = BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("registry-probes");
        fs::create_dir_all(&directory).unwrap();
        let adapted = adapted();
        for (source, name, library, includes) in [
            ("registry_probe", "registry_probe", "-ldat", &[][..]),
            ("registry_probe", "registry_probe-2", "-ldat2", &[adapted.as_path()]),
            ("local_probe", "local_probe", "-ldat", &[]),
        ] {
            let source = workspace().join(format!("test/c/{source}.c"));
            let path = format!("-Wl,-rpath,{}", stage().lib.display());
            // Another run of the suite may be executing the old file.
            let fresh = directory.join(format!("{name}.{}", std::process::id()));
            stage().compile_with(&[library], includes, &fresh, &[&source], &["-Werror", &path]);
            fs::rename(fresh, directory.join(name)).unwrap();
        }
        directory
    });
    directory.join(name)
}
