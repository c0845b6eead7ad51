//! Return codes of each function, and events, that the specification requires. A full run must observe all of them.
//!
//! Taken from the tables of the specification. Codes that cannot be provoked through the C ABI are in `UNREACHABLE`
//! with the reason. Any case may provoke a code.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use dat_abi::*;

use crate::api;
use crate::flight::Seen;
use crate::kit::{error, kind_of, number_name, status_name};
use crate::names::of_code;

mod of_2_0;

pub(crate) use of_2_0::{slots_in_words, unobserved_of_2_0};

/// A return code that a run must observe.
#[derive(Clone, Copy, Debug)]
enum ExpectedCode {
    /// Exactly this code.
    Whole(DAT_RETURN),
    /// An error of this type; the library chooses the subtype.
    Kind(DAT_RETURN_TYPE),
}

use ExpectedCode::{Kind, Whole};

const OK: ExpectedCode = Whole(DAT_SUCCESS);

const fn is(kind: DAT_RETURN_TYPE, subtype: DAT_RETURN_SUBTYPE) -> ExpectedCode {
    Whole(error(kind, subtype))
}

const fn arg(number: u32) -> ExpectedCode {
    is(DAT_INVALID_PARAMETER, DAT_INVALID_ARG1 + number - 1)
}

const fn handle(subtype: DAT_RETURN_SUBTYPE) -> ExpectedCode {
    is(DAT_INVALID_HANDLE, subtype)
}

const fn state(subtype: DAT_RETURN_SUBTYPE) -> ExpectedCode {
    is(DAT_INVALID_STATE, subtype)
}

const IA: ExpectedCode = handle(DAT_INVALID_HANDLE_IA);
const EP: ExpectedCode = handle(DAT_INVALID_HANDLE_EP);
const LMR: ExpectedCode = handle(DAT_INVALID_HANDLE_LMR);
const RMR: ExpectedCode = handle(DAT_INVALID_HANDLE_RMR);
const PZ: ExpectedCode = handle(DAT_INVALID_HANDLE_PZ);
const PSP: ExpectedCode = handle(DAT_INVALID_HANDLE_PSP);
const RSP: ExpectedCode = handle(DAT_INVALID_HANDLE_RSP);
const CR: ExpectedCode = handle(DAT_INVALID_HANDLE_CR);
const CNO: ExpectedCode = handle(DAT_INVALID_HANDLE_CNO);
const SRQ: ExpectedCode = handle(DAT_INVALID_HANDLE_SRQ);
const ANY: ExpectedCode = handle(DAT_INVALID_HANDLE1);
/// Invalid EVD handle. Implementations differ in the subtype, and programs check the type only.
const EVD: ExpectedCode = Kind(DAT_INVALID_HANDLE);
const EVD_CR: ExpectedCode = handle(DAT_INVALID_HANDLE_EVD_CR);
const EVD_CONN: ExpectedCode = handle(DAT_INVALID_HANDLE_EVD_CONN);
const EVD_RECV: ExpectedCode = handle(DAT_INVALID_HANDLE_EVD_RECV);
const EVD_REQUEST: ExpectedCode = handle(DAT_INVALID_HANDLE_EVD_REQUEST);
/// The work queue is full.
const FULL: ExpectedCode = is(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY);
const UNREACHABLE_ADDRESS: ExpectedCode = is(DAT_INVALID_ADDRESS, DAT_INVALID_ADDRESS_UNREACHABLE);
/// Returned for a qualifier in use. The code lacks the error class bit, as programs expect; `dat_psp_create` adds the
/// bit if a PSP of the same IA uses the qualifier.
const QUAL_IN_USE: ExpectedCode = Whole(DAT_CONN_QUAL_IN_USE);
const MODEL: ExpectedCode = is(DAT_MODEL_NOT_SUPPORTED, DAT_NO_SUBTYPE);
const NOT_READY: ExpectedCode = state(DAT_INVALID_STATE_EP_NOTREADY);

