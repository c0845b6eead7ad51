//! `datinfo add`, `remove` and `set-default`: how they change dat.conf, and which files and names they refuse.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use case::Case;
use dapl_test::run::{Finished, Run};
use dapl_test::stage::{Profile, built, lock_file};
use serde_json::Value;

#[path = "registry/case.rs"]
#[allow(dead_code, reason = "the registry's suite uses the rest")]
mod case;

const TIMEOUT: Duration = Duration::from_secs(300);

const CONF_FILE: &str = "# adapters of this host\n\
                    sm0 u1.2 nonthreadsafe default libdaplsm.so.1 dapl.1.2 \"\" \"\"  # shared memory\n\
                    \n  a line that is no entry\n\
                    ib0 u1.2 nonthreadsafe default libdaplcma.so.1 dapl.1.2 \"ib0 0\" \"\"\n\
                    ib0 u1.2 nonthreadsafe nondefault libdaplverbs.so.1 dapl.1.2 \"mlx5_0 1\" \"\"\n\
                    ofa-v2-ib0 u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"ib0 0\" \"\"\n";

fn run(case: &Case, words: &[&str]) -> Finished {
    let mut command = Command::new(built("datinfo", Profile::Dev));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DAT_") || name.to_string_lossy().starts_with("DAPL_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", &case::stage().lib).envs(case.environment.iter().cloned()).args(words);
    Run::start(command).finish(TIMEOUT)
}

fn conf(case: &Case) -> std::path::PathBuf {
    case.directory.join("dat.conf")
}

#[track_caller]
fn expect(case: &Case, words: &[&str], text: &str) -> Finished {
    let finished = run(case, words);
    assert_eq!(finished.status.code(), Some(0), "{finished:#?}");
    assert_eq!(fs::read_to_string(conf(case)).unwrap(), text, "{finished:#?}");
    finished
}

#[track_caller]
fn refused(case: &Case, words: &[&str], error: &str) {
    let before = fs::read(conf(case)).ok();
    let finished = run(case, words);
    assert_eq!(finished.status.code(), Some(2), "{finished:#?}");
    finished.expect_failure(error);
    assert_eq!(fs::read(conf(case)).ok(), before, "dat.conf was changed");
}

#[test]
fn edit_changes_the_active_dat_conf_and_keeps_other_lines() {
    let case = Case::new("edit-default", CONF_FILE);
    fs::set_permissions(conf(&case), PermissionsExt::from_mode(0o640)).unwrap();
    let line = "eth u1.2 threadsafe default libdaplusnic.so.1 dapl.1.2 \"eth0 mtu=1400\" \"\"\n";
    let add = ["add", "--thread-safe", "eth", "libdaplusnic.so.1", "eth0 mtu=1400"];
    let dry = expect(&case, &[&add[..], &["--dry-run"]].concat(), CONF_FILE);
    assert!(dry.stdout.contains(&format!("dat.conf:8: added: {line}")), "{dry:#?}");
    assert!(dry.stdout.ends_with("dry run, not written\n"), "{dry:#?}");
    expect(&case, &add, &format!("{CONF_FILE}{line}"));
    assert_eq!(run(&case, &["list"]).stdout, "sm0\nib0\neth\n");
    refused(&case, &add, "\"eth\" exists already: line 8 (libdaplusnic.so.1, default); give --replace");
    expect(&case, &[&add[..], &["--replace"]].concat(), &format!("{CONF_FILE}{line}"));
    expect(&case, &["remove", "eth"], CONF_FILE);
    assert_eq!(fs::metadata(conf(&case)).unwrap().permissions().mode() & 0o7777, 0o640);
    refused(&case, &["remove", "sm1"], "has no entry \"sm1\"; similar: sm0");
    refused(&case, &["remove", "ofa-v2-ib0"], "exists only for DAT 2.0; give --api 2.0");
    let lines: Vec<&str> = CONF_FILE.lines().collect();
    expect(&case, &["remove", "--api", "2.0", "ofa-v2-ib0"], &(lines[..6].join("\n") + "\n"));
}

#[test]
fn set_default_selects_one_of_several_entries() {
    let case = Case::new("edit-set-default", CONF_FILE);
    refused(
        &case,
        &["set-default", "ib0"],
        "\"ib0\" has several entries: line 5 (libdaplcma.so.1, default), line 6 (libdaplverbs.so.1, nondefault); choose one",
    );
    refused(&case, &["set-default", "ib0", "--line", "2"], "line 2 is not an entry of \"ib0\"");
    let swapped = CONF_FILE.replace("default libdaplcma", "nondefault libdaplcma");
    let swapped = swapped.replace("nondefault libdaplverbs", "default libdaplverbs");
    let finished = expect(&case, &["set-default", "ib0", "--line", "6", "--json"], &swapped);
    let document: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((document["changes"].as_array().unwrap().len(), &document["written"]), (2, &Value::Bool(true)));
    let again = expect(&case, &["set-default", "ib0", "--line", "6"], &swapped);
    assert!(again.stdout.ends_with("nothing to change\n"), "{again:#?}");
    expect(&case, &["set-default", "sm0", "--off"], &swapped.replace("default libdaplsm", "nondefault libdaplsm"));
    assert_eq!(run(&case, &["list"]).stdout, "ib0\n");
}

