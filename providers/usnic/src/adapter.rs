//! An open interface adapter: device, connection manager and engine thread, and the [`EngineProgress`] that runs
//! passes.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::thread::JoinHandle;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{CmSink, IaSpec};
use dapl::runtime::{logger, thread};
use parking_lot::Mutex;

use crate::Usnic;
use crate::cm::Cm;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::jobs::Job;
use crate::engine::progress::EngineProgress;

pub(crate) struct Adapter {
    pub(crate) device: Arc<Device>,
    pub(crate) progress: Arc<EngineProgress>,
    pub(crate) cm: Arc<Cm>,
    engine: Mutex<Option<JoinHandle<()>>>,
}

impl Adapter {
    /// Opens the device and creates the connection manager. Logs its errors.
    pub(crate) fn open(spec: &IaSpec<'_>, sink: Arc<dyn CmSink<Usnic>>) -> Result<Adapter> {
        let device = Arc::new(Device::open(spec)?);
        let progress = Arc::new(EngineProgress::new(device.clone()));
        let cm = Cm::new(device.clone(), sink)?;
        Ok(Adapter { device, progress, cm, engine: Mutex::default() })
    }

    /// Starts the engine thread if it is not running. Called before each CQ, QP, SRQ or listener is created, so an
    /// adapter that never had such an object has no thread. Error: `Exhausted(Device)`, which this function logs.
    pub(crate) fn start_engine(&self) -> Result<()> {
        let mut engine = self.engine.lock();
        if engine.is_some() {
            return Ok(());
        }
        let name = self.device.name.clone();
        let run = Engine::new(self.device.clone(), self.progress.clone(), self.cm.clone());
        let started = thread::spawn("dapl-usnic", move || logger::with_ia(&name, || run.run())).map_err(|error| {
            log::error!(
                "{}: cannot start the engine thread: {error}; allow more processes (ulimit -u)",
                self.device.name
            );
            Error::Exhausted(Resource::Device)
        })?;
        *engine = Some(started);
        Ok(())
    }

    /// Ends all connections and connection attempts, notifies the peers, and stops the engine. Reports no events.
    pub(crate) fn shut_down(&self) {
        let Adapter { device, cm, .. } = self;
        cm.cancel_all();
        device.table.entries().into_iter().for_each(|entry| entry.handler.shut_down());
        device.jobs.push(Job::Stop);
        let engine = self.engine.lock().take();
        engine.into_iter().for_each(thread::join);
        device.jobs.close();
        // Breaks the reference cycle: the device owns the connection table, which refers to queue pairs, and each queue
        // pair refers to the device.
        device.table.entries().into_iter().for_each(|entry| device.free_number(entry.number));
    }
}

#[cfg(test)]
#[path = "tests/adapter.rs"]
mod tests;