/// All functions and the return codes that a run must observe, except the refusals by EP state in `REFUSED_IN`. From
/// spec/registry, spec/events and spec/endpoints.
const ANSWERS: &[(&str, &[ExpectedCode])] = &[
    // spec/registry 4.1 to 4.3
    (
        "dat_ia_openv",
        &[
            OK,
            arg(1),
            arg(2),
            arg(3),
            IA,
            handle(DAT_INVALID_HANDLE_EVD_ASYNC),
            is(DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED),
            is(DAT_PROVIDER_NOT_FOUND, DAT_MAJOR_NOT_FOUND),
            is(DAT_PROVIDER_NOT_FOUND, DAT_MINOR_NOT_FOUND),
            is(DAT_PROVIDER_NOT_FOUND, DAT_THREAD_SAFETY_NOT_FOUND),
            is(DAT_PROVIDER_NOT_FOUND, DAT_NO_SUBTYPE),
        ],
    ),
    // spec/registry 10, 6.1
    ("dat_ia_query", &[OK, IA, arg(3), arg(4), arg(6)]),
    ("dat_ia_close", &[OK, IA, arg(2), state(DAT_INVALID_STATE_IA_IN_USE)]),
    // spec/registry 8
    ("dat_set_consumer_context", &[OK, ANY]),
    ("dat_get_consumer_context", &[OK, ANY, arg(2)]),
    ("dat_get_handle_type", &[OK, ANY, arg(2)]),
    // spec/registry 3.1, 3.2, 9.2, 7.2
    ("dat_registry_list_providers", &[OK, arg(1), arg(2), arg(3)]),
    ("dat_registry_add_provider", &[OK, arg(1), arg(2), is(DAT_PROVIDER_ALREADY_REGISTERED, DAT_NO_SUBTYPE)]),
    (
        "dat_registry_remove_provider",
        &[
            OK,
            arg(1),
            arg(2),
            is(DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED),
            is(DAT_PROVIDER_IN_USE, DAT_NO_SUBTYPE),
        ],
    ),
    ("dat_strerror", &[OK, arg(1), arg(2)]),
    ("dats_get_ia_handle", &[OK, IA]),
    // spec/events 3
    ("dat_cno_create", &[OK, IA, arg(3)]),
    ("dat_cno_modify_agent", &[OK, CNO]),
    ("dat_cno_query", &[OK, CNO, arg(2), arg(3)]),
    ("dat_cno_free", &[OK, CNO, state(DAT_INVALID_STATE_CNO_IN_USE)]),
    ("dat_cno_wait", &[OK, CNO, arg(3), Whole(DAT_QUEUE_EMPTY), Kind(DAT_INTERRUPTED_CALL)]),
    // spec/events 2
    ("dat_evd_create", &[OK, IA, CNO, arg(2), arg(4), arg(5), is(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_TEVD)]),
    ("dat_evd_query", &[OK, EVD, arg(2), arg(3)]),
    ("dat_evd_modify_cno", &[OK, EVD, CNO]),
    ("dat_evd_enable", &[OK, EVD]),
    ("dat_evd_disable", &[OK, EVD]),
    (
        "dat_evd_wait",
        &[
            OK,
            EVD,
            arg(3),
            arg(4),
            arg(5),
            is(DAT_TIMEOUT_EXPIRED, DAT_NO_SUBTYPE),
            Kind(DAT_INTERRUPTED_CALL),
            is(DAT_ABORT, DAT_NO_SUBTYPE),
            state(DAT_INVALID_STATE_EVD_WAITER),
            state(DAT_INVALID_STATE_EVD_UNWAITABLE),
            state(DAT_INVALID_STATE_EVD_CONFIG_NOTIFY),
            state(DAT_INVALID_STATE_EVD_CONFIG_SOLICITED),
        ],
    ),
    ("dat_evd_dequeue", &[OK, EVD, arg(2), Whole(DAT_QUEUE_EMPTY), state(DAT_INVALID_STATE_EVD_WAITER)]),
    ("dat_evd_post_se", &[OK, EVD, arg(1), arg(2), is(DAT_QUEUE_FULL, DAT_NO_SUBTYPE)]),
    ("dat_evd_resize", &[OK, EVD, arg(2), state(DAT_INVALID_STATE_EVD_WAITER), state(DAT_NO_SUBTYPE)]),
    ("dat_evd_set_unwaitable", &[OK, EVD]),
    ("dat_evd_clear_unwaitable", &[OK, EVD]),
    ("dat_evd_free", &[OK, EVD, state(DAT_INVALID_STATE_EVD_IN_USE), state(DAT_INVALID_STATE_EVD_ASYNC)]),
    // spec/endpoints 5
    ("dat_ep_create", &[OK, IA, PZ, EVD_CONN, EVD_RECV, EVD_REQUEST, arg(6), arg(7)]),
    ("dat_ep_create_with_srq", &[OK, IA, PZ, EVD_CONN, EVD_RECV, EVD_REQUEST, SRQ, arg(7), arg(8)]),
    ("dat_ep_query", &[OK, EP, arg(3)]),
    ("dat_ep_modify", &[OK, EP, arg(2), arg(3)]),
    ("dat_ep_connect", &[OK, EP, EVD_CONN, arg(2), arg(4), arg(5), arg(6), NOT_READY, MODEL, UNREACHABLE_ADDRESS]),
    ("dat_ep_dup_connect", &[OK, EP, EVD_CONN, arg(3), arg(4), arg(5), NOT_READY, MODEL]),
    ("dat_ep_disconnect", &[OK, EP, arg(2)]),
    ("dat_ep_reset", &[OK, EP]),
    ("dat_ep_free", &[OK, EP]),
    ("dat_ep_get_status", &[OK, EP]),
    // spec/events 5.5, 5.6
    ("dat_ep_recv_query", &[OK, EP]),
    ("dat_ep_set_watermark", &[OK, EP, arg(2), arg(3)]),
    // spec/events 4.8, 5
    ("dat_ep_post_send", &[OK, EP, arg(2), arg(3), arg(5), FULL]),
    ("dat_ep_post_recv", &[OK, EP, arg(2), arg(3), arg(5), FULL, NOT_READY, state(DAT_INVALID_STATE_SRQ_IN_USE)]),
    ("dat_ep_post_rdma_read", &[OK, EP, arg(2), arg(3), arg(5), arg(6), FULL]),
    ("dat_ep_post_rdma_write", &[OK, EP, arg(2), arg(3), arg(5), arg(6), FULL]),
    // spec/endpoints 6
    (
        "dat_psp_create",
        &[OK, IA, EVD_CR, arg(2), arg(4), arg(5), is(DAT_CONN_QUAL_IN_USE, DAT_NO_SUBTYPE), QUAL_IN_USE],
    ),
    ("dat_psp_create_any", &[OK, IA, EVD_CR, arg(2), arg(4), arg(5)]),
    ("dat_psp_query", &[OK, PSP, arg(3)]),
    ("dat_psp_free", &[OK, PSP]),
    ("dat_rsp_create", &[OK, IA, EP, EVD_CR, arg(5), QUAL_IN_USE]),
    ("dat_rsp_query", &[OK, RSP, arg(3)]),
    ("dat_rsp_free", &[OK, RSP]),
    // spec/endpoints 7
    ("dat_cr_query", &[OK, CR, arg(3)]),
    ("dat_cr_accept", &[OK, CR, EP, arg(3), arg(4)]),
    ("dat_cr_reject", &[OK, CR]),
    ("dat_cr_handoff", &[OK, CR, arg(2)]),
    // spec/events 6
    ("dat_srq_create", &[OK, IA, PZ, arg(3), arg(4)]),
    ("dat_srq_free", &[OK, SRQ, state(DAT_INVALID_STATE_SRQ_IN_USE)]),
    ("dat_srq_post_recv", &[OK, SRQ, arg(2), arg(3), FULL]),
    ("dat_srq_query", &[OK, SRQ, arg(2), arg(3)]),
    ("dat_srq_resize", &[OK, SRQ, arg(2), Kind(DAT_INVALID_STATE)]),
    ("dat_srq_set_lw", &[OK, SRQ, arg(2)]),
    // spec/events 7, 8, 9
    ("dat_pz_create", &[OK, IA, arg(2)]),
    ("dat_pz_query", &[OK, PZ, arg(2), arg(3)]),
    ("dat_pz_free", &[OK, PZ, state(DAT_INVALID_STATE_PZ_IN_USE)]),
    (
        "dat_lmr_create",
        &[
            OK,
            IA,
            PZ,
            LMR,
            arg(2),
            arg(3),
            arg(4),
            arg(6),
            arg(7),
            is(DAT_LENGTH_ERROR, DAT_NO_SUBTYPE),
            state(DAT_NO_SUBTYPE),
        ],
    ),
    ("dat_lmr_query", &[OK, LMR, arg(2), arg(3)]),
    ("dat_lmr_free", &[OK, LMR, state(DAT_INVALID_STATE_LMR_IN_USE)]),
    ("dat_lmr_sync_rdma_read", &[OK, IA, arg(2)]),
    ("dat_lmr_sync_rdma_write", &[OK, IA, arg(2)]),
    ("dat_rmr_create", &[OK, PZ, arg(2)]),
    ("dat_rmr_query", &[OK, RMR, arg(3)]),
    (
        "dat_rmr_bind",
        &[
            OK,
            RMR,
            EP,
            arg(2),
            arg(3),
            arg(6),
            arg(7),
            FULL,
            Kind(DAT_PROTECTION_VIOLATION),
            is(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE),
        ],
    ),
    ("dat_rmr_free", &[OK, RMR]),
];

