//! Finds the atomic read-modify-writes in shared objects, so that the bench can count how often they are executed.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::process::Command;

use crate::Result;
use crate::quiet::text_of;

/// Addresses of atomic read-modify-writes by path of the object.
#[derive(Debug, Default)]
pub(super) struct Atomics(RefCell<HashMap<String, HashSet<u64>>>);

impl Atomics {
    /// Whether the object has an atomic read-modify-write at this address of its file.
    ///
    /// Errors: objdump fails.
    pub(super) fn has(&self, object: &str, address: u64) -> Result<bool> {
        if !object.starts_with('/') {
            return Ok(false); // the vDSO is not a file
        }
        let mut known = self.0.borrow_mut();
        if !known.contains_key(object) {
            let listing = text_of(Command::new("objdump").args(["--disassemble", "--no-show-raw-insn", object]))?;
            known.insert(object.to_owned(), addresses(&listing));
        }
        Ok(known.get(object).is_some_and(|addresses| addresses.contains(&address)))
    }

    #[cfg(test)]
    pub(super) fn of_listings(listings: &[(&str, &str)]) -> Self {
        let addresses = |(object, listing): &(&str, &str)| ((*object).to_owned(), addresses(listing));
        Atomics(RefCell::new(listings.iter().map(addresses).collect()))
    }
}

/// Addresses of the instructions with the prefix `lock`, and of `xchg` with memory, which needs no prefix.
fn addresses(listing: &str) -> HashSet<u64> {
    let is_atomic = |code: &str| code.starts_with("lock ") || code.starts_with("xchg") && code.contains('(');
    let lines = listing.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(_, code)| is_atomic(code.trim_start()))
        .filter_map(|(address, _)| u64::from_str_radix(address.trim_start(), 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_and_exchanges_with_memory_are_atomic() {
        let listing = "000000000006d170 <dequeue>:\n   6d170:\tlock cmpxchg %ecx,0x10(%rbx)\n   \
            6d175:\txchg   %ax,%ax\n   6d177:\txchg   %al,0x8(%rdi)\n   6d17a:\tmov    %rax,(%rdi)\n";
        let atomics = Atomics::of_listings(&[("/lib/one.so", listing)]);
        let found: Vec<u64> = (0x6d170..0x6d180).filter(|n| atomics.has("/lib/one.so", *n).unwrap()).collect();
        assert_eq!(found, [0x6d170, 0x6d177]);
    }
}
