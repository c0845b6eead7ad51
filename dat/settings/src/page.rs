//! Generates the table in `docs/settings.md`: one row per variable.
#![forbid(unsafe_code)]

use crate::{ALL, BUILD_TIME, Setting, SettingsTable, Values};

/// Pairs of a variable and the sentences that its row states in addition.
const NOTES: [(&str, &str); 14] = [
    ("DAPL_COUNTERS", "See [counters](guide/src/counters-and-traces.md)"),
    ("DAPL_DBG_IO_TRC", "See [traces](guide/src/counters-and-traces.md#traces)"),
    ("DAPL_DBG_IO_TRC_FILE", "Checked once a second"),
    (
        "DAPL_DIR",
        "Absolute, mode 0700, of this user. The default directory is `/dev/shm/dapl-<uid>` for sm, \
         `/dev/shm/dapl-usnic-<uid>` for usnic and `/dev/shm/dapl-verbs-<uid>` for verbs, or one with random digits \
         after that name if another user owns that name",
    ),
    (
        "DAPL_SM_RMA",
        "`auto` uses the fastest method that works. Only `auto` maps memory registered as shared, where that is safe. From a \
         list, the first method that works is used; shared buffers always work",
    ),
    (
        "DAPL_USNIC_KEY",
        "A regular file of 16 to 4,096 bytes that belongs to this user or the superuser, without permissions for others \
         (mode 0600). White space at the ends of a text does not count towards the 16 bytes",
    ),
    ("DAPL_SM_CMA", "Cross-memory copy needs `open` if Yama's `ptrace_scope` is 1; with 2 or 3, `open` has no effect"),
    ("DAPL_GIVE_UP_MS", "Over usnic it also limits a connect to a host that does not answer"),
    (
        "DAPL_KEEPALIVE_MS",
        "Over sm also an active connection sends one at this interval, which is at most a quarter of `give_up_ms`",
    ),
    ("DAPL_LISTENER_WAIT_MS", "Over verbs it applies to `rdma`, `socket` and `socket2`"),
    ("DAPL_VERBS_CM", "The default for a library named libdaplscm is `socket`, for libdaploscm `socket2`"),
    ("DAPL_CM_ARP_TIMEOUT_MS", "For each of 15 attempts"),
    ("DAPL_CM_ROUTE_TIMEOUT_MS", "For each of 15 attempts"),
    (
        "DAPL_VERBS_PEER",
        "`same` (the default): the number of the local queue pair; `+1`, `-1`: the next and the previous number",
    ),
];

/// The rows of the table, each with a newline, in the order of the settings.
pub fn rows() -> String {
    let mut variables: Vec<&str> = Vec::new();
    for setting in ALL.iter().flat_map(|table| table.settings) {
        if !setting.variable.is_empty() && !variables.contains(&setting.variable) {
            variables.push(setting.variable);
        }
    }
    let mut text: String = variables.into_iter().map(row).collect();
    text += &format!(
        "| `{BUILD_TIME}` | read when libdat and verbs are built: the configuration directory, in which dat.conf and \
         `dapl/ibhosts` are searched first |\n"
    );
    text
}

fn row(variable: &str) -> String {
    let read: Vec<(&SettingsTable, &Setting)> = ALL
        .iter()
        .flat_map(|table| table.settings.iter().map(move |setting| (*table, setting)))
        .filter(|(_, setting)| setting.variable == variable)
        .collect();
    let is_same = |of: &dyn Fn(&Setting) -> String| read.iter().all(|(_, setting)| of(setting) == of(read[0].1));
    let each = |of: &dyn Fn(&Setting) -> String| {
        let each: Vec<String> =
            read.iter().map(|(table, setting)| format!("{}: {}", table.provider, of(setting))).collect();
        each.join("; ")
    };
    let meaning = |setting: &Setting| setting.meaning.to_owned();
    let whole = |setting: &Setting| format!("{}; {}", setting.meaning, values(setting));
    let owners = if ["libdat", "dapl"].contains(&read[0].0.provider) {
        String::new()
    } else {
        let owners: Vec<&str> = read.iter().map(|(table, _)| table.provider).collect();
        format!("{}: ", owners.join(", "))
    };
    let described = if is_same(&whole) {
        whole(read[0].1)
    } else if is_same(&meaning) {
        format!("{}; {}", read[0].1.meaning, each(&values))
    } else {
        each(&whole)
    };
    let named: Vec<_> = read.iter().filter(|(_, setting)| !setting.name.is_empty()).collect();
    let of = if named.len() == read.len() {
        String::new()
    } else {
        let providers: Vec<&str> = named.iter().map(|(table, _)| table.provider).collect();
        format!(" of {}", providers.join(" and "))
    };
    let word = named.first().map_or(String::new(), |(_, setting)| format!(". In `ia_params`{of}: `{}=`", setting.name));
    let note = NOTES.iter().find(|(name, _)| *name == variable).map_or(String::new(), |(_, note)| format!(". {note}"));
    format!("| `{variable}` | {owners}{described}{word}{note} |\n")
}

fn values(setting: &Setting) -> String {
    let unit = match setting.values.unit() {
        "" => String::new(),
        "us" => " microseconds".to_owned(),
        "ms" => " milliseconds".to_owned(),
        unit => format!(" {unit}"),
    };
    let texts = setting.documented_texts();
    match &setting.values {
        Values::Text(unset) => format!("default: {unset}"),
        Values::OneOf(words) => {
            let others: Vec<String> = words[1..].iter().map(|word| format!("`{word}`")).collect();
            format!("`{}` (default) or {}", words[0], others.join(" or "))
        }
        Values::Order(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            format!("`auto` (default), or one or more of {} in order of preference", words.join(","))
        }
        Values::Number { .. } => format!("{}{unit}", texts[0]),
        Values::Optional { unset, .. } => format!("{}{unit}; default: {unset}", texts[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variable_has_one_row_with_its_values() {
        let rows = rows();
        assert_eq!(rows.lines().filter(|line| line.starts_with("| `DAPL_GIVE_UP_MS`")).count(), 1);
        assert!(rows.contains("| `DAPL_SPIN_US` | sm, usnic: maximum time"), "{rows}");
        assert!(rows.contains(
            "time without an answer after which a peer counts as dead; sm: 1,000 to 3,600,000 (default 60,000)"
        ));
        let unused: Vec<_> = NOTES.iter().filter(|(name, _)| !rows.contains(&format!("| `{name}` |"))).collect();
        assert!(unused.is_empty(), "{unused:?}");
    }
}