const UNC: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_UNCONNECTED;
const RSV: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_RESERVED;
const PCP: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_PASSCONNPENDING;
const TCP: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_TENTCONNPENDING;
const ACP: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_ACTCONNPENDING;
const CMP: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_COMPLPENDING;
const CON: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_CONNECTED;
const DSP: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_DISCPENDING;
const DIS: DAT_RETURN_SUBTYPE = DAT_INVALID_STATE_EP_DISCONNECTED;

/// EP states in which a function is refused, each with its own subtype. spec/endpoints 4.1 and 5.3, spec/events 4.8.
const REFUSED_IN: &[(&str, &[DAT_RETURN_SUBTYPE])] = &[
    ("dat_ep_modify", &[RSV, PCP, ACP, CMP, CON, DSP, DIS]),
    ("dat_ep_connect", &[RSV, PCP, TCP, ACP, CMP, CON, DSP, DIS]),
    // UNCONNECTED is the state of the EP to duplicate, CONNECTED that of the EP to connect. The others are states of
    // either EP.
    ("dat_ep_dup_connect", &[UNC, RSV, PCP, TCP, ACP, CMP, CON, DSP, DIS]),
    ("dat_ep_disconnect", &[UNC, RSV, PCP, TCP]),
    ("dat_ep_reset", &[RSV, PCP, TCP, ACP, CMP, CON, DSP]),
    ("dat_ep_free", &[RSV, PCP, TCP]),
    ("dat_ep_post_send", &[UNC, RSV, PCP, TCP, ACP, DSP]),
    ("dat_ep_post_rdma_read", &[UNC, RSV, PCP, TCP, ACP, DSP]),
    ("dat_ep_post_rdma_write", &[UNC, RSV, PCP, TCP, ACP, DSP]),
    ("dat_rmr_bind", &[UNC, RSV, PCP, TCP, ACP, DSP]),
    ("dat_rsp_create", &[RSV, PCP, TCP, ACP, CMP, CON, DSP, DIS]),
    ("dat_cr_accept", &[RSV, PCP, ACP, CMP, CON, DSP, DIS]),
];

