//! The conformance suite in a guest over the verbs provider: every case that `rxe.except` does not list, in one process
//! and in two. Over `libdat2.so.2` only the cases of calls that DAT 2.0 adds.
//!
//! A failed case is a failure of the suite `rxe`. The report of the conformance suite is kept in the target directory.
#![forbid(unsafe_code)]

use std::fs;
use std::time::Duration;

use dapl_test::stage::{target_directory, workspace};

use super::keeper::Keeper;
use super::setting::Setting;
use crate::report::Report;

const NAME: &str = "conformance";
/// Name of the run with only the DAT 2.0 cases.
const NAME_2_0: &str = "conformance2";
/// Name prefix of the cases for calls that only DAT 2.0 has.
const V2_PREFIX: &str = "v2_";
/// Time limit; the suite takes ten minutes on an idle machine.
const LIMIT: Duration = Duration::from_secs(2700);
/// Factor for time limits, because the processor is emulated.
const TIMEOUT_FACTOR: &str = "5";
/// Number of cases run in parallel, since some mostly wait.
const JOBS: &str = "4";

/// A progress line is printed after this many runs.
const STEP: u32 = 500;

/// Runs the suite through each selected library: all cases through `libdat.so.1`, those of `V2_PREFIX` through
/// `libdat2.so.2`, or the cases whose names contain the text after `conformance::` or `conformance2::`.
pub(super) fn run(setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    for name in [NAME, NAME_2_0] {
        if report.wants(name) {
            run_cases(name, setting, report, keeper);
        }
    }
}

fn run_cases(name: &str, setting: &Setting, report: &mut Report, keeper: &mut Keeper) {
    let share = match keeper.share() {
        Ok(share) => share,
        Err(reason) => return report.line(name, Err(reason)),
    };
    let place = share.join(name);
    let place = place.to_string_lossy();
    let mut words = vec!["run", "--provider", "rxe0", "--jobs", JOBS, "--time-factor", TIMEOUT_FACTOR];
    let filters = report.inside(name);
    if name == NAME {
        words.push("--complete");
    } else {
        // Without `--complete`, because the device lacks features of DAT 2.0. Other cases check that the calls for
        // these features are refused.
        words.extend(["--api", "2.0"]);
        if filters.is_empty() {
            words.push(V2_PREFIX);
        }
    }
    let except = workspace().join("test/conformance/rxe.except").to_string_lossy().into_owned();
    words.extend(["--verbose", "--open", "--except", &except, "--report", &place]);
    words.extend(filters);
    let mut job = setting.exec(&setting.driver, &words);
    if name == NAME_2_0 {
        job = job.with("DAT_OVERRIDE", &setting.conf_2_0);
    }
    let mut runs = 0;
    let mut answer = keeper.run_seen(&job, LIMIT, |line| {
        runs += u32::from(line.starts_with("ok "));
        match line.starts_with("FAILED ") {
            true => eprintln!("xtask: {line}"),
            false if runs % STEP == 0 && line.starts_with("ok ") => {
                eprintln!("xtask: {name}: {runs} runs passed")
            }
            false => {}
        }
    });
    let mut failures: Vec<(String, String)> = Vec::new();
    let mut rest = Vec::new();
    for line in answer.lines.drain(..) {
        if let Some((name, why)) = failure(&line) {
            failures.push((name, why));
        } else if let (true, Some((_, why))) = (line.starts_with("    "), failures.last_mut()) {
            *why += &format!("\n{line}");
        } else if !line.starts_with("ok ") {
            rest.push(line);
        }
    }
    for (case, why) in &failures {
        report.line(&format!("{name}::{case}"), Err(why.clone()));
    }
    let count = rest.iter().find(|line| line.starts_with("rxe0: ")).cloned().unwrap_or_default();
    answer.lines = rest;
    println!("{count}");
    report.answer(name, answer);
    keep(name, &place);
}

/// Parses `FAILED name (mode): why`.
fn failure(line: &str) -> Option<(String, String)> {
    let (name, why) = line.strip_prefix("FAILED ")?.split_once("): ")?;
    let (name, mode) = name.split_once(" (")?;
    Some((format!("{name}::{mode}"), why.to_owned()))
}

/// Copies the report, because the guest's folder is removed with the guest.
fn keep(name: &str, place: &str) {
    let to = target_directory().join(format!("{name}-rxe"));
    let files = fs::read_dir(place).into_iter().flatten().flatten();
    for file in files {
        let copied = fs::create_dir_all(&to).and_then(|()| fs::copy(file.path(), to.join(file.file_name())));
        match copied {
            Ok(_) => println!("{}", to.join(file.file_name()).display()),
            Err(error) => eprintln!("{}: {error}", to.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_cases_are_found_in_the_guest_output() {
        let line = "FAILED ep_create_says_why (two): test/x.rs:3: (a): b";
        assert_eq!(failure(line), Some(("ep_create_says_why::two".to_owned(), "test/x.rs:3: (a): b".to_owned())));
        assert_eq!(failure("ok ep_create (one) 3 ms"), None);
    }
}
