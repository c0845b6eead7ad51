//! Measures the minimum message length at which one copy by the kernel is faster than two copies through a buffer. The
//! measurement takes about a millisecond. It is made once per process, at the set-up of the first connection to a peer
//! with which cross-memory attach works, unless the setting `rma` selects the copy methods (spec/transports B2).
//!
//! Both methods are measured within this process: the kernel copies from and to the process's own memory. So the
//! measurement excludes the transfer of cache lines between CPUs, which both methods need. Only sends use the result:
//! RDMA always prefers one copy, because the target does not participate.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dapl_software::memory::user_copy;

use crate::memory::cma::{self, Direction, LocalBytes};

/// Minimum message length in bytes for a copy by the kernel, if it is not measured: the setting `rma` is not `auto`, or
/// cross-memory attach does not work with the peer.
pub(crate) const DEFAULT_CROSSOVER_BYTES: u64 = 32 << 10;
/// Lengths in bytes that are measured. The result is the shortest at which the kernel is not slower, or the last.
const CANDIDATE_BYTES: [usize; 4] = [16 << 10, 32 << 10, 64 << 10, 128 << 10];
/// Number of measurements of each copy. The shortest is used, because longer ones include interrupts or preemption.
const MEASUREMENTS: usize = 9;

/// Returns the minimum message length in bytes at which one copy is faster than two. The first call measures it.
pub(crate) fn crossover() -> u64 {
    static MEASURED: OnceLock<u64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let begin = Instant::now();
        let length = measure();
        log::debug!("messages of {length} bytes and more are copied by the kernel (measured in {:?})", begin.elapsed());
        length
    })
}

fn measure() -> u64 {
    let longest = CANDIDATE_BYTES[CANDIDATE_BYTES.len() - 1];
    let from = vec![1u8; longest];
    let (mut between, mut to) = (vec![2u8; longest], vec![3u8; longest]);
    let pid = std::process::id() as i32;
    let is_faster = |length: &usize| {
        // SAFETY: the buffers `from` and `to` belong to this call, and have at least `length` bytes.
        let by_kernel = best(|| unsafe {
            let into = LocalBytes::new(to.as_mut_ptr().addr() as u64, *length as u64);
            cma::copy(Direction::Read, pid, into, from.as_ptr().addr() as u64).is_ok()
        });
        // SAFETY: the three buffers belong to this call, do not overlap, and have at least `length` bytes.
        let by_buffer = best(|| unsafe {
            user_copy::copy(from.as_ptr(), between.as_mut_ptr(), *length);
            user_copy::copy(between.as_ptr(), to.as_mut_ptr(), *length);
            true
        });
        choose(by_kernel, by_buffer)
    };
    CANDIDATE_BYTES.into_iter().find(is_faster).unwrap_or(longest) as u64
}

/// Whether the kernel can copy, and takes at most as long as the copies through the buffer.
fn choose(by_kernel: Option<Duration>, by_buffer: Option<Duration>) -> bool {
    by_kernel.is_some_and(|kernel| by_buffer.is_none_or(|buffer| kernel <= buffer))
}

/// Returns the shortest of several measurements; `None` if the copy fails.
fn best(mut copy: impl FnMut() -> bool) -> Option<Duration> {
    let time = |_| {
        let begin = Instant::now();
        copy().then(|| begin.elapsed())
    };
    (0..MEASUREMENTS).map(time).collect::<Option<Vec<_>>>()?.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_crossover_is_a_candidate_length_and_constant() {
        let length = crossover();
        assert!(CANDIDATE_BYTES.contains(&(length as usize)), "{length}");
        assert_eq!(crossover(), length);
    }

    #[test]
    fn kernel_copies_are_chosen_if_they_work_and_are_not_slower() {
        let ms = |n| Some(Duration::from_millis(n));
        assert!(choose(ms(1), ms(2)) && choose(ms(2), ms(2)) && choose(ms(2), None));
        assert!(!choose(ms(3), ms(2)) && !choose(None, ms(2)) && !choose(None, None));
        assert_eq!(best(|| false), None);
    }
}