/// Codes that at least one function must return, no matter which. An adapter's function table may have empty entries,
/// whose calls return `DAT_NOT_IMPLEMENTED`.
const SOMEWHERE: &[DAT_RETURN] = &[DAT_NOT_IMPLEMENTED];

/// Event numbers that a run must observe.
const EVENTS: &[DAT_EVENT_NUMBER] = &[
    DAT_DTO_COMPLETION_EVENT,
    DAT_RMR_BIND_COMPLETION_EVENT,
    DAT_CONNECTION_REQUEST_EVENT,
    DAT_CONNECTION_EVENT_ESTABLISHED,
    DAT_CONNECTION_EVENT_PEER_REJECTED,
    DAT_CONNECTION_EVENT_NON_PEER_REJECTED,
    DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR,
    DAT_CONNECTION_EVENT_DISCONNECTED,
    DAT_CONNECTION_EVENT_BROKEN,
    DAT_CONNECTION_EVENT_TIMED_OUT,
    DAT_ASYNC_ERROR_EVD_OVERFLOW,
    DAT_ASYNC_ERROR_EP_BROKEN,
    DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
    DAT_SOFTWARE_EVENT,
];

/// Completion statuses of transfers that a run must observe. spec/events 4.5.
const DTO_STATUSES: &[DAT_DTO_COMPLETION_STATUS] = &[
    DAT_DTO_SUCCESS,
    DAT_DTO_ERR_FLUSHED,
    DAT_DTO_ERR_LOCAL_LENGTH,
    DAT_DTO_ERR_LOCAL_PROTECTION,
    DAT_DTO_ERR_REMOTE_ACCESS,
    DAT_DTO_ERR_REMOTE_RESPONDER,
];

