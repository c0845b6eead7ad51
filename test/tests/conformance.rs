//! Runs the conformance suite over each provider that needs no device, in one process and in two: sm through
//! `libdat.so.1`, and usnic through `libdat2.so.2`. The cases of calls that DAT 2.0 adds also run over sm.
//! `conformance_crossed` has the other two pairs of provider and libdat.
//!
//! `cargo xtask test conformance` runs both test programs; with arguments it runs the driver once. The cases are in
//! `test/conformance`.
#![forbid(unsafe_code)]

#[path = "conformance/runs.rs"]
mod runs;

use std::process::Command;

use dapl_test::run::{SM0, USNIC0, check_closed_output};
use dapl_test::stage::{Profile, built};

use runs::{check_cases, check_cases_of_2_0};

#[test]
fn all_cases_pass_over_sm() {
    check_cases("sm0", SM0, &[]);
}

#[test]
fn all_cases_of_2_0_pass_over_usnic() {
    check_cases_of_2_0("usnic0", USNIC0, &[]);
}

#[test]
fn cases_that_only_2_0_has_pass_over_sm() {
    check_cases_of_2_0("sm0", SM0, &["v2_"]);
}

#[test]
fn list_of_cases_prints_no_error_if_stdout_has_no_reader() {
    let mut list = Command::new(built("dapl-conformance", Profile::Dev));
    list.arg("list");
    check_closed_output(list);
}
