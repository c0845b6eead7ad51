//! Line coverage of the object layer: runs the named suites, or those of `cargo xtask test`, with instrumentation, and
//! counts the executed lines of `dapl/src`.
//!
//! Everything is built separately from ordinary builds, below `coverage` in the target directory. The counters are
//! memory-mapped files, one per library or program, so processes that are killed or end by `_exit` count as well. Lines
//! that exist only for tests do not count. Prints the percentages, and writes a file for other tools.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dapl_test::stage::{self, workspace};

use crate::Result;
use crate::quiet::{run_quietly, text_of};
use crate::setup::{self, Tool};

/// Folder whose lines are counted.
const MEASURED: &str = "dapl/src/";
/// Places the counters at a run-time offset, so that the runtime can map them into a file.
const FLAGS: &str = "-Cinstrument-coverage -Cllvm-args=-runtime-counter-relocation";

/// Runs the suites that the arguments name, as `test` does, and counts the executed lines.
pub(crate) fn run(arguments: &[&str]) -> Result {
    let tools = Tools::find()?;
    let place = stage::target_directory().join("coverage");
    let (raw, built) = (place.join("raw"), place.join("debug"));
    let cleared = clear(&raw).and_then(|()| clear(&built.join("stage/lib")));
    cleared.map_err(|error| format!("{}: {error}", place.display()))?;
    let instrumented = |mut command: Command| -> Command {
        command.env("CARGO_TARGET_DIR", &place).env("RUSTFLAGS", FLAGS).env("RUSTDOCFLAGS", FLAGS);
        // %c: the counters are mapped while the program runs; %m: one file per library or program, for all processes.
        command.env("LLVM_PROFILE_FILE", raw.join("%c%m.profraw"));
        // valgrind reports uninitialised registers in system calls of instrumented code, so that check is off. Leaks
        // are still reported.
        command.env("VALGRIND_OPTS", "--undef-value-errors=no");
        command
    };
    // Without an argument, `test` runs its quick suites. These do not include ThreadSanitizer and loom, whose builds
    // execute other code.
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut suites = instrumented(Command::new(program));
    let passed = suites.arg("test").args(arguments).status().map_err(|error| format!("{suites:?}: {error}"))?.success();

    let mut objects = libraries(&built.join("stage/lib"))?;
    if matches!(arguments, [] | ["unit", ..]) {
        let mut cargo = instrumented(Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())));
        cargo.current_dir(workspace()).args(["test", "--quiet", "--no-run", "--message-format=json", "--lib"]);
        cargo.args(["-p", "dapl"]);
        for provider in stage::PROVIDERS {
            cargo.args(["-p", provider]);
        }
        objects.extend(executables(&run_quietly(&mut cargo)?));
    }
    let lines = tools.lines(&raw, &place.join("merged.profdata"), &objects)?;
    let counted = count(&lines)?;
    let file = place.join("dapl.lcov");
    fs::write(&file, lcov(&counted)).map_err(|error| format!("{}: {error}", file.display()))?;
    print!("{}", table(&counted));
    println!("counts per line: {}", file.display());
    if passed { Ok(()) } else { Err("the suites failed; the coverage is that of the tests that ran".to_owned()) }
}

fn clear(directory: &Path) -> std::io::Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory)
}

/// Lists the staged libraries without the symbolic links to them.
fn libraries(directory: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(files.flatten().map(|file| file.path()).filter(|path| path.is_file() && !path.is_symlink()).collect())
}

/// The test programs that cargo names, one JSON object per line.
fn executables(output: &Output) -> Vec<PathBuf> {
    let text = String::from_utf8_lossy(&output.stdout);
    let named = text.lines().filter_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'));
    named.map(|(path, _)| PathBuf::from(path)).collect()
}

/// Programs that read the instrumentation's output. They must have the compiler's LLVM version or a newer one.
struct Tools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl Tools {
    /// Finds the programs in the toolchain (rustup's `llvm-tools`) or in the system's packages.
    fn find() -> Result<Self> {
        let version = text_of(Command::new("rustc").arg("-vV"))?;
        let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let (host, llvm) = (field("host:").unwrap_or_default(), field("LLVM version:").unwrap_or_default());
        let sysroot = text_of(Command::new("rustc").args(["--print", "sysroot"]))?;
        let own = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin");
        if own.join("llvm-profdata").exists() && own.join("llvm-cov").exists() {
            return Ok(Tools { profdata: own.join("llvm-profdata"), cov: own.join("llvm-cov") });
        }
        let major = llvm.split('.').next().unwrap_or_default();
        let (profdata, cov) = (format!("llvm-profdata-{major}"), format!("llvm-cov-{major}"));
        let package = format!("llvm-{major}");
        setup::require(&[Tool::versioned(&profdata, &package), Tool::versioned(&cov, &package)])
            .map_err(|error| format!("{error} (or: rustup component add llvm-tools)"))?;
        Ok(Tools { profdata: profdata.into(), cov: cov.into() })
    }