/// Completion statuses of binds that a run must observe. spec/events 9.2.
const RMR_STATUSES: &[DAT_DTO_COMPLETION_STATUS] = &[DAT_RMR_BIND_SUCCESS, DAT_RMR_BIND_FAILURE];

/// Asynchronous events that a run must observe, with their reasons. spec/events 10 and 14 (watermarks: an EP's soft
/// watermark uses the number of the low watermark).
const REASONS: &[(DAT_EVENT_NUMBER, u32)] = &[
    (DAT_ASYNC_ERROR_EVD_OVERFLOW, DAT_EVD_OVERFLOW_ERROR),
    (DAT_ASYNC_ERROR_EP_BROKEN, DAT_EP_TRANSFER_TO_ERROR),
    (DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, DAT_SRQ_LOW_WATERMARK_EVENT),
];

/// Return codes, events and completion statuses of the specification that no case can provoke through the C ABI of a
/// correct library: function or kind, names, reason.
pub(crate) const UNREACHABLE: &[(&str, &str, &str)] = &[
    ("dat_ia_openv", "INSUFFICIENT_RESOURCES", "memory for an adapter would have to run out"),
    ("dat_ia_openv", "INVALID_STATE", "a provider library would have to open its own entry inside dat_provider_init"),
    ("dat_ia_openv", "INVALID_ADDRESS, INTERNAL_ERROR", "the device would have to be absent or broken"),
    ("dat_registry_add_provider", "INSUFFICIENT_RESOURCES", "memory for one entry would have to run out"),
    ("dat_registry_list_providers", "INTERNAL_ERROR", "our decision: an absent registry is an empty one"),
    ("dat_*_create", "INSUFFICIENT_RESOURCES/RESOURCE_MEMORY", "memory for one object would have to run out"),
    ("dat_cno_wait", "INVALID_STATE/INVALID_STATE_CNO_DEAD", "our decision: the wait returns a null EVD"),
    ("dat_evd_wait, dat_evd_dequeue", "INVALID_STATE", "our decision: an EVD survives an overflow"),
    ("dat_ep_create", "INSUFFICIENT_RESOURCES/RESOURCE_TEP", "needs more EPs than memory holds"),
    ("dat_ep_create_with_srq", "INVALID_STATE/INVALID_STATE_SRQ_ERROR", "only a broken device makes an SRQ fail"),
    ("dat_ep_create_with_srq", "INVALID_PARAMETER/INVALID_ARG2", "only if SRQ and EP must have the same PZ"),
    (
        "dat_ep_*watermark, dat_ep_recv_query, dat_srq_*",
        "MODEL_NOT_SUPPORTED",
        "only a provider without these functions returns it",
    ),
    ("dat_lmr_create, dat_rmr_bind", "MODEL_NOT_SUPPORTED", "only a provider without the memory type or RMRs"),
    ("dat_ep_post_*", "PRIVILEGES_VIOLATION, PROTECTION_VIOLATION", "our decision: completions report memory errors"),
    ("dat_ep_post_rdma_*", "LENGTH_ERROR", "our decision: the sum of the local segments is the length"),
    ("dat_*", "INVALID_STATE/INVALID_STATE_EP_UNCONF*", "our decision: no EP is reported in these states"),
    ("dat_psp_create, dat_psp_create_any", "PRIVILEGES_VIOLATION", "only if the qualifier is a privileged port"),
    ("dat_psp_create_any", "CONN_QUAL_UNAVAILABLE", "needs 64,512 listeners"),
    ("dat_cr_accept", "INTERNAL_ERROR", "needs an EP bound to another port than the request's"),
    ("dat_srq_create", "INSUFFICIENT_RESOURCES/RESOURCE_SRQ", "needs more queues than memory holds"),
    ("dat_lmr_create", "INSUFFICIENT_RESOURCES/RESOURCE_MEMORY_REGION", "needs more regions than memory holds"),
    ("dat_pz_create", "INSUFFICIENT_RESOURCES/RESOURCE_PROTECTION_DOMAIN", "needs more zones than memory holds"),
    ("event", "CONNECTION_EVENT_UNREACHABLE", "a host would have to stop responding during connection setup"),
    ("event", "ASYNC_ERROR_IA_CATASTROPHIC, ASYNC_ERROR_TIMED_OUT", "the device would have to fail"),
    ("status", "DTO_ERR_LOCAL_EP, DTO_ERR_BAD_RESPONSE", "the library or its peer would have to be faulty"),
    ("status", "DTO_ERR_TRANSPORT", "depends on when a peer dies; most requests are then flushed instead"),
    ("status", "DTO_ERR_RECEIVER_NOT_READY", "our decision: a send waits for its receive without limit"),
    ("status", "DTO_ERR_PARTIAL_PACKET", "no provider reports it"),
    ("bind status", "RMR_OPERATION_FAILED", "each error of a bind is refused when the bind is posted"),
];

