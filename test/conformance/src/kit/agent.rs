//! CNO agents made from closures, and an agent that records its calls.
#![forbid(unsafe_code)]

use std::ptr::without_provenance_mut;
use std::sync::{Arc, Mutex, PoisonError};

use dat_abi::*;

use super::object::Handle;
use super::thread::until;

/// Closure that an agent runs with the EVD that triggered it.
type AgentBody = Arc<dyn Fn(Handle) + Send + Sync>;

/// All closures of the process. The instance data of an agent is the closure's index plus one.
static AGENTS: Mutex<Vec<AgentBody>> = Mutex::new(Vec::new());

/// Creates an agent that runs a closure with the EVD that triggered it. A panic in the closure ends the process.
pub(crate) fn agent(body: impl Fn(Handle) + Send + Sync + 'static) -> DAT_OS_WAIT_PROXY_AGENT {
    let mut deeds = AGENTS.lock().unwrap_or_else(PoisonError::into_inner);
    deeds.push(Arc::new(body));
    DAT_OS_WAIT_PROXY_AGENT { instance_data: without_provenance_mut(deeds.len()), proxy_agent_func: Some(act) }
}

/// Returns an existing agent, by its instance data.
pub(crate) fn agent_again(data: usize) -> DAT_OS_WAIT_PROXY_AGENT {
    DAT_OS_WAIT_PROXY_AGENT { instance_data: without_provenance_mut(data), proxy_agent_func: Some(act) }
}

extern "C" fn act(data: DAT_PVOID, evd: DAT_EVD_HANDLE) {
    let body = AGENTS.lock().unwrap_or_else(PoisonError::into_inner).get(data.addr().wrapping_sub(1)).cloned();
    body.expect("the library passes the agent's own instance data")(Handle::of(evd));
}

/// Records the calls of an agent.
#[derive(Clone, Default)]
pub(crate) struct Agent(Arc<Mutex<Vec<Handle>>>);

impl Agent {
    /// Creates a recording agent to set on a CNO.
    pub(crate) fn arm(&self) -> DAT_OS_WAIT_PROXY_AGENT {
        let own = self.clone();
        agent(move |evd| own.note(evd))
    }

    /// Number of calls.
    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    pub(crate) fn note(&self, evd: Handle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(evd);
    }

    /// EVDs of all calls, in order.
    pub(crate) fn all(&self) -> Vec<DAT_EVD_HANDLE> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|evd| evd.h()).collect()
    }

    /// Waits for at least `count` calls, and returns the EVDs of all calls.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<DAT_EVD_HANDLE> {
        until(|| self.all().len() >= count);
        self.all()
    }
}
