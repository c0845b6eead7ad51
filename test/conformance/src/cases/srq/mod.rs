//! Shared receive queues: as objects, as what many connections receive from, at the ends of connections, and watched.
#![forbid(unsafe_code)]

mod ends;
mod ep;
mod marks;
mod object;
mod pool;
mod queries;
mod receive;

use crate::kit::Case;

pub(crate) fn cases() -> Vec<Case> {
    let rooms = [object::cases(), ep::cases(), queries::cases(), receive::cases(), ends::cases(), marks::cases()];
    rooms.into_iter().flatten().collect()
}
