//! Runs the conformance suite over the pairs of provider and libdat that `conformance` leaves out: sm through
//! `libdat2.so.2` and usnic through `libdat.so.1`. The object layer and the providers are the same in all pairs, so
//! `cargo xtask test` runs this program only with `--rest` or `--all`.
#![forbid(unsafe_code)]

#[path = "conformance/runs.rs"]
mod runs;

use dapl_test::run::{SM0, USNIC0};

use runs::{check_cases, check_cases_of_2_0};

#[test]
fn all_cases_pass_over_usnic() {
    check_cases("usnic0", USNIC0, &[]);
}

#[test]
fn all_cases_of_2_0_pass_over_sm() {
    check_cases_of_2_0("sm0", SM0, &[]);
}
