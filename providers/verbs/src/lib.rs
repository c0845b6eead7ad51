//! `libdaplverbs.so.1`: the uDAPL provider over rdma-core, for InfiniBand, RoCE and iWARP.
#![cfg(feature = "rdma-core")]

mod ibv;
mod knobs;
mod status;