/// Describes required codes and events that a full run has not observed.
pub(crate) fn unobserved(seen: &BTreeMap<Seen, Vec<&str>>) -> Vec<String> {
    let mut unobserved = Vec::new();
    for (function, answers) in ANSWERS {
        let missing = answers.iter().filter(|answer| !is_answered(seen, function, **answer));
        unobserved.extend(missing.map(|answer| format!("{function}: {}", words(*answer))));
    }
    for (function, states) in REFUSED_IN {
        let missing = states.iter().map(|at| state(*at)).filter(|answer| !is_answered(seen, function, *answer));
        unobserved.extend(missing.map(|answer| format!("{function}: {}", words(answer))));
    }
    let answered = |code: &u32| seen.keys().any(|what| matches!(what, Seen::ReturnCode(_, other) if other == code));
    unobserved.extend(
        SOMEWHERE.iter().filter(|code| !answered(code)).map(|code| format!("any function: {}", of_code(*code))),
    );
    let is_missing = |what: Seen| !seen.contains_key(&what);
    let events = EVENTS.iter().filter(|number| is_missing(Seen::Event(**number)));
    unobserved.extend(events.map(|number| format!("event: {}", number_name(*number))));
    let statuses = DTO_STATUSES.iter().filter(|status| is_missing(Seen::Dto(**status)));
    unobserved.extend(statuses.map(|status| format!("DTO status: {}", status_name(*status))));
    let statuses = RMR_STATUSES.iter().filter(|status| is_missing(Seen::Rmr(**status)));
    unobserved.extend(statuses.map(|status| format!("bind status: {}", status_name(*status))));
    let reasons = REASONS.iter().filter(|(number, reason)| is_missing(Seen::Async(*number, *reason)));
    unobserved.extend(reasons.map(|(number, reason)| format!("event: {}, reason {reason}", number_name(*number))));
    unobserved
}