#[test]
fn files_of_entries_are_added_and_removed_as_datadm_does() {
    let case = Case::new("edit-datadm", CONF_FILE);
    let others = case.directory.join("service_provider.conf");
    let line = "ibd0 u1.2 nonthreadsafe default udapl_tavor.so.1 SUNW.1.0 \" \" \"\"";
    fs::write(&others, format!("# of a package\n{line}\n")).unwrap();
    let others = others.to_str().unwrap();
    expect(&case, &["-a", others], &format!("{CONF_FILE}{line}\n"));
    refused(&case, &["add", "--from", others], "\"ibd0\" exists already");
    expect(&case, &["-r", others], CONF_FILE);
    refused(&case, &["remove", "--from", others], "has no entry of the file named by --from");
    fs::write(others, "ibd0 u1.2 nonthreadsafe\n").unwrap();
    refused(&case, &["-a", others], "cannot add \"ibd0 u1.2 nonthreadsafe\": it has 3 fields");
    expect(
        &case,
        &["remove", "sm0", "ib0"],
        "# adapters of this host\n\n  a line that is no entry\n\
        ofa-v2-ib0 u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"ib0 0\" \"\"\n",
    );
    let found = run(&case, &["add", "--discovered"]);
    assert!(found.stdout.contains(": added: sm0 u1.2 nonthreadsafe default libdaplsm.so.1"), "{found:#?}");
}

#[test]
fn edit_refuses_links_missing_files_and_incomplete_entries() {
    let case = Case::new("edit-refused", CONF_FILE);
    let (link, new) = (case.directory.join("link.conf"), case.directory.join("new.conf"));
    symlink(conf(&case), &link).unwrap();
    let link = link.to_str().unwrap();
    refused(&case, &["remove", "sm0", "--file", link], "is a symbolic link to ");
    refused(&case, &["remove", "sm0", "--file", new.to_str().unwrap()], "new.conf: No such file or directory\n");
    refused(&case, &["add", "sm0"], "<LIBRARY>");
    refused(&case, &["add"], "nothing to add");
    refused(&case, &["add", "a\nb", "l"], "cannot have");
    let created = run(&case, &["add", "sm0", "libdaplsm.so.1", "--file", new.to_str().unwrap()]);
    assert!(
        created.stdout.contains("is new; programs that read this file do not have the built-in names"),
        "{created:#?}"
    );
    let text = fs::read_to_string(&new).unwrap();
    assert_eq!(text, "sm0 u1.2 nonthreadsafe default libdaplsm.so.1 dapl.1.2 \"\" \"\"\n");
}

#[test]
fn concurrent_edits_of_dat_conf_lose_no_entry() {
    const EDITORS: usize = 12;
    let case = Case::new("edit-race", CONF_FILE);
    for (file, begin) in [(conf(&case), CONF_FILE), (case.directory.join("created.conf"), "")] {
        let start = |number: usize| {
            let mut command = Command::new(built("datinfo", Profile::Dev));
            command.args(["add", "--timeout", "300", &format!("x{number}"), "lib.so", "--file"]).arg(&file);
            Run::start(command)
        };
        let running: Vec<Run> = (0..EDITORS).map(start).collect();
        for run in running {
            let finished = run.finish(TIMEOUT);
            assert_eq!(finished.status.code(), Some(0), "{finished:#?}");
        }
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with(begin), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with('x')).count(), EDITORS, "{text}");
    }
    assert_eq!(temporary_files(&case.directory), 0);
}

#[test]
fn unaccepted_parameters_are_added_with_a_warning() {
    let case = Case::new("edit-warning", CONF_FILE);
    let added = run(&case, &["add", "sm7", "libdaplsm.so.1", "spin_us=none foo=1"]);
    let warnings = [
        ": ia_params: \"foo=1\" is not understood; datinfo -c shows",
        ": ia_params: spin_us: \"none\" is not a number",
    ];
    assert!(warnings.iter().all(|warning| added.stdout.contains(warning)), "{added:#?}");
    let fine = run(&case, &["add", "sm8", "libdaplsm.so.1", "spin_us=7"]);
    assert!(!fine.stdout.contains("ia_params"), "{fine:#?}");
}

#[test]
fn edit_of_a_locked_dat_conf_is_reported_and_changes_nothing() {
    let case = Case::new("edit-locked", CONF_FILE);
    let file = fs::File::open(conf(&case)).unwrap();
    lock_file(&file).unwrap();
    refused(&case, &["remove", "sm0", "--timeout", "1"], "another program has locked it for 1 s; try again");
}

fn temporary_files(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".new")).count()
}
