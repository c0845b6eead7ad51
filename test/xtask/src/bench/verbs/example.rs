//! Example results of the verbs bench, for tests that run without a guest.
#![forbid(unsafe_code)]

use super::contest::{Figures, Measured, OPERATIONS};
use super::curves::PLANS;
use super::report::{Facts, text};
use super::sides::Side;
use crate::bench::side::CommandLines;
use crate::guest::Clock;

/// Example results as JSON.
pub(in crate::bench) fn results() -> String {
    let ends = |side: Side| CommandLines {
        server: format!("{} -s", side.name()),
        client: format!("{} -h there", side.name()),
    };
    let place_of = |side| Side::ALL.iter().position(|one| *one == side).map_or(0.0, |n| (n + 1) as f64);
    let figures = |side: Side, n: usize| {
        let usec = 16.0 + n as f64;
        Figures { samples: vec![usec, usec + 0.5, usec - 0.5], ends: ends(side), processor: Some((usec, usec)) }
    };
    let measured: Vec<Measured> = OPERATIONS
        .iter()
        .map(|operation| {
            let able = Side::ALL.into_iter().enumerate().filter(|(_, side)| side.can(operation));
            Measured { operation, figures: able.map(|(n, side)| (side, figures(side, n))).collect() }
        })
        .collect();
    let curves: Vec<_> = PLANS
        .iter()
        .map(|plan| {
            plan.family(|side, place| Ok((place_of(side) * f64::from(place).sqrt(), ends(side))))
                .expect("the example report can be made without a measurement")
        })
        .collect();
    let (kernel, reference) = ("6.1.0-test".to_owned(), "2.1.10".to_owned());
    text(&measured, &curves, &[], &Facts { kernel, reference, clock: Clock::Instructions, is_quick: false, load: 7.5 })
}
