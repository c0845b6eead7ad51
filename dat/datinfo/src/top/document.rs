//! Counters as JSON, with rates if there is an earlier sample.
#![forbid(unsafe_code)]

use std::time::SystemTime;

use dat_counters::text::{Adapter, Count};
use serde_json::{Value, json};

use super::Sample;
use super::rates::{CounterId, Rates};

pub(super) fn document(sample: &Sample, rates: &Rates) -> Value {
    let processes: Vec<Value> = sample
        .found
        .iter()
        .map(|found| match &found.result {
            Ok(process) => {
                let of = |it: &Adapter| adapter(&CounterId::of_adapter(found, it), it, rates);
                let adapters: Vec<Value> = process.adapters.iter().map(of).collect();
                json!({"pid": found.pid, "library": found.number, "program": process.program, "adapters": adapters})
            }
            Err(trouble) => json!({
                "pid": found.pid, "library": found.number, "program": found.program,
                "trouble": {"kind": trouble.identifier(), "cause": trouble.to_string()},
            }),
        })
        .collect();
    let at = sample.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({"at": at.as_secs_f64(), "processes": processes})
}

fn adapter(id: &CounterId, of: &Adapter, rates: &Rates) -> Value {
    let endpoint = |ep| counters(&id.of_ep(ep), &ep.counts, rates);
    let endpoints: Vec<Value> =
        of.eps.iter().map(|ep| json!({"handle": ep.handle, "state": ep.state, "counters": endpoint(ep)})).collect();
    json!({
        "name": of.name, "provider": of.provider, "handle": of.handle, "counters": counters(id, &of.counts, rates),
        "endpoints": endpoints, "left_out": of.left_out,
    })
}

fn counters(id: &CounterId, counts: &[Count], rates: &Rates) -> Vec<Value> {
    let counter = |count: &Count| {
        let kind = if count.is_level { "level" } else { "sum" };
        let mut value = json!({"name": count.name, "unit": count.unit, "kind": kind, "value": count.value});
        if let Some(rate) = rates.of(id, count) {
            value["per_second"] = rate.into();
        }
        value
    };
    counts.iter().map(counter).collect()
}

#[cfg(test)]
mod tests {
    use dat_counters::reader::ReadError;

    use super::super::table::tests::{count, sample_at};
    use super::*;

    #[test]
    fn json_has_all_counters_and_after_two_samples_their_rates() {
        let first = sample_at(0, 7, &[count("sent", u64::MAX - 10)]);
        let mut rates = Rates::default();
        rates.next(&first);
        let text = document(&first, &rates);
        let process = &text["processes"][0];
        assert_eq!((process["pid"].as_u64(), process["library"].as_u64()), (Some(7), Some(0)));
        let adapter = &process["adapters"][0];
        assert_eq!(adapter["counters"][0], json!({"name": "sent", "unit": "", "kind": "sum", "value": u64::MAX - 10}));
        assert_eq!(
            (adapter["endpoints"][0]["state"].as_str(), adapter["left_out"].as_u64()),
            (Some("Connected"), Some(2))
        );
        let second = sample_at(5, 7, &[count("sent", u64::MAX)]);
        rates.next(&second);
        let text = document(&second, &rates);
        assert_eq!(text["processes"][0]["adapters"][0]["counters"][0]["per_second"], 2.0);
    }

    #[test]
    fn json_of_top_reports_a_read_error_by_kind_and_in_words() {
        let mut sample = sample_at(0, 7, &[]);
        sample.found[0].result = Err(ReadError::Timeout);
        let trouble = &document(&sample, &Rates::default())["processes"][0]["trouble"];
        assert_eq!(trouble["kind"], "silent");
        assert!(trouble["cause"].as_str().unwrap().starts_with("no answer within "));
    }
}
