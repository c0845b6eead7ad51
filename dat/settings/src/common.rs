//! The settings of libdat, those of the object layer, and those that several providers share.
#![forbid(unsafe_code)]

use crate::{NumberNotation, Setting, SettingsTable, Values, number};

const MASK: u64 = u32::MAX as u64;

/// The settings of `libdat.so.1` and `libdat2.so.2`.
pub static LIBDAT: SettingsTable = SettingsTable {
    provider: "libdat",
    prefix: "DAT",
    plain: &[],
    notation: NumberNotation::C,
    settings: &[
        Setting {
            name: "",
            variable: "DAT_OVERRIDE",
            values: Values::Text("dat.conf in the configuration directory, otherwise in a standard directory"),
            meaning: "the dat.conf to read, instead of all others",
        },
        Setting {
            name: "",
            variable: "DAT_DBG_TYPE",
            values: number(0, MASK, 1, ""),
            meaning: "topics that libdat logs: bits 0x1 failed opens and invalid lines, 0x2 the same without a limit \
                      on their number, 0x4 files and loading, 0x8 registrations, 0x10 calls into providers, 0x20 calls \
                      of programs",
        },
        Setting {
            name: "",
            variable: "DAT_DBG_LEVEL",
            values: number(0, MASK, 0, ""),
            meaning: "further bits of `DAT_DBG_TYPE`",
        },
        Setting {
            name: "",
            variable: "DAT_DBG_DEST",
            values: number(1, 3, 1, ""),
            meaning: "destination of log lines: 1 stderr, 2 syslog, 3 both",
        },
    ],
};

/// The settings of the object layer, in every provider.
pub static DAPL: SettingsTable = SettingsTable {
    provider: "dapl",
    prefix: "DAPL",
    plain: &[],
    notation: NumberNotation::C,
    settings: &[
        Setting {
            name: "",
            variable: "DAPL_DBG_TYPE",
            values: number(0, MASK, 3, ""),
            meaning: "topics that providers log: bits 0x1 errors and 0x2 warnings, 0x4 event dispatchers, 0x8 connections, 0x10 \
                      endpoints, 0x20 all other modules, 0x40 notification objects, 0x1000 counters when an adapter is closed",
        },
        Setting {
            name: "",
            variable: "DAPL_DBG_DEST",
            values: number(1, 3, 1, ""),
            meaning: "destination of log lines, as for `DAT_DBG_DEST`",
        },
        Setting {
            name: "",
            variable: "DAPL_COUNTERS",
            values: Values::OneOf(&["on", "off"]),
            meaning: "whether a process with an endpoint, a shared receive queue or a listener publishes its counters to tools of the \
                      same user",
        },
        Setting {
            name: "io_trc",
            variable: "DAPL_DBG_IO_TRC",
            values: number(0, 65_536, 0, " posts"),
            meaning: "number of posts that each endpoint records, rounded up to a power of two; 1 means 32, 0 none",
        },
        Setting {
            name: "",
            variable: "DAPL_DBG_IO_TRC_FILE",
            values: Values::Text("none"),
            meaning: "a file; when its modification time changes, providers log the traces of all endpoints",
        },
    ],
};

// The functions below define settings that several providers share: the variable, the permitted values and the meaning
// are the same. The defaults may differ.

/// Base directory, in which processes find each other (sm), listeners (usnic) and names of shared memory (all). Each
/// provider has its own default.
pub(crate) const fn dir() -> Setting {
    Setting {
        name: "dir",
        variable: "DAPL_DIR",
        values: Values::Text("a directory of this user in /dev/shm, one for each provider"),
        meaning: "base directory in which processes of a user find each other (sm), listeners (usnic) and names of shared \
                  memory (all)",
    }
}

/// Maximum time that a wait polls before it sleeps.
pub(crate) const fn spin() -> Setting {
    Setting {
        name: "spin_us",
        variable: "DAPL_SPIN_US",
        values: number(0, 1_000_000, 150, " us"),
        meaning: "maximum time that a wait polls before it sleeps; the actual time adapts to the arrival of events",
    }
}

/// Time after which an idle connection sends a keepalive.
pub(crate) const fn keepalive(default: u64) -> Setting {
    Setting {
        name: "keepalive_ms",
        variable: "DAPL_KEEPALIVE_MS",
        values: number(100, 3_600_000, default, " ms"),
        meaning: "time after which an idle connection sends a keepalive",
    }
}

/// Time after which a peer that does not answer counts as lost.
pub(crate) const fn give_up(default: u64) -> Setting {
    Setting {
        name: "give_up_ms",
        variable: "DAPL_GIVE_UP_MS",
        values: number(1_000, 3_600_000, default, " ms"),
        meaning: "time without an answer after which a peer counts as dead",
    }
}

/// How long a connect is retried while there is no listener.
pub(crate) const fn listener_wait() -> Setting {
    Setting {
        name: "listener_wait_ms",
        variable: "DAPL_LISTENER_WAIT_MS",
        values: number(0, 60_000, 50, " ms"),
        meaning: "how long a connect without a listener is retried before it is rejected; 0 means no retry",
    }
}

/// Number of retries of a send after RNR.
pub(crate) const fn rnr_retry() -> Setting {
    Setting {
        name: "rnr_retry",
        variable: "DAPL_RNR_RETRY",
        values: number(0, 7, 7, ""),
        meaning: "retries of a send without a posted receive at the peer (RNR); 7 means no limit",
    }
}
