//! The suite `net`: the usnic provider between two network namespaces, over an impaired link. One line per check, as
//! cargo's suites print.
//!
//! Each check has its own link (`wire`), which it impairs by `rule`s; `setting` is the environment. The checks are
//! `flows` (transfers that must succeed), `settings` (transfers with settings other than the defaults, and connects
//! without the peer's key), `ends` (failures that must be detected) and `trust` (which process receives a request).
//! Speed is checked only by comparison: a usnic flow that competes with kernel TCP must get about the share of a second
//! TCP flow. Time limits end hangs.
//!
//! Prints "skipped" on a machine without such links; `--required` makes that a failure.
#![forbid(unsafe_code)]

mod ends;
mod flows;
mod rule;
mod setting;
mod settings;
mod trust;
pub(crate) mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use self::rule::Rule;
use self::setting::Setting;
use self::wire::Wire;
use crate::Result;
use crate::report::Report;

type Run = dyn Fn(&Setting, &Wire) -> Result;

/// A check: its name and its function.
struct Check {
    name: String,
    run: Box<Run>,
}

impl Check {
    fn new(name: impl Into<String>, run: impl Fn(&Setting, &Wire) -> Result + 'static) -> Self {
        Check { name: name.into(), run: Box::new(run) }
    }
}

/// Runs all checks, or those whose names contain one of the filters.
pub(crate) fn run(is_required: bool, words: &[String]) -> Result {
    match wire::prepare() {
        Ok(()) => {}
        Err(reason) if is_required => return Err(format!("the suite net cannot run here: {reason}")),
        Err(reason) => {
            println!("\nskipped: {reason}\nskipped: NOTHING of the suite net was tested\n");
            return Ok(());
        }
    }
    let setting = Setting::build()?;
    let mut report = Report::new("net", words.to_vec());
    let checks = [flows::checks(), settings::checks(), ends::checks(), trust::checks()];
    for check in checks.into_iter().flatten() {
        let name = format!("net::{}", check.name);
        if report.wants(&name) {
            report.line(&name, attempt(&check, &setting));
        }
    }
    report.end()
}

/// Runs a check on a new wire. A helper's panic, whose text is a program's output, becomes the reason of the failure.
fn attempt(check: &Check, setting: &Setting) -> Result {
    let wire = Wire::lay()?;
    catch_unwind(AssertUnwindSafe(|| (check.run)(setting, &wire))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        Err(text.or_else(|| payload.downcast_ref().map(|text: &&str| (*text).to_owned())).unwrap_or_default())
    })
}
