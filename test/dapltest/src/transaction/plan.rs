//! The operations of a transaction in order, and the offsets of their data in memory. Both sides compute the same
//! plan.
#![forbid(unsafe_code)]

use dat_abi::DAT_IA_ATTR;

use crate::failure::{Failure, Result};
use crate::operation::{Operation, Side, Transfer};
use crate::shared_objects::Needs;
use crate::wire::Transaction;

/// Alignment of each operation's data.
const ALIGNMENT: usize = 64;
/// Maximum memory of one side, over all threads.
const MAX_MEMORY: usize = 1 << 30;

/// Senders of the three messages that end an iteration with data checks. The first: the client has finished. The
/// second: the server has finished, checked its data and prepared the next iteration. The third: the client has checked
/// its data and prepared the next iteration.
const CHECKPOINTS: [Side; 3] = [Side::Client, Side::Server, Side::Client];

/// A test with its memory layout.
pub(super) struct TransactionPlan {
    test: Transaction,
    operations: Vec<Operation>,
    /// Offset of each operation's data within an endpoint's memory.
    offsets: Vec<usize>,
    /// Bytes of memory per endpoint.
    stride: usize,
}

impl TransactionPlan {
    /// Creates the plan of a valid test. Fails if the adapter cannot execute it.
    pub(super) fn new(test: Transaction, adapter: &DAT_IA_ATTR) -> Result<Self> {
        let mut operations = test.operations.clone();
        if test.validates {
            operations.extend(CHECKPOINTS.map(Operation::signal));
        }
        let mut stride = 0;
        let place = |operation: &Operation| {
            let here = stride;
            stride += operation.length().next_multiple_of(ALIGNMENT);
            here
        };
        let offsets = operations.iter().map(place).collect();
        let plan = TransactionPlan { test, operations, offsets, stride };
        plan.fits(adapter)?;
        Ok(plan)
    }

    fn fits(&self, adapter: &DAT_IA_ATTR) -> Result {
        let all = self.length().saturating_mul(self.threads());
        if all > MAX_MEMORY {
            return Failure::with_message(format!(
                "the test needs {all} bytes at each side, more than {MAX_MEMORY}; reduce threads (-t), endpoints \
                 (-w) or bytes"
            ));
        }
        self.operations.iter().try_for_each(|operation| fits(operation, adapter))
    }

    pub(super) fn test(&self) -> &Transaction {
        &self.test
    }

    pub(super) fn threads(&self) -> usize {
        self.test.threads as usize
    }

    pub(super) fn endpoints(&self) -> usize {
        self.test.endpoints as usize
    }

    /// All operations, including the checkpoints.
    pub(super) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Index of the checkpoint if this operation is one.
    pub(super) fn checkpoint(&self, number: usize) -> Option<usize> {
        if !self.test.validates {
            return None;
        }
        number.checked_sub(self.operations.len() - CHECKPOINTS.len())
    }

    /// Bytes of memory per thread.
    pub(super) fn length(&self) -> usize {
        self.stride.saturating_mul(self.endpoints())
    }

    /// Offset of an operation's data in the thread's memory.
    pub(super) fn at(&self, endpoint: usize, number: usize) -> usize {
        endpoint * self.stride + self.offsets[number]
    }

    /// Required queue depths of a side's endpoints.
    pub(super) fn needs(&self, side: Side) -> Needs {
        let count = |wanted: fn(&Operation, Side) -> bool| {
            self.operations.iter().filter(|operation| wanted(operation, side)).count().max(1)
        };
        Needs {
            endpoints: self.endpoints(),
            receives: count(|operation, side| operation.transfer == Transfer::Send && operation.by != side),
            requests: count(|operation, side| operation.by == side),
            segments: self.operations.iter().map(|operation| operation.segments.into()).max().unwrap_or(1),
            length: self.operations.iter().map(Operation::length).max().unwrap_or(1),
            shares_evd: false,
        }
    }
}

/// Fails if the adapter cannot execute the operation.
pub(crate) fn fits(operation: &Operation, adapter: &DAT_IA_ATTR) -> Result {
    let (segments, longest) = match operation.transfer {
        Transfer::Send => (adapter.max_iov_segments_per_dto, adapter.max_message_size),
        Transfer::Read => (adapter.max_iov_segments_per_rdma_read, adapter.max_rdma_size),
        Transfer::Write => (adapter.max_iov_segments_per_rdma_write, adapter.max_rdma_size),
    };
    if i32::from(operation.segments) > segments {
        return Failure::with_message(format!("{operation}: the adapter takes {segments} segments at most"));
    }
    if operation.length() as u64 > longest {
        return Failure::with_message(format!("{operation}: the adapter takes {longest} bytes at most"));
    }
    Ok(())
}
