//! Results of the verbs provider: up to four programs execute each operation, and their times are compared.
#![forbid(unsafe_code)]

use serde_json::Value;

use super::{Bound, Contest, field, measure};
use crate::Result;

/// The peer programs: name in the file, and name on the page.
const PEERS: [(&str, &str); 3] =
    [("perftest", "perftest"), ("reference", "2.0 reference"), ("dapltest", "2.0 dapltest")];

/// Returns a contest for each peer that supports the operation.
pub(super) fn contests(operation: &Value) -> Result<Vec<Contest>> {
    let id: String = field(operation, "id")?;
    let within = |reason| format!("{id}: {reason}");
    let ours = measure(operation.get("ours").ok_or("no \"ours\"").map_err(str::to_owned)?).map_err(within)?;
    let title: String = field(operation, "title").map_err(within)?;
    let mut contests = Vec::new();
    for (name, called) in PEERS {
        let Some(peer) = operation.get(name) else { continue };
        let peer = measure(peer).map_err(within)?;
        let target = match operation.get(format!("promised_over_{name}")).and_then(Value::as_f64) {
            None => None,
            Some(value) => {
                let is_met = field(operation, &format!("kept_over_{name}")).map_err(within)?;
                Some(Bound { value, words: format!("<= {value}x"), is_met })
            }
        };
        let ratio = match target {
            Some(_) => field(operation, &format!("over_{name}")).map_err(within)?,
            None => ours.median() / peer.median(),
        };
        contests.push(Contest {
            id: id.clone(),
            title: title.clone(),
            unit: "us".to_owned(),
            place: None,
            ours: ours.clone(),
            against: Some((peer.median(), ratio)),
            peers: vec![(called.to_owned(), peer)],
            less_is_better: true,
            target,
            stretch: None,
        });
    }
    Ok(contests)
}
