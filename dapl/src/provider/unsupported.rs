//! The placeholder type of objects that a provider does not support.
#![forbid(unsafe_code)]

use super::{MemoryWindow, Segment, SharedReceiveQueue};
use crate::error::Result;

/// A type without values. A provider without memory windows or shared receive queues uses it as the type of these
/// objects, and refuses their creation with `ModelNotSupported`.
pub enum Unsupported {}

impl MemoryWindow for Unsupported {
    fn is_bound(&self) -> bool {
        match *self {}
    }
}

impl SharedReceiveQueue for Unsupported {
    fn post_recv(&self, _: &[Segment], _: u64) -> Result<()> {
        match *self {}
    }

    fn available(&self) -> u32 {
        match *self {}
    }

    fn resize(&self, _: u32) -> Result<()> {
        match *self {}
    }

    fn watch(&self, _: u32) -> Result<()> {
        match *self {}
    }
}
