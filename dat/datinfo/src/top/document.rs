//! The same as JSON: all that was told, with rates where there was a look before.
#![forbid(unsafe_code)]

use std::time::SystemTime;

use dat_counters::text::{Adapter, Count};
use serde_json::{Value, json};

use super::Look;
use super::rates::{Place, Rates};

pub(super) fn document(look: &Look, rates: &Rates) -> Value {
    let processes: Vec<Value> = look
        .found
        .iter()
        .map(|found| match &found.told {
            Ok(process) => {
                let of = |it: &Adapter| adapter(Place::of_adapter(found, it), it, rates);
                let adapters: Vec<Value> = process.adapters.iter().map(of).collect();
                json!({"pid": found.pid, "library": found.number, "program": process.program, "adapters": adapters})
            }
            Err(trouble) => json!({
                "pid": found.pid, "library": found.number,
                "trouble": {"kind": trouble.word(), "cause": trouble.to_string()},
            }),
        })
        .collect();
    let at = look.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({"at": at.as_secs_f64(), "processes": processes})
}

fn adapter(place: Place<'_>, of: &Adapter, rates: &Rates) -> Value {
    let endpoint = |ep| counters(place.of_ep(ep), &ep.counts, rates);
    let endpoints: Vec<Value> =
        of.eps.iter().map(|ep| json!({"handle": ep.handle, "state": ep.state, "counters": endpoint(ep)})).collect();
    json!({
        "name": of.name, "provider": of.provider, "handle": of.handle, "counters": counters(place, &of.counts, rates),
        "endpoints": endpoints, "left_out": of.left_out,
    })
}

fn counters(place: Place<'_>, counts: &[Count], rates: &Rates) -> Vec<Value> {
    let counter = |count: &Count| {
        let kind = if count.is_level { "level" } else { "sum" };
        let mut value = json!({"name": count.name, "unit": count.unit, "kind": kind, "value": count.value});
        if let Some(rate) = rates.of(place, count) {
            value["per_second"] = rate.into();
        }
        value
    };
    counts.iter().map(counter).collect()
}

#[cfg(test)]
mod tests {
    use dat_counters::reader::Trouble;

    use super::super::table::tests::{count, look};
    use super::*;

    #[test]
    fn all_that_was_told_is_there_and_rates_of_the_second_look() {
        let first = look(0, 7, &[count("sent", u64::MAX - 10)]);
        let mut rates = Rates::default();
        rates.next(&first);
        let told = document(&first, &rates);
        let process = &told["processes"][0];
        assert_eq!((process["pid"].as_u64(), process["library"].as_u64()), (Some(7), Some(0)));
        let adapter = &process["adapters"][0];
        assert_eq!(adapter["counters"][0], json!({"name": "sent", "unit": "", "kind": "sum", "value": u64::MAX - 10}));
        assert_eq!(
            (adapter["endpoints"][0]["state"].as_str(), adapter["left_out"].as_u64()),
            (Some("Connected"), Some(2))
        );
        let second = look(5, 7, &[count("sent", u64::MAX)]);
        rates.next(&second);
        let told = document(&second, &rates);
        assert_eq!(told["processes"][0]["adapters"][0]["counters"][0]["per_second"], 2.0);
    }

    #[test]
    fn trouble_is_told_by_kind_and_in_words() {
        let mut look = look(0, 7, &[]);
        look.found[0].told = Err(Trouble::Silent);
        let trouble = &document(&look, &Rates::default())["processes"][0]["trouble"];
        assert_eq!(trouble["kind"], "silent");
        assert!(trouble["cause"].as_str().unwrap().starts_with("no answer within "));
    }
}
