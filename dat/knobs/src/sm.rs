//! What can be set in sm, per IA and by environment.
//!
//! Plain words of `ia_params` are first the base directory, then the number of the first end point, if wanted.
#![forbid(unsafe_code)]

use crate::{Knob, Notation, Table, Values, number};

/// The settings of `libdaplsm.so.1`.
pub static SM: Table =
    Table { provider: "sm", prefix: "DAPL_SM", plain: &["dir", "first_id"], notation: Notation::Decimal, knobs: KNOBS };

const KNOBS: &[Knob] = &[
    Knob {
        name: "dir",
        variable: "DAPL_SM_DIR",
        values: Values::Text("one of this user's under /dev/shm"),
        meaning: "base directory in which processes meet",
    },
    Knob {
        name: "first_id",
        variable: "DAPL_SM_FIRST_ID",
        values: number(1, 65_535, 1, ""),
        meaning: "number of the first end point of a process",
    },
    Knob {
        name: "pid",
        variable: "DAPL_SM_PID",
        values: number(0, 4_194_304, 0, ""),
        meaning: "process id in the addresses of end points; 0: the process's own",
    },
    Knob {
        name: "rma",
        variable: "DAPL_SM_RMA",
        values: Values::Order(&["knem", "cma", "mmap"]),
        meaning: "how RDMA moves bytes",
    },
    Knob {
        name: "calibrate",
        variable: "DAPL_SM_CALIBRATE",
        values: Values::OneOf(&["on", "off"]),
        meaning: "whether it is timed from which length on a message is fetched by one copy; only where `rma` is `auto`",
    },
    Knob {
        name: "cma",
        variable: "DAPL_SM_CMA",
        values: Values::OneOf(&["closed", "open"]),
        meaning: "whether the user's other processes may reach all memory of this one, where Yama forbids it",
    },
    Knob {
        name: "max_message",
        variable: "DAPL_SM_MAX_MESSAGE",
        values: number(1 << 16, 1 << 31, 1 << 31, " bytes"),
        meaning: "longest message or RDMA transfer",
    },
    Knob {
        name: "slots",
        variable: "DAPL_SM_SLOTS",
        values: number(8, 4096, 256, " slots"),
        meaning: "messages under way per connection and direction, rounded up to a power of two",
    },
    Knob {
        name: "message_buffer",
        variable: "DAPL_SM_MESSAGE_BUFFER",
        values: number(32 << 10, 1 << 20, 80 << 10, " bytes"),
        meaning: "buffer for messages that are longer than a slot, per connection and direction, rounded down to 64",
    },
    Knob {
        name: "rma_buffer",
        variable: "DAPL_SM_RMA_BUFFER",
        values: number(64 << 10, 1 << 20, 128 << 10, " bytes"),
        meaning: "buffer for RDMA by shared buffers, per connection and direction, rounded down to 64",
    },
    Knob {
        name: "spin_us",
        variable: "DAPL_SM_SPIN_US",
        values: number(0, 1_000_000, 150, " us"),
        meaning: "a wait looks at most so long before it sleeps; how long, it learns",
    },
    Knob {
        name: "alive_ms",
        variable: "DAPL_SM_ALIVE_MS",
        values: number(100, 3_600_000, 5_000, " ms"),
        meaning: "time between signs of life, at most a quarter of `silence_ms`",
    },
    Knob {
        name: "silence_ms",
        variable: "DAPL_SM_SILENCE_MS",
        values: number(1_000, 86_400_000, 60_000, " ms"),
        meaning: "after so long without a sign of life a peer is dead",
    },
    Knob {
        name: "listener_wait_ms",
        variable: "DAPL_SM_LISTENER_WAIT_MS",
        values: number(0, 60_000, 50, " ms"),
        meaning: "a connect that finds no listener is retried for this long before it is rejected; 0: not at all",
    },
];