    /// Returns the number of executions of each line, in lcov's format.
    fn lines(&self, raw: &Path, merged: &Path, objects: &[PathBuf]) -> Result<String> {
        let files = fs::read_dir(raw).map_err(|error| format!("{}: {error}", raw.display()))?;
        let files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        // A program that was killed while it created its file may leave an unreadable file.
        let merge = ["merge", "--sparse", "--failure-mode=all", "-o"];
        run_quietly(Command::new(&self.profdata).args(merge).arg(merged).args(files))?;
        let Some((first, others)) = objects.split_first() else {
            return Err("no staged library was found; run a suite that stages libraries".to_owned());
        };
        let mut cov = Command::new(&self.cov);
        cov.args(["export", "--format=lcov", "--instr-profile"]).arg(merged).arg(first);
        for object in others {
            cov.arg("--object").arg(object);
        }
        text_of(&mut cov)
    }
}

/// Number of executions of each line, by file below `dapl/src`.
type Counted = BTreeMap<String, BTreeMap<usize, u64>>;

/// Counts the executed lines of the folder, except test code.
fn count(lcov: &str) -> Result<Counted> {
    let mut counted = Counted::new();
    let root = format!("{}/{MEASURED}", workspace().display());
    for record in lcov.split("end_of_record") {
        let Some(path) = record.lines().find_map(|line| line.strip_prefix("SF:")?.strip_prefix(&root)) else {
            continue;
        };
        if is_test(path) {
            continue;
        }
        let text = fs::read_to_string(format!("{root}{path}")).map_err(|error| format!("{path}: {error}"))?;
        let only_tests = lines_of_tests(&text);
        let lines = counted.entry(path.to_owned()).or_default();
        for (line, times) in record.lines().filter_map(|line| line.strip_prefix("DA:")?.split_once(',')) {
            let (Ok(line), Ok(times)) = (line.parse::<usize>(), times.parse::<u64>()) else { continue };
            if !only_tests.get(line - 1).is_some_and(|is_test| *is_test) {
                *lines.entry(line).or_default() += times;
            }
        }
    }
    if counted.is_empty() {
        Err(format!("the coverage report (lcov) contains no line of {MEASURED}"))
    } else {
        Ok(counted)
    }
}

fn is_test(path: &str) -> bool {
    let is_folder = path.split('/').rev().skip(1).any(|folder| folder == "tests" || folder == "fake");
    is_folder || path.ends_with("tests.rs") || path.ends_with("/fake.rs")
}

/// For each line, whether it belongs to an item that is compiled for tests only. Relies on rustfmt: an item ends at
/// the first closing line at the item's own indentation.
fn lines_of_tests(text: &str) -> Vec<bool> {
    let mut inside: Option<String> = None;
    let mut marks = Vec::new();
    for line in text.lines() {
        let margin = &line[..line.len() - line.trim_start().len()];
        let rest = line.trim();
        if inside.is_none() && (rest.starts_with("#[cfg(test)]") || rest.starts_with("#[cfg(all(test")) {
            inside = Some(margin.to_owned());
        }
        marks.push(inside.is_some());
        let is_attribute = rest.starts_with("#[");
        if inside.as_deref() == Some(margin) && !is_attribute && (rest.ends_with('}') || rest.ends_with(';')) {
            inside = None;
        }
    }
    marks
}

fn lcov(counted: &Counted) -> String {
    let mut text = String::new();
    for (path, lines) in counted {
        text += &format!("SF:{MEASURED}{path}\n");
        lines.iter().for_each(|(line, times)| text += &format!("DA:{line},{times}\n"));
        text += "end_of_record\n";
    }
    text
}

/// Formats a table: one row per module (a folder or a file), and the total.
fn table(counted: &Counted) -> String {
    let mut modules: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (path, lines) in counted {
        let module = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
        for name in [module, "~"] {
            let (ran, all) = modules.entry(name).or_default();
            *ran += lines.values().filter(|times| **times > 0).count();
            *all += lines.len();
        }
    }
    let row = |(name, (ran, all)): (&str, (usize, usize))| {
        let name = if name == "~" { "dapl/src" } else { name };
        let share = 100.0 * ran as f64 / all.max(1) as f64;
        format!("{name:<14} {ran:>5} of {all:>5} lines  {share:>5.1} %\n")
    };
    modules.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_test_modules_are_excluded_from_coverage() {
        let text = "fn a() {}\n#[cfg(test)]\nmod b;\nimpl C {\n    #[cfg(test)]\n    fn d() {\n        e();\n    }\n\n    fn f() {}\n}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        let marked: Vec<usize> =
            lines_of_tests(text).into_iter().enumerate().filter(|(_, mark)| *mark).map(|(at, _)| at + 1).collect();
        assert_eq!(marked, [2, 3, 5, 6, 7, 8, 12, 13, 14, 15]);
        assert!(
            is_test("ep/tests/mod.rs") && is_test("cno/tests.rs") && is_test("fake/srq.rs") && !is_test("ep/mod.rs")
        );
    }

    #[test]
    fn coverage_is_summed_per_directory() {
        let lines = |times: &[u64]| times.iter().copied().enumerate().collect::<BTreeMap<_, _>>();
        let counted = Counted::from([
            ("ep/mod.rs".to_owned(), lines(&[1, 0])),
            ("ep/state.rs".to_owned(), lines(&[2, 2])),
            ("cm.rs".to_owned(), lines(&[0])),
        ]);
        let table = table(&counted);
        let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["ep", "3", "of", "4", "lines", "75.0", "%"]);
        assert_eq!(rows[2], ["dapl/src", "3", "of", "5", "lines", "60.0", "%"]);
        assert!(lcov(&counted).contains("SF:dapl/src/cm.rs\nDA:0,0\nend_of_record\n"));
    }
}
