//! Runs the cases: each in one or two new processes, a few cases at a time, under a watchdog. Collects the observed
//! return codes and events.
//!
//! A failed case is not repeated. The separate processes keep a crash or a hang of one case from affecting other cases
//! and the driver.
#![forbid(unsafe_code)]

mod processes;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use self::processes::{Process, combine, end, watch};
use crate::case::Case;
use crate::ctx::{Mode, Role};
use crate::ending::Ending;
use crate::flight::{Record, Seen};
use crate::worker::Task;
use crate::{cases, expected, report};

const USAGE: &str = "\
usage: dapl-conformance [run] [--provider NAME] [--api 1.2|2.0] [--libdat PATH] [--mode one|two|both] [--jobs N] [--report DIR]
                        [--complete] [--open] [--verbose] [--time-factor N] [--except FILE] [FILTER...]
       dapl-conformance list [FILTER...]
       dapl-conformance coverage [--report DIR]

Runs the cases whose name or section contains a FILTER, or all. `list` prints their names, `coverage` the last report.
  --provider NAME  interface adapter of dat.conf (default sm0)
  --api, --libdat  version or file of the libdat under test (default 1.2, libdat.so.1)
  --mode           run client and server in one process, in two, or both ways (default both)
  --jobs N         number of cases that run at the same time (default 4)
  --report DIR     directory of the report, which lists the observed codes and events
  --complete       fail if the provider does not support a case, or a full run did not observe an expected item of 2.0
  --open           succeed even if an expected code or event was not observed
  --verbose        print passed cases too
  --time-factor N  multiply the time limit of each case by N, for a slow machine (default 1)
  --except FILE    leave out the cases of this file, whose lines have the form `name: reason`
";

struct Options {
    command: String,
    provider: String,
    libdat: String,
    jobs: usize,
    modes: Vec<Mode>,
    report: PathBuf,
    complete: bool,
    open: bool,
    verbose: bool,
    time_factor: u32,
    except: Option<PathBuf>,
    filters: Vec<String>,
}

impl Options {
    fn parse(words: &[String]) -> Option<Self> {
        let mut options = Options {
            command: "run".to_owned(),
            provider: "sm0".to_owned(),
            libdat: "libdat.so.1".to_owned(),
            jobs: 4,
            modes: vec![Mode::One, Mode::Two],
            report: default_report(),
            complete: false,
            open: false,
            verbose: false,
            time_factor: 1,
            except: None,
            filters: Vec::new(),
        };
        let mut words = words.iter().peekable();
        if let Some(command) = words.next_if(|word| ["run", "list", "coverage"].contains(&word.as_str())) {
            options.command.clone_from(command);
        }
        while let Some(word) = words.next() {
            match word.as_str() {
                "--provider" => options.provider = words.next()?.clone(),
                "--api" => {
                    options.libdat = match words.next()?.as_str() {
                        "1.2" => "libdat.so.1".to_owned(),
                        "2.0" => "libdat2.so.2".to_owned(),
                        _ => return None,
                    }
                }
                "--libdat" => options.libdat = words.next()?.clone(),
                "--jobs" => options.jobs = words.next()?.parse().ok().filter(|jobs| *jobs > 0)?,
                "--report" => options.report = words.next()?.into(),
                "--except" => options.except = Some(words.next()?.into()),
                "--complete" => options.complete = true,
                "--open" => options.open = true,
                "--verbose" => options.verbose = true,
                "--time-factor" => options.time_factor = words.next()?.parse().ok().filter(|times| *times > 0)?,
                "--mode" => {
                    options.modes = match words.next()?.as_str() {
                        "one" => vec![Mode::One],
                        "two" => vec![Mode::Two],
                        "both" => vec![Mode::One, Mode::Two],
                        _ => return None,
                    }
                }
                option if option.starts_with('-') => return None,
                _ => options.filters.push(word.clone()),
            }
        }
        if options.provider == "sm" {
            options.provider = "sm0".to_owned();
        }
        Some(options)
    }

    /// Whether the library under test is a DAT 2.0 library.
    fn is_2_0(&self) -> bool {
        self.libdat.contains("libdat2")
    }

    fn takes(&self, case: &Case) -> bool {
        if !self.is_2_0() && case.name.starts_with(cases::added::PREFIX) {
            return false;
        }
        let is_part = |filter: &String| case.name.contains(filter.as_str()) || case.section.contains(filter.as_str());
        self.filters.is_empty() || self.filters.iter().any(is_part)
    }
}

