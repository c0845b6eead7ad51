//! Additional requirements of a full run over DAT 2.0: each function of the provider table succeeds and is refused at
//! least once, and the functions that only 2.0 has return all their codes.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use dat_abi::*;

use super::{
    ANY, CNO, EP, EVD_CR, ExpectedCode, FULL, IA, MODEL, OK, PZ, Whole, arg, handle, is, is_answered, number_of, state,
    words,
};
use crate::flight::Seen;
use crate::{api, names};

const UNC: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_UNCONNECTED;
const CON: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_CONNECTED;
const CSP: ExpectedCode = handle(names::DAT_INVALID_HANDLE_CSP);

/// The functions that only 2.0 has, and the codes to observe, as the flight record stores them.
const ADDED: &[(&str, &[ExpectedCode])] = &[
    (
        "dat_csp_create",
        &[
            OK,
            IA,
            EVD_CR,
            arg(2),
            arg(3),
            arg(5),
            is(v2::DAT_PORT_IN_USE, DAT_NO_SUBTYPE),
            is(v2::DAT_COMM_NOT_SUPPORTED, DAT_NO_SUBTYPE),
        ],
    ),
    ("dat_csp_query", &[OK, CSP, arg(2), arg(3)]),
    ("dat_csp_free", &[OK, CSP]),
    ("dat_ep_common_connect", &[OK, EP, arg(2), arg(3), arg(4), arg(5), state(CON)]),
    ("dat_rmr_create_for_ep", &[OK, PZ, arg(2)]),
    ("dat_ep_post_send_with_invalidate", &[OK, EP, arg(2), arg(3), arg(5), FULL, state(UNC)]),
    (
        "dat_ep_post_rdma_read_to_rmr",
        &[
            OK,
            EP,
            arg(2),
            arg(4),
            arg(5),
            state(UNC),
            is(DAT_PROTECTION_VIOLATION, DAT_PROTECTION_WRITE),
            is(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE),
        ],
    ),
    ("dat_cno_fd_create", &[OK, IA, arg(2), arg(3)]),
    ("dat_cno_trigger", &[OK, CNO, arg(2), Whole(DAT_QUEUE_EMPTY)]),
    ("dat_registry_providers_related", &[OK, IA, arg(2), arg(3)]),
    // Parameters are counted from the handle, so the last number depends on the operation.
    ("dat_extension_op", &[OK, ANY, EP, arg(2), arg(3), arg(5), arg(6), arg(7), FULL, state(UNC), MODEL]),
];

/// Functions of libdat itself, without an entry in the provider table.
const OF_LIBDAT: &[&str] = &[
    "dat_registry_list_providers",
    "dat_registry_add_provider",
    "dat_registry_remove_provider",
    "dat_strerror",
    "dats_get_ia_handle",
];

/// The functions in the table of 2.0: 81 members, of which the first two are data.
fn slots() -> impl Iterator<Item = &'static str> {
    api::NAMES.iter().filter(|name| !OF_LIBDAT.contains(name)).chain(api::added::NAMES).copied()
}

/// Describes the functions of the provider table that no case saw succeed or saw refused, and the missing codes of
/// functions that only 2.0 has.
pub(crate) fn unobserved_of_2_0(seen: &BTreeMap<Seen, Vec<&str>>) -> Vec<String> {
    let is_seen = |function: &str, is_success: bool| {
        let number = number_of(function);
        seen.keys().any(
            |what| matches!(*what, Seen::ReturnCode(of, code) if of == number && (code == DAT_SUCCESS) == is_success),
        )
    };
    let mut unobserved = Vec::new();
    for slot in slots() {
        for (is_success, what) in [(true, "a success"), (false, "a refusal")] {
            if !is_seen(slot, is_success) {
                unobserved.push(format!("slot {slot}: {what}"));
            }
        }
    }
    for (function, answers) in ADDED {
        let missing = answers.iter().filter(|answer| !is_answered(seen, function, **answer));
        unobserved.extend(missing.map(|answer| format!("{function}: {}", words(*answer))));
    }
    unobserved
}

/// Reports the number of table entries, and how many cases called the least tested entry.
pub(crate) fn slots_in_words(seen: &BTreeMap<Seen, Vec<&str>>) -> String {
    let count = |slot: &'static str| {
        let number = number_of(slot);
        let of = |what: &Seen| matches!(*what, Seen::ReturnCode(of, _) if of == number);
        let cases: BTreeSet<&str> =
            seen.iter().filter(|(what, _)| of(what)).flat_map(|(_, names)| names).copied().collect();
        (cases.len(), slot)
    };
    let counts: Vec<_> = slots().map(count).collect();
    let called = counts.iter().filter(|(cases, _)| *cases > 0).count();
    let (fewest, slot) = counts.iter().min().expect("the 2.0 table has at least one slot");
    format!(
        "function table of 2.0: {} members; {called} of {} functions called; fewest cases call {slot}: {fewest}",
        counts.len() + 2,
        counts.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_table_of_2_0_has_81_entries() {
        assert_eq!(slots().count() + 2, size_of::<v2::DAT_PROVIDER>() / size_of::<usize>());
        let expected: Vec<&str> = ADDED.iter().map(|(function, _)| *function).collect();
        assert_eq!(expected, api::added::NAMES);
        let answers: usize = ADDED.iter().map(|(_, answers)| answers.len()).sum();
        assert_eq!(unobserved_of_2_0(&BTreeMap::new()).len(), 2 * 79 + answers);
    }
}
