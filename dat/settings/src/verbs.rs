//! Settings of verbs, in the environment. Settings with a `name` can also be given in `ia_params`.
//!
//! Most variables without `VERBS` in their name are those of the C implementation's providers. `DAPL_DIR` and
//! `DAPL_LISTENER_WAIT_MS` are read by all providers of this project. The words of `ia_params` without `=` name the
//! device and port.
#![forbid(unsafe_code)]

use crate::common::{dir, listener_wait, rnr_retry};
use crate::{NumberNotation, Setting, SettingsTable, Values, number};

/// The settings of `libdaplverbs.so.1`.
pub static VERBS: SettingsTable = SettingsTable {
    provider: "verbs",
    prefix: "DAPL_VERBS",
    plain: &[],
    notation: NumberNotation::C,
    settings: SETTINGS,
};

const fn optional(low: u64, high: u64, unset: &'static str, unit: &'static str) -> Values {
    Values::Optional { low, high, unset, unit }
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "cm",
        variable: "DAPL_VERBS_CM",
        values: Values::OneOf(&["rdma", "socket", "socket2", "none"]),
        meaning: "the connection manager",
    },
    Setting {
        name: "",
        variable: "DAPL_VERBS_GID_INDEX",
        values: optional(0, 65_535, "on RoCE the index of the GID of the IA's address, otherwise the lowest index", ""),
        meaning: "index of the GID in the port's table",
    },
    Setting {
        name: "",
        variable: "DAPL_MAX_INLINE",
        values: optional(0, 4_096, "200, or 64 over iWARP", " bytes"),
        meaning: "maximum length of a send or RDMA write that is posted inline",
    },
    Setting {
        name: "",
        variable: "DAPL_CM_ARP_TIMEOUT_MS",
        values: number(1, 3_600_000, 4_000, " ms"),
        meaning: "`rdma`: time to resolve an address",
    },
    Setting {
        name: "",
        variable: "DAPL_CM_ROUTE_TIMEOUT_MS",
        values: number(1, 3_600_000, 4_000, " ms"),
        meaning: "`rdma`: time to resolve a route",
    },
    Setting {
        name: "",
        variable: "DAPL_IBHOSTS",
        values: Values::Text("dapl/ibhosts in the configuration directory"),
        meaning: "`socket`, `socket2` and `none`: file that maps hosts to GIDs",
    },
    Setting {
        name: "",
        variable: "DAPL_IB_MTU",
        values: Values::OneOf(&["1024", "256", "512", "2048", "4096"]),
        meaning: "`socket`, `socket2` and `none`: bytes per packet (path MTU), at most the active MTU of the port",
    },
    Setting {
        name: "",
        variable: "DAPL_ACK_TIMER",
        values: number(0, 31, 16, ""),
        meaning: "time to wait for an acknowledgement, 4.096 us times 2 to the power of this; over `rdma` only on \
                  RoCE, as an upper limit",
    },
    Setting {
        name: "",
        variable: "DAPL_ACK_RETRY",
        values: number(0, 7, 7, ""),
        meaning: "retries after a missing acknowledgement",
    },
    Setting {
        name: "",
        variable: "DAPL_RNR_TIMER",
        values: number(0, 31, 12, ""),
        meaning: "RNR timer code (IBTA), which determines how long a sender waits when the peer has no receive",
    },
    Setting {
        name: "",
        variable: "DAPL_GLOBAL_ROUTING",
        values: number(0, 1, 0, ""),
        meaning: "`socket`, `socket2` and `none`: with 1 each packet has a global route header (GRH); on Ethernet each packet has \
                  one in any case",
    },
    Setting {
        name: "",
        variable: "DAPL_HOP_LIMIT",
        values: number(0, 255, 255, ""),
        meaning: "`socket`, `socket2` and `none`: hop limit of the global route header",
    },
    Setting {
        name: "",
        variable: "DAPL_TCLASS",
        values: number(0, 255, 0, ""),
        meaning: "`socket`, `socket2` and `none`: traffic class of the global route header",
    },
    Setting {
        name: "",
        variable: "DAPL_IB_SL",
        values: number(0, 15, 0, ""),
        meaning: "`socket`, `socket2` and `none`: service level",
    },
    Setting {
        name: "",
        variable: "DAPL_IB_PKEY",
        values: optional(0, 65_535, "the first key in the port's table", ""),
        meaning: "`socket`, `socket2` and `none`: partition key; 0 means the default",
    },
    Setting { name: "", ..dir() },
    Setting {
        name: "",
        variable: "DAPL_VERBS_PEER",
        values: Values::Text("the IA's own address and queue pair number"),
        meaning: "`none`: the peer's address, or the number of its queue pair (`same`, `+1`, `-1` or a number), or both \
                  with a comma in between",
    },
    listener_wait(),
    Setting { name: "", ..rnr_retry() },
];
