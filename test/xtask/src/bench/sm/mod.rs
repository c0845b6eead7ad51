//! The sm provider beside its peers: the promises S1 to S9, what is asked of many, and figures over sizes.
//!
//! `side` says who is measured and how; `contests`, `scale` and `curves` say what, and measure it; `report` shows it. Nothing
//! here judges: a mark in the table says which promises are met, the status only whether everything could be measured.
#![forbid(unsafe_code)]

mod contests;
mod curves;
mod report;
mod scale;
mod side;

use dapl_test::stage::Profile;

use self::report::Found;
use self::side::Effort;
use super::ROUNDS;
use super::ours::Perf;
use super::report::load;
use crate::{Result, setup, tree};

/// What was asked for.
#[derive(Debug, Eq, PartialEq)]
struct Wanted<'a> {
    is_quick: bool,
    /// Empty: everything.
    names: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    fn parse(arguments: &[&'a str]) -> Result<Self> {
        let contests = contests::contests(Effort::FULL);
        let is_known = |name: &str| {
            contests.iter().any(|contest| contest.id == name)
                || scale::SECTIONS.contains(&name)
                || curves::SECTIONS.contains(&name)
        };
        let (mut is_quick, mut names) = (false, Vec::new());
        for argument in arguments {
            match *argument {
                "--quick" => is_quick = true,
                name if is_known(name) => names.push(name),
                other => return Err(format!("bench sm: {other} is not understood; see cargo xtask --help")),
            }
        }
        Ok(Wanted { is_quick, names })
    }

    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.contains(&name)
    }
}

/// Runs it: everything, or what is named; `--quick`: a little of it.
pub(crate) fn sm(arguments: &[&str]) -> Result {
    let wanted = Wanted::parse(arguments)?;
    setup::require(&[setup::TASKSET, setup::UCX, setup::FABRIC])?;
    let tree = tree::build(Profile::Release)?;
    let perf = &Perf::new(&tree.stage, "sm0");
    let effort = if wanted.is_quick { Effort::QUICK } else { Effort::FULL };
    let mut found = Found { load: load(), is_quick: wanted.is_quick, ..Found::default() };
    let (contests, plans, families) = (contests::contests(effort), scale::plans(effort), curves::plans(effort));
    let contests = contests.into_iter().filter(|contest| wanted.has(contest.id));
    found.contests = contests.filter_map(|contest| found.failures.keep(contest.measure(perf, effort))).collect();
    found.contests.sort_by_key(|measured| measured.contest.id);
    let plans = plans.into_iter().filter(|plan| wanted.has(plan.section));
    found.rows = plans.filter_map(|plan| found.failures.keep(plan.measure(perf, effort))).collect();
    let families = families.into_iter().filter(|plan| wanted.has(plan.section));
    found.families = families.filter_map(|plan| found.failures.keep(plan.measure(perf, effort))).collect();
    found.print();
    found.write(&tree.stage)?;
    found.failures.into_result()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose() {
        let wanted = Wanted::parse(&["S5", "--quick", "latency"]).unwrap();
        assert_eq!(wanted, Wanted { is_quick: true, names: vec!["S5", "latency"] });
        assert!(wanted.has("S5") && !wanted.has("S6") && !wanted.has("memory"));
        assert!(Wanted::parse(&[]).unwrap().has("S9"));
        assert!(Wanted::parse(&["S0"]).is_err() && Wanted::parse(&["--fast"]).is_err());
    }
}
