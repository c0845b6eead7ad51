//! Valid command lines and the commands that they give, and invalid command lines with their error messages.

use super::*;

fn plan(line: &str) -> Result<(Common, Command), clap::Error> {
    parse(["dapltest"].into_iter().chain(line.split_whitespace()).map(OsString::from).collect())
}

fn refused(line: &str) -> String {
    plan(line).unwrap_err().to_string()
}

#[test]
fn empty_command_line_starts_a_server_with_defaults() {
    let (common, plan) = plan("").unwrap();
    assert!(matches!(plan, Command::Serve));
    assert_eq!((common.device.as_str(), common.port, common.qos), ("sm0", 45_278, DAT_QOS_BEST_EFFORT));
}

#[test]
fn command_lines_of_the_manual_are_accepted() {
    let (common, _) = plan("-T S -d -D OpenIB-cma -n 53000").unwrap();
    assert_eq!((common.device.as_str(), common.port, common.debug), ("OpenIB-cma", 53_000, 1));
    let line = "-T T -V -d -t 2 -w 4 -i 55555 -s linux3 -D OpenIB-cma client RW 4096 1 server RW 2048 4 \
                client SR 1024 4 server SR 4096 2 client SR 1024 3 -f server SR 2048 1 -f";
    let (_, Command::Transaction { host, test }) = plan(line).unwrap() else { panic!("a transaction") };
    assert_eq!((host.as_str(), test.threads, test.endpoints, test.iterations), ("linux3", 2, 4, 55_555));
    assert!(test.validates && !test.polls && test.operations.len() == 6 && test.operations[4].is_deferred);
    let [test] = &transfers("-T P -d -s host1-ib0 -D OpenIB-cma -i 100 RW 4096 2")[..] else { panic!("one size") };
    assert_eq!((test.extent, test.operation.segments, test.polls), (Extent::Operations(100), 2, false));
    assert!(test.warm_up == 0 && test.pipeline == 0 && !test.is_bidirectional);
    assert!(matches!(plan("-T Q -s host1-ib0 -D OpenIB-cma").unwrap().1, Command::Quit { .. }));
    let (_, Command::Limits { width, maximum, limits }) = plan("-T L -D OpenIB-cma -d -w 16 -m 1000").unwrap() else {
        panic!("limits")
    };
    assert_eq!((width, maximum, limits.len()), (16, Some(1000), Limit::ALL.len()));
}

