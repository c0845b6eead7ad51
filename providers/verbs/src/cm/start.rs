//! Starts the connection manager that the settings of an IA select.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Resource, Result};

use super::{Manager, none, rdma, socket};
use crate::device::Device;
use crate::manager_kind::ManagerKind;

/// Starts the connection manager that the settings select.
pub(crate) fn start(device: &Arc<Device>) -> Result<Arc<dyn Manager>> {
    Ok(match device.settings.manager {
        ManagerKind::Rdma => {
            let address = device.address.ok_or_else(|| {
                log::error!(
                    "{}: the port's network device has no IP address, which rdma_cm needs; add one (ip addr add)",
                    device.name
                );
                Error::Exhausted(Resource::Device)
            })?;
            rdma::RdmaManager::new(device, address)?
        }
        ManagerKind::Socket(format) => socket::SocketManager::new(device, format),
        ManagerKind::None => none::NoMessages::new(device),
        // Not reached: the open of the device fails for this manager.
        ManagerKind::Datagram => return Err(Error::Exhausted(Resource::Device)),
    })
}