/// Default report directory: beside the directory of this program, inside the cargo target directory.
fn default_report() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.parent().and_then(Path::parent).unwrap_or(Path::new(".")).join("conformance")
}

/// Main function of the driver. The processes under test run `worker::main` instead.
pub(crate) fn main(words: &[String]) -> ExitCode {
    let Some(options) = Options::parse(words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let result = match options.command.as_str() {
        "list" => list(&options),
        "coverage" => report::show(&options.report),
        _ => run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("dapl-conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list(options: &Options) -> io::Result<bool> {
    let all = cases::all();
    let wanted = all.iter().filter(|case| options.takes(case));
    let count = wanted.map(|case| println!("{:60} {}", case.name, case.section)).count();
    println!("{count} cases");
    Ok(true)
}

/// Result of one case in one mode.
struct Outcome {
    name: String,
    mode: Mode,
    ending: Ending,
    seen: Vec<Seen>,
    took: Duration,
}

fn run(options: &Options) -> io::Result<bool> {
    let all = cases::all();
    check_names(&all)?;
    let mut wanted: Vec<&Case> = all.iter().filter(|case| options.takes(case)).collect();
    let left_out = options.except.as_deref().map_or(Ok(Vec::new()), |file| exceptions(file, &all))?;
    for (name, reason) in left_out {
        if wanted.iter().any(|case| case.name == name) {
            println!("left out {name}: {reason}");
            wanted.retain(|case| case.name != name);
        }
    }
    let runs: Vec<(&Case, Mode)> = wanted
        .iter()
        .flat_map(|case| case.modes().into_iter().map(|mode| (*case, mode)))
        .filter(|(_, mode)| options.modes.contains(mode))
        .collect();
    if runs.is_empty() {
        return Err(io::Error::other("no case matches the filter; list the cases: dapl-conformance list"));
    }
    let place = RunDirectory::new()?;
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((case, mode)) = runs.get(index) else { return };
                    let outcome = run_one(options, &place, index, case, *mode);
                    print_outcome(options, &outcome);
                    outcomes.lock().expect("no runner thread panics").push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no runner thread panics");
    let is_whole = options.filters.is_empty() && options.modes.len() == 2;
    print_summary(options, wanted.len(), &outcomes, began.elapsed(), is_whole)
}

/// Reads the exceptions file: lines of `name: reason` for cases to leave out, and comment lines.
fn exceptions(file: &Path, all: &[Case]) -> io::Result<Vec<(String, String)>> {
    let text = fs::read_to_string(file)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let wrong = |line: &str, what| io::Error::other(format!("{}: {what}: {line}", file.display()));
    lines
        .map(|line| {
            let (name, reason) = line.split_once(": ").ok_or_else(|| wrong(line, "expected `name: reason`"))?;
            if !all.iter().any(|case| case.name == name) {
                return Err(wrong(line, "unknown case (dapl-conformance list prints all)"));
            }
            Ok((name.to_owned(), reason.trim().to_owned()))
        })
        .collect()
}

fn check_names(all: &[Case]) -> io::Result<()> {
    let mut names: Vec<&str> = all.iter().map(|case| &*case.name).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(io::Error::other(format!("two cases are called {}", twice[0])));
    }
    match all.iter().find(|case| case.section.is_empty() || case.name.is_empty()) {
        Some(case) => Err(io::Error::other(format!("case {:?} lacks a name or a section", case.name))),
        None => Ok(()),
    }
}

fn print_outcome(options: &Options, outcome: &Outcome) {
    let (name, mode) = (&outcome.name, outcome.mode.word());
    match &outcome.ending {
        Ending::Failed(why) => println!("FAILED {name} ({mode}): {why}"),
        Ending::Unsupported(what) if options.complete => println!("FAILED {name} ({mode}): not supported: {what}"),
        Ending::Unsupported(what) if options.verbose => println!("not supported {name} ({mode}): {what}"),
        _ if options.verbose => println!("ok {name} ({mode}) {} ms", outcome.took.as_millis()),
        _ => {}
    }
}

fn print_summary(options: &Options, cases: usize, all: &[Outcome], took: Duration, is_whole: bool) -> io::Result<bool> {
    let count = |is: fn(&Ending) -> bool| all.iter().filter(|outcome| is(&outcome.ending)).count();
    let failed = count(|ending| matches!(ending, Ending::Failed(_)));
    let absent = count(|ending| matches!(ending, Ending::Unsupported(_)));
    let passed = all.len() - failed - absent;
    let mut seen: BTreeMap<Seen, Vec<&str>> = BTreeMap::new();
    for outcome in all {
        for what in &outcome.seen {
            let names = seen.entry(*what).or_default();
            if !names.contains(&outcome.name.as_str()) {
                names.push(&outcome.name);
            }
        }
    }
    let path = report::write(&options.report, &options.provider, &seen, is_whole)?;
    let unobserved = if is_whole { expected::unobserved(&seen) } else { Vec::new() };
    let of_2_0 = if is_whole && options.is_2_0() { expected::unobserved_of_2_0(&seen) } else { Vec::new() };
    for item in unobserved.iter().chain(&of_2_0) {
        println!("NOT OBSERVED {item}");
    }
    if options.is_2_0() {
        println!("{}: {}", options.provider, expected::slots_in_words(&seen));
    }
    println!(
        "{}: {cases} cases, {} runs: {passed} passed, {failed} failed, {absent} not supported, {} items not \
         observed; {:.1} s; {}",
        options.provider,
        all.len(),
        unobserved.len() + of_2_0.len(),
        took.as_secs_f64(),
        path.display()
    );
    let is_seen = (unobserved.is_empty() || options.open) && (of_2_0.is_empty() || !options.complete);
    Ok(failed == 0 && is_seen && (absent == 0 || !options.complete))
}

/// Temporary directory of this run of the suite, in /dev/shm if that exists; removed when dropped.
struct RunDirectory(PathBuf);

impl RunDirectory {
    fn new() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let path = base.join(format!("dapl-conformance-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(RunDirectory(path))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run_one(options: &Options, place: &RunDirectory, index: usize, case: &Case, mode: Mode) -> Outcome {
    let began = Instant::now();
    let roles: &[Role] = if mode == Mode::Two { &[Role::Client, Role::Server] } else { &[Role::Client] };
    let ending = match start(options, place, index, case, mode, roles) {
        Err(error) => Err(Ending::Failed(format!("cannot start its processes: {error}"))),
        Ok(processes) => Ok(processes),
    };
    let (ending, seen) = match ending {
        Err(ending) => (ending, Vec::new()),
        Ok(mut processes) => {
            let hang = watch(&mut processes, case.limit, options.time_factor);
            let ending = combine(&processes, hang);
            (ending, processes.iter().flat_map(|process| Record::read(&process.task.record).seen()).collect())
        }
    };
    for role in roles {
        let record = record_of(place, index, *role);
        for kind in ["flight", "steps", "ending", "output"] {
            let _ = fs::remove_file(record.with_extension(kind));
        }
    }
    Outcome { name: case.name.to_string(), mode, ending, seen, took: began.elapsed() }
}

fn record_of(place: &RunDirectory, index: usize, role: Role) -> PathBuf {
    place.0.join(format!("{index}-{}.flight", role.word()))
}

fn start(
    options: &Options,
    place: &RunDirectory,
    index: usize,
    case: &Case,
    mode: Mode,
    roles: &[Role],
) -> io::Result<Vec<Process>> {
    let (one, other) = UnixStream::pair()?;
    let mut processes = Vec::new();
    for (role, channel) in roles.iter().zip([one, other]) {
        let task = Task {
            case: case.name.to_string(),
            area: case.area,
            mode,
            role: *role,
            provider: options.provider.clone(),
            libdat: options.libdat.clone(),
            first_qual: first_qual(index),
            time_factor: options.time_factor,
            record: record_of(place, index, *role),
        };
        let output = File::create(task.record.with_extension("output"))?;
        let mut command = Command::new(std::env::current_exe()?);
        // Cases connect thousands of times to a qualifier without a listener. By default the verbs provider retries
        // such a connect for 50 ms before it rejects the connect.
        command.env("DAPL_LISTENER_WAIT_MS", "0");
        command.args(task.to_words()).stdin(Stdio::from(OwnedFd::from(channel)));
        command.stdout(output.try_clone()?).stderr(output).process_group(0);
        match command.spawn() {
            Ok(child) => processes.push(Process { child, task, status: None }),
            Err(error) => {
                end(&mut processes);
                return Err(error);
            }
        }
    }
    Ok(processes)
}

/// First connection qualifier of a case. Small, because some transports have 16-bit ports. It also depends on the
/// process, so that concurrent runs rarely collide.
fn first_qual(index: usize) -> u64 {
    2048 + (u64::from(std::process::id()) % 61 + index as u64) * 32 % 60_000
}