fn transfers(line: &str) -> Vec<Performance> {
    match plan(line).unwrap().1 {
        Command::Performance { test: performance::Measurements::Transfers(tests), .. } => tests,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sizes_option_gives_one_performance_test_per_size() {
    let tests = transfers("-T P -s host --sizes 1..1M --duration 10s --warm-up 100 --bidirectional -m p RW");
    assert_eq!((tests.len(), tests[20].operation.size), (21, 1 << 20));
    let all_agree = tests.iter().all(|test| {
        let extent = test.extent == Extent::Time(Duration::from_secs(10));
        extent && test.warm_up == 100 && test.is_bidirectional && test.polls && test.operation.segments == 1
    });
    assert!(all_agree, "{tests:?}");
}

#[test]
fn connect_is_an_operation_of_the_performance_test() {
    let (_, Command::Performance { test: performance::Measurements::Connects(test), .. }) =
        plan("-T P -s host -i 7 --warm-up 3 connect").unwrap()
    else {
        panic!("connects")
    };
    assert_eq!((test.extent, test.warm_up, test.polls), (Extent::Operations(7), 3, false));
}

#[test]
fn dapltest_class_names_map_to_the_qos_values() {
    for (word, qos) in [("HT", 1), ("LL", 2), ("EC", 4), ("PM", 8), ("be", 0)] {
        assert_eq!(plan(&format!("-T S -R {word}")).unwrap().0.qos, qos);
    }
    assert!(refused("-T S -R XX").contains("XX"));
}

#[test]
fn invalid_options_are_refused_with_the_reason() {
    for (line, reason) in [
        ("-T X", "X"),
        ("-T T client SR server SR", "-s SERVER is needed"),
        ("-T S -s host", "-s cannot be used with this test"),
        ("-T S client", "an operand cannot be used with this test"),
        ("-T Q -s host -i 4", "-i cannot be used with this test"),
        ("-T L -V", "-V cannot be used with this test"),
        ("-T T -s host", "1 to 128 operations"),
        ("-T T -s host client SR", "at least one SR"),
        ("-T T -s host -t 0 client SR server SR", "threads"),
        ("-T T -s host -w 100000 client SR server SR", "endpoints"),
        ("-T T -s host -i 0 client SR server SR", "iterations"),
        ("-T T -s host -P -Q client SR server SR", "-P and -Q"),
        ("-T P -s host -m x RW", "b (wait) or p (poll)"),
        ("-T P -s host RW 4096 1 -i 4", "options must precede"),
        ("-T P -s host --sizes 0 SR", "is outside of 1 to"),
        ("-T P -s host --sizes 2G SR", "is outside of 1 to"),
        ("-T P -s host --sizes 1M..1 SR", "the range is reversed"),
        ("-T P -s host --sizes -8 SR", "\"-8\" is not a size"),
        ("-T P -s host --sizes 8 SR 4096", "--sizes 8 cannot be used with the size in \"SR 4096\""),
        ("-T P -s host --duration 0 SR", "a duration is 1ms to 24h"),
        ("-T P -s host --duration -1s SR", "a duration is 1ms to 24h"),
        ("-T P -s host --duration 1s -i 4 SR", "-i and --duration cannot be used together"),
        ("-T P -s host -i 0 SR", "-i 0: at least 1 iteration"),
        ("-T P -s host --warm-up -1 SR", "--warm-up"),
        ("-T P -s host --warm-up 4294967296 SR", "4294967296"),
        ("-T P -s host --sizes 8 connect", "--sizes cannot be used with connect"),
        ("-T P -s host --bidirectional connect", "--bidirectional cannot be used with connect"),
        ("-T P -s host -p 4 connect", "-p cannot be used with connect"),
        ("-T P -s host connect 8", "connect takes no parameters"),
        ("-T T -s host --sizes 8 client SR server SR", "--sizes cannot be used with this test"),
        ("-T S --duration 10s", "--duration cannot be used with this test"),
        ("-T L -m none", "number of objects must be"),
        ("-T L limit_none", "limit_none"),
        ("-T F nothing", "nothing"),
        ("--timeout 0", "0"),
        ("--unknown", "--unknown"),
    ] {
        let said = refused(line);
        assert!(said.contains(reason), "{line}: {said}");
    }
    assert_eq!(plan("-T X").unwrap_err().exit_code(), 2);
    assert_eq!(plan("-h").unwrap_err().exit_code(), 0);
}

#[test]
fn script_lines_are_appended_to_the_arguments() {
    let file = std::env::temp_dir().join(format!("dapltest-script-{}", std::process::id()));
    let line = format!("-d -f {} -n 7", file.display());
    std::fs::write(&file, "# all of it\n-T T -s host -n 8\nclient SR 10 1 -f\nserver SR 10 1 -f\n").unwrap();
    let (common, plan_of_script) = plan(&line).unwrap();
    assert!(matches!(plan_of_script, Command::Transaction { test, .. } if test.operations[1].is_deferred));
    assert_eq!((common.port, common.debug), (8, 1));
    std::fs::write(&file, "-T Q -s host -f another").unwrap();
    assert!(refused(&line).contains("a script cannot contain -f"));
    std::fs::write(&file, "-T \"").unwrap();
    assert!(refused(&line).contains("line 1: \" is not closed"));
    std::fs::remove_file(&file).unwrap();
    assert!(refused(&line).contains(&*file.to_string_lossy()));
}