fn is_answered(seen: &BTreeMap<Seen, Vec<&str>>, function: &str, answer: ExpectedCode) -> bool {
    let number = number_of(function);
    seen.keys().any(|what| match (*what, answer) {
        (Seen::ReturnCode(of, code), Whole(wanted)) => of == number && code == wanted,
        (Seen::ReturnCode(of, code), Kind(kind)) => of == number && kind_of(code) == error(kind, DAT_NO_SUBTYPE),
        _ => false,
    })
}

/// Index of a function in the flight record.
fn number_of(function: &str) -> u32 {
    let place = api::NAMES.iter().chain(api::added::NAMES).position(|name| *name == function);
    place.expect("the tests below check that each name is listed") as u32
}

fn words(answer: ExpectedCode) -> String {
    match answer {
        Whole(code) => of_code(code),
        Kind(kind) => format!("{}, any subtype", of_code(error(kind, DAT_NO_SUBTYPE))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_expected_return_codes_has_every_function_once() {
        let mut expected: Vec<&str> = ANSWERS.iter().map(|(function, _)| *function).collect();
        let mut names = api::NAMES.to_vec();
        expected.sort_unstable();
        names.sort_unstable();
        assert_eq!(expected, names);
        assert_eq!(names.len(), 73);
        assert!(REFUSED_IN.iter().all(|(function, _)| names.contains(function)));
    }

    /// The check looks for the code on the manual page and ignores the wording around it.
    #[test]
    fn every_expected_code_is_on_the_manual_page_of_its_function() {
        let mut missing = Vec::new();
        for item in unobserved(&BTreeMap::new()).into_iter().chain(unobserved_of_2_0(&BTreeMap::new())) {
            let Some((function, answer)) = item.split_once(": ") else { continue };
            if !api::NAMES.iter().chain(api::added::NAMES).any(|name| *name == function) {
                continue;
            }
            let path = format!("{}/../../docs/man/{function}.3.md", env!("CARGO_MANIFEST_DIR"));
            let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let term = |answer: &str| format!("- `DAT_{}`", answer.replace('/', "/DAT_"));
            // For a required code with any subtype, a page may name the type with or without a subtype.
            let (wanted, ends) = match (answer.strip_suffix(", any subtype"), answer.strip_prefix("bare ")) {
                (Some(kind), _) => (term(kind).trim_end_matches('`').to_owned(), ['`', '/']),
                (_, Some(whole)) => (term(whole) + " (bare)", [':', ':']),
                _ => (term(answer), [':', ':']),
            };
            if !page.lines().any(|line| line.strip_prefix(&*wanted).is_some_and(|rest| rest.starts_with(ends))) {
                missing.push(format!("{function}: {answer}"));
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn every_expectation_is_unobserved_without_recorded_calls() {
        let count = |lists: usize, list: usize| lists + list;
        let answers = ANSWERS.iter().map(|(_, answers)| answers.len()).fold(0, count);
        let states = REFUSED_IN.iter().map(|(_, states)| states.len()).fold(0, count);
        let events = EVENTS.len() + DTO_STATUSES.len() + RMR_STATUSES.len() + REASONS.len() + SOMEWHERE.len();
        assert_eq!(unobserved(&BTreeMap::new()).len(), answers + states + events);
    }
}
