//! The command line of `datinfo`: errors and exit status, the help and the manual page, and a closed standard output.

use std::process::{Output, Stdio};

use dapl_test::run::check_closed_output;

use super::*;

#[test]
fn datinfo_errors_exit_with_status_2() {
    let case = Case::new("datinfo-errors", "");
    assert_eq!(datinfo(&case, "--colour").status.code(), Some(2));
    let finished = datinfo(&case, "--libdat /nonexistent/libdat.so.1");
    assert_eq!(finished.status.code(), Some(2));
    finished.expect_failure("/nonexistent/libdat.so.1: cannot open shared object file");
    // libm is not a libdat.
    let other = datinfo(&case, "--libdat libm.so.6");
    assert_eq!(other.status.code(), Some(2));
    other.expect_failure("undefined symbol: dat_registry_list_providers");
}

#[test]
fn json_errors_contain_no_errno_numbers() {
    let case = Case::new("datinfo-json-errors", "");
    for words in [
        "--libdat /nonexistent/libdat.so.1",
        "check /nonexistent/dat.conf",
        "--colour",
        "--timeout 0",
        "--api 7",
        "add x",
        "explain",
        "doctor --serve",
        "top --interval 0",
    ] {
        let finished = datinfo(&case, &format!("--json {words}"));
        assert_eq!(finished.status.code(), Some(2), "{finished:#?}");
        let error = json(&finished)["error"].as_str().unwrap_or_default().to_owned();
        assert!(!error.contains('\n') && !error.starts_with("error: "), "{finished:#?}");
        assert!(!error.is_empty() && !error.contains("os error") && finished.stderr.is_empty(), "{finished:#?}");
    }
    let missing = datinfo(&case, "check /nonexistent/dat.conf");
    assert_eq!(missing.stderr, "datinfo: /nonexistent/dat.conf: No such file or directory\n");
}

#[test]
fn every_option_and_command_of_datinfo_is_on_its_manual_page() {
    let page = std::fs::read_to_string(dapl_test::stage::workspace().join("docs/man/datinfo.1.md")).unwrap();
    let case = Case::new("datinfo-help", "");
    let mut count = 0;
    let commands = ["", "doctor", "check", "top", "add", "remove", "set-default", "explain"];
    for words in commands.map(|command| format!("{command} --help")) {
        let help = datinfo(&case, &words).stdout;
        // Each option and each command begins a line of the help.
        let terms = help.lines().filter_map(|line| line.trim_start().split([' ', ',']).next());
        let terms = help
            .split_whitespace()
            .filter(|word| word.starts_with("--"))
            .chain(terms.filter(|word| word.starts_with('-')));
        let commands = ["check", "discover", "doctor", "top", "list", "add", "remove", "set-default", "explain"]
            .into_iter()
            .filter(|command| help.contains(command));
        for term in terms.chain(commands) {
            let term = term.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let is_there = ["`", " ", "|"].iter().any(|end| page.contains(&format!("`{term}{end}")));
            assert!(is_there || term == "--", "{words}: {term}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn help_lines_of_datinfo_have_at_most_80_columns() {
    let case = Case::new("datinfo-help-width", "");
    for command in ["", "list", "add", "remove", "set-default", "check", "discover", "explain", "doctor", "top"] {
        for option in ["-h", "--help"] {
            let help = datinfo(&case, &format!("{command} {option}")).stdout;
            let longest = help.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
            assert!(help.contains("Usage: datinfo"), "{command} {option} prints a help text, not {help}");
            assert!(longest.chars().count() <= 80, "{command} {option} has a line of over 80 columns: {longest}");
        }
    }
}

#[test]
fn datinfo_exits_quietly_if_stdout_is_closed() {
    let mut command = command(&six("fifth"), "-e");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert!(status.code() == Some(0) && stderr.is_empty(), "{status}: {}", String::from_utf8_lossy(&stderr));
}

#[test]
fn datinfo_commands_print_no_error_if_stdout_has_no_reader() {
    let case = six("partly-read");
    for words in ["", "list", "--env", "--json", "doctor", "explain", "--help"] {
        check_closed_output(command(&case, words));
    }
}
