//! SIGINT and SIGTERM: the first signal sets a flag that every wait for an event checks. The second signal kills the
//! process.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Result};

static IS_WANTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the signal handlers.
pub(crate) fn listen() -> std::io::Result<()> {
    let wanted = IS_WANTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // The order matters: on the first signal this handler finds the flag unset, and the next handler sets the flag.
        flag::register_conditional_default(signal, Arc::clone(wanted))?;
        flag::register(signal, Arc::clone(wanted))?;
    }
    Ok(())
}

/// Whether a signal has requested the end of the program.
pub(crate) fn is_wanted() -> bool {
    IS_WANTED.get().is_some_and(|wanted| wanted.load(Ordering::Relaxed))
}

/// Returns an error if a signal has requested the end.
pub(crate) fn check() -> Result {
    if is_wanted() { Err(Failure::Interrupted) } else { Ok(()) }
}
